"""Connections that are cut: once is nothing, always is an error that names URL and byte, and never is a part the whole.

At all kinds of bytes of an archive, in the first range and in later ones, received by the reader itself or by threads.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tartools
from tartools.errors import StorageError
from tartools.storage import seekable
from tartools.storage.objects import retry
from tests.commands.test_damage import NEEDED, WHOLE, regions
from tests.commands.test_every_command import COMMANDS, READERS
from tests.conftest import Run, has_end, make_samples, make_tar, members_of
from tests.storage.objects.faults import READ, Fault, FaultServer
from tests.storage.objects.inside import OBJECT, RANGE, Inside
from tests.tiers import by_turns

MIB = 1 << 20
STARTS = range(0, len(WHOLE), RANGE)
each = pytest.mark.parametrize("scheme", READ)


def cuts() -> Iterator[int]:
    """Yield the bytes to cut at: before, in, between and behind all parts of `WHOLE`, and around ranges."""
    borders = {at + by for at in STARTS for by in (-1, 0, 1)}
    yield from sorted({*regions(), *borders, NEEDED, len(WHOLE) - 1} - {-1})


def cut_at(cut: int, reset: bool, *, once: bool) -> list[Fault]:
    """Return faults that let nobody get the byte *cut*, or only who asks twice."""
    start = cut // RANGE * RANGE
    if once:
        return [Fault(OBJECT, start=start, cut=cut - start, reset=reset)]
    again = [Fault(OBJECT, start=cut, cut=0, reset=reset, times=None)]
    return [Fault(OBJECT, start=start, cut=cut - start, reset=reset, times=None), *again]


def failed_at(stderr: str, url: str, name: str = "tarcat", tries: int = 3) -> int:
    """Check that *stderr* is the line about a connection that was cut too often; return the byte."""
    found = re.fullmatch(
        rf"{name}: {re.escape(url)}: at byte (\d+): the connection was cut \({tries} tr(y|ies)\)\n", stderr
    )
    assert found, stderr
    return int(found[1])


@by_turns("ahead")
@each
def test_a_cut_that_passes(scheme: str, ahead: bool, inside: Inside) -> None:
    for number, cut in enumerate(list(cuts())[:: 3 if ahead else 2]):
        reset = number % 2 == 1
        inside.server.faults = cut_at(cut, reset, once=True)
        assert inside.copy(scheme) == (0, WHOLE, ""), cut
        (again,) = set(found := inside.starts()) - set(STARTS) or {cut // RANGE * RANGE}
        assert sorted({*STARTS, again}) == sorted(set(found)) and len(found) == len(STARTS) + 1, cut
        assert cut // RANGE * RANGE <= again <= cut if reset else again == cut  # what a reset brought may be lost


@by_turns("ahead")
@each
def test_a_cut_that_does_not_pass(scheme: str, ahead: bool, inside: Inside) -> None:
    url = inside.server.url(scheme, OBJECT)
    for number, cut in enumerate(list(cuts())[::5]):
        reset = number % 2 == 1
        inside.server.faults = cut_at(cut, reset, once=False)
        done = inside.copy(scheme)
        assert (done.status, done.data) == (1, None), cut
        at = failed_at(done.stderr, url)
        assert cut // RANGE * RANGE <= at <= cut if reset else at == cut
        to_stdout = inside.run("tarcat", url)
        assert to_stdout._replace(stdout=b"") == (1, b"", done.stderr) or reset
        assert WHOLE.startswith(to_stdout.stdout) and len(to_stdout.stdout) <= cut
        assert len(to_stdout.stdout) % 512 == 0 and not has_end(to_stdout.stdout)


@each
def test_a_connection_that_is_cut_all_the_time(scheme: str, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    inside.server.faults = [Fault(OBJECT, method="GET", cut=97, times=None)]
    url = inside.server.url(scheme, OBJECT)
    assert failed_at(inside.copy(scheme).stderr, url) == 3 * 97
    monkeypatch.setattr(retry, "WORTH", 97)  # bytes that count as progress, of which there are 256 KiB otherwise
    inside.starts()
    assert inside.copy(scheme) == (0, WHOLE, "")
    assert inside.starts() == sorted(at for start in STARTS for at in range(start, min(start + RANGE, 10240), 97))


@each
def test_a_cut_behind_the_last_byte_is_none(scheme: str, inside: Inside) -> None:
    for reset in (False, True):
        inside.server.faults = [Fault(OBJECT, start=10_000, cut=240, reset=reset)]
        assert inside.copy(scheme) == (0, WHOLE, "")
        assert inside.starts() == list(STARTS) or reset


@each
def test_chunks_without_an_end(scheme: str, inside: Inside) -> None:
    """The body is chunked, and the connection ends before the last chunk: once, always, from the first range on."""
    for start in (0, 3000):
        inside.server.faults = [Fault(OBJECT, start=start, framing="chunked", cut=600)]
        assert inside.copy(scheme) == (0, WHOLE, "")
        inside.server.faults = [
            Fault(OBJECT, method="GET", framing="chunked", cut=600, skip=start // RANGE, times=None)
        ]
        done = inside.copy(scheme)
        assert (done.status, done.data) == (1, None)
        first = min(start, RANGE)  # threads ask in any order
        assert first <= failed_at(done.stderr, inside.server.url(scheme, OBJECT)) <= start + 3 * 600


def test_a_body_that_says_nothing_of_its_length(inside: Inside) -> None:
    """The end of such a body is where the connection ends: only the archive tells that something is missing."""
    inside.server.objects["a.tgz"] = zipped = gzip.compress(WHOLE, mtime=0)
    for cut in list(cuts())[::4]:
        inside.server.faults = [Fault(OBJECT, no_range=True, framing="close", cut=cut, times=None)]
        done = inside.copy("http")
        if cut < NEEDED:
            assert (done.status, done.data) == (1, None)
            assert re.fullmatch(rf"tarcat: \S+{OBJECT}: at byte {cut}: [^\n]+\n", done.stderr), (cut, done)
        else:
            assert done == (0, WHOLE, "")
    for cut in range(0, len(zipped), 41):
        inside.server.faults = [Fault("a.tgz", no_range=True, framing="close", cut=cut, times=None)]
        done = inside.copy("http", "a.tgz")
        assert (done.status, done.data) == (1, None)
        assert re.fullmatch(r"tarcat: \S+a\.tgz: at byte \d+: [^\n]+\n", done.stderr), (cut, done)


@each
def test_one_shard_of_several_is_cut(scheme: str, inside: Inside, tmp_path: Path) -> None:
    parts = [make_tar(make_samples(4, start=10 * n)) for n in range(3)]
    for number, part in enumerate(parts):
        inside.server.objects[f"{number}.tar"] = part
        (tmp_path / f"{number}.tar").write_bytes(part)
    urls = [inside.server.url(scheme, f"{n}.tar") for n in range(3)]
    here = inside.run("tarcat", *(f"{n}.tar" for n in range(3)))
    assert here.status == 0
    for command in (["tarcat"], ["tarpcat", "-p", "2"], ["tarsort"]):
        inside.server.faults = [Fault(f"{n}.tar", start=1000, cut=100) for n in range(3)]
        assert inside.run(*command, *urls) == here
        assert [fault.played for fault in inside.server.faults] == [1, 1, 1]
        inside.server.faults = [Fault("1.tar", start=1000, cut=0, times=None)]
        done = inside.run(*command, "-o", "out.tar", *urls)
        assert done[:2] == (1, b"") and failed_at(done.stderr, urls[1], command[0]) == 1000
        assert not (tmp_path / "out.tar").exists()


@each
def test_a_value_of_a_new_sample_is_cut(scheme: str, inside: Inside, tmp_path: Path) -> None:
    inside.server.objects["1.jpg"] = bytes(range(256)) * 8
    url = inside.server.url(scheme, "1.jpg")
    (tmp_path / "plan.tsv").write_text(f"__key__\t@jpg\na\t{url}\n")
    inside.server.faults = [Fault("1.jpg", start=1000, cut=300)]
    assert members_of(inside.run("tarcreate", "plan.tsv").output()) == [("a.jpg", inside.server.objects["1.jpg"])]
    inside.server.faults = [Fault("1.jpg", start=1000, cut=0, times=None)]
    done = inside.run("tarcreate", "plan.tsv")
    assert done.status == 1 and not has_end(done.stdout)
    assert f"{url}: at byte 1000: the connection was cut (3 tries)" in done.stderr and done.stderr.count("\n") == 1


@each
def test_a_file_that_is_cut(scheme: str, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seekable, "TAIL", 100)
    monkeypatch.setattr(seekable, "NEAR", 100)
    url = inside.server.url(scheme, OBJECT)
    inside.server.faults = [Fault(OBJECT, start=0, cut=0, skip=1), Fault(OBJECT, start=3500, cut=700)]
    with tartools.open(url) as file:
        assert file.read(2000) == WHOLE[:2000]
        file.seek(3500)
        assert file.read() == WHOLE[3500:]
        inside.server.faults = [Fault(OBJECT, start=5000, cut=0, times=None)]
        file.seek(5000)
        with pytest.raises(StorageError, match=r"at byte 5000: the connection was cut \(3 tries\)"):
            file.read(1)
        inside.server.faults = []
        file.seek(-500, 2)
        assert file.read() == WHOLE[-500:]


# ---- as processes, by ranges of 8 MiB ----

LARGE = make_tar([(f"{n:02d}.bin", random.Random(n).randbytes(MIB)) for n in range(18)])  # three ranges


@by_turns("scheme")
@each
def test_large_objects_that_do_not_come(scheme: str, faulty: FaultServer, run: Run, tmp_path: Path) -> None:
    faulty.objects["large.tar"] = LARGE
    url = faulty.url(scheme, "large.tar")
    cut = 16 * MIB + 700_000
    faulty.faults = [
        Fault("large.tar", start=16 * MIB, cut=700_000, times=None),
        Fault("large.tar", start=cut, cut=0, times=None),
    ]
    done = run("tarcat", url, env=faulty.env | {"TARTOOLS_TRIES": "1"})
    assert done.stderr == f"tarcat: {url}: at byte {cut}: the connection was cut (1 try)\n"
    assert done.status == 1 and LARGE.startswith(done.stdout) and not has_end(done.stdout)
    assert run("tarcat", "-o", "out.tar", url, env=faulty.env | {"TARTOOLS_TRIES": "1"}) == done._replace(stdout=b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "scheme"), [(name, READ[n % 5]) for n, name in enumerate(READERS)])
def test_every_command_says_what_was_cut(name: str, scheme: str, faulty: FaultServer, run: Run, tmp_path: Path) -> None:
    data = make_tar(make_samples(5))
    faulty.objects[OBJECT] = data
    faulty.faults = [
        Fault(OBJECT, start=0, cut=1100, times=None),
        Fault(OBJECT, start=1100, cut=0, times=None),
    ]
    url = faulty.url(scheme, OBJECT)
    arguments = ("-f", "nope") if name == "tarfirst" else COMMANDS[name].arguments
    done = run(name, *arguments, url, env=faulty.env | {"TARTOOLS_TRIES": "1"})
    assert done.status == COMMANDS[name].trouble and not has_end(done.stdout)
    assert failed_at(done.stderr, url, name, tries=1) == 1100
    assert list(tmp_path.iterdir()) == []
