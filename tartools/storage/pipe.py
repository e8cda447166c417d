"""Commands as inputs and outputs: `pipe:COMMAND`, and `GOPEN_<SCHEME>` templates.

A command runs in `sh`, as a `Child`: it is ended with all processes that it has started.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from functools import partial

from tartools.errors import StorageError, UsageError, concealed
from tartools.storage.children import TERM_SECONDS, Child, describe_status, end_all, reader_pids
from tartools.storage.streams import FileSink, Input, enlarge_pipe
from tartools.storage.url import PIPE_PREFIX

# Syntax that changes the meaning of quotes, or of quoted text: arithmetic, expansions, comments; and
# commands that read a word again,
# as code or as a name of a variable.
_NESTED_PIPE = re.compile(
    r"`|<<|\$'|\(\(|\$\[|\$\{[^}]*\{|(?<![^\s;&|()<>])#"
    r"|(?<![\w.-])(?:eval|trap|alias|ssh|parallel|watch|let|declare|typeset|read|printf\s+-v)(?=\s)|\[\[\s|\w\["
)
URL_PLACEHOLDER = "{}"
SHARD_VARIABLE = "TAR_SHARD"  # the variable with the name that replaces {}


def fill_template(template: str, word: str) -> str:
    r"""Return *template* with each `{}`, its quotes included, replaced by *word* as one shell word.

    A word of harmless characters may stand anywhere but behind a $. Any other may not become part of a quoted string:
    it could end the string, or the shell could run commands in it.

    >>> fill_template("gsutil cat '{}'", "gs://b/it's.tar")
    'gsutil cat \'gs://b/it\'"\'"\'s.tar\''

    Raises: UsageError for a `{}` behind a $. For a word of other characters also for a `{}` beside other text in
    quotes, or in a template with syntax that may read text as code (eval, ssh, <<, comments); and, even without a `{}`,
    for such syntax in a template with quotes or escapes, and for a quote, or a $( in quotes, that is not closed.
    """
    placeholder = re.compile(r"""'{}'|"{}"|{}""")
    if re.search(rf"\$(?:{placeholder.pattern})", template):  # $"text" and $'text' are other kinds of quotes
        raise _unquotable_error(template, word)
    if shlex.quote(word) == word:
        return placeholder.sub(word, template)
    quoted = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|{}|['"]""", re.DOTALL)

    def fill_token(match: re.Match[str]) -> str:
        """Return the replacement for one token of the template: a `{}`, a quoted string, an escape, or a lone quote.

        It is the quoted word for a `{}`, else the token as it is. Raises: UsageError where the word might not be read
        as one word, and for a lone quote.
        """
        part = match[0]
        if placeholder.fullmatch(part) and not _NESTED_PIPE.search(template):
            return shlex.quote(word)
        unclosed = part[part.find("$(") :].count(")") < part.count("$(")
        if URL_PLACEHOLDER in part or part in "'\"" or unclosed or _NESTED_PIPE.search(template):
            raise _unquotable_error(template, word)
        return part

    return quoted.sub(fill_token, template)


def _unquotable_error(template: str, word: str) -> UsageError:
    """Return the error that the shell might not read *word*, in place of {} in *template*, as one word."""
    return UsageError(
        f'a shell might not read this name as one word here: write "${SHARD_VARIABLE}" instead of {{}}, '
        f"or have {{}} stand alone, or alone in quotes: {concealed(template)}",
        url=word,
    )


def run_template(template: str, word: str) -> None:
    """Run the command *template* for the shard *word*, which replaces `{}` and is in `$TAR_SHARD`, and wait for it.

    Its stdin is empty, its stdout goes to stderr. If the wait is interrupted, the command is ended. Raises:
    StorageError if it ends with a status other than 0; UsageError if the shell might not read *word* as one word there,
    as `fill_template` says; OSError if sh can't be started.
    """
    command = ["sh", "-c", fill_template(template, word)]
    child = Child(command, stdin=subprocess.DEVNULL, stdout=2, env={**os.environ, SHARD_VARIABLE: word})
    try:
        status = child.wait()
    except BaseException:
        child.end()
        raise
    if status:
        raise StorageError(f"the command for this shard {describe_status(status)}: {concealed(template)}", url=word)


class CommandInput(Input):
    """The stdout of the shell command *command*, which runs at once. At its end, a status other than 0 is a failure.

    *url*: the name for messages. *env*: the environment of the command; None for the environment of this process. Its
    stdin is empty. Raises: OSError if it can't be started.
    """

    def __init__(self, command: str, url: str, env: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._child = Child(["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env)
        assert isinstance(self._child.stdout, io.FileIO)
        self._output = self._child.stdout
        enlarge_pipe(self._output.fileno())

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; return how many, 0 at the end, when the command has ended.

        Raises: StorageError at the end if the status of the command is not 0.
        """
        count = self._output.readinto(view) or 0
        if not count and (status := self._child.wait()):
            raise StorageError(f"the command {describe_status(status)}", url=self._url)
        return count

    def fileno(self) -> int:
        """Return the descriptor, which a fork of this process can read too."""
        return self._output.fileno()

    def cancel(self) -> bool:
        """End the command, so that a `readinto` in another thread returns or raises StorageError; return True."""
        self._child.end()
        return True

    def close(self) -> None:
        """Close the pipe: a command that writes on gets SIGPIPE. End it if it still runs after TERM_SECONDS.

        Its exit status is ignored.
        """
        self._output.close()
        if self._child.wait(TERM_SECONDS) is None:
            self._child.end()

    def __del__(self) -> None:
        """End the command if it still runs."""
        child: Child | None = getattr(self, "_child", None)
        if child is not None and child.is_running:
            child.end()


def open_read(url: str) -> CommandInput:
    """Run the command of the `pipe:` URL from now on; return its stdout as input.

    Raises: OSError if sh can't be started.
    """
    return CommandInput(url.removeprefix(PIPE_PREFIX), url)


class CommandOutput:
    """The stdin of the shell command *command*, which runs from now on, and gets an end of file at `commit` only.

    *url*: the name for messages. `sink` takes the bytes. The command writes to the stdout of this process. Raises:
    OSError if it can't be started.
    """

    def __init__(self, command: str, url: str) -> None:
        self._child = Child(["sh", "-c", command], stdin=subprocess.PIPE)
        assert self._child.stdin is not None
        with self._child.stdin as pipe:
            self.sink = FileSink(os.dup(pipe.fileno()), url)  # so that the descriptor has one owner
        enlarge_pipe(self.sink.fileno())
        self._open = True

    def commit(self) -> None:
        """Close the pipe and wait for the command. Raises: StorageError if it ends with a status other than 0."""
        self.sink.close()
        if status := self._child.wait():
            raise StorageError(f"the command {describe_status(status)}", url=self.sink.url)
        self._open = False

    def abort(self) -> None:
        """Kill the command before its stdin ends, so that it can't take a part of an archive for all of it.

        All other readers of the pipe are killed too, as far as `reader_pids` sees them, even if the command that
        started them has ended; but not after a failed `commit`, which has closed the pipe. Does nothing after a
        `commit` that succeeded.
        """
        if self._open:
            self._open = False
            pipe_readers = None if self.sink.closed else partial(reader_pids, self.sink.fileno())
            end_all([self._child], signal.SIGKILL, extra_pids=pipe_readers)
            self.sink.close()


def open_write(url: str, force: bool) -> CommandOutput:
    """Run the command of the `pipe:` URL from now on; return its stdin as output. *force* has no effect.

    Raises: OSError if sh can't be started.
    """
    return CommandOutput(url.removeprefix(PIPE_PREFIX), url)
