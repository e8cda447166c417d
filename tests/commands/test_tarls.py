"""tarls: lists shards below directories, behind prefixes and patterns, in a form that other commands read back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tartools.commands.tarls import format_time
from tartools.schemes import listed_schemes
from tartools.storage.expand import expand
from tests.conftest import Run, make_tar, members_of

SHARDS = ["a/b.TAR", "a/x-1.tar.gz", "a-1.tgz", "a.tar", "b.tar.bz2", "b.tar.xz", "c.tar.lz4", "c.tar.zst", "é.tar"]
SHARDS = sorted(["d/" + name for name in SHARDS], key=os.fsencode)
OTHERS = ["d/README", "d/a.tar.idx", "d/a/.x.tar.123.tmp", "d/tar"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str, size: int = 0) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(bytes(size))
        os.utime(name, (0, 1_600_000_000.9))


def lines(*names: str) -> bytes:
    return b"".join(os.fsencode(name) + b"\n" for name in names)


def test_shards_below_a_directory_are_listed_in_the_order_of_bytes(run: Run) -> None:
    touch(*SHARDS, *OTHERS)
    assert run("tarls", "d") == (0, lines(*SHARDS), "")
    assert run("tarls", "d/") == (0, lines(*SHARDS), "")
    assert run("tarls", "--all", "d") == (0, lines(*sorted(SHARDS + OTHERS, key=os.fsencode)), "")


def test_without_a_url_it_is_the_current_directory(run: Run) -> None:
    touch("d/a.tar", "b.tar", "x")
    assert run("tarls") == (0, b"b.tar\nd/a.tar\n", "")
    assert run("tarls", ".") == (0, b"./b.tar\n./d/a.tar\n", "")


PLACES = {
    "prefix": (["d/a.", "d/a-"], ["d/a.tar", "d/a-1.tar"]),
    "prefix of directories too": (["p/a"], ["p/a-x/1.tar", "p/a.tar", "p/ab/2.tar"]),
    "prefix at the top": (["e"], ["e.tar"]),
    "directory, which goes before a prefix": (["d/a"], ["d/a/1.tar", "d/a/b/2.tar"]),
    "file": (["e.tar"], ["e.tar"]),
    "wildcards": (["d/a*", "*/*.tar"], ["d/a-1.tar", "d/a.tar", "d/a-1.tar", "d/a.tar", "d/z.tar", "p/a.tar"]),
    "wildcards at any depth": (["d/**/[12].tar"], ["d/a/1.tar", "d/a/b/2.tar"]),
    "braces": (["d/{z,a/}", "{e,d/z}.tar"], ["d/z.tar", "d/a/1.tar", "d/a/b/2.tar", "e.tar", "d/z.tar"]),
    "in this order": (["e", "d/z", "e.tar"], ["e.tar", "d/z.tar", "e.tar"]),
    "file URL": (["file:e.tar"], ["e.tar"]),
}


@pytest.mark.parametrize(("urls", "names"), PLACES.values(), ids=PLACES)
def test_what_urls_stand_for(urls: list[str], names: list[str], run: Run) -> None:
    touch("d/a/1.tar", "d/a/b/2.tar", "d/a/note", "d/a-1.tar", "d/a.tar", "d/z.tar", "d/.hidden")
    touch("e.tar", "p/a-x/1.tar", "p/a.tar", "p/ab/2.tar")
    assert run("tarls", *urls) == (0, lines(*names), "")


def test_urls_come_from_lists_too(run: Run) -> None:
    touch("a/1.tar", "b/2.tar", "c/3.tar")
    Path("list").write_text("b\n\n{c,a}/\n")
    assert run("tarls", "-T", "list", "c") == (0, b"c/3.tar\nb/2.tar\nc/3.tar\na/1.tar\n", "")
    assert run("tarls", "-0", "-T", "-", stdin=b"a\0b\0") == (0, b"a/1.tar\0b/2.tar\0", "")


def test_links_are_followed_but_not_in_circles(run: Run) -> None:
    touch("d/a.tar", "e/b.tar")
    Path("d/circle").symlink_to(".")
    Path("d/e").symlink_to("../e")
    Path("e/d").symlink_to("../d")
    Path("d/lost.tar").symlink_to("nowhere")
    assert run("tarls", "d") == (0, lines("d/a.tar", "d/e/b.tar", "d/lost.tar"), "")
    assert run("tarls", "-l", "d/lost").stdout == b"              -  -                     d/lost.tar\n"


POSSIBLE = f"possible are local names, {listed_schemes()} and http(s):"
NOTHING = {
    "no such name": ("nope", "No such file or directory"),
    "no such name in a directory": ("d/nope", "No such file or directory"),
    "a file, as a directory": ("d/x/", "Not a directory"),
    "no match": ("d/*.tgz", "no file matches"),
    "no shard below": ("d", "no shard is listed under this; --all lists every object"),
    "no shard matches": ("d/*", "no shard is listed under this; --all lists every object"),
    "no shard in braces": ("{d,d}", "no shard is listed under this; --all lists every object"),
    "a file that is none": ("d/x", "no shard is listed under this; --all lists every object"),
    "a command": ("pipe:ls", f"cannot be listed; {POSSIBLE}"),
    "another store": ("ftp://h/x", f"cannot be listed; {POSSIBLE}"),
}


@pytest.mark.parametrize(("url", "message"), NOTHING.values(), ids=NOTHING)
def test_nothing_to_list_is_a_failure(url: str, message: str, run: Run) -> None:
    touch("d/x", "e/a.tar")
    assert run("tarls", url) == (1, b"", f"tarls: {url}: {message}\n")
    done = run("tarls", "e", url)
    assert (done.status, done.stdout) == (1, b"e/a.tar\n")


def test_nothing_at_all_is_a_failure(run: Run) -> None:
    message = "tarls: .: no shard is listed under this; --all lists every object\n"
    assert run("tarls") == (1, b"", message)
    assert run("tarls", "--all") == (1, b"", "tarls: .: nothing is listed under this\n")
    said = run("tarls", "-").failure()
    assert said == f"tarls: stdin: cannot be listed; {POSSIBLE}\n"


def test_a_directory_that_cannot_be_read_is_a_failure(run: Run) -> None:
    touch("d/a.tar")
    assert run("tarls", "nope/x") == (1, b"", "tarls: nope/: No such file or directory\n")
    Path("d/secret").symlink_to("secret")
    assert run("tarls", "d/secret/x").failure().startswith("tarls: d/secret/")


def test_long_lines(run: Run) -> None:
    touch("d/a.tar", size=10240)
    touch("d/b.tgz")
    listed = b"          10240  2020-09-13T12:26:40Z  d/a.tar\n              0  2020-09-13T12:26:40Z  d/b.tgz\n"
    assert run("tarls", "-l", "d").output() == listed
    assert run("tarls", "--long", "-0", "d/b").stdout == b"              0  2020-09-13T12:26:40Z  d/b.tgz\0"


def test_times_long_ago_and_far_ahead() -> None:
    assert format_time(-0.5) == "1969-12-31T23:59:59Z"
    assert format_time(1 << 40) == "36812-02-20T00:36:16Z"
    assert format_time(1e30) is None


def test_json_lines(run: Run) -> None:
    touch("d/a.tar", size=512)
    touch("d/é\n.tar")
    found = [json.loads(line) for line in run("tarls", "--json", "d").stdout.splitlines()]
    assert found == [
        {"url": "d/a.tar", "size": 512, "modified": "2020-09-13T12:26:40Z"},
        {"url": "d/é\n.tar", "size": 0, "modified": "2020-09-13T12:26:40Z"},
    ]


ODD = [
    *("a b.tar", " a.tar", "{0..9}.tar", "{a,b}.tar", "a{b.tar", "x[1].tar", "x1.tar", "*.tar", "?.tar", "-.tar"),
    *("pipe:echo x.tar", "s3:x.tar", "~.tar", "$HOME.tar", "\\.tar", "'\".tar", "é.tar", "\udcff.tar", "a\r.tar"),
    *("n-{1..2}.tar", "n-1.tar", "n-2.tar", "m-1.tar", "m-2.tar", "m-{1.tar", "[m]-3.tar", "[m]-4.tar"),
]


@pytest.mark.parametrize("options", [[], ["--brace"], ["-0"], ["-0", "--brace"]], ids=" ".join)
@pytest.mark.parametrize("url", ["", "d", "./d/"])
def test_what_is_listed_is_what_is_read(url: str, options: list[str], run: Run) -> None:
    for name in ODD:
        path = Path("d" if url else "", name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(make_tar([("x.txt", os.fsencode(name))]))
    Path("list").write_bytes(run("tarls", *options, url).output())
    zero = options[:1] if "-0" in options else []
    out = run("tarcat", *zero, "-T", "list", "--rekey", "{index}").output()
    assert [payload for _, payload in members_of(out)] == sorted(map(os.fsencode, ODD))
    assert expand([], ["list"], "\0" if zero else "\n") == expand(
        [f"./{name}" if name in ("pipe:echo x.tar",) else name for name in expected(url)]
    )


def expected(url: str) -> list[str]:
    return [{"": "", "d": "d/", "./d/": "./d/"}[url] + name for name in sorted(ODD, key=os.fsencode)]


def test_a_name_with_a_line_feed_is_not_listed_on_a_line(run: Run) -> None:
    touch("a\nb.tar", "c.tar")
    message = "tarls: a\\nb.tar: not listed, as its name holds a line feed; -0 lists it\n"
    assert run("tarls") == (1, b"c.tar\n", message)
    assert run("tarls", "--brace") == (1, b"c.tar\n", message)
    assert run("tarls", "-l") == (1, run("tarls", "-l", "c.tar").stdout, message)
    assert run("tarls", "-0") == (0, b"a\nb.tar\0c.tar\0", "")


def test_the_account(run: Run) -> None:
    touch("d/a.tar", "d/b.tgz", size=1_500_000)
    touch("d/note", size=500_000)
    assert run("tarls", "-v", "d").stderr == "tarls: 2 shards, 3.0 MB\n"
    assert run("tarls", "-v", "d/a").stderr == "tarls: 1 shard, 1.5 MB\n"
    assert run("tarls", "-v", "--all", "d").stderr == "tarls: 2 shards among 3 objects, 3.5 MB\n"
    assert run("tarls", "--progress", "d").stdout == b"d/a.tar\nd/b.tgz\n"


def test_a_server_of_the_web_is_not_listed(run: Run) -> None:
    said = run("tarls", "http://127.0.0.1:1/d/?token=secret").failure()
    assert said.startswith("tarls: http://127.0.0.1:1/d/?…: web servers cannot be listed")
