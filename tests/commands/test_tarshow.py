"""tarshow, through the installed command."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tests.archives import picture
from tests.conftest import BIN, Run, make_samples, make_tar
from tests.processes import on_terminal


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    text = (header + "\n").encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def test_block_a_sample(run: Run) -> None:
    archive = make_tar([("d/a.cls", b"5\n"), ("d/a.jpg", picture("JPEG")), ("d/b.txt", b"one\ntwo\n"), ("README", b"")])
    size = len(picture("JPEG"))
    done = run("tarshow", stdin=archive)
    assert done == (
        0,
        f"d/a\n  cls    2 B  number: 5\n  jpg  {size} B  JPEG 50x37 RGB\n\n"
        "d/b\n  txt  8 B  text\n    one\n    two\n\nREADME\n  -  0 B  empty\n\n".encode(),
        "",
    )


@pytest.mark.parametrize(
    ("field", "payload", "what"),
    [
        ("png", picture("PNG", mode="L"), "PNG 50x37 L"),
        ("seg.PNG", picture("PNG", mode="1"), "PNG 50x37 1"),
        ("webp", picture("WEBP"), "WEBP 50x37 RGB"),
        ("ppm", picture("PPM"), "PPM 50x37 RGB"),
        ("bin", picture("GIF", mode="P"), "GIF 50x37 P"),
        ("jpg", b"no picture", "a broken picture: its first bytes are those of no picture"),
        ("png", picture("PNG")[:20], "a broken picture"),
        (
            "npy",
            npy("{'descr': '>i2', 'fortran_order': True, 'shape': (), }", bytes(2), 2),
            "array big-endian int16 scalar",
        ),
        ("npy", npy("__import__('os').system('touch gotcha')"), "array whose header cannot be read"),
        ("npy", npy("[" * 5000), "array whose header cannot be read"),
        ("npy", b"\x93NUMPY", "array whose header cannot be read"),
        ("json", b"3", "JSON: 3"),
        ("json", b"{nope", "not JSON (Expecting property name"),
        ("json", b"[" * 200_000, "not JSON ("),
        ("pth", b"PK\x03\x04" + bytes(20), "zip archive"),
        ("pyd", b"\x80\x04\x95" + bytes(9), "pickle, not opened"),
        ("bin", bytes(range(256)), "binary"),
        ("txt", b"\xff\xfe", "binary"),
    ],
)
def test_what_fields_are(run: Run, tmp_path: Path, field: str, payload: bytes, what: str) -> None:
    done = run("tarshow", stdin=make_tar([(f"a.{field}", payload)]))
    broken = what.startswith("a broken picture")
    assert (done.status, done.stderr) == (0, "tarshow: broken: 1 of 1 sample: a\n" if broken else "")
    assert f" B  {what}" in done.stdout.decode() or what in done.stdout.decode()
    assert not (tmp_path / "gotcha").exists()


def test_json_is_pretty_and_cut(run: Run) -> None:
    shown = run("tarshow", stdin=make_tar([("a.json", json.dumps({"n": [1, "ä"]}).encode())])).stdout.decode()
    assert shown.endswith('JSON\n    {\n      "n": [\n        1,\n        "ä"\n      ]\n    }\n\n')
    long = run("tarshow", stdin=make_tar([("a.json", json.dumps(list(range(100))).encode())])).stdout.decode()
    assert "… 90 more lines" in long and len(long.splitlines()) < 20


def test_text_is_cut(run: Run) -> None:
    archive = make_tar([("a.txt", b"x" * 500), ("b.txt", b"line\n" * 40), ("c.txt", "ä".encode() * 100_001)])
    lines = run("tarshow", stdin=archive).stdout.decode().splitlines()
    assert max(map(len, lines)) < 120
    assert "    … 28 more lines" in lines and lines[-2] == "    …"


def test_control_characters_are_escaped(run: Run) -> None:
    archive = make_tar([("a\x1b[2J.t\x07xt", b"\x1b]0;title\x07\r\t\xe2\x80\xae")])
    shown = run("tarshow", stdin=archive).stdout.decode()
    assert shown == "a\\x1b[2J\n  t\\x07xt  15 B  text: \\x1b]0;title\\x07\\r\\t\\u202e\n\n"


def test_count_may_be_none_or_more_than_there_are(run: Run) -> None:
    archive = make_tar(make_samples(10))
    assert run("tarshow", "-c", 0, stdin=archive) == (0, b"", "")
    assert run("tarshow", "-c", 99, stdin=archive).stdout.count(b"\n\n") == 10


def test_fields(run: Run) -> None:
    archive = make_tar([("a.cls", b"1"), ("a.JPG", b"x"), ("b.jpg", b"y")])
    assert run("tarshow", "-f", "cls", "-v", stdin=archive).stdout == b"a\n  cls  1 B  number: 1\n\n"
    assert b"cls" not in run("tarshow", "-x", "cls", stdin=archive).stdout
    assert run("tarshow", "-f", "jpg", "--verbatim", stdin=archive).stdout.startswith(b"b\n")
    wrong = run("tarshow", "-f", "nope", stdin=archive)
    assert wrong.status == 1 and "no sample had the field nope; the fields were: cls JPG jpg" in wrong.stderr


@pytest.mark.parametrize(
    ("environment", "codes"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, False)],
)
def test_a_terminal_gets_bold_keys(tmp_path: Path, environment: dict[str, str], codes: bool) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1")]))
    shown = on_terminal([BIN / "tarshow", "a.tar"], tmp_path, env=environment).stdout
    assert (b"\x1b[1ma\x1b[0m" in shown) == codes and b"number: 1" in shown
