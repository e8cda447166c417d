r"""Tasks: the command or function for each item, and its outcome.

Nothing here starts anything: `localjobs` runs tasks on this machine, `ray` on a cluster.

The words of a command have places: `{}`, `{.}`, `{/}` and `{/.}`. A place is replaced by the item as it is: no shell
reads the words of COMMAND. But some words are code for a shell that COMMAND starts, and there an item like `a;rm -rf ~`
would be run. We do not parse that code to quote the item. In these words we accept only items of characters that mean
nothing to any shell (`check_item`):

    word                                                example
    ------------------------------------------------------------------------------------------------
    after -c, --command, --post, --wrap                 sh -c 'wc {}'; tarsplit --post 'up {}'
    behind --command=, --post=, --wrap=                 tarproc --command='wc {}'
    after options with a c, of a shell or tarproc       bash -lc 'wc {}'; tarproc -Sc 'wc {}'
    behind such a c                                     tarproc -c'wc {}'
    with pipe: in it                                    tarcat 'pipe:wc {}'
    after eval, ssh, parallel, watch: all words         ssh host wc {}

"After" is up to the first word that is not an option, which is included: `bash -c -e CODE`. The table finds too much
rather than too little: `wc -c {}` is in it. What is refused by mistake costs a message; what is run by mistake, data.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tartools.errors import UsageError, concealed, redacted, shown, without_secrets

PLACEHOLDER = re.compile(r"\{/?\.?\}")  # {} {.} {/} {/.}
PLAIN_WORD = re.compile(r"[A-Za-z0-9._/:@%+=,-]+")  # means nothing to any shell
SHELLS = {
    *("sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "tcsh", "zsh"),
    *("flock", "runuser", "script", "sg", "su"),  # pass what follows -c to a shell
    "tarproc",
}
WORD_JOINING_COMMANDS = {"eval", "parallel", "ssh", "watch"}  # join all words behind them to one line for a shell
CODE_OPTION = re.compile(r"-c|--command|--post|--wrap")
CODE_BEHIND = re.compile(r"--(?:command|post|wrap)=.*", re.DOTALL)
SHELL_OPTIONS = re.compile(r"-[0-9A-Za-z]*c.*", re.DOTALL)
OUTPUT_OPTION_WITH_VALUE = re.compile(r"(?:--output=|-[0hiqrSvz]*o)(?=.)(.*)", re.DOTALL)  # as in -vox-{}.tar
OUTPUT_OPTION = re.compile(r"--output|-[0hiqrSvz]*o")
PARALLEL_OPTION = re.compile(r"(?:--parallel=?|-[0hiqSvz]*p)([0-9]+)")  # as in -vp8
ITEM_VARIABLE = "TARJOB_ITEM"  # the variable that holds the item for each command


class Task(NamedTuple):
    """The command for one item.

    `item`: the item
    `words`: the command, with its places filled
    `output`: the path or URL whose existence shows that it is done; "" if it is unknown
    `force`: True if an existing output is replaced, and does not count as done
    `expected`: True if the output must exist when the command has ended, or else the task has failed
    """

    item: str
    words: tuple[str, ...]
    output: str = ""
    force: bool = False
    expected: bool = False

    @property
    def environment(self) -> dict[bytes, bytes]:
        """The variables that the command gets beside ours: TARJOB_ITEM, and with `force` also TARTOOLS_FORCE=1."""
        force = {b"TARTOOLS_FORCE": b"1"} if self.force else {}
        return {os.fsencode(ITEM_VARIABLE): os.fsencode(self.item), **force}


class TaskResult(NamedTuple):
    """How a task ended.

    `status`: exit status; negative: ended by that signal; None: unknown, or it did not run
    `failure`: how it failed; "" if it succeeded
    `seconds`: time of all tries; `tries`: how many there were; `host`: name of the machine
    `stderr`: the end of what it wrote there; `stdout`: all of it, if it succeeded
    """

    status: int | None
    failure: str = ""
    seconds: float = 0.0
    tries: int = 1
    host: str = ""
    stderr: str = ""
    stdout: bytes = b""

    @property
    def last_line(self) -> str:
        """The last line of stderr that is not empty; "" if there is none."""
        return next((line.strip() for line in reversed(self.stderr.splitlines()) if line.strip()), "")


def fill_pattern(pattern: str, item: str) -> str:
    """Return *pattern* with its places filled for *item*, as by GNU parallel.

    {} is the item, {.} the item without its last suffix, {/} its base name, {/.} its base name without the last suffix.

    >>> fill_pattern("{/.}", "gs://b/train-01.tar.gz")
    'train-01.tar'
    """
    base = item.rpartition("/")[2]
    bare, bare_base = (re.sub(r"\.[^/.]+$", "", name) for name in (item, base))
    words = {"{}": item, "{.}": bare, "{/}": base, "{/.}": bare_base}
    return PLACEHOLDER.sub(lambda match: words[match[0]], pattern)


def find_shell_code(command: Sequence[str]) -> list[str]:
    """Return the words of *command* that have a place, such as {}, and that a shell reads as code.

    These are words after -c, --command, --post and --wrap, up to the first that is no option, and words that begin with
    --command=, --post= or --wrap=; after the name of one of `SHELLS`, options with a c in them, and the words after
    such an option, likewise; all words after eval, ssh, parallel and watch; and words with pipe: in them.

    >>> find_shell_code(["bash", "-lc", "wc {}", "{}"]), find_shell_code(["tarcat", "{}", "-o", "pipe:zstd > {}"])
    (['wc {}'], ['pipe:zstd > {}'])
    """
    code = []
    after_shell = after_joiner = is_next = False
    for word in command:
        options = after_shell and SHELL_OPTIONS.fullmatch(word)
        if is_next or after_joiner or options or "pipe:" in word or CODE_BEHIND.fullmatch(word):
            code.append(word)
        name = os.path.basename(word)
        is_next = (is_next and word[:1] in ("-", "+")) or bool(CODE_OPTION.fullmatch(word) or options)
        after_shell = after_shell or name in SHELLS
        after_joiner = after_joiner or name in WORD_JOINING_COMMANDS
    return [word for word in code if PLACEHOLDER.search(word)]


def check_item(item: str, code: Sequence[str]) -> None:
    """Raise UsageError if *item* is empty or has characters special to shells, and *code* is not empty.

    *code*: the words of the command that a shell reads as code. Not special: A-Z a-z 0-9 . _ / : @ % + = , -
    """
    if code and not PLAIN_WORD.fullmatch(item):
        before, pipe, command = code[0].partition("pipe:")
        line = concealed(before) + (shown(pipe + command) if pipe else "")
        raise UsageError(
            f"a shell would read this item as code in {line!r}; items with characters other than "
            'A-Z a-z 0-9 ._/:@%+=,- are refused there: write "$TARJOB_ITEM" instead of {}',
            url=item or "''",
        )


def make_tasks(items: Iterable[str], command: Sequence[str], output: str, *, force: bool) -> list[Task]:
    """Return a task for each of *items*: *command* with its places filled, or with the item as its last word.

    *output*: pattern of the outputs, such as "out/{/}", which are `expected`. If it is empty, the pattern is the word
    after -o in *command*, if that has a place and gives another text than the item, or else outputs are unknown.
    *force*: replace outputs that exist.

    Raises: UsageError for two items with one output, for an item that another one writes, for an item that a shell
    would read as code, and for an *output* without a place, or that names no file or object.
    """
    if not any(PLACEHOLDER.search(word) for word in command):
        command = [*command, "{}"]
    if output and (not PLACEHOLDER.search(output) or output.startswith("pipe:") or output.endswith("/")):
        raise UsageError(f"-o {output!r} can't show what is done: it must contain {{}} and name one file or object")
    pattern = output or find_output_pattern(command)
    code = find_shell_code(command)
    tasks = []
    for item in items:
        check_item(item, code)
        name = fill_pattern(pattern, item) if pattern else ""
        if name == item and not output:  # -o of a program where it means something else
            name = ""
        tasks.append(Task(item, tuple(fill_pattern(word, item) for word in command), name, force, bool(output)))
    _check_outputs(tasks)
    return tasks


def _check_outputs(tasks: Sequence[Task]) -> None:
    """Raise UsageError if two of *tasks* write one output, or if one writes the item of another.

    URLs are compared as texts; unknown outputs ("") are left out. A task may write its own item.
    """
    items: dict[str, str] = {}  # by output
    for task in tasks:
        if task.output in items:
            other_item = items[task.output]
            both = (
                f"{shown(task.item)!r} and {shown(other_item)!r}"
                if other_item != task.item
                else f"{shown(other_item)!r}, twice,"
            )
            raise UsageError(redact_signatures(f"{both} would both write {shown(task.output)!r}", task))
        if task.output:
            items[task.output] = task.item
    for task in tasks:
        if items.get(task.item, task.item) != task.item:
            raise UsageError(
                f"{shown(task.item)!r} is an item, and the output of {shown(items[task.item])!r}: "
                "narrow --spec so that it does not match outputs"
            )


def find_output_pattern(command: Sequence[str]) -> str:
    """Return the pattern, with a place such as {}, that follows -o or --output in *command*; "" if outputs are unknown.

    The first such pattern counts, without those that begin with pipe:. Outputs are unknown if there is none, and where
    there are many: for tarsplit, and for a pattern that ends in "/".

    >>> find_output_pattern(["tarcat", "in-{}.tar", "-o", "out-{}.tar"])
    'out-{}.tar'
    >>> find_output_pattern(["tarcat", "--output=x.tar", "{}"])
    ''
    """
    if split_program(command)[0] == "tarsplit":
        return ""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        match = OUTPUT_OPTION_WITH_VALUE.fullmatch(word)
        pattern = following if OUTPUT_OPTION.fullmatch(word) else match[1] if match else ""
        if PLACEHOLDER.search(pattern) and not pattern.startswith("pipe:"):
            return "" if pattern.endswith("/") else pattern
    return ""


def split_program(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return (base name of the program that *command* runs, its words from the program on).

    *command*: at least one word. For `python -m tartools NAME ...` the result is NAME, and the words from NAME on; ""
    and no words without NAME.
    """
    name = os.path.basename(command[0])
    if name.startswith("python") and tuple(command[1:3]) == ("-m", "tartools"):
        return command[3] if len(command) > 3 else "", command[3:]
    return name, command


def parse_workers(command: Sequence[str], tools: Iterable[str]) -> int | None:
    """Return the number of workers that -p or --parallel gives in *command*: 0 for all cores, 1 without the option.

    The first one with a number counts. None if the program is none of *tools*, names of programs of ours.

    >>> parse_workers(["tarproc", "-vp", "16", "-c", "true"], ["tarproc"])
    16
    >>> parse_workers(["mkdir", "-p", "7"], ["tarproc"]) is None
    True
    """
    name, command = split_program(command)
    if name not in tools:
        return None
    for word, following in zip(command, [*command[1:], ""], strict=True):
        match = PARALLEL_OPTION.fullmatch(word + following if word.endswith(("p", "--parallel")) else word)
        if match:
            return int(match[1])
    return 1


def shell_line(task: Task) -> str:
    r"""Return the line that runs *task* in a shell, with the variables that it needs; for messages.

    They are TARJOB_ITEM if a word names it, and TARTOOLS_FORCE=1 with `force`. If a word contains a newline, only bash,
    or another shell with $'...', runs the line.

    >>> shell_line(Task("a", ("echo", "a b", "it's\n")))
    "echo 'a b' $'it\\'s\\n'"
    """
    variables = (
        [f"{ITEM_VARIABLE}={_quote_word(task.item)}"] if any(ITEM_VARIABLE in word for word in task.words) else []
    )
    if task.force:
        variables.append("TARTOOLS_FORCE=1")
    return " ".join([*variables, *map(_quote_word, task.words)])


def _quote_word(word: str) -> str:
    """Return *word* quoted for a shell, on one line: a newline is written as an escape in $'...'."""
    if "\n" not in word:
        return shlex.quote(word)
    return "$'" + word.replace("\\", r"\\").replace("'", r"\'").replace("\n", r"\n") + "'"


def redact_signatures(text: str, task: Task, *, cut: bool = False) -> str:
    """Return *text*, which is about *task*, without the queries of URLs, which may be signatures, and user info.

    "?…" and "…@" take the place of these; the query of the item or the output also goes where it stands without the
    rest of the URL. If the beginning of *text* was *cut* off, "…" replaces its first word: it may be the end of a URL.

    >>> task = Task("https://host/a.tar?key=1", ())
    >>> redact_signatures("GET /a.tar?key=1 failed: https://other/b?key=2", task)
    'GET /a.tar?… failed: https://other/b?…'
    """
    if not text:
        return text
    for url in (task.item, task.output):
        if url != redacted(url):
            text = text.replace(f"?{url.partition('?')[2]}", "?…")
    if cut:
        text = re.sub(r"\A\S+", "…", text)
    return without_secrets(text)


def take_part(tasks: Sequence[Task], part: str | None) -> Sequence[Task]:
    """Return part K of N of *tasks*, for *part* "K/N": every N-th task from the K-th (from 1) on; all for None.

    Empty if there are fewer than K tasks. Raises: UsageError if *part* is not K/N with K from 1 to N.
    """
    if part is None:
        return tasks
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", part)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--only {part!r} is not K/N with K from 1 to N")
    return tasks[int(match[1]) - 1 :: int(match[2])]
