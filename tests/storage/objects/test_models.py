"""The client of S3: botocore's own descriptions of services, and the credentials that a program has chosen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from botocore import exceptions, loaders

from tartools.storage.objects.models import Models
from tests.conftest import clean_environment
from tests.storage.objects.faults import FaultServer

PROGRAM = """
import boto3, sys
from tartools import storage
if sys.argv[2:]:
    boto3.setup_default_session(aws_access_key_id=sys.argv[2], aws_secret_access_key="x")
sys.stdout.buffer.write(storage.content(sys.argv[1]))
"""


def test_descriptions_are_those_of_botocore(tmp_path: Path) -> None:
    own = tmp_path / "own" / "2001-01-01"
    own.mkdir(parents=True)
    (own / "service-2.json").write_text('{"b": 1, "a": [2]}')
    theirs = loaders.Loader([str(tmp_path)])
    ours = Models(theirs.search_paths)
    for service, kind in (
        ("s3", "service-2"),
        ("s3", "endpoint-rule-set-1"),
        ("sts", "service-2"),
        ("own", "service-2"),
    ):
        one, other = (loader.load_service_model(service, kind) for loader in (ours, theirs))
        assert json.dumps(one) == json.dumps(other), service  # in the same order too
    for name in ("endpoints", "partitions"):
        assert json.dumps(ours.load_data(name)) == json.dumps(theirs.load_data(name))
    for service, kind in (("nosuch", "service-2"), ("own", "endpoint-rule-set-1")):
        for loader in (ours, theirs):
            with pytest.raises(exceptions.UnknownServiceError):
                loader.load_service_model(service, kind)
    with pytest.raises(exceptions.DataNotFoundError):
        ours.load_data("nosuch")


def test_the_default_session_of_boto3(faulty: FaultServer) -> None:
    faulty.objects["a"] = b"abc"
    for chosen in ((), ("CHOSEN",)):
        command = [sys.executable, "-c", PROGRAM, faulty.url("s3", "a"), *chosen]
        done = subprocess.run(command, env=clean_environment() | faulty.env, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"abc", b"")
        signed = faulty.requests[-1].headers["authorization"]
        assert ("Credential=CHOSEN/" in signed) == bool(chosen)
