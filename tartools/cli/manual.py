"""Man pages and completions, made from the declarations of the commands.

`commands._manual` is the program. It writes `man/man1/NAME.1`, `completions/bash/NAME`, `completions/zsh/_NAME` and
`completions/fish/NAME.fish` for every command; with `--check` it writes nothing, names what is stale, and ends with
status 1 if anything is. The text of a page is the command's docstring. Completions are static: pressing Tab starts no
Python, except for the columns of a table. Names of fields come from the first members of the first archive on the
command line, listed by tar(1).

Three files of the project have a list of the commands, which is written too: the scripts of `pyproject.toml`, the table
of `README.md`, and SEE ALSO of `man/man7/tartools.7`, which also gets the suffixes of each kind of field. All pages get
their lines about installation (`cli.installation`).
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tartools.cli.command import Command
from tartools.cli.completions import BASH, BASH_FIELDS, FISH_FIELDS, ZSH_FIELDS, completions_of_tartools
from tartools.cli.declare import Declared
from tartools.cli.installation import with_install_lines
from tartools.samples.filetypes import ARRAYS, PICTURES, SOUNDS, TEXTS, VIDEOS

PROJECT, OVERVIEW_PAGE = Path(__file__).parents[2], "man/man7/tartools.7"
MAN_PAGE_DATE = "2026-11-20"  # of all man pages, so that they do not change with the day on which they are generated
COMPLETES_FILES, COMPLETES_DIRECTORIES, COMPLETES_FIELDS, COMPLETES_NOTHING = (
    "files",
    "directories",
    "fields",
    "nothing",
)
COMPLETIONS_BY_METAVAR = {
    "FILE": COMPLETES_FILES,
    "SCRIPT": COMPLETES_FILES,
    "SHARD": COMPLETES_FILES,
    "PLAN": COMPLETES_FILES,
    "URL": COMPLETES_FILES,
    "PREFIX": COMPLETES_FILES,
    "PATTERN": COMPLETES_FILES,
    "OUTPUT": COMPLETES_FILES,
    "DIR": COMPLETES_DIRECTORIES,
    "SPEC": COMPLETES_FIELDS,
    "NAMES": COMPLETES_FIELDS,
    "FIELD": COMPLETES_FIELDS,
}
COMMAND_LISTS = {  # file with a list of commands -> what precedes the list, and the list; a line of it
    "README.md": (r"(\| Command \| What it does \|\n\|---\|---\|\n)(?:\|.*\n)*", "| `{name}` | {summary} |\n"),
    "pyproject.toml": (
        r"(\[project\.scripts\]\ntartools = .*\n)(?:tar.*\n)*",
        '{name} = "tartools.commands.{name}:{name}"\n',
    ),
    OVERVIEW_PAGE: (r"(\.SH SEE ALSO\n\.BR tar \(1\))(?:,\n\.BR tar\w+ \(1\))*", ",\n.BR {name} (1)"),
}
SIGNAL_STATUSES = ("130, 141, 143", "Ended by SIGINT, by SIGPIPE (the reader of stdout has ended), by SIGTERM.")
STATUSES = (
    ("0", "Success."),
    ("1", "A failure, or an input that was skipped and reported. One line on stderr says what and where."),
    ("2", "An error in the command line."),
    SIGNAL_STATUSES,
)
COMPARED_COMMANDS = (
    ("0", "The data sets are equal; with --digest: success."),
    ("1", "They differ."),
    ("2", "Trouble: a failure, an input that was skipped and reported, or an error in the command line."),
    SIGNAL_STATUSES,
)
NOTES_BY_COMMAND = {
    "tarcat": (
        "GNU tar brings an unrelated script of this name, which joins the volumes of a multi-volume archive; Debian "
        "installs it as /usr/sbin/tarcat, with a page tarcat(1). Where that one comes first in PATH, "
        "'tartools tarcat' or 'python -m tartools tarcat' runs this one, and 'tartools man tarcat' shows this page."
    ),
}


def options_of(command: Command) -> tuple[list[Declared], list[Declared]]:
    """Return (arguments, options) of *command*; its own options are in the order declared, shared ones follow."""
    every = command.parameters.values()
    return [o for o in every if not o.names], sorted((o for o in every if o.names), key=lambda option: option.shared)


def completion_kind(option: Declared) -> str:
    """Return the kind of completion for the value of *option*, by its placeholder: one of the constants COMPLETES_*.

    Brackets, dots and all from a colon on are ignored: `[SHARD]...` is COMPLETES_FILES, N COMPLETES_NOTHING. It holds
    for options without choices; choices complete to their words.
    """
    return COMPLETIONS_BY_METAVAR.get(option.metavar.strip("[].").split(":")[0], COMPLETES_NOTHING)


def man_page(command: Command, names: Iterable[str]) -> str:
    """Return the page of *command* in section 1, in man(7) macros. *names*: all commands with a page, for SEE ALSO."""
    arguments, options_of_command = options_of(command)
    prose, _, examples = command.manual.partition("\nExamples:\n")
    words = [r"[\fIOPTION\fR]...", *(rf"\fI{_roff(argument.metavar)}\fR" for argument in arguments)]
    notes = [".SH NOTES", _roff(NOTES_BY_COMMAND[command.name])] if command.name in NOTES_BY_COMMAND else []
    own_options = [option for option in (*arguments, *options_of_command) if not option.shared or not option.names]
    shared = [option for option in options_of_command if option.shared]
    lines = [
        f'.TH {command.name.upper()} 1 {MAN_PAGE_DATE} "tartools" "tartools"',
        *(".SH NAME", f"{command.name} \\- {_roff(command.summary.rstrip('.'))}"),
        *(".SH SYNOPSIS", f".B {command.name}", " ".join(words)),
        *(".SH DESCRIPTION", *_prose(prose.partition("\n")[2].strip("\n"))),
        *(".SH OPTIONS", *_definition_list((_heading(option), option.help) for option in own_options)),
        *(".SH SHARED OPTIONS", "These mean the same in all commands that have them."),
        *_definition_list((_heading(option), option.help) for option in shared),
        *(".SH EXIT STATUS", *_definition_list(STATUSES if command.trouble == 1 else COMPARED_COMMANDS)),
        *(
            ".SH ENVIRONMENT",
            *_definition_list(_environment(options_of_command)),
            ".PP",
            r"See \fBtartools\fR(7) for more.",
        ),
        *(".SH EXAMPLES", *_examples(examples)),
        *notes,
        *(
            ".SH SEE ALSO",
            *(rf"\fB{command_name}\fR(1)," for command_name in names if command_name != command.name),
            r"\fBtartools\fR(7)",
        ),
    ]
    return "\n".join(lines) + "\n"


def _heading(option: Declared) -> str:
    r"""Return the names, with commas, and the placeholder of *option* in roff: names bold, the placeholder italic.

    For -c --count N: `\fB\-c\fR, \fB\-\-count\fR \fIN\fR`.
    """
    spelled = ", ".join(rf"\fB{name.replace('-', chr(92) + '-')}\fR" for name in option.names)
    return " ".join(filter(None, [spelled, rf"\fI{_roff(option.metavar)}\fR" if option.metavar else ""]))


def _environment(options_of_command: Sequence[Declared]) -> Iterator[tuple[str, str]]:
    """Yield (variable, explanation) for each environment variable that a man page of these options lists.

    First the `envvar` of the options that have one, then TARTOOLS_DEBUG, which all commands have.
    """
    yield from (
        (option.option.envvar, f"1 has the effect of {option.names[-1]}.")
        for option in options_of_command
        if option.option.envvar
    )
    yield "TARTOOLS_DEBUG", "1 prints a traceback with each error, for bug reports."


def _definition_list(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the roff lines of a list of (term, text) *pairs*: terms are roff already, texts are plain."""
    for term, text in pairs:
        yield from (".TP", term, _roff(text))


def _prose(text: str) -> Iterator[str]:
    """Yield the roff lines of *text*, a plain text with blank lines between its paragraphs.

    A paragraph that has indented lines is shown line by line, not filled.
    """
    for number, paragraph in enumerate(filter(None, re.split(r"\n\n+", text))):
        yield from [".PP"] if number else []
        if re.search(r"^ ", paragraph, re.MULTILINE):
            yield from _literal(paragraph)
        else:
            yield from map(_roff, paragraph.splitlines())


def _examples(text: str) -> Iterator[str]:
    """Yield the roff lines of examples: in *text*, purposes are indented by two blanks, the lines to type by four."""
    for number, example in enumerate(re.split(r"^  (?=\S)", text, flags=re.MULTILINE)[1:]):
        purpose, _, lines = example.partition("\n")
        yield from [".PP"] if number else []
        yield _roff(purpose)
        yield from _literal(re.sub(r"^  ", "", lines, flags=re.MULTILINE))


def _literal(text: str) -> Iterator[str]:
    """Yield the roff lines that show the lines of *text* unfilled and indented, less two blanks at their beginning."""
    yield from (".nf", ".RS 4")
    for line in text.strip("\n").splitlines():
        yield _roff(line.removeprefix("  ")) or r"\&"
    yield from (".RE", ".fi")


def _roff(text: str) -> str:
    r"""Return *text* so that roff shows it as it is. Only a hyphen within a word may be typographic.

    *text*: one line: in a second one, a dot at its begin would be taken for a macro.

    >>> print(_roff(".5 of end-of-archive, -o 'a b'"))
    \&.5 of end-of-archive, \-o \(aqa b\(aq
    """
    for character, escape in (("\\", r"\e"), ("'", r"\(aq"), ("`", r"\(ga"), ("^", r"\(ha"), ("~", r"\(ti")):
        text = text.replace(character, escape)
    text = re.sub(r"\S*(?<![A-Za-z0-9])-\S*|\S+-[0-9]\S*", lambda word: word[0].replace("-", r"\-"), text)
    return rf"\&{text}" if text.startswith(".") else text


def update_command_list(text: str, name: str, summaries: Mapping[str, str]) -> str:
    """Return *text*, the content of the file *name*, with a new list of commands made from *summaries*.

    *name*: a key of COMMAND_LISTS. *summaries*: summary by command, in the order of the list. Raises: ValueError if the
    text has no such list.
    """
    pattern, line = COMMAND_LISTS[name]
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"{name} has no list of commands: {pattern}")
    lines = "".join(line.format(name=command, summary=summary) for command, summary in summaries.items())
    return text[: match.end(1)] + lines + text[match.end() :]


def update_types(page: str) -> str:
    """Return *page*, the roff of tartools(7), with the suffixes of each kind of field written between its two marks.

    These are comments: "types of files" and "end of types of files". Raises: ValueError if there is no such mark.
    """
    head, begin, tail = page.partition('.\\" types of files\n')
    end = '.\\" end of types of files\n'
    if end not in tail:
        raise ValueError(f"tartools.7 has no lines {begin!r} and {end!r}")
    kinds = ("Pictures", PICTURES), ("Sounds", SOUNDS), ("Videos", VIDEOS), ("Arrays", ARRAYS), ("Text", TEXTS)
    lines = [*_definition_list((kind, " ".join(sorted(suffixes))) for kind, suffixes in kinds), ".PP"]
    return head + begin + "\n".join(lines) + "\n" + end + tail.partition(end)[2]


BASH_ACTIONS = {
    COMPLETES_FILES: "return 0",
    COMPLETES_FIELDS: "words=$(_tartools_fields)",
    COMPLETES_DIRECTORIES: "compopt -o dirnames +o default 2>/dev/null; return 0",
    COMPLETES_NOTHING: "words=''",
}


def bash_completion(command: Command) -> str:
    """Return the completion script of *command* for bash, also for bash 3.2 of macOS."""
    every = options_of(command)[1]
    cases: dict[str, list[str]] = {}
    for option in every:
        if option.metavar:
            words = f"words={shlex.quote(' '.join(option.choices))}"
            cases.setdefault(words if option.choices else BASH_ACTIONS[completion_kind(option)], []).extend(
                option.names
            )
    values = "".join(f"    {'|'.join(spelled)}) {action} ;;\n" for action, spelled in cases.items())
    listed = shlex.quote(" ".join(name for option in every for name in option.names))
    of_fields = BASH_FIELDS if COMPLETES_FIELDS in map(completion_kind, every) else ""
    return BASH.format(name=command.name, values=values, options=listed, of_fields=of_fields)


def zsh_completion(command: Command) -> str:
    """Return the completion script of *command* for zsh."""
    arguments, every = options_of(command)
    actions = {
        COMPLETES_FILES: "_files",
        COMPLETES_DIRECTORIES: "_files -/",
        COMPLETES_FIELDS: "_tartools_fields",
        COMPLETES_NOTHING: " ",
    }
    lines = [f"#compdef {command.name}", "# Made by python -m tartools.commands._manual.", "_arguments -s -S \\"]
    if any(completion_kind(option) == COMPLETES_FIELDS for option in every):
        lines.insert(2, ZSH_FIELDS)
    for option in every:
        action = f"({' '.join(option.choices)})" if option.choices else actions[completion_kind(option)]
        value = f":{option.metavar.replace(':', chr(92) + ':')}:{action}" if option.metavar else ""
        explained = re.sub(r"([\[\]:\\])", r"\\\1", option.help)
        once = "*" if option.repeats else f"({' '.join(option.names)})"
        lines += [f"  {shlex.quote(f'{once}{name}[{explained}]{value}')} \\" for name in option.names]
    lines += [f"  {shlex.quote('*:' + argument.metavar.strip('[].') + ':_files')}" for argument in arguments[:1]]
    return "\n".join(lines).removesuffix(" \\") + "\n"


def fish_completion(command: Command) -> str:
    """Return the completion script of *command* for fish."""
    lines = ["# Made by python -m tartools.commands._manual."]
    values = {
        COMPLETES_FILES: "-r -F",
        COMPLETES_DIRECTORIES: "-x -a '(__fish_complete_directories)'",
        COMPLETES_FIELDS: "-x -a '(__tartools_fields)'",
        COMPLETES_NOTHING: "-x",
    }
    every = options_of(command)[1]
    if any(completion_kind(option) == COMPLETES_FIELDS for option in every):
        lines.append(FISH_FIELDS)
    for option in every:
        spelled = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
        value = f"-x -a '{' '.join(option.choices)}'" if option.choices else values[completion_kind(option)]
        text = option.help.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(
            " ".join(filter(None, [f"complete -c {command.name}", spelled, option.metavar and value, f"-d '{text}'"]))
        )
    return "\n".join(lines) + "\n"


def generated_files(commands: Sequence[Command], builtins: Sequence[Command]) -> dict[str, str]:
    """Return the text of every generated file, and of every page of docs/, by its path in the project.

    *commands*: commands with a script, in the order of the README's table; they get a man page and completions.
    *builtins*: commands that only `tartools` runs. Reads the files that are generated only in part, and docs/. Raises:
    ValueError if a file of COMMAND_LISTS has no list of commands; OSError if a file can't be read.
    """
    rows = {command.name: command.summary for command in commands}
    summaries = dict(sorted(rows.items()))
    files = {
        name: update_command_list((PROJECT / name).read_text(), name, rows if name == "README.md" else summaries)
        for name in COMMAND_LISTS
    }
    files[OVERVIEW_PAGE] = update_types(files[OVERVIEW_PAGE])
    for path in PROJECT.glob("docs/**/*.md"):
        files[str(path.relative_to(PROJECT))] = path.read_text()
    files = {name: with_install_lines(text) for name, text in files.items()}
    for command in commands:
        files[f"man/man1/{command.name}.1"] = man_page(command, summaries)
        files[f"completions/bash/{command.name}"] = bash_completion(command)
        files[f"completions/zsh/_{command.name}"] = zsh_completion(command)
        files[f"completions/fish/{command.name}.fish"] = fish_completion(command)
    every = summaries | {command.name.split()[-1]: command.summary for command in builtins}
    return files | completions_of_tartools(every, summaries)


def stale_files(root: Path, files: Mapping[str, str]) -> list[str]:
    """Return paths, relative to *root*, that are missing, differ from the generated *files*, or belong to no command.

    The last: pages of section 1 and completions that are not in *files*. *files*: text by path. The paths are
    sorted. Raises: OSError if a file can't be read.
    """
    existing = [
        str(path.relative_to(root))
        for place in (OVERVIEW_PAGE, "man/man1/*.1", "completions/*/*")
        for path in root.glob(place)
    ]
    differing = [
        name for name, text in files.items() if not (root / name).exists() or (root / name).read_text() != text
    ]
    return sorted({*differing, *existing} - (set(files) - set(differing)))


def main(arguments: Sequence[str], files: Mapping[str, str]) -> int:
    """Write the generated *files* that are not up to date, and delete old pages and completions of no command.

    Prints their paths. Return the exit status: 0; with `--check`, which changes nothing and reports these files on
    stderr, 1 if there are any. *arguments*: `[--check] [DIRECTORY]`; the directory is the project by default. *files*:
    text by path in the directory. Raises: OSError if a file can't be read or written.
    """
    root = next((Path(a) for a in arguments if a != "--check"), PROJECT)
    wrong = stale_files(root, files)
    if "--check" in arguments:
        for name in wrong:
            sys.stderr.write(f"{name} is stale: run python -m tartools.commands._manual\n")
        return 1 if wrong else 0
    for name in wrong:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in files:
            path.write_text(files[name])
        else:
            path.unlink()
        sys.stdout.write(f"{name}\n")
    return 0
