"""The law of damaged archives, on some hundred of them: the same ones each time."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import tarfile
from itertools import islice
from pathlib import Path

import pytest

from tests.archives import entry
from tests.commands.conftest import Inside, inside
from tests.conftest import make_samples, make_tar
from tests.properties import strict
from tests.properties.fuzz import Case, ViolationError, by_tarfile, cases, check
from tests.tiers import also

__all__ = ["inside"]  # a fixture
CASES = 400


@pytest.mark.parametrize("seed", [1, 2, *also(*range(3, 12))])
def test_the_law_holds_for_damaged_archives(seed: int, inside: Inside) -> None:
    ends = {0: 0, 1: 0}
    for number, case in enumerate(islice(cases(seed), CASES)):
        Path("in.tar").write_bytes(case.content)
        status, out, said = inside("tarcat", *case.way, "--skip-special", "-q", stdin=case.content, stdout="out")
        try:
            check(case, status, out, said)
        except ViolationError as error:
            pytest.fail(f"case {number} of seed {seed}, tarcat {' '.join(case.way)}: {error}")
        ends[status] += 1
    assert min(ends.values()) > CASES // 10  # both ends are tried


def test_what_breaks_the_law_is_found() -> None:
    """The check fails for each way to break it."""
    whole, part = make_tar(make_samples(3)), make_tar(make_samples(2))
    sound, cut = strict.read(whole), strict.read(whole[:-10_240])
    torn = whole.rstrip(b"\0")[:-512]
    wrong = [
        (Case(whole, (), sound, "flip"), 0, part, ""),  # a sample is lost
        (Case(whole, (), sound, "flip"), 0, torn, ""),  # no end
        (Case(whole, (), cut, "flip"), 0, whole, ""),  # damage that nobody has seen
        (Case(whole, (), sound, "flip"), 1, whole, "tarcat: in.tar: damage\n"),  # an end in spite of it
        (Case(whole, (), sound, "flip"), 1, b"", "tarcat: in.tar: damage\n"),  # damage where there is none
        (Case(whole, (), cut, "flip"), 1, entry(b"z.x", b"1"), "tarcat: in.tar: damage\n"),  # a sample of its own
        (Case(whole, (), cut, "flip"), 1, b"", ""),  # no word
        (Case(whole, (), cut, "flip"), 2, b"", "tarcat: in.tar: damage\n"),
    ]
    for case, status, out, said in wrong:
        with pytest.raises(ViolationError):
            check(case, status, out, said)
    check(Case(whole, (), sound, "flip"), 0, whole, "")
    check(Case(whole, (), cut, "flip"), 1, b"", "tarcat: in.tar: damage\n")


@pytest.mark.parametrize("seed", range(60))
def test_the_second_reader_sees_what_python_sees(seed: int) -> None:
    content = by_tarfile(random.Random(seed))
    with tarfile.open(fileobj=io.BytesIO(content), errors="surrogateescape") as archive:
        regular = [(info, archive.extractfile(info)) for info in archive if info.isreg()]
        seen = [(info.name.encode("utf-8", "surrogateescape"), file.read()) for info, file in regular if file]
    assert strict.read(content) == (seen, True)


@pytest.mark.skipif(shutil.which("bsdtar") is None, reason="there is no bsdtar")
@pytest.mark.parametrize("seed", range(20))
def test_the_second_reader_sees_what_bsdtar_sees(seed: int) -> None:
    content = by_tarfile(random.Random(seed))
    done = subprocess.run(["bsdtar", "-xOf", "-"], input=content, capture_output=True, check=True)
    assert b"".join(payload for _, payload in strict.read(content).members) == done.stdout
