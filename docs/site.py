"""What mkdocs calls: the pages of the site that are made of other files, so that nothing is written twice.

The README is the first page. Man pages become HTML by mandoc. ARCHITECTURE.md, CONTRIBUTING.md, CHANGELOG.md and the
example come from where they are. The pages of the Python names are lists of them, for mkdocstrings.
"""

from __future__ import annotations

import ast
import posixpath
import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tartools import commands
from tartools.cli.manual import options

ROOT = Path(__file__).parent.parent
TAKEN = {  # page of the site: file of the project
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "example.md": "examples/train_shapes.py",
}
DECODERS = "What `decode` may name is listed in [Training with PyTorch](../training/pytorch.md#pictures)."
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(\))")


def on_config(config: Any) -> Any:
    """Set the navigation."""
    pages = [path.stem for path in sorted(ROOT.glob("man/man1/*"))]
    training = ["pytorch", "frameworks", "fields", "order", "mixtures", "masks", "sound"]
    training += ["webdataset", "litdata", "streaming"]
    training += ["joined", "energon", "datasets", "dataflux", "aistore", "cortx", "zip"]
    training += sorted({path.stem for path in ROOT.glob("docs/training/*.md")} - {*training})
    decisions = [path.name for path in sorted(ROOT.glob("docs/adr/*.md")) if path.name != "index.md"]
    config["nav"] = [
        {"tartools": "index.md"},
        {"First hour, URLs, damage": "man/tartools.md"},
        {"Cookbook": "cookbook.md"},
        {"Questions": "questions.md"},
        {"Hugging Face": "huggingface.md"},
        {"Training": [{"An example": "example.md"}, *(f"training/{name}.md" for name in training)]},
        {"Commands": [*({name: f"man/{name}.md"} for name in pages), {"All options": "options.md"}]},
        {"Python": [{"tartools": "python/tartools.md"}, {"tartools.train": "python/train.md"}]},
        {"Files that name inputs": "trust.md"},
        {"Servers": "servers.md"},
        {"Benchmarks": "benchmarks.md"},
        {"Inside": ["architecture.md", "contributing.md", "changelog.md"]},
        {"Decisions": ["adr/index.md", *(f"adr/{name}" for name in decisions)]},
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made of other files."""
    made = {page: taken(source) for page, source in TAKEN.items()}
    made |= {f"man/{path.stem}.md": manual(path) for path in sorted(ROOT.glob("man/man*/*"))}
    made["python/tartools.md"] = names("tartools", public_names())
    made["python/train.md"] = names("tartools.train", training_names(), DECODERS)
    made["adr/index.md"] = decisions()
    made["options.md"] = options_page()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to files of the project into links to their pages."""
    here = page.file.src_uri
    if here.startswith("adr/") or here == "changelog.md":
        page.meta["search"] = {"exclude": True}  # they say much about everything
    source = TAKEN.get(here, f"docs/{here}")
    pages = {source: page for page, source in TAKEN.items()}

    def moved(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        target = "adr/index.md" if path == "docs/adr" else pages.get(path, path.removeprefix("docs/"))
        return f"{found[1]}{posixpath.relpath(target, posixpath.dirname(here) or '.')}{found[3] or ''}{found[4]}"

    return LINK.sub(moved, markdown)


def literal(text: str) -> str:
    """Return *text* for a cell of a table, in which Markdown would make `__key__` bold, and end the cell at |."""
    return re.sub(r"[^\w\s.,:;='()/-]|_", lambda found: f"&#{ord(found[0])};", text)


def options_page() -> str:
    """Return the page of all options: what each does, and the commands that have it."""
    lines = [
        "# All options",
        "A long option means the same in all commands that have it. The page of each command says more.",
        "| Option | What it does | Commands |\n|---|---|---|",
    ]
    every = [(option, name) for name in commands.names() for option in options(commands.load(name))[1]]
    found: dict[tuple[str, str], list[str]] = {}  # one with another help is another one
    for option, name in sorted(every, key=lambda pair: pair[0].names[-1]):
        found.setdefault((" ".join((", ".join(option.names), option.metavar)).rstrip(), option.help), []).append(name)
    rows = []
    for (spelled, what), having in found.items():
        rows.append(f"| <code>{literal(spelled)}</code> | {literal(what)} | {' '.join(having)} |")
    return "\n\n".join(lines) + "\n" + "\n".join(rows) + "\n"


def taken(source: str) -> str:
    """Return the page of the file *source*; a program's docstring becomes its text."""
    text = (ROOT / source).read_text()
    if not source.endswith(".py"):
        return text
    said = ast.get_docstring(ast.parse(text)) or ""
    return f"# {Path(source).name}\n\n{said}\n\n```python\n{text.partition(chr(34) * 3 + chr(10) + chr(10))[2]}```\n"


def manual(path: Path) -> str:
    """Return the man page *path*: headings as Markdown, for the list of contents, and what is below them as HTML."""
    line = ["mandoc", "-T", "html", "-O", "fragment", str(path)]
    try:
        shown = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise SystemExit("the site's man pages need mandoc (apt install mandoc; brew install mandoc)") from None
    shown = shown[shown.index("<section") : shown.rindex("</section>")].replace("</section>\n", "")
    heads = r'<section class="(S[hs])">\n<h\d class="S[hs]" id="[^"]*"><a [^>]*>(.*?)</a></h\d>\n'
    parts = re.split(heads, shown, flags=re.DOTALL)
    text = [f"# {path.stem}"]
    for kind, title, below in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        words = " ".join(title.split())
        text.append(f"## {words.capitalize()}" if kind == "Sh" else f"### {words}")
        text.append(f'<div class="manual">\n{linked(below)}\n</div>')
    return "\n\n".join(text) + "\n"


def linked(text: str) -> str:
    """Turn names of man pages in HTML, `<b>tarcat</b>(1)` or `tarcat(1)`, into links."""
    pages = "|".join(sorted(page.stem for page in ROOT.glob("man/man*/*")))
    return re.sub(rf"(<b>)?\b({pages})(</b>)?\(([17])\)", r'<a href="\2.html">\2(\4)</a>', text)


def public_names() -> list[str]:
    """Return where the names of `tartools` are."""
    return [f"tartools.{name}" for name in assigned("tartools/__init__.py", "__all__")]


def training_names() -> list[str]:
    """Return where the names of `tartools.train` are, `loader` first."""
    modules = assigned("tartools/train/__init__.py", "_MODULES")
    places = [
        f"tartools.train.{module}.{name}" if module else f"tartools.train.{name}" for name, module in modules.items()
    ]
    return sorted(places, key=lambda place: not place.endswith(".loader"))


def assigned(source: str, name: str) -> Any:
    """Return the literal that the module *source* assigns to *name*."""
    for node in ast.parse((ROOT / source).read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{source} does not assign {name}")


def names(module: str, places: list[str], *said: str) -> str:
    """Return the page of the public names of *module*, with what is *said* above them."""
    return "\n\n".join([f"# {module}", *said, *(f"::: {place}" for place in places)]) + "\n"


def decisions() -> str:
    """Return the list of decisions."""
    lines = ["# Decisions", "", "Design decisions, with their reasons.", ""]
    for path in sorted(ROOT.glob("docs/adr/*.md")):
        title = path.read_text().partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"
