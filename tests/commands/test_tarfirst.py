"""tarfirst, through the installed command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import BIN, Run, make_tar
from tests.processes import on_terminal

ARCHIVE = make_tar(
    [
        ("d/a.jpg", b"\xff\xd8 a"),
        ("d/a.cls", b"5\n"),
        ("d/a.meta.json", b'{"width": 640, "tags": ["x"]}'),
        ("d/b.png", b"png b"),
        ("d/b.cls", b"180"),
        ("d/b.meta.json", b'{"width": 320}'),
        ("d/c.txt", b"hello"),
        ("d/c.cls", b"180"),
    ]
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), b"\xff\xd8 a"),
        (("-f", "cls"), b"5\n"),
        (("-f", "CLS"), b"5\n"),
        (("-f", "png;txt"), b"png b"),
        (("-f", "png;jpg"), b"\xff\xd8 a"),
        (("-S", "int(cls) == 180"), b"png b"),
        (("-S", "int(cls) == 180", "-f", "txt"), b"hello"),
        (("-k", "d/c"), b"hello"),
        (("--index", 1), b"png b"),
        (("--index", 1, "-k", "d/b", "-S", "cls == '180'", "-f", "cls"), b"180"),
        (("-S", "field('meta.json:width') < 500"), b"png b"),
        (("-S", "'x' in field('meta.json:tags')"), b"\xff\xd8 a"),
        (("-S", "len(txt) > 2"), b"hello"),
        (("-S", "has('txt') or has('png')"), b"png b"),
        (("-S", "cls in ('6', '180') and __key__.endswith('c')"), b"hello"),
        (("-S", "__index__ == 2"), b"hello"),
        (("-S", "txt == 'hello' or cls == '5'"), b"hello"),
        (("-S", "has('jpg')"), b"\xff\xd8 a"),
        (("-S", "match('^d/[bc]', key) and not has('meta.json')"), b"hello"),
        (("-S", "size('txt') == 5"), b"hello"),
    ],
)
def test_the_first_that_matches(run: Run, options: tuple[object, ...], expected: bytes) -> None:
    assert run("tarfirst", *options, stdin=ARCHIVE) == (0, expected, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-k", "nope"), "none of 3 samples matches\n"),
        (("--index", 3), "none of 3 samples matches\n"),
        (("--index", 0, "-k", "d/b"), "none of 1 samples matches\n"),
        (("-f", "gif"), "none of 3 samples matches; those without gif had: jpg cls meta.json png txt\n"),
        (("-f", "cls", "-S", "clas == 'x'"), "none had clas, the fields were: jpg cls meta.json png txt\n"),
        (("-f", "CLS", "--verbatim"), "; those without CLS had: jpg cls meta.json png txt\n"),
        (("-S", "int(jpg) == 1"), "stdin: sample 'd/a', field 'jpg': not UTF-8"),
        (("-S", "float(txt) > 1"), "stdin: sample 'd/c': float(txt) > 1: could not convert"),
        (("-S", "width('png') > 5"), "stdin: sample 'd/b': width('png') > 5: width('png'): "),
        (("-S", "9 ** 9 ** 9 ** 9 > 1"), "sample 'd/a': 9 ** 9 ** 9 ** 9 > 1: "),
        (("-S", "cls.__class__"), "sample 'd/a': cls.__class__: "),
        (("-S", "len([i for i in 'x' * 99999 for j in 'x' * 99999])"), "sample 'd/a'"),
    ],
)
def test_failures(run: Run, options: tuple[object, ...], message: str) -> None:
    said = run("tarfirst", *options, stdin=ARCHIVE).failure(lines=1)
    assert message in said and said.startswith("tarfirst: ")


def test_large_and_many(run: Run, shell: Run, tmp_path: Path) -> None:
    large = bytes(range(256)) * (20 << 12)
    (tmp_path / "b.tar").write_bytes(make_tar([("x.bin", large), ("x.cls", b"1")]))
    (tmp_path / "a.tar").write_bytes(ARCHIVE)
    assert run("tarfirst", "-f", "bin", "a.tar", "b.tar").stdout == large
    assert shell("cat a.tar b.tar | tarfirst -f bin").stdout == large


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"one\ttwo\r\n\f" + "\ufeff\u3000\xa0é".encode() + b"\n", True),
        (b"x" * (1 << 20) + "é".encode(), True),
        (b"\xff\xd8\xff\xe0", False),
        (b"\x1b]0;title\x07", False),
        (b"\xc2\x9b31m", False),
        (b"x" * (1 << 20) + b"\0", False),
        (b"cut \xc3", False),
    ],
)
def test_a_terminal_gets_no_binary_data(payload: bytes, text: bool, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.x", payload)]))
    done = on_terminal([BIN / "tarfirst", "a.tar"], tmp_path)
    if text:
        assert done == (0, payload.replace(b"\n", b"\r\n"), "")
    else:
        said = "stdout is a terminal, which cannot show binary data: use > FILE or a pipe, or view it with tarshow"
        assert done == (2, b"", f"tarfirst: {said}\n")
