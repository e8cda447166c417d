"""tar2tsv, through the installed command."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.conftest import Run, make_samples, make_tar

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
        (("-f", "nope", "-c", 1, "--fill", "NA"), "__key__\tnope\nd/a\tNA\n"),
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
