"""A server with the protocol of S3 for reading: nginx on 127.0.0.1, with the bucket `bucket` that has one object.

    python -m tests.bench.bucket FILE TOLD

The object `a.tar` is FILE. Returns when the server listens; the file TOLD then has the variables that clients need, for
the shell. When TOLD is removed, the server ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path

from tests.storage.objects import servers

VARIABLES = "export AWS_ENDPOINT_URL={url} AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x AWS_DEFAULT_REGION=us-east-1\n"
LOOK = 0.1  # seconds between two looks whether TOLD is there


def serve(file: Path, told: Path, ready: int) -> None:
    """Serve *file* until *told* is removed; write a byte to *ready* when the server listens."""
    with tempfile.TemporaryDirectory() as folder:
        bucket = Path(folder, "bucket")
        bucket.mkdir()
        (bucket / "a.tar").symlink_to(file)
        with servers.nginx(folder) as url:
            told.write_text(VARIABLES.format(url=url))
            os.write(ready, b"1")
            while told.exists():
                threading.Event().wait(LOOK)


def main() -> None:
    """Leave a server behind, in a session of its own."""
    file, told = (Path(name).absolute() for name in sys.argv[1:])
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        sys.exit(not os.read(reading, 1))
    os.setsid()
    serve(file, told, writing)


if __name__ == "__main__":
    main()
