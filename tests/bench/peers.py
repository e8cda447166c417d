"""How each library gives the samples of a folder of shards to training, as batches: ours, and those beside it.

Each function takes a `Task` and returns one that goes through an epoch and yields how many samples each batch has. Our
batches are gone through sample by sample; those of the others are lists, of which only the length is taken. Peers that
have a format of their own get the samples converted to it, once, beside the shards.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module, metadata
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

ZIPPED = 20_000  # samples in the zip file: zipfile takes 14 s to open the 600,000 members of B
CHUNK = 1 << 26  # bytes of a file of litdata and streaming


class Task(NamedTuple):
    """What is to be read: shards below *folder*, in *way* "order" or "random", in batches, by so many *workers*.

    If it is *decoded*, that is how peers do it: "Pillow", as their documentation has it, or "ours", by our function.
    """

    folder: Path
    way: str
    workers: int
    decoded: str
    batch: int
    tables: Path  # where tables of shards are kept

    @property
    def shards(self) -> list[Path]:
        """In order."""
        return sorted(self.folder.glob("*.tar"))

    @property
    def main(self) -> str:
        """The field that a sample is about, the first of each."""
        return "txt" if self.folder.name.startswith("B") else "jpg"

    @property
    def options(self) -> dict[str, Any]:
        """For DataLoader."""
        return {"num_workers": self.workers, "persistent_workers": self.workers > 0}

    @property
    def collation(self) -> dict[str, Any]:
        """For the DataLoader of samples: lists of bytes; pictures together."""
        return {} if self.decoded else {"collate_fn": list}

    def kept(self, library: str, make: Callable[[Path], None]) -> Path:
        """Return the samples in the format of *library*, which `make(path)` made now or before."""
        path = self.folder.with_name(f"{self.folder.name}-{library}")
        if not path.exists():
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                make(temporary)
                temporary.rename(path)
            finally:
                if temporary.is_dir():
                    shutil.rmtree(temporary)
                temporary.unlink(missing_ok=True)
        return path


Epoch = Callable[[], Iterable[int]]


SIZE = (224, 224)  # what training does with a picture
OURS = {"fields": ("jpg",), "decode": "torchrgb8", "resize": SIZE}


def by_pillow(data: bytes) -> Any:
    """Return a JPEG in this size."""
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize(SIZE))


def by_ours(data: bytes) -> Any:
    """Return the same by our function."""
    from tartools.train import picture

    return picture(data, "torchrgb8", SIZE)


def bare(data: bytes) -> Any:
    """Return the same by no more than libjpeg and torch."""
    import simplejpeg
    import torch

    planes = torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)[None]
    return torch.nn.functional.interpolate(planes, SIZE, mode="bicubic", antialias=True)[0]


SMALL: dict[str, Callable[[bytes], Any]] = {"Pillow": by_pillow, "ours": by_ours, "bare": bare}


def table_of(task: Task) -> str:
    """Return the table of the shards, which is made once a run, so that it is of this version."""
    path = task.tables / f"{task.folder.name}.parquet"
    if not path.exists():
        tarindex = Path(sys.executable).parent / "tarindex"
        subprocess.run([tarindex, "-q", *task.shards, "-o", path], check=True)
    return str(path)


def table(task: Task) -> Epoch:
    """`tartools.train.loader` of the table."""
    from tartools.train import loader

    shuffle = task.way == "random"
    chosen: dict[str, Any] = OURS if task.decoded else {}
    batches = loader(table_of(task), task.batch, shuffle=shuffle, **chosen, **task.options)
    if task.decoded:
        return lambda: (len(pictures) for (pictures,) in batches)
    return lambda: (sum("cls" in sample for sample in samples) for samples in batches)


def stream(task: Task) -> Epoch:
    """`tartools.train.WebDataset`, without a table."""
    from torch.utils.data import DataLoader

    from tartools.train import WebDataset

    chosen: dict[str, Any] = OURS if task.decoded else {}
    data = WebDataset([str(shard) for shard in task.shards], **chosen)
    return webdatasets(task, data, DataLoader)


def webdataset(task: Task) -> Epoch:
    """webdataset, of the same shards."""
    from torch.utils.data import DataLoader

    wds: Any = import_module("webdataset")
    data = wds.WebDataset([str(shard) for shard in task.shards], shardshuffle=False)
    if task.decoded:
        data = data.to_tuple("jpg").map_tuple(SMALL[task.decoded])
    return webdatasets(task, data, DataLoader)


def webdatasets(task: Task, data: Any, loader: Any) -> Epoch:
    """Return the epochs of a pipeline of webdataset, ours or theirs."""
    if task.decoded:
        batches = loader(data.batched(task.batch), batch_size=None, **task.options)
        return lambda: (len(pictures) for (pictures,) in batches)
    batches = loader(data.batched(task.batch, collation_fn=list), batch_size=None, **task.options)
    return lambda: (sum("cls" in sample for sample in samples) for samples in batches)


def litdata(task: Task) -> Epoch:
    """litdata, of its own format."""
    lit: Any = import_module("litdata")

    def make(path: Path) -> None:
        path.mkdir()
        cache = import_module("litdata.streaming.cache").Cache(str(path), chunk_bytes=CHUNK)
        for number, sample in enumerate(samples(task)):
            cache[number] = sample
        cache.done()
        cache.merge()

    path = str(task.kept(f"litdata-{metadata.version('litdata')}", make))

    class Data(lit.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return SMALL[task.decoded](sample["jpg"]) if task.decoded else sample

    data = Data(path, shuffle=False)
    if task.way == "random":
        return lambda: one_by_one(data.__getitem__, len(data), task.batch)
    batches = lit.StreamingDataLoader(data, batch_size=task.batch, **task.collation, **task.options)
    return lambda: map(len, batches)


def streaming(task: Task) -> Epoch:
    """MosaicML streaming, of its own format."""
    from torch.utils.data import DataLoader

    mds: Any = import_module("streaming")
    import_module("streaming.base.util").clean_stale_shared_memory()

    def make(path: Path) -> None:
        found = samples(task)
        first = next(found)
        with mds.MDSWriter(out=str(path), columns=dict.fromkeys(first, "bytes"), size_limit=CHUNK) as writer:
            for sample in chain([first], found):
                writer.write(sample)

    path = str(task.kept("streaming", make))

    class Data(mds.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            sample = super().__getitem__(index)
            return SMALL[task.decoded](sample["jpg"]) if task.decoded else sample

    data = Data(local=path, shuffle=False, batch_size=task.batch)
    if task.way == "random":
        return lambda: one_by_one(data.__getitem__, len(data), task.batch)
    batches = DataLoader(data, task.batch, **task.collation, **task.options)
    return lambda: map(len, batches)


def webshart(task: Task) -> Epoch:
    """webshart, of the same shards and its own index; each worker has its share of the shards."""
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    library: Any = import_module("webshart")
    parts = max(task.workers, 1)

    def make(path: Path) -> None:
        for part in range(parts):
            (path / str(part)).mkdir(parents=True)
            for shard in task.shards[part::parts]:
                (path / str(part) / shard.name).symlink_to(shard)
            place = str(path / str(part))
            library.MetadataExtractor().extract_metadata(source=place, destination=place, max_workers=2)

    path = task.kept(f"webshart-{parts}", make)

    def opened(part: int) -> Any:
        return library.discover_dataset(source=str(path / str(part)), metadata=str(path / str(part)))

    if task.way == "random":
        data = opened(0)
        readers = [data.open_shard(number) for number in range(data.num_shards)]
        places = [
            (reader.read_file, number)
            for reader in readers
            for number, name in enumerate(reader.filenames())
            if name.endswith(task.main)
        ]

        def read(index: int) -> Any:
            data = places[index][0](places[index][1])
            return SMALL[task.decoded](data) if task.decoded else data

        return lambda: one_by_one(read, len(places), task.batch)

    class Data(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            about = get_worker_info()
            for entry in library.TarDataLoader(opened(about.id if about else 0)):
                if entry.path.endswith(task.main):  # the others count as samples of their own
                    yield SMALL[task.decoded](entry.data) if task.decoded else (entry.path, entry.data)

    batches = DataLoader(Data(), task.batch, **task.collation, **task.options)
    return lambda: map(len, batches)


def pread(task: Task, kept: int = 1) -> Epoch:
    """One `os.pread` of a payload for each sample, at places that are known, in a loop: nothing is checked or kept."""
    import tartools

    found = tartools.Table(table_of(task))
    members = found.arrow.column("__members__").combine_chunks()
    begins, sizes = (members.field(task.main).field(name).to_numpy() for name in ("offset", "size"))
    shards = {url: number for number, url in enumerate(found.shards())}
    files = [os.open(url, os.O_RDONLY) for url in shards]
    which = [files[shards[url]] for url in found.arrow.column("__shard__").to_pylist()]
    places = list(zip(which, sizes.tolist(), begins.tolist(), strict=True))
    return lambda: preads(places, kept, task.way == "random")


def pread_kept(task: Task) -> Epoch:
    """The same, but that the payloads of a batch are there together, as training needs them: that takes memory."""
    return pread(task, task.batch)


def preads(places: list[tuple[int, int, int]], kept: int, shuffle: bool) -> Iterator[int]:
    """Read all of *places*, in order or at random, and keep so many at a time; yield how many, some 64 at a time."""
    rows = drawn(len(places)) if shuffle else list(range(len(places)))
    count = max(64, kept)
    for first in range(0, len(rows), count):
        part = rows[first : first + count]
        if kept > 1:
            yield len([os.pread(*places[row]) for row in part])
        else:
            for row in part:
                os.pread(*places[row])
            yield len(part)


def zipped(task: Task) -> Epoch:
    """Python's zipfile, of the first samples, stored; each worker opens it."""
    from torch.utils.data import DataLoader, Dataset

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for number, sample in enumerate(islice(samples(task), ZIPPED)):
                for field, value in sample.items():
                    archive.writestr(f"{number:09d}.{field}", value)

    path = task.kept("zip", make)
    archive = zipfile.ZipFile(path)
    names = [name for name in archive.namelist() if name.endswith(task.main)]
    mine = {os.getpid(): archive}

    class Data(Dataset[Any]):
        def __len__(self) -> int:
            return len(names)

        def __getitem__(self, index: int) -> Any:
            if os.getpid() not in mine:
                mine[os.getpid()] = zipfile.ZipFile(path)
            data = mine[os.getpid()].read(names[index])
            return SMALL[task.decoded](data) if task.decoded else data

    if task.way == "random":
        return lambda: one_by_one(Data().__getitem__, len(names), task.batch)
    batches = DataLoader(Data(), task.batch, **task.collation, **task.options)
    return lambda: map(len, batches)


def decoding(task: Task) -> Epoch:
    """Decode pictures that are in memory already."""
    pictures = [sample["jpg"] for sample in islice(samples(task), 200)]

    def epoch() -> Iterator[int]:
        for picture in pictures:
            SMALL[task.decoded](picture)
            yield 1

    return epoch


def one_by_one(get: Callable[[int], object], count: int, batch: int) -> Iterator[int]:
    """Get each of *count* samples by its number, at random, in lists of *batch*; yield how many each has."""
    rows = drawn(count)
    for first in range(0, count, batch):
        yield len([get(row) for row in rows[first : first + batch]])


def drawn(count: int) -> list[int]:
    """Return the numbers below *count* in an order that is always the same."""
    import numpy as np

    rows: list[int] = np.random.default_rng(1).permutation(count).tolist()
    return rows


def samples(task: Task) -> Iterator[dict[str, bytes]]:
    """Yield the samples as dicts of their fields."""
    import tartools

    for sample in tartools.read([str(shard) for shard in task.shards]):
        yield {field: bytes(value) for field, value in sample.items()}


READERS: dict[str, Callable[[Task], Epoch]] = {
    each.__name__: each
    for each in (table, stream, webdataset, litdata, streaming, webshart, zipped, pread, pread_kept, decoding)
}
