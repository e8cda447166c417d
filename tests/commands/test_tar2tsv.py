"""tar2tsv, through the installed command; samples with the same fields, which numpy finds for it and for tarstat."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.archives import END, entry, pax
from tests.conftest import Run, make_samples, make_tar, python

META = b'{"width": 640, "name": "x", "none": null, "size": [1, {"a": true}]}'
ARCHIVE = make_tar([("d/a.cls", b"5\n"), ("d/a.meta.json", META), ("d/b.cls", b"7"), ("d/b.meta.json", b"{}")])


def test_a_header_and_one_row_a_sample(run: Run) -> None:
    done = run("tar2tsv", "-v", "-f", "cls", stdin=ARCHIVE)
    assert done.status == 0 and done.stdout == b"__key__\tcls\nd/a\t5\nd/b\t7\n"
    assert done.stderr.startswith("tar2tsv: 2 samples in, 2 out, ")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "__key__\nd/a\nd/b\n"),
        (("-f", "cls", "--no-key"), "cls\n5\n7\n"),
        (("-f", "cls", "--no-header"), "d/a\t5\nd/b\t7\n"),
        (("-f", "cls __key__"), "cls\t__key__\n5\td/a\n7\td/b\n"),
        (("-f", "cls", "-f", "label=CLS"), "__key__\tcls\tlabel\nd/a\t5\t5\nd/b\t7\t7\n"),
        (("-f", "class;cls", "--no-key"), "class;cls\n5\n7\n"),
        (
            ("-f", "__index__ __shard__ __size__", "--no-key"),
            "__index__\t__shard__\t__size__\n0\tstdin\t2048\n1\tstdin\t2048\n",
        ),
        (("-f", "cls", "--verbatim", "--no-key"), "cls\n5\\n\n7\n"),
        (("-f", "meta.json:width", "--fill", "NA"), "__key__\tmeta.json:width\nd/a\t640\nd/b\tNA\n"),
        (("-f", "w=meta.json:size.1.a", "--fill", "", "--no-key"), "w\ntrue\n\n"),
        (("-f", "meta.json:name meta.json:none", "-c", 1, "--no-key"), "meta.json:name\tmeta.json:none\nx\tnull\n"),
        (("-f", "cls", "-c", 1), "__key__\tcls\nd/a\t5\n"),
        (("-f", "cls", "-c", 0), "__key__\tcls\n"),
        (("-f", "nope cls", "-c", 0, "--fill", "NA"), "__key__\tnope\tcls\n"),
        (("-f", "cls", "--csv"), "__key__,cls\r\nd/a,5\r\nd/b,7\r\n"),
    ],
)
def test_options(run: Run, options: tuple[object, ...], expected: str) -> None:
    assert run("tar2tsv", *options, stdin=ARCHIVE) == (0, expected.encode(), "")


def test_json_lines_keep_types(run: Run) -> None:
    done = run("tar2tsv", "--jsonl", "-f", "cls meta.json:width meta.json:none __index__", "--fill", "?", stdin=ARCHIVE)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"__key__": "d/a", "cls": "5", "meta.json:width": 640, "meta.json:none": None, "__index__": 0},
        {"__key__": "d/b", "cls": "7", "meta.json:width": "?", "meta.json:none": "?", "__index__": 1},
    ]


def test_special_characters(run: Run) -> None:
    value = 'a\tb\nc\\d\re"f,ü\\n\n'
    archive = make_tar([("a.txt", value.encode())])
    assert run("tar2tsv", "--no-key", "--no-header", "-f", "txt", stdin=archive).stdout == (
        'a\\tb\\nc\\\\d\\re"f,ü\\\\n\n'.encode()
    )
    rows = run("tar2tsv", "--csv", "--verbatim", "-f", "txt", stdin=archive).stdout.decode()
    assert list(csv.reader(io.StringIO(rows, newline=""))) == [["__key__", "txt"], ["a", value]]


@pytest.mark.parametrize(
    ("members", "options", "message"),
    [
        (
            [("a.cls", b"1"), ("b.txt", b"2")],
            ("-f", "cls"),
            "sample 'b' has no value for 'cls'; its fields are: txt (--fill",
        ),
        ([("a.cls", b"1"), ("a.jpg", b"\xff\xd8")], ("-f", "jpg"), "sample 'a', field 'jpg': not UTF-8 text (byte 0)"),
        ([("a.json", b"{")], ("-f", "json:x"), "sample 'a', field 'json': not JSON"),
        ([("a.json", b'{"x": [1]}')], ("-f", "json:x.²"), "sample 'a' has no value for 'json:x.²'"),
        ([("a.json", b'{"x": "\\ud800"}')], ("-f", "json:x"), "sample 'a': 'json:x' is not valid Unicode"),
        (
            [("a\udcff.cls", b"1")],
            ("-f", "cls"),
            "'__key__' is not valid Unicode, so a table cannot hold it (tarcat --rekey",
        ),
        ([("a\udcff.cls", b"1")], ("-f", "cls", "--jsonl"), "'__key__' is not valid Unicode"),
        (
            [("a.cls", b"1"), ("a.txt", b"")],
            ("-f", "nope cls", "--fill", ""),
            "no sample had a value for nope; the fields were: cls txt",
        ),
        (
            [("a.cls", b"1"), ("b.nope", b"")],  # which is not read
            ("-f", "nope cls", "--fill", "", "-c", 1),
            "no sample had a value for nope; the fields were: cls",
        ),
        ([("a.Cls", b"1"), ("a.cLs", b"")], ("-f", "cls"), "sample 'a' has 2 members for field 'cls'"),
    ],
)
def test_failures(run: Run, members: list[tuple[str, bytes]], options: tuple[str, ...], message: str) -> None:
    done = run("tar2tsv", *options, stdin=make_tar(members))
    assert done.status == 1 and message in done.stderr and done.stderr.count("\n") == 1
    assert done.stderr.startswith("tar2tsv: ")


def test_rows_before_a_failure_are_written(run: Run) -> None:
    archive = make_tar(make_samples(10))
    done = run("tar2tsv", "-f", "cls", stdin=archive[: 20 * 512])
    assert done.status == 1 and "stdin: at byte 10240" in done.stderr
    rows = done.stdout.decode().splitlines()
    assert rows[0] == "__key__\tcls" and 1 < len(rows) < 11


# runs each command line with stdout in a file; prints the statuses, and how many batches came by columns
PROGRAM = """
import json, os, sys
from tartools.commands.tar2tsv import tar2tsv
from tartools.commands.tarstat import tarstat
from tartools.tar import groups
if sys.argv[1] == "columns":
    import numpy
made, make = [], groups.UniformGroups.__init__
def noted(*found):
    made.append(1)
    make(*found)
groups.UniformGroups.__init__ = noted
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
