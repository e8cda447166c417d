"""The archives that are benchmarked with: the same on every run, made when they are first asked for, and kept.

    python -m tests.bench.data FOLDER SCALE NAME

A process of its own makes them: what the benchmark's own process has once held would count as memory of all commands
that it starts. Nothing of tartools is used, so that both can't be wrong together.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import random
import shutil
import signal
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from tests.archives import BLOCK, END, entry

EDITION = 1  # one more whenever other bytes are made
ROWS = 1 << 16  # of a row group
RECORD = (
    20 * BLOCK
)  # a multiple of this is what archives are as long as (POSIX.1-2017, pax, "ustar Interchange Format")

Samples = Iterable[bytes]  # each all members of one sample


class DataSet(NamedTuple):
    """How one is made: `write(path, samples)` makes a file, or a folder of them; *samples* is how many, in each."""

    path: str
    samples: int
    members: int  # of each sample
    write: Callable[[Path, int], None]


def photos(number: int) -> Iterator[bytes]:
    """Yield samples of jpg (90 to 130 KB that don't compress), cls and json, in the order of their keys."""
    dice = random.Random("photos")
    for n in range(number):
        key, label = b"train/%06d" % n, dice.randrange(1000)
        about = {"id": n, "label": label, "width": dice.randrange(200, 800), "height": 500}
        picture = dice.randbytes(dice.randrange(90_000, 130_000))
        yield b"".join(
            (
                entry(key + b".jpg", picture),
                entry(key + b".cls", b"%d" % label),
                entry(key + b".json", json.dumps(about).encode()),
            )
        )


def vocabulary(dice: random.Random) -> list[str]:
    return ["".join(dice.choices("etaoinshrdlu", k=dice.randrange(2, 9))) for _ in range(4000)]


def texts(number: int) -> Iterator[bytes]:
    """Yield samples of txt (about 900 bytes of words) and cls, in no order."""
    dice = random.Random("texts")
    words, order = vocabulary(dice), list(range(number))
    dice.shuffle(order)
    for n in order:
        text = " ".join(dice.choices(words, k=150)).encode()[:900]
        yield entry(b"%09d.txt" % n, text) + entry(b"%09d.cls" % n, b"%d" % dice.randrange(1000))


def varied(number: int) -> Iterator[bytes]:
    """Yield samples of cls, txt (about 300 bytes of words), which half of them lack, and json, in no order."""
    dice = random.Random("varied")
    words, order = vocabulary(dice), list(range(number))
    dice.shuffle(order)
    for n in order:
        label = dice.randrange(1000)
        text = entry(b"%09d.txt" % n, " ".join(dice.choices(words, k=50)).encode()[:300]) if n % 2 else b""
        about = json.dumps({"id": n, "label": label}).encode()
        yield entry(b"%09d.cls" % n, b"%d" % label) + text + entry(b"%09d.json" % n, about)


def lines(number: int) -> Iterator[bytes]:
    """Yield samples of one txt, 1 KiB in two blocks, and its header, in no order."""
    dice = random.Random("lines")
    book, order = " ".join(dice.choices(vocabulary(dice), k=200_000)).encode(), list(range(number))
    dice.shuffle(order)
    for n in order:
        start = dice.randrange(len(book) - 2 * BLOCK)
        yield entry(b"%09d.txt" % n, book[start : start + dice.randrange(BLOCK + 1, 2 * BLOCK)])


def write(file: IO[bytes] | gzip.GzipFile, samples: Samples) -> None:
    """Write the archive of *samples*."""
    size = 0
    for sample in samples:
        size += file.write(sample)
    file.write(END + bytes(-(size + len(END)) % RECORD))


def opened(path: Path) -> IO[bytes]:
    return path.open("wb", buffering=1 << 20)


def gzipped(path: Path) -> gzip.GzipFile:
    """Open what `gzip -6` would make."""
    return gzip.GzipFile(str(path), "wb", compresslevel=6, mtime=0)


def one(samples: Callable[[int], Samples], opened: Callable[[Path], Any] = opened) -> Callable[[Path, int], None]:
    """Return what makes one archive of as many *samples* as it is told."""

    def make(path: Path, number: int) -> None:
        with opened(path) as file:
            write(file, samples(number))

    return make


def shards(
    count: int, name: str, samples: Callable[[int], Iterator[bytes]], opened: Callable[[Path], Any] = opened
) -> Callable[[Path, int], None]:
    """Return what makes a folder of *count* shards, each of as many *samples* as it is told."""

    def make(folder: Path, number: int) -> None:
        folder.mkdir()
        found = samples(count * number)
        for shard in range(count):
            with opened(folder / name.format(shard)) as file:
                write(file, islice(found, number))

    return make


def pictures(number: int) -> Iterator[bytes]:
    """Yield samples of jpg and cls: the pictures of the archive $BENCH_PHOTOS again and again, or drawn ones."""
    book = photographs(os.environ["BENCH_PHOTOS"]) if "BENCH_PHOTOS" in os.environ else list(drawings(48))
    for n in range(number):
        yield entry(b"%06d.jpg" % n, book[n % len(book)]) + entry(b"%06d.cls" % n, b"%d" % (n % len(book)))


def photographs(path: str) -> list[bytes]:
    """Return the pictures of the archive *path*."""
    with tarfile.open(path) as archive:
        files = [archive.extractfile(info) for info in archive if info.name.lower().endswith((".jpg", ".jpeg"))]
        return [file.read() for file in files if file]


def drawings(number: int) -> Iterator[bytes]:
    """Yield JPEGs of 500 x 375 pixels, as rough as photographs: some 40 KB."""
    import numpy as np
    from PIL import Image

    dice = np.random.default_rng(2)
    for _ in range(number):
        large = Image.fromarray(dice.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((500, 375))
        fine = dice.integers(-20, 21, (375, 500, 1))
        file = io.BytesIO()
        Image.fromarray((np.asarray(large) + fine).clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=75)
        yield file.getvalue()


def crumbs(folder: Path, number: int) -> None:
    """Make *number* shards of one small sample, and their names: `list` has all of them, `first` one."""
    folder.mkdir()
    for n, sample in enumerate(texts(number)):
        with (folder / f"{n:06d}.tar").open("wb") as file:
            write(file, [sample])
    (folder / "list").write_text("".join(f"{n:06d}.tar\n" for n in range(number)))
    (folder / "first").write_text(f"{0:06d}.tar\n")


def rows(folder: Path, number: int) -> None:
    """Make a shard, `a.tar`, of 1,000 samples of one txt, and `t.parquet`: a table of *number* of them at random."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    samples = list(lines(min(number, 1000)))
    with (folder / "a.tar").open("wb") as file:
        write(file, samples)
    about = (folder / "a.tar").stat()
    ends = np.cumsum([len(sample) for sample in samples]).astype(np.uint64)
    begins = np.concatenate(([0], ends[:-1])).astype(np.uint64)
    keys = pa.array([sample[:9].decode() for sample in samples])
    one = pa.array([0] * len(samples), pa.int32())
    names = {"__shard__": "a.tar", "__version__": f"{about.st_size} {about.st_mtime_ns}"}
    whole = pa.table(
        {name: pa.DictionaryArray.from_arrays(one, [text]) for name, text in names.items()}
        | {"__key__": keys, "__begin__": begins, "__end__": ends}
    )
    dice = np.random.default_rng(1)
    with pq.ParquetWriter(folder / "t.parquet", whole.schema, compression="zstd") as table:
        for first in range(0, number, ROWS):
            table.write_table(whole.take(dice.integers(0, len(samples), min(ROWS, number - first))))


# In command lines, $NAME is the path and $NAME_COUNT the number of samples, in each shard where there are several.
SETS = {
    "A": DataSet("A.tar", 8_000, 3, one(photos)),
    "B": DataSet("B.tar", 300_000, 2, one(texts)),
    "V": DataSet("V.tar", 150_000, 2, one(varied)),  # 2 or 3 members
    "A16": DataSet("A-16", 500, 3, shards(16, "{:02d}.tar", photos)),
    "B16": DataSet("B-16", 18_750, 2, shards(16, "{:02d}.tar", texts)),
    "PHOTOS": DataSet(
        "photos" if "BENCH_PHOTOS" in os.environ else "drawings", 300, 2, shards(16, "{:02d}.tar", pictures)
    ),
    "FEW": DataSet("few.tar", 10, 2, one(pictures)),
    "P": DataSet("P.tar", 500, 3, one(photos)),
    "ONE": DataSet("one.tar", 1, 2, one(texts)),
    "GA": DataSet("A-gz", 800, 3, shards(2, "{}.tgz", photos, gzipped)),
    "GB": DataSet("B.tgz", 300_000, 2, one(texts, gzipped)),
    "BZ": DataSet("B-bz2", 20_000, 2, shards(4, "{}.tar.bz2", texts, partial(bz2.open, mode="wb"))),
    "TINY": DataSet("tiny", 10_000, 2, crumbs),
    "ROWS": DataSet("rows", 10_000_000, 1, rows),
    "M1": DataSet("1m.tar", 1_000_000, 1, one(lines)),
    "M5": DataSet("5m.tar", 5_000_000, 1, one(lines)),
}


def samples_in(name: str, scale: float) -> int:
    """Return how many samples the data set *name* has, or each shard of it."""
    return 1 if name == "ONE" else max(2, round(SETS[name].samples * scale))


def home(folder: Path, scale: float) -> Path:
    """Return where, below *folder*, data sets of this edition and *scale* are."""
    return folder / f"{EDITION}-{scale:g}"


def make(folder: Path, scale: float, name: str) -> None:
    """Make the data set *name*, which appears when it is complete, and is on the disk."""
    made, place = SETS[name], home(folder, scale)
    place.mkdir(parents=True, exist_ok=True)
    temporary = place / f".{made.path}.{os.getpid()}"
    try:
        made.write(temporary, samples_in(name, scale))
        os.sync()  # else the first rounds would run beside the writing
        temporary.rename(place / made.path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        make(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
    except OSError as error:  # no space, no permission
        sys.exit(f"{sys.argv[3]}: {error}")
