"""What a power cut leaves: a run's system calls, by strace, and the states that the disk may be in between two of them.

The model: what was written to a file is there after a power cut if the file was synced after that; else any number of
its blocks from the front are. A new name is there if its folder was synced after it was given; names that were not
synced were given, or lost, in the order of the calls. The data of a name are those of the file that it was given to.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

BLOCK = 4096  # bytes
NEVER = sys.maxsize  # a line
TEMPORARY = ".tmp"
WRITES = ("write", "writev", "pwrite64", "sendfile", "copy_file_range")
NAMES = ("link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat")
TRACED = ",".join((*WRITES, *NAMES, "open", "openat", "creat", "ftruncate", "fsync", "fdatasync", "exit_group"))
LINE = re.compile(r"(\d+) +(?:<\.\.\. \w+ resumed>)?(.*)")
CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)(.*)", re.DOTALL)
DESCRIPTOR = re.compile(r"\d+<(.*?)(?:\(deleted\))?>")
NAME = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Call(NamedTuple):
    """A system call that succeeded: it began and ended at these lines of the log."""

    name: str
    words: str
    result: int
    begin: int
    end: int

    @property
    def paths(self) -> list[str]:
        """Return the names among its arguments."""
        return [name.encode("latin-1").decode("unicode_escape") for name in NAME.findall(self.words)]

    @property
    def file(self) -> str:
        """Return the path of the file that it writes to or syncs."""
        found = DESCRIPTOR.findall(self.words)
        return str(found[1 if self.name == "copy_file_range" else 0])


def traced(words: Sequence[str], folder: Path, *more: str, env: Mapping[str, str] | None = None) -> list[Call]:
    """Run *words* in *folder* under strace; return its calls in the order of their ends. *more* are for strace."""
    if not shutil.which("strace"):
        pytest.skip("strace is missing")
    log = folder.with_name(folder.name + ".strace")
    command = ["strace", "-f", "-y", "-qq", "-s", "0", "-e", "signal=none", "-e", f"trace={TRACED}", *more]
    environment = {**os.environ, "TARTOOLS_FSYNC": "", **(env or {})}
    done = subprocess.run(
        [*command, "-o", str(log), *words], cwd=folder, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done
    return list(_calls(log.read_text("latin-1")))


def _calls(log: str) -> Iterator[Call]:
    begun: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(log.splitlines()):
        found = LINE.match(line)
        assert found, line
        process, text = found.groups()
        begin, before = begun.pop(process, (number, ""))
        text = before + text
        if text.endswith(" <unfinished ...>"):
            begun[process] = begin, text.removesuffix(" <unfinished ...>")
            continue
        call = CALL.match(text)
        if call and call[3] != "?" and int(call[3]) >= 0 and "(INJECTED)" not in call[4]:
            yield Call(call[1], call[2], int(call[3]), begin, number)


class _Naming(NamedTuple):
    """A change of the names in a folder: *name* leads to *file* from then on; None: to nothing."""

    begin: int
    synced: int  # the line from which on it outlives a power cut
    name: str
    file: str | None


class Disk:
    """What *calls* wrote below *folder*, in which the files *before* were on the disk already."""

    def __init__(self, calls: Sequence[Call], folder: Path, before: Mapping[str, bytes] | None = None) -> None:
        self.folder = str(folder)
        self._before = {f"{folder}/{name}": content for name, content in (before or {}).items()}
        self._last = max((call.end for call in calls), default=0)
        self._written: dict[str, list[tuple[int, int]]] = {}  # of each file: lines, and its size from there on
        self._synced: dict[str, list[tuple[int, int]]] = {}
        self._final: dict[str, str] = {}  # the last name of each file
        self._names = self._read(calls)

    def _read(self, calls: Sequence[Call]) -> list[_Naming]:
        changes: list[tuple[int, int, str, str | None]] = []
        syncs: dict[str, list[tuple[int, int]]] = {}
        for call in calls:
            if call.name in WRITES:
                sizes = self._written.setdefault(call.file, [])
                sizes.append((call.end, (sizes[-1][1] if sizes else 0) + call.result))
            elif call.name in ("fsync", "fdatasync"):
                syncs.setdefault(call.file, []).append((call.begin, call.end))
                self._synced.setdefault(call.file, []).append((call.end, _size(self._written, call.file, call.begin)))
            elif call.name in NAMES or "O_CREAT" in call.words:
                changes += [(call.begin, call.end, *change) for change in self._changes(call)]
        return [
            _Naming(
                begin,
                min((done for start, done in syncs.get(os.path.dirname(name), []) if start > end), default=NEVER),
                name,
                file,
            )
            for begin, end, name, file in sorted(changes, key=lambda change: change[0])
            if name.startswith(self.folder + "/") and (name in self._before or os.path.lexists(self._last_name(name)))
        ]

    def _changes(self, call: Call) -> Iterator[tuple[str, str | None]]:
        paths = [os.path.normpath(os.path.join(self.folder, path)) for path in call.paths]
        if call.name.startswith(("link", "rename")):
            self._final[paths[0]] = paths[1]
            yield paths[1], paths[0]
        if call.name.startswith(("rename", "unlink")):
            yield paths[0], None
        if not call.name.startswith(("link", "rename", "unlink")):
            yield paths[0], paths[0]

    def _last_name(self, file: str) -> str:
        return self._final.get(file, file)

    def check_order(self) -> None:
        """Assert that no name was given before its file was synced, and that all names were synced before the end."""
        outputs = [each for each in self._names if not each.name.endswith(TEMPORARY)]
        assert outputs, "nothing was written"
        for each in outputs:
            assert each.synced <= self._last, f"{each.name}: its folder was not synced"
            if each.file in self._written:
                whole, synced = (_size(sizes, each.file, NEVER) for sizes in (self._written, self._synced))
                if each.file != each.name:
                    synced = _size(self._synced, each.file, each.begin)
                assert synced == whole, f"{each.name}: {synced} of {whole} bytes were synced"

    def states(self, temporary: bool = True) -> list[dict[str, bytes]]:
        """Return each content that the files may have, at any point of the run; or that of files that are complete."""
        found: dict[tuple[tuple[str, str, int], ...], None] = {}
        lines = {line for sizes in (*self._written.values(), *self._synced.values()) for line, _ in sizes}
        for line in sorted({0, self._last, *lines, *(each.begin for each in self._names)}):
            open_ = [each for each in self._names if each.begin <= line < each.synced]
            for count in range(len(open_) + 1):
                names = self._named(line, open_[:count])
                if not temporary:
                    names = {name: file for name, file in names.items() if not name.endswith(TEMPORARY)}
                sizes = [self._sizes(file, line) for file in names.values()]
                for choice in _choices(sizes):
                    found[
                        tuple((name, file, size) for (name, file), size in zip(names.items(), choice, strict=True))
                    ] = None
        return [{name: self._content(file)[:size] for name, file, size in state} for state in found]

    def _named(self, line: int, more: Sequence[_Naming]) -> dict[str, str]:
        """Return the names that were synced by *line*, and *more*, with their files."""
        names = {name: name for name in self._before}
        for each in self._names:
            if each.synced <= line or each in more:
                names.pop(each.name, None)
                if each.file and not os.path.isdir(each.file):
                    names[each.name] = each.file
        return names

    def _sizes(self, file: str, line: int) -> list[int]:
        """Return the bytes that may be left of *file*."""
        if file in self._before and file not in self._written:
            return [len(self._before[file])]
        least, most = (_size(sizes, file, line) for sizes in (self._synced, self._written))
        return [*range(least, most, BLOCK), most]

    def _content(self, file: str) -> bytes:
        return self._before.get(file) or Path(self._last_name(file)).read_bytes()


def _size(sizes: Mapping[str, list[tuple[int, int]]], file: str | None, line: int) -> int:
    return max((size for at, size in sizes.get(file or "", []) if at <= line), default=0)


def _choices(sizes: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield the largest of all *sizes*, the least of all, and each one beside the largest of the others."""
    yield tuple(each[-1] for each in sizes)
    yield tuple(each[0] for each in sizes)
    for place, each in enumerate(sizes):
        for size in each[:-1]:
            yield tuple(size if number == place else other[-1] for number, other in enumerate(sizes))
