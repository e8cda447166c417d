"""Every command, on every kind of server: what is read and written there is what is read and written here."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.commands.test_every_command import COMMANDS, OPENERS
from tests.conftest import Run, make_samples, make_tar
from tests.storage.objects.conftest import make_site
from tests.storage.objects.faults import FaultServer
from tests.storage.objects.sites import MemorySite, Site
from tests.tiers import by_turns, exhaustive

pytestmark = by_turns("site", "source", "kind")
SMALL = make_tar(make_samples(5))
WRITERS = [*(name for name, case in COMMANDS.items() if case.writes_tar), "tar2tsv"]  # and tarsplit
ODD = [
    "with blanks.tar",
    "a+b.tar",
    "100%.tar",
    "50%25.tar",
    "a#1.tar",
    "straße/日本.tar",
    "a&b=c;d,e.tar",
    "quote'd\".tar",
    "~x_(1)!@$.tar",
]


def archive(samples: int, size: int) -> bytes:
    """Return an archive of *samples*, each of *size* bytes that cannot be guessed."""
    dice = random.Random(samples)
    return make_tar([(f"{n:06d}.bin", dice.randbytes(size)) for n in range(samples)])


BIG = archive(21, 1 << 20)  # more than two ranges to read, more than one part to write


def input_of(name: str, folder: Path) -> str:
    """Make the input of the command *name* in *folder*; return its name."""
    file = "in.tsv" if COMMANDS[name].reads == "plan" else "in.tar"
    (folder / file).write_bytes(COMMANDS[name].content)
    return file


def taken(folder: Path) -> dict[str, bytes]:
    """Return, and remove, the shards that tarsplit has made in *folder*, and the files that tar2folder has."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("part*/**/*") if path.is_file()}
    found |= {path.name: path.read_bytes() for path in folder.glob("part*") if path.is_file()}
    for name in found:
        (folder / name).unlink()
    shutil.rmtree(folder / "part", ignore_errors=True)
    return found


@pytest.mark.parametrize("name", OPENERS)
def test_a_command_reads_as_if_it_were_here(name: str, source: Site, run: Run, tmp_path: Path) -> None:
    case = COMMANDS[name]
    file = input_of(name, tmp_path)
    source.put(file, case.content)
    here = run(name, *case.arguments, file)
    made = taken(tmp_path)
    there = run(name, *case.arguments, source.url(file), env=source.env)
    assert (here.status, here.stderr) == (0, "")
    assert there == here
    assert taken(tmp_path) == made


@pytest.mark.parametrize("name", WRITERS)
def test_a_command_writes_as_if_it_were_here(name: str, site: Site, run: Run, tmp_path: Path) -> None:
    case = COMMANDS[name]
    file = input_of(name, tmp_path)
    here = run(name, *case.arguments, file)
    there = run(name, *case.arguments, "-o", site.url("d/out"), file, env=site.env)
    assert (here.status, there) == (0, (0, b"", ""))
    assert site.names() == ["d/out"]
    assert site.get("d/out") == here.stdout
    assert site.pending() == 0


def test_tarsplit_writes_as_if_it_were_here(site: Site, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(BIG)
    here = run("tarsplit", "-n", 6, "-o", "part", "in.tar")
    made = taken(tmp_path)
    there = run("tarsplit", "-n", 6, "-o", site.url("part"), "in.tar", env=site.env)
    assert (here.status, there.status, there.stderr) == (0, 0, "")
    assert there.stdout.decode().split() == [site.url(name) for name in here.stdout.decode().split()]
    assert len(made) == 4
    assert {name: site.get(name) for name in site.names()} == made


@pytest.mark.parametrize("suffix", [".tgz", ".tar.zst"])
def test_compression_is_told_by_the_name(suffix: str, site: Site, run: Run, tmp_path: Path) -> None:
    run("tarcat", "-o", f"out{suffix}", stdin=BIG)
    assert run("tarcat", "-o", site.url(f"out{suffix}"), stdin=BIG, env=site.env) == (0, b"", "")
    assert site.get(f"out{suffix}") == (tmp_path / f"out{suffix}").read_bytes()
    assert run("tarcat", site.url(f"out{suffix}"), env=site.env) == (0, BIG, "")


def test_an_object_without_bytes(site: Site, run: Run, tmp_path: Path) -> None:
    assert run("tar2tsv", "--no-header", "-c", 0, "-o", site.url("empty"), stdin=SMALL, env=site.env) == (0, b"", "")
    assert site.get("empty") == b""
    (tmp_path / "empty").write_bytes(b"")
    here = run("tarcat", "empty")
    there = run("tarcat", site.url("empty"), env=site.env)
    assert there == here._replace(stderr=here.stderr.replace(" empty:", f" {site.url('empty')}:"))


@exhaustive
@pytest.mark.parametrize("kind", ["s3", "gs", "http", "ais"])
def test_300_megabytes(
    kind: str, request: pytest.FixtureRequest, faulty: FaultServer, run: Run, tmp_path: Path
) -> None:
    if kind == "s3":  # for which moto takes a quarter of a minute
        site: Site = MemorySite("s3", "b", faulty.env, faulty.bucket)
    else:
        site = make_site(request, kind)
    huge = archive(30, 10_000_000)
    (tmp_path / "huge.tar").write_bytes(huge)
    assert run("tarcat", "huge.tar", "-o", site.url("huge.tar"), env=site.env) == (0, b"", "")
    assert site.get("huge.tar") == huge
    assert site.pending() == 0
    assert run("tarcat", site.url("huge.tar"), "-o", "back.tar", env=site.env) == (0, b"", "")
    assert (tmp_path / "back.tar").read_bytes() == huge


def test_names_that_need_care(site: Site, run: Run) -> None:
    for number, name in enumerate(ODD):
        data = make_tar([(f"{number}.txt", name.encode())])
        assert run("tarcat", "-o", site.url(name), stdin=data, env=site.env) == (0, b"", "")
    assert site.names() == sorted(ODD, key=str.encode)
    done = run("tar2tsv", "--no-key", "--no-header", "-f", "txt", *map(site.url, ODD), env=site.env)
    assert done == (0, "".join(f"{name}\n" for name in ODD).encode(), "")
    assert run("tarcat", "-o", site.url(ODD[-1]), stdin=SMALL, env=site.env).status == 1


def test_wildcards_of_web_servers_are_names_with_a_hint(run: Run) -> None:
    with FaultServer() as server:
        server.objects["a-*.tar"] = make_tar([("a.txt", b"there")])
        named, nothing = (server.url("http", "") + name for name in ("a-*.tar", "b-*.tar?sign=*"))
        assert run("tarcat", named) == (0, server.objects["a-*.tar"], "")
        hint = "404 Not Found (web servers cannot be listed; give the URLs with braces, or in a file (-T))"
        assert run("tarcat", nothing).failure().endswith(f"b-*.tar?…: {hint}\n")


def test_reading_stops_when_there_is_enough(source: Site, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(BIG)
    source.put("in.tar", BIG)
    here = run("tarcat", "-c", 3, "in.tar")
    assert run("tarcat", "-c", 3, source.url("in.tar"), env=source.env) == here
    done = run("tarcat", source.url("no.tar"), env=source.env)
    missing = "404 Not Found" if source.url("no.tar").startswith("http") else "no such object"
    assert done == (1, b"", f"tarcat: {source.url('no.tar')}: {missing}\n")


def test_a_reader_that_leaves_ends_it(source: Site, shell: Run) -> None:
    source.put("in.tar", BIG)
    done = shell(f"tarcat '{source.url('in.tar')}' | head -c 600; echo ${{PIPESTATUS[0]}}", env=source.env)
    assert done == (0, BIG[:600] + b"141\n", "")


def test_sorting_what_does_not_fit_into_memory(site: Site, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(BIG)
    site.put("in.tar", BIG)
    site.put("out.tar", b"old")
    options = ("-r", "-M", "64K", "--force")  # which replaces by parts too
    here = run("tarsort", *options, "in.tar")
    assert run("tarsort", *options, site.url("in.tar"), "-o", site.url("out.tar"), env=site.env) == (0, b"", "")
    assert site.get("out.tar") == here.stdout
    assert site.pending() == 0


def test_a_plan_with_cells_that_are_remote(source: Site, run: Run) -> None:
    source.put("p/ü 1.jpg", b"picture")
    source.put("2.txt", b"text")
    table = f"__key__\t@jpg\t@txt\na\t{source.url('p/ü 1.jpg')}\t{source.url('2.txt')}\n"
    source.put("plan.tsv", table.encode())
    done = run("tarcreate", source.url("plan.tsv"), env=source.env)
    recipe = f"a.jpg {source.url('p/ü 1.jpg')}\na.txt {source.url('2.txt')}\n"
    again = run("tarcreate", "--format", "recipe", stdin=recipe.encode(), env=source.env)
    assert (done.status, done.stderr) == (0, "")
    assert done == again
    assert run("tarfirst", "-f", "jpg", stdin=done.stdout).stdout == b"picture"
