"""The sets of `python -m tests.bench peers`: many small shards, and shards with one fault each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tests.archives import entry
from tests.bench.data import texts, write

EACH = 8  # samples of each of many shards
SHARDS, PER_SHARD = 4, 20  # of a damaged set
FAULTY = 1  # the shard with the fault
TEXT_BYTES = 2000
SAMPLE_BYTES = 512 + 2048 + 512 + 512  # of a shard: two headers, two payloads
CUT_AFTER = 10.3  # samples: in a payload


def make_many(folder: Path, count: int) -> None:
    """Make *count* shards of eight samples."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    temporary.mkdir(parents=True)
    samples = texts(count * EACH)
    for number in range(count):
        with (temporary / f"{number:06d}.tar").open("wb") as file:
            write(file, islice(samples, EACH))
    temporary.rename(folder)


class Fault(NamedTuple):
    """What is wrong with a set, and how many of its 80 samples can still be read."""

    about: str
    readable: int
    own_format: bool  # files of another format can have it, too


FAULTS = {
    "whole": Fault("nothing", 80, True),
    "cut": Fault("a shard cut in a payload", 70, True),
    "header": Fault("one header damaged", 79, False),
    "empty": Fault("a shard of 0 bytes", 60, True),
    "missing": Fault("a shard missing", 60, True),
    "apart": Fault("fields of a sample apart", 80, False),
    "dots": Fault("a dot in the folder's name", 80, False),
}


def original(number: int) -> dict[str, bytes]:
    """Return the sample *number*."""
    return {"txt": (b"sample %06d " % number * TEXT_BYTES)[:TEXT_BYTES], "cls": b"%d" % number}


def damaged_shards(fault: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and bytes of the shards of a set; a missing one is left out."""
    folder = b"v1.5/" if fault == "dots" else b""
    for shard in range(SHARDS):
        name, numbers = f"{shard:02d}.tar", range(shard * PER_SHARD, (shard + 1) * PER_SHARD)
        names = [(number, field) for number in numbers for field in ("txt", "cls")]
        if fault == "apart" and shard == FAULTY:
            names.sort(key=lambda pair: pair[1])
        members = [entry(folder + b"%06d.%b" % (n, field.encode()), original(n)[field]) for n, field in names]
        data = b"".join(members) + bytes(1024)
        if shard == FAULTY and fault == "header":
            place = 5 * SAMPLE_BYTES + 148  # the checksum of a txt
            data = data[:place] + b"\xff" * 8 + data[place + 8 :]
        if shard != FAULTY or fault != "missing":
            yield name, damage(data, fault) if shard == FAULTY else data


def damage(data: bytes, fault: str) -> bytes:
    """Return the bytes of a file that is cut or empty, if *fault* says so."""
    return {"cut": data[: int(CUT_AFTER * len(data) / PER_SHARD)], "empty": b""}.get(fault, data)


def make_damaged(folder: Path, fault: str) -> list[str]:
    """Write a set to *folder*; return the paths of all shards, also of a missing one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in damaged_shards(fault):
        (folder / name).write_bytes(data)
    return [str(folder / f"{shard:02d}.tar") for shard in range(SHARDS)]


def damage_files(folder: Path, fault: str) -> None:
    """Do the same to the second file of samples in the format of litdata or streaming."""
    path = sorted([*folder.glob("*.bin"), *folder.glob("*.mds")])[FAULTY]
    if fault == "missing":
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes(), fault))
