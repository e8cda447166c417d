"""tarls and wildcards in stores: what is listed is what there is, and what other commands read."""

from __future__ import annotations

import json
import re

import pytest

from tests.conftest import Run, make_tar, members_of
from tests.storage.objects.faults import Fault, FaultServer
from tests.storage.objects.sites import Site
from tests.tiers import also, by_turns

NAMES = [
    *(f"train-{number:03d}.tar" for number in (*range(8, 12), 13)),
    *("train/a.tgz", "train/b c.tar", "train/.h.tar", "train/x[1].tar", "train/x1.tar", "train/é~.tar"),
    *("train/{0..9}.tar", "train/{a,b}*.tar", "train/a{b.tar", "v-10.tar", "v-9.tar"),
]
OTHERS = ["train-note", "train/", "train/a.tgz.idx"]


@pytest.fixture(scope="module")
def filled() -> dict[str, Site]:
    """Return the places that have the objects already, by scheme."""
    return {}


@pytest.fixture
def place(listed: Site, filled: dict[str, Site]) -> Site:
    """Return a place with an archive of one sample for each name, which is its text, and other objects."""
    if listed.scheme in filled:
        return filled[listed.scheme]
    filled[listed.scheme] = listed
    for name in NAMES:
        listed.put(name, make_tar([("x.txt", name.encode())]))
    for name in OTHERS:
        listed.put(name, b"12345")
    return listed


def names_in(site: Site, output: bytes) -> list[str]:
    """Return the names of the objects whose URLs are the lines of *output*."""
    return [line.removeprefix(site.url("")) for line in output.decode().splitlines()]


def behind(prefix: str, *others: str) -> list[str]:
    return sorted((name for name in (*NAMES, *others) if name.startswith(prefix)), key=str.encode)


def is_plain(name: str) -> bool:
    """Tell whether a name is listed as it is."""
    return not re.search(r"\{.*\}", name)


@by_turns("listed")
@pytest.mark.parametrize("prefix", ["", "train", "train-", "train-00", "train/", "train/b c", "v-9.tar"])
def test_objects_behind_a_prefix(prefix: str, place: Site, run: Run) -> None:
    done = run("tarls", place.url(prefix), env=place.env)
    assert (done.status, done.stderr) == (0, "")
    found = names_in(place, done.stdout)
    assert len(found) == len(behind(prefix))
    assert list(filter(is_plain, found)) == list(filter(is_plain, behind(prefix)))
    every = run("tarls", "--all", "--json", place.url(prefix), env=place.env)
    assert (every.status, every.stderr) == (0, "")
    objects = [json.loads(line) for line in every.stdout.splitlines()]
    assert [entry["url"] for entry in objects] == [place.url(name) for name in behind(prefix, *OTHERS)]
    for entry in objects:
        name = entry["url"].removeprefix(place.url(""))
        assert entry["size"] == (5 if name in OTHERS else 10240)
        assert place.scheme == "ais" or re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry["modified"])


@by_turns("listed")
@pytest.mark.parametrize("options", [[], ["--brace", "--null"], *also(["--brace"], ["-0"])], ids=" ".join)
def test_what_is_listed_is_what_is_read(options: list[str], place: Site, shell: Run) -> None:
    zero = "-0" if options and options[-1] in ("-0", "--null") else ""
    line = f"tarls {' '.join(options)} {place.url('')} | tarcat {zero} -T - --rekey '{{index}}'"
    done = shell(line, env=place.env)
    assert (done.status, done.stderr) == (0, "")
    assert [payload.decode() for _, payload in members_of(done.stdout)] == behind("")


@by_turns("listed")
def test_braces(place: Site, run: Run) -> None:
    done = run("tarls", "--brace", "-v", place.url("train-"), place.url("v"), env=place.env)
    assert names_in(place, done.stdout) == ["train-{008..011}.tar", "train-013.tar", "v-10.tar", "v-9.tar"]
    assert (done.status, done.stderr) == (0, "tarls: 7 shards, 71.7 kB\n")


PATTERNS = {
    "train-*.tar": ["train-008.tar", "train-009.tar", "train-010.tar", "train-011.tar", "train-013.tar"],
    "train-0[01][19].tar": ["train-009.tar", "train-011.tar"],
    "*/?.tgz": ["train/a.tgz"],
    "train/x[1].tar": ["train/x[1].tar"],
    "train/x[1]*": ["train/x1.tar"],
    "train/.*": ["train/.h.tar"],
    "**/[!.]*[c~].tar": ["train/b c.tar", "train/é~.tar"],
    "{v,train}-*1*.tar": ["v-10.tar", "train-010.tar", "train-011.tar", "train-013.tar"],
}


@by_turns("listed")
@pytest.mark.parametrize(("pattern", "names"), PATTERNS.items())
def test_objects_that_match(pattern: str, names: list[str], place: Site, run: Run) -> None:
    done = run("tarls", place.url(pattern), env=place.env)
    assert (done.status, names_in(place, done.stdout), done.stderr) == (0, names, "")
    read = run("tarcat", place.url(pattern), "--rekey", "{index}", env=place.env)
    assert (read.status, read.stderr) == (0, "")
    assert [payload.decode() for _, payload in members_of(read.stdout)] == names


NOTHING = {
    "nope": "no shard is listed under this; --all lists every object",
    "train-note": "no shard is listed under this; --all lists every object",
    "nope/*": "no object matches",
    "train/*/*.tar": "no object matches",
}


@by_turns("listed")
@pytest.mark.parametrize(("name", "message"), NOTHING.items())
def test_nothing_to_list_is_a_failure(name: str, message: str, place: Site, run: Run) -> None:
    assert run("tarls", place.url(name), env=place.env) == (1, b"", f"tarls: {place.url(name)}: {message}\n")


@by_turns("listed")
@pytest.mark.parametrize("name", ["", "x", "x/*.tar"])
def test_a_bucket_that_is_not_there(name: str, listed: Site, run: Run) -> None:
    url = f"{listed.scheme}://no-such-bucket/{name}"
    done = run("tarls", url, env=listed.env)
    assert (done.status, done.stdout) == (1, b"")
    assert re.fullmatch(rf"tarls: {re.escape(url)}: no such bucket: [^\n]+\n", done.stderr)


@by_turns("listed")
def test_a_bucket_has_no_wildcards(listed: Site, run: Run) -> None:
    url = f"{listed.scheme}://buck*/a.tar"
    assert run("tarls", url, env=listed.env) == (
        1,
        b"",
        f"tarls: {url}: wildcards in the name of a bucket do not expand\n",
    )


def test_an_object_of_a_web_server(run: Run) -> None:
    with FaultServer() as server:
        server.objects.update({"a-1.tar": bytes(7), "a-2.tar": b"", "note": b""})
        url = server.url("http", "a-1.tar")
        assert run("tarls", f"{url}?x=1") == (0, f"{url}?x=1\n".encode(), "")
        assert run("tarls", "-l", url).stdout.split()[0] == b"7"
        base = url.removesuffix("1.tar")
        assert run("tarls", "--brace", f"{base}{{1..2}}.tar") == (0, f"{base}{{1..2}}.tar\n".encode(), "")
        assert run("tarls", f"{base}3.tar") == (1, b"", f"tarls: {base}3.tar: no such object\n")
        message = "no shard is listed under this; --all lists every object"
        note = server.url("http", "note")
        assert run("tarls", note) == (1, b"", f"tarls: {note}: {message}\n")
        assert {request.method for request in server.requests} == {"HEAD"}


@pytest.mark.parametrize("scheme", ["s3", "gs", "ais"])
def test_pages_that_fail_are_asked_for_again(scheme: str, run: Run) -> None:
    names = [f"{number:04d}.tar" for number in range(25)]
    with FaultServer() as server:
        server.objects.update(dict.fromkeys(names, b""))
        server.bucket.page = 10
        part = {"s3": "list-type", "gs": "/o?", "ais": "/v1/buckets"}[scheme]
        server.faults = [Fault(has=part, skip=1, status=503), Fault(has=part, dropped=True, skip=1)]
        done = run("tarls", "--brace", server.url(scheme, ""), env=server.env)
        assert done == (0, f"{server.url(scheme, '')}{{0000..0024}}.tar\n".encode(), "")
        assert len(server.requests) == 5
        server.faults = [Fault(has=part, skip=2, status=503, times=None)]
        done = run("tarls", server.url(scheme, ""), env=server.env | {"TARTOOLS_TRIES": "2"})
        assert done.status == 1
        assert re.fullmatch(rf"tarls: {server.url(scheme, '')}: [^\n]+ \(2 tries\)\n", done.stderr)
