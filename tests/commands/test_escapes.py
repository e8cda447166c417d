"""Control characters in names and values: shown escaped on a terminal, and passed on as they are in a pipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Run, make_tar
from tests.processes import on_terminal

TITLE = "\x1b]0;title\x07"
SEEN = r"\x1b]0;title\x07"
VALUE = TITLE + "a\u00e4\x9b2J"


def shown(folder: Path, line: str) -> bytes:
    """Return what *line* shows on a terminal, which ends lines by CR LF."""
    done = on_terminal(line.split(), folder)
    assert (done.status, done.stderr) == (0, "")
    return done.stdout.expandtabs()


TABLES = [
    ("", "__key__\ttxt\n{}\t{}\n"),
    ("--csv ", "__key__,txt\r\n{},{}\r\n"),
    ("--no-header --no-key --jsonl ", '{{"txt": "{1}"}}\n'),
]


@pytest.mark.parametrize(("options", "table"), TABLES)
def test_a_table(options: str, table: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar([(f"{TITLE}.txt", VALUE.encode())]))
    line = f"tar2tsv {options}-f txt in.tar"
    if "json" in options:  # escapes itself what is below a blank
        value, seen = r"\u001b]0;title\u0007aä" + "\x9b2J", r"\u001b]0;title\u0007aä\x9b2J"
    else:
        value, seen = VALUE, rf"{SEEN}aä\x9b2J"
    assert run(*line.split()) == (0, table.format(TITLE, value).encode(), "")
    expected = table.format(SEEN, seen).replace("\r", "").replace("\n", "\r\n")
    assert shown(tmp_path, line) == expected.encode().expandtabs()


def test_names_of_shards(run: Run, tmp_path: Path) -> None:
    (tmp_path / f"{TITLE}.tar").write_bytes(b"")
    assert run("tarls") == (0, f"{TITLE}.tar\n".encode(), "")
    assert shown(tmp_path, "tarls") == f"{SEEN}.tar\r\n".encode()


def test_an_output_that_is_a_file_gets_the_values_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar([("a.txt", VALUE.encode())]))
    assert shown(tmp_path, "tar2tsv -f txt in.tar -o out.tsv") == b""
    assert (tmp_path / "out.tsv").read_text() == f"__key__\ttxt\na\t{VALUE}\n"
