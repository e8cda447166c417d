"""Ours, and the libraries with an index or a format of their own; `LIBRARIES` has all, in the order of the table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from tests.bench.beside.base import BUFFER, SEED, Library, Reading, as_bytes, by_key, grouped, links
from tests.bench.beside.sets import EACH, PER_SHARD
from tests.bench.beside.streams import STREAM, Daft, Datago, Datasets, RayData, Spdl, WebDatasetLibrary
from tests.bench.peers import CHUNK, OURS, SMALL

PER_CHUNK = {"many": EACH, "damaged": PER_SHARD}  # samples of a file, as in the shards of these sets
NO_HTTP = "no http: URLs"


class OurLoader(Library):
    name = "tartools `loader`"
    package = "tartools"
    about = "tar, table"
    imports = ("torch.utils.data", "pyarrow.parquet", "tartools.train.loading")

    def prepare(self, reading: Reading) -> None:
        reading.place.mkdir(parents=True, exist_ok=True)
        names = reading.place / "list"
        names.write_text("".join(f"{url}\n" for url in reading.urls))
        tarindex = Path(sys.executable).parent / "tarindex"
        words = [str(tarindex), "-q", "--force", "-T", str(names), "-o", str(reading.place / "t.parquet")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr.strip().splitlines()[-1])

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        from tartools.train import loader

        chosen: dict[str, Any] = OURS if reading.decoded else {}
        table = str(reading.place / "t.parquet")
        data = loader(table, reading.batch, shuffle=reading.shuffle, seed=SEED, **chosen)
        self.state = data.state_dict
        if state is not None:
            data.load_state_dict(state)
        for found in data:
            yield found[0] if reading.decoded else list(found)


class OurStream(Library):
    name = "tartools `WebDataset`"
    package = "tartools"
    imports = ("torch.utils.data", "tartools.train.webdataset")
    lacks = STREAM
    goes_on = "handler"

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        from tartools.train import WebDataset

        chosen: dict[str, Any] = OURS if reading.decoded else {}
        if reading.go_on:
            chosen = {"handler": lambda error: True}
        buffer = BUFFER if reading.shuffle else False
        data: Any = WebDataset(reading.urls, buffer, SEED, shardshuffle=reading.shuffle, **chosen)
        self.state = data.state_dict
        if state is not None:
            data.load_state_dict(state)
        if reading.decoded:
            from torch.utils.data import default_collate

            for found in grouped(data, reading.batch):
                yield default_collate([picture for (picture,) in found])
        else:
            yield from grouped(data, reading.batch)


class Litdata(Library):
    name = package = "litdata"
    about = "its own"
    imports = ("torch.utils.data", "litdata")
    lacks = dict.fromkeys(("first-http-1000", "first-http-10000"), NO_HTTP)

    def prepare(self, reading: Reading) -> None:
        reading.place.mkdir(parents=True)
        size = {"chunk_size": PER_CHUNK[own]} if (own := reading.place.name.partition("-")[0]) in PER_CHUNK else {}
        cache = import_module("litdata.streaming.cache").Cache(str(reading.place), **size or {"chunk_bytes": CHUNK})
        for number, sample in enumerate(plain_samples(reading)):
            cache[number] = sample
        cache.done()
        cache.merge()

    def _data(self, reading: Reading) -> Any:
        class Data(import_module("litdata").StreamingDataset):  # type: ignore[misc]
            def __getitem__(self, index: Any) -> Any:
                sample = super().__getitem__(index)
                return SMALL["Pillow"](sample["jpg"]) if reading.decoded else sample

        return Data(str(reading.place), shuffle=reading.shuffle, seed=SEED)

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        options = {} if reading.decoded else {"collate_fn": list}
        loader = import_module("litdata").StreamingDataLoader(
            self._data(reading), batch_size=reading.batch, num_workers=0, **options
        )
        self.state = loader.state_dict
        if state is not None:
            loader.load_state_dict(state)
        yield from loader

    def getter(self, reading: Reading) -> tuple[int, Callable[[int], Any]]:
        data = self._data(reading)
        return len(data), data.__getitem__


class Streaming(Library):
    name = "streaming (MDS)"
    package = "mosaicml-streaming"
    about = "its own"
    imports = ("torch.utils.data", "streaming")
    lacks = dict.fromkeys(("first-http-1000", "first-http-10000"), NO_HTTP)

    def load(self) -> None:
        super().load()
        import_module("streaming.base.util").clean_stale_shared_memory()

    def prepare(self, reading: Reading) -> None:
        found = plain_samples(reading)
        first = next(found)
        count = PER_CHUNK.get(reading.place.name.partition("-")[0])
        size = (count + 1) * (sum(map(len, first.values())) + 20) if count else CHUNK
        writer = import_module("streaming").MDSWriter
        with writer(out=str(reading.place), columns=dict.fromkeys(first, "bytes"), size_limit=size) as file:
            for sample in chain([first], found):
                file.write(sample)

    def _data(self, reading: Reading) -> Any:
        class Data(import_module("streaming").StreamingDataset):  # type: ignore[misc]
            def __getitem__(self, index: int) -> Any:
                sample = super().__getitem__(index)
                return SMALL["Pillow"](sample["jpg"]) if reading.decoded else sample

        return Data(local=str(reading.place), shuffle=reading.shuffle, shuffle_seed=SEED, batch_size=reading.batch)

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        # It counts the samples of a batch by the first value: of a list of samples, it counts fields.
        options = {} if reading.decoded else {"collate_fn": columns_of}
        loader = import_module("streaming").StreamingDataLoader(
            self._data(reading), batch_size=reading.batch, num_workers=0, **options
        )
        self.state = loader.state_dict
        if state is not None:
            loader.load_state_dict(state)
        for found in loader:
            rows = found if reading.decoded else zip(*found.values(), strict=True)
            yield found if reading.decoded else [dict(zip(found, row, strict=True)) for row in rows]

    def getter(self, reading: Reading) -> tuple[int, Callable[[int], Any]]:
        data = self._data(reading)
        return len(data), data.__getitem__


class Webshart(Library):
    name = package = "webshart"
    about = "tar, index"
    imports = ("torch.utils.data", "webshart")
    lacks = dict.fromkeys(("first-http-1000", "first-http-10000"), NO_HTTP)

    def prepare(self, reading: Reading) -> None:
        place = str(links(reading))
        import_module("webshart").MetadataExtractor().extract_metadata(source=place, destination=place, max_workers=2)

    def _found(self, reading: Reading) -> Any:
        place = str(reading.place)
        return import_module("webshart").discover_dataset(source=place, metadata=place)

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        loader = import_module("webshart").TarDataLoader(self._found(reading))
        if state is not None:
            loader.load_state_dict(state)
        self.state = loader.state_dict
        samples = by_key((entry.path, entry.data) for entry in loader)
        for found in grouped(samples, reading.batch):
            yield [SMALL["Pillow"](sample["jpg"]) for sample in found] if reading.decoded else found

    def getter(self, reading: Reading) -> tuple[int, Callable[[int], Any]]:
        data = self._found(reading)
        readers = [data.open_shard(number) for number in range(data.num_shards)]
        places = [
            (reader.read_file, number)
            for reader in readers
            for number, name in enumerate(reader.filenames())
            if name.endswith(reading.main)
        ]
        return len(places), lambda index: places[index][0](places[index][1])


class Energon(Library):
    name = "Energon"
    package = "megatron-energon"
    about = "tar, index"
    imports = ("torch.utils.data", "megatron.energon")
    lacks = STREAM | dict.fromkeys(("first-http-1000", "first-http-10000"), "no http: index")

    def prepare(self, reading: Reading) -> None:
        place = links(reading)
        energon = import_module("megatron.energon.flavors.webdataset").BaseWebdatasetFactory
        path = import_module("megatron.energon.epathlib").EPath(place)
        names = sorted(Path(url).name for url in reading.urls)
        parts = [("train", 1.0)]
        energon.prepare_dataset(path, names, split_parts_ratio=parts, shuffle_seed=None, workers=2)
        about = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
        (place / ".nv-meta" / "dataset.yaml").write_text(about)

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        energon: Any = import_module("megatron.energon")

        class Encoder(energon.DefaultTaskEncoder):  # type: ignore[misc]
            cookers = (energon.Cooker(energon.stateless(lambda sample: sample)),)
            decoder = None

            def batch(self, samples: list[Any]) -> list[Any]:
                return [SMALL["Pillow"](each["jpg"]) for each in samples] if reading.decoded else samples

        options: dict[str, Any] = {
            "worker_config": energon.WorkerConfig(rank=0, world_size=1, num_workers=0),
            "batch_size": reading.batch,
            "task_encoder": Encoder(),
            "split_part": "train",
        }
        if reading.shuffle:
            data = energon.get_train_dataset(
                reading.place, shuffle_buffer_size=BUFFER, max_samples_per_sequence=100, repeat=False, **options
            )
        else:
            data = energon.get_val_dataset(reading.place, **options)
        loader = energon.get_savable_loader(data)
        self.state = loader.save_state_rank
        if state is not None:
            loader.restore_state_rank(state)
        yield from loader


def columns_of(samples: list[dict[str, bytes]]) -> dict[str, list[bytes]]:
    """Return the values of each field."""
    return {field: [sample[field] for sample in samples] for field in samples[0]}


def plain_samples(reading: Reading) -> Iterator[dict[str, bytes]]:
    """Yield the samples as dicts of bytes, to be converted."""
    import tartools

    for sample in tartools.read(reading.urls):
        yield {field: as_bytes(value) for field, value in sample.items()}


LIBRARIES: dict[str, type[Library]] = {
    "loader": OurLoader,
    "stream": OurStream,
    "webdataset": WebDatasetLibrary,
    "datasets": Datasets,
    "webshart": Webshart,
    "energon": Energon,
    "daft": Daft,
    "ray": RayData,
    "spdl": Spdl,
    "datago": Datago,
    "litdata": Litdata,
    "streaming": Streaming,
}
