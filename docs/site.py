"""What mkdocs calls: the pages of the site that are made of other files, so that nothing is written twice.

The README is the first page. The navigation is by task. Man pages become HTML by mandoc. llms.txt and llms-full.txt
have the pages for machines. ARCHITECTURE.md, CONTRIBUTING.md, CHANGELOG.md and the
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
from tartools.cli.manual import options_of
from tartools.cli.plainpage import plain_text

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


SECTIONS = {  # of the navigation, by task: pages below docs; one that does not exist is left out
    "Begin": ("install", "man/tartools", "cookbook", "pipelines", "questions"),
    "Look": ("look", "browse"),
    "Make": ("make", "known-sets", "converting"),
    "Check": ("check", "damaged"),
    "Choose": ("choose",),
    "Order and cut": ("order",),
    "Process": ("process", "progress"),
    "Move": ("move", "endpoints", "huggingface", "servers", "trust"),
    "Train": ("train", "hangs", "example", "training/"),  # and all other pages of docs/training
    "Scale": ("scale", "many-shards", "memory"),
    "Python": ("python", "python/tartools", "python/train"),
    "Inside": ("architecture", "contributing", "changelog", "benchmarks", "peers"),
}
TRAINING_ORDER = (
    *("pytorch", "frameworks", "fields", "order", "mixtures", "masks", "text", "sound", "video", "preprocessing"),
    *("webdataset", "litdata", "streaming", "joined", "energon", "datasets", "dataflux", "aistore", "cortx", "zip"),
)
TITLES = {"man/tartools": "First hour, URLs, damage", "example": "An example"}
TITLES |= dict.fromkeys(("look", "make", "check", "process", "move", "train", "scale", "python"), "Overview")
UNSEARCHED = ("adr/", "changelog.md")  # pages that say much about everything
MACHINE_INTRODUCTION = """\
# tartools

> Unix commands and a Python library for machine-learning data sets kept as tar shards (WebDataset format).

`llms-full.txt` has the text of all of these pages. `tartools skill` prints one page for an assistant.
"""


def on_config(config: Any) -> Any:
    """Set the navigation."""
    machine_pages.clear()
    sections: list[Any] = [{"tartools": "index.md"}]
    for title, names in SECTIONS.items():
        pages = [page for name in names for page in section_pages(name)]
        sections.append({title: [{TITLES[page]: f"{page}.md"} if page in TITLES else f"{page}.md" for page in pages]})
    grouped = [
        {task.capitalize(): [{name: f"man/{name}.md"} for name in group if name not in commands.BUILTINS]}
        for task, group in commands.COMMANDS_BY_TASK.items()
        if {*group} - {*commands.BUILTINS}
    ]
    sections.insert(-2, {"Commands": [*grouped, {"All options": "options.md"}]})
    named = {name for names in SECTIONS.values() for name in names}
    if others := sorted({path.stem for path in ROOT.glob("docs/*.md")} - named):
        sections.insert(-3, {"More": [f"{name}.md" for name in others]})
    config["nav"] = sections
    return config


def section_pages(name: str) -> list[str]:
    """Return the pages that *name* of SECTIONS stands for, without suffix: one, none, or all of docs/training."""
    if name != "training/":
        is_made = f"{name}.md" in TAKEN or name.startswith(("man/", "python/"))
        return [name] if is_made or (ROOT / f"docs/{name}.md").exists() else []
    there = {path.stem for path in ROOT.glob("docs/training/*.md")}
    ordered = [page for page in TRAINING_ORDER if page in there]
    return [f"training/{page}" for page in (*ordered, *sorted(there - {*ordered}))]


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
    if here.startswith(UNSEARCHED):
        page.meta["search"] = {"exclude": True}
    elif not here.startswith("python/") and here != "options.md":
        machine_pages.append((here, machine_text(here, markdown)))
    source = TAKEN.get(here, f"docs/{here}")
    pages = {source: page for page, source in TAKEN.items()}

    def moved(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        target = "adr/index.md" if path == "docs/adr" else pages.get(path, path.removeprefix("docs/"))
        target = re.sub(r"^man/man\d/(\w+)\.\d$", r"man/\1.md", target)
        return f"{found[1]}{posixpath.relpath(target, posixpath.dirname(here) or '.')}{found[3] or ''}{found[4]}"

    return LINK.sub(moved, markdown)


machine_pages: list[tuple[str, str]] = []  # of the build: path of the page, its text


def machine_text(page: str, markdown: str) -> str:
    """Return the text of *page* for llms-full.txt: its Markdown, or plain text for a man page."""
    if not page.startswith("man/"):
        return re.sub(r" ?<!--.*?-->", "", markdown, flags=re.DOTALL).strip() + "\n"
    (source,) = ROOT.glob(f"man/man*/{Path(page).stem}.?")
    return f"# {source.stem}({source.suffix[1:]})\n\n{plain_text(source.read_text(), 100)}"


def on_post_build(config: Any) -> None:
    """Write llms.txt, the list of pages with their first sentences, and llms-full.txt, their text."""
    folder = Path(config["site_dir"])
    lines = []
    for page, text in machine_pages:
        title = text.partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({page.removesuffix('.md')}.html): {first_sentence(text)}")
    (folder / "llms.txt").write_text(MACHINE_INTRODUCTION + "\n## Pages\n\n" + "\n".join(lines) + "\n")
    (folder / "llms-full.txt").write_text("\n\n".join(text for _, text in machine_pages))


def first_sentence(text: str) -> str:
    """Return the first sentence of a page, without links; of a man page its summary."""
    if summary := re.search(r"^NAME\n {4}\S+ - (.*)$", text, re.MULTILINE):
        return summary[1]
    paragraphs = re.split(r"\n\n+", re.sub(r"^(#|!\[|Install:).*$", "", text, flags=re.MULTILINE))
    plain = next((p for p in paragraphs if re.match(r"[A-Z*`\[]", p.strip())), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(plain.split()))
    return re.split(r"(?<=[.:?]) ", plain)[0].rstrip(":")


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
    every = [(option, name) for name in commands.names() for option in options_of(commands.load(name))[1]]
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
