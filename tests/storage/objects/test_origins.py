"""Which inputs a file may name: each row of the table in docs/trust.md, with each kind of name, here and there."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from urllib3.util import parse_url

from tartools.errors import UsageError
from tartools.storage.origins import naming_error
from tests.conftest import ROOT, make_samples, make_tar
from tests.storage.objects.faults import FaultServer
from tests.storage.objects.inside import Inside
from tests.tiers import also

PAGE = ROOT / "docs/trust.md"
TAR = make_tar(make_samples(2))
MADE = "made"  # what a command in a file would make
REFUSED = "may not name"


def table_of(name: str) -> bytes:
    """Return a table that lists a sample of the shard *name*."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"__shard__": [name], "__begin__": [0], "__end__": [1024]}), sink)
    return bytes(sink.getvalue())


def lines(*words: str) -> Callable[[str], bytes]:
    """Return what makes a file of lines, the last of which is the name."""
    return lambda name: "\n".join([*words, name, ""]).encode()


# By the first column of the page: the file's suffix, what makes its content of a name, and the command line to read it.
FILES: dict[str, list[tuple[str, Callable[[str], bytes], list[str]]]] = {
    "list of shards": [("", lines(), [command, "-T"]) for command in ("tarcat", "tarstat", "tarsort", "tar2tsv")],
    "list of shares and shards": [("", lines("0.5"), ["tarmix", "-T"])],
    "list of prefixes": [("", lines(), ["tarls", "-T"])],
    "list of items": [("", lines(), ["tarjob", "--dry-run", "-T", "{}", "--", "tarcat"])],
    "recipe": [(".recipe", lambda name: f"a.txt {name}\n".encode(), ["tarcreate"])],
    "plan (TSV, CSV, JSON lines)": [
        (".tsv", lines("@txt"), ["tarcreate"]),
        (".csv", lines("@txt"), ["tarcreate"]),
        (".jsonl", lambda name: f'{{"@txt": "{name}"}}\n'.encode(), ["tarcreate"]),
    ],
    "table of samples (Parquet)": [(".parquet", table_of, [command]) for command in ("tarcat", "tarstat", "tarshow")],
}
# By the words of the page: the kinds of names that are refused.
WORDS = {
    "everything": set(),
    "everything but stdin": {"stdin"},
    "files and servers": {"command", "stdin"},
    "its server": {"command", "stdin", "path", "above", "absolute", "file", "other server", "store"},
}


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the first table of the page: the file, and what it may name here and on a server."""
    first = PAGE.read_text().partition("Files that name inputs")[2].partition("Files that never name inputs")[0]
    for line in first.splitlines():
        if line.startswith("|") and not line.startswith(("| File", "|---")):
            file, _, here, there = (cell.strip() for cell in line.strip("|").split("|"))
            yield file, here, there


def test_the_page_has_all_files() -> None:
    assert [file for file, _, _ in rows()] == [*FILES]


@pytest.mark.parametrize(("file", "here", "there"), [*rows()], ids=[file for file, _, _ in rows()])
def test_what_a_file_may_name(file: str, here: str, there: str, inside: Inside, tmp_path: Path) -> None:
    server = inside.server
    server.objects["a.tar"] = TAR
    Path("a.tar").write_bytes(TAR)
    with FaultServer() as other:
        names = {
            "command": f"pipe:touch {MADE}; cat a.tar",
            "stdin": "-",
            "path": "a.tar",
            "above": "../a.tar",
            "absolute": str(tmp_path / "a.tar"),
            "file": f"file:{tmp_path}/a.tar",
            "server": server.url("http", "a.tar"),
            "other server": other.url("http", "a.tar"),
            "store": "s3://b/a.tar",
        }
        for suffix, content, words in FILES[file]:
            for kind, name in names.items():
                if file.startswith("table") and kind == "path":
                    continue  # relative to the table, wherever it is: see test_tables
                server.objects[f"names{suffix}"] = content(name)
                Path(f"names{suffix}").write_bytes(content(name))
                for place, rule in ((f"names{suffix}", here), (server.url("http", f"names{suffix}"), there)):
                    line = [word.replace("{}", place) for word in words] + [place] * ("{}" not in words)
                    Path(MADE).unlink(missing_ok=True)
                    server.requests.clear()
                    other.requests.clear()
                    done = inside.run(*line)
                    if kind not in WORDS[rule]:
                        assert REFUSED not in done.stderr, (line, name, done)
                        continue
                    said = done.failure(lines=1)
                    assert REFUSED in said or (kind, "cannot be read from stdin" in said) == ("stdin", True), said
                    assert re.search(r": (line|row) \d+", said), said
                    assert other.requests == []
                    assert {request.target.partition("?")[0] for request in server.requests} <= {f"/b/names{suffix}"}
                    assert not Path(MADE).exists()


def test_allow_pipe_trusts_lists_and_plans(inside: Inside) -> None:
    server = inside.server
    Path("a.tar").write_bytes(TAR)
    server.objects["list"] = f"a.tar\npipe:touch {MADE}; cat a.tar\n".encode()
    server.objects["plan.tsv"] = f"@tar\tb\na.tar\tx\npipe:touch {MADE}2\ty\n".encode()
    assert inside.run("tarcat", "--allow-pipe", "-T", server.url("http", "list")).status == 0
    assert inside.run("tarcreate", "--allow-pipe", server.url("http", "plan.tsv")).status == 0
    assert Path(MADE).exists() and Path(f"{MADE}2").exists()


def test_a_table_from_a_command_names_files_here(inside: Inside) -> None:
    """Its folder is the current one: names do not become parts of the command."""
    Path("a.tar").write_bytes(TAR)
    inside.run("tarindex", "a.tar", "-o", "t.parquet").output()
    for name, status in (("a.tar", 0), (f";touch {MADE}; #", 1), (f"pipe:touch {MADE}", 1)):
        Path("u.parquet").write_bytes(table_of(name))
        assert inside.run("tarcat", "pipe:cat ./u.parquet").status == status
        assert not Path(MADE).exists()


HOST = "http://good.example:8080"
PIECES = ["http://", "https://", "good.example", ":8080", ":80", "/", "//", "\\", "@", "#", "?", "..", "evil.example"]
PIECES += ["{", "}", ",", "%2e", " ", "\t", "pipe:", "file:", "-", "a.tar", "s3://b", "HTTP://", "[::1]", "user", ":"]


@pytest.mark.parametrize("seed", [0, *also(*range(1, 20))])
def test_names_that_a_server_may_give_lead_to_it(seed: int) -> None:
    """By the parser of the client that makes the requests, which is not ours."""
    dice = random.Random(seed)
    allowed = 0
    for _ in range(3000):
        name = "".join(dice.choices(PIECES, k=dice.randint(1, 6)))
        if dice.random() < 0.5:
            name = HOST + dice.choice(["/", "", "@", "\\", "?", "#", "."]) + name
        try:
            why = naming_error(name, f"{HOST}/sets/list", "list", may_act=True)
        except UsageError:
            continue
        if not why:
            allowed += 1
            target = parse_url(name)
            assert (target.scheme, target.host, target.port, target.auth) == ("http", "good.example", 8080, None), name
    assert allowed > 100
