"""The client of S3: the credentials that a program has chosen."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import clean_environment
from tests.storage.objects.faults import FaultServer

PROGRAM = """
import boto3, sys
from tartools import storage
if sys.argv[2:]:
    boto3.setup_default_session(aws_access_key_id=sys.argv[2], aws_secret_access_key="x")
sys.stdout.buffer.write(storage.content(sys.argv[1]))
"""


def test_the_default_session_of_boto3(faulty: FaultServer) -> None:
    faulty.objects["a"] = b"abc"
    for chosen in ((), ("CHOSEN",)):
        command = [sys.executable, "-c", PROGRAM, faulty.url("s3", "a"), *chosen]
        done = subprocess.run(command, env=clean_environment() | faulty.env, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"abc", b"")
        signed = faulty.requests[-1].headers["authorization"]
        assert ("Credential=CHOSEN/" in signed) == bool(chosen)
