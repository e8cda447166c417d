"""Samples with the same fields, which numpy finds, are told as those that are looked at one by one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.archives import END, entry, pax
from tests.conftest import python

# runs each command line with stdout in a file; prints the statuses, and how many batches came by columns
PROGRAM = """
import json, os, sys
from tartools.commands.tar2tsv import tar2tsv
from tartools.commands.tarstat import tarstat
from tartools.tar import groups
if sys.argv[1] == "columns":
    import numpy
made, make = [], groups.Alike.__init__
def noted(*found):
    made.append(1)
    make(*found)
groups.Alike.__init__ = noted
told = []
for number, (name, *arguments) in enumerate(json.loads(sys.argv[2])):
    os.dup2(os.open(f"{sys.argv[1]}-{number}", os.O_WRONLY | os.O_CREAT), 1)
    told.append([number, {"tar2tsv": tar2tsv, "tarstat": tarstat}[name].main(arguments), len(made)])
    sys.stderr.flush()
    made.clear()
print(json.dumps(told), file=sys.stderr)
"""
COUNT = 1000  # samples: several buffers

Fields = Callable[[int], list[tuple[bytes, bytes]]]


def some(n: int) -> list[tuple[bytes, bytes]]:
    return [(b"txt", b"word " * (n % 400)), (b"cls", b"%d" % (n % 50)), (b"y.Id", b"%d\n" % n)]


def odd(at: int, *fields: tuple[bytes, bytes]) -> Fields:
    """Return what makes the same fields everywhere but in sample *at*, which has these."""
    return lambda n: list(fields) if n == at else some(n)


ARCHIVES: dict[str, Fields] = {
    "plain": some,
    "escaped": odd(750, (b"txt", b""), (b"cls", b"a\tb\\\r\nc\n"), (b"y.Id", b"\n\n")),
    "tab": odd(750, (b"txt", b""), (b"cls", b"\t"), (b"y.Id", b"")),
    "bytes": odd(750, (b"txt", b""), (b"cls", b"\xff"), (b"y.Id", b"1")),
    "split": lambda n: [(b"txt", b"x" * 900), (b"cls", b"\xc3" if n > 500 else b"1"), (b"y.Id", b"\xa9")],
    "lacking": odd(750, (b"txt", b"")),
    "twice": lambda n: [(b"cls", b"1"), (b"cls" if n > 500 else b"y.id", b"2"), (b"txt", b"x" * 900)],
    "twice once": odd(750, (b"cls", b"1"), (b"cls", b"2"), (b"y.Id", b"")),
    "long": odd(750, (b"txt", b"t" * 70_000), (b"cls", b"c" * 257), (b"y.Id", b"4")),
    "ids": lambda n: [(b"cls", b"%d" % n), (b"y.Id", b"%d" % n)],
    "pictures": lambda n: [(b"jpg", b"no picture"), (b"cls", b"1"), (b"y.Id", b"6")],
    "other order": lambda n: some(n)[:: -1 if n > 500 else 1],
}  # fmt: skip
OPTIONS = [
    ("tar2tsv", "-f", "cls"),
    ("tar2tsv", "-f", "cls", "--verbatim", "--fill", "none"),
    ("tar2tsv", "--fill", "-", "--no-key", "-f", "id=Y.ID;cls y.Id;cls"),
    ("tar2tsv", "--csv", "-f", "cls __size__", "--fill", ""),
    ("tarstat", "-p", "1"),
    ("tarstat", "--json", "-p", "1", "--classes", "y.id"),
]


def content(fields: Fields) -> Iterator[bytes]:
    numbers = random.Random(1).sample(range(COUNT), COUNT)
    for number, n in enumerate(numbers):
        if number == 600:
            yield pax((b"path", b"d/long.cls")) + entry(b"x", b"5")
        yield b"".join(entry(b"d/%d.%b" % (n, field), payload) for field, payload in fields(number))
    yield entry(b"alone", b"1") + END


@pytest.mark.parametrize("names", [list(ARCHIVES)[part::4] for part in range(4)], ids=str)
def test_columns_tell_what_samples_tell(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / f"{name}.tar").write_bytes(b"".join(content(ARCHIVES[name])))
    lines = [[*options, f"{name}.tar"] for name in names for options in OPTIONS]
    said = {}
    for way in ("loop", "columns"):
        done = python(PROGRAM, way, json.dumps(lines), folder=tmp_path)
        assert done.status == 0
        said[way] = done.stderr.splitlines()
    loop, columns = (json.loads(said[way].pop()) for way in ("loop", "columns"))
    assert said["columns"] == said["loop"]
    for number, status, many in columns:
        assert (tmp_path / f"columns-{number}").read_bytes() == (tmp_path / f"loop-{number}").read_bytes(), lines[
            number
        ]
        assert loop[number] == [number, status, 0]
        assert many or status, lines[number]
