"""The least that proc-true could take: what the contract of tarproc asks for, and nothing else.

    python tests/bench/least.py FOLDER SHARD

Two processes, each with half of the samples. Each sample becomes files in a directory of its own name in FOLDER; a
shell that is there already forks for it; the files are read. Directory and files are then those of the next sample.
Nothing is written, checked or watched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

SHELL = 'while read -r d; do (cd "$d" && true); echo $?; done'


def samples_in(shard: str) -> list[list[tuple[bytes, memoryview]]]:
    """Return the fields of the samples in *shard*, with their payloads."""
    data = memoryview(Path(shard).read_bytes())
    found: dict[str, list[tuple[bytes, memoryview]]] = {}
    with tarfile.open(shard) as archive:
        for member in archive:
            key, _, field = member.name.partition(".")
            payload = data[member.offset_data : member.offset_data + member.size]
            found.setdefault(key, [(b"__key__", memoryview(key.encode()))]).append((field.encode(), payload))
    return list(found.values())


def work(folder: str, samples: list[list[tuple[bytes, memoryview]]]) -> None:
    """Make each of *samples* files in *folder*, have a shell run, read the files, and remove them."""
    shell = subprocess.Popen(["bash", "-c", SHELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert shell.stdin and shell.stdout
    place, made = b"", set[bytes]()
    for number, fields in enumerate(samples):
        last, place = place, os.fsencode(f"{folder}/{os.getpid()}-{number}")
        if last:
            os.rename(last, place)
        else:
            os.mkdir(place)
        paths = {b"sample." + field: place + b"/sample." + field for field, _ in fields}
        for path, (_, payload) in zip(paths.values(), fields, strict=True):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.write(fd, payload)
            os.ftruncate(fd, len(payload))
            os.close(fd)
        for name in made - paths.keys():
            os.unlink(place + b"/" + name)
        made = set(paths)
        shell.stdin.write(place + b"\n")
        assert shell.stdout.read(2) == b"0\n"
        for path in paths.values():
            fd = os.open(path, os.O_RDONLY)
            os.read(fd, 1 << 20)
            os.close(fd)
    shutil.rmtree(place)
    shell.stdin.close()
    shell.wait()


def main() -> None:
    """Do it."""
    folder, shard = sys.argv[1:]
    samples = samples_in(shard)
    child = os.fork()
    work(folder, samples[bool(child) :: 2])
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
