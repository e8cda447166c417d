"""Only what a URL needs is imported: who reads S3 does not wait for Google's libraries, nor the other way."""

from __future__ import annotations

import pytest

from tests.conftest import make_samples, make_tar, python
from tests.storage.objects.faults import FaultServer
from tests.tiers import by_turns

LIBRARIES = ("boto3", "botocore", "requests", "google.auth", "google.cloud.storage", "smart_open", "aistore")
NEEDED = {"s3": {"botocore"}, "gs": {"google.auth"}, "ais": set(), "http": set()}
PROGRAM = f"""
import sys
from tartools.commands.tarcat import tarcat
status = tarcat.main(sys.argv[1:])
print(*sorted(set(sys.modules) & {set(LIBRARIES)!r}))
sys.exit(status)
"""


def imported(server: FaultServer, *arguments: str) -> set[str]:
    """Return the libraries that tarcat with *arguments* has imported at its end."""
    done = python(PROGRAM, *arguments, env=server.env)
    assert (done.status, done.stderr) == (0, "")
    return set(done.stdout.decode().split())


@pytest.mark.parametrize("scheme", NEEDED)
def test_a_scheme_imports_its_own_library(scheme: str, faulty: FaultServer) -> None:
    faulty.objects["in-1.tar"] = data = make_tar(make_samples(3))
    assert imported(faulty, faulty.url(scheme, "in-1.tar"), "-o", faulty.url(scheme, "out")) == NEEDED[scheme]
    assert faulty.objects["out"] == data


@by_turns("scheme")
@pytest.mark.parametrize("scheme", ["s3", "gs", "ais"])
def test_listing_imports_no_more(scheme: str, faulty: FaultServer) -> None:
    faulty.objects["in-1.tar"] = data = make_tar(make_samples(3))
    assert imported(faulty, f"{scheme}://b/in-[0-9].tar", "-o", faulty.url(scheme, "out")) == NEEDED[scheme]
    assert faulty.objects["out"] == data
