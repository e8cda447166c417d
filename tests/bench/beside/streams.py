"""The libraries that read tar shards without an index: as a stream, or (Daft, Ray Data) to a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import chain
from typing import Any

from tests.bench.beside.base import BUFFER, SEED, Library, Reading, by_key, grouped
from tests.bench.peers import SMALL

STREAM = {"random": "a stream"}
NO_STATE = {"resume": "no state"}


def small(samples: list[Any]) -> list[Any]:
    """Return the pictures of *samples*, decoded by Pillow."""
    return [SMALL["Pillow"](sample["jpg"]) for sample in samples]


class WebDatasetLibrary(Library):
    name = package = "webdataset"
    imports = ("torch.utils.data", "webdataset")
    lacks = STREAM | NO_STATE
    goes_on = "handler"

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        wds = import_module("webdataset")
        handler = wds.warn_and_continue if reading.go_on else wds.reraise_exception
        shards = len(reading.urls) if reading.shuffle else False
        data = wds.WebDataset(reading.urls, shardshuffle=shards, seed=SEED, handler=handler)
        if reading.shuffle:
            data = data.shuffle(BUFFER)
        for found in grouped(data, reading.batch):
            yield small(found) if reading.decoded else found


class Datasets(Library):
    name = "HF datasets"
    package = "datasets"
    imports = ("torch.utils.data", "datasets")
    lacks = STREAM

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        datasets = import_module("datasets")
        data = datasets.load_dataset(
            "webdataset", data_files={"train": reading.urls}, split="train", streaming=True
        ).decode(False)
        if reading.shuffle:
            data = data.shuffle(seed=SEED, buffer_size=BUFFER)
        self.state = data.state_dict
        if state is not None:
            data.load_state_dict(state)
        for found in grouped(data, reading.batch):
            if reading.decoded:
                yield [SMALL["Pillow"](sample["jpg"]["bytes"]) for sample in found]
            else:
                yield found


class Daft(Library):
    name = "Daft"
    about = "tar, one by one"
    package = "daft"
    imports = ("daft",)
    lacks = STREAM | NO_STATE

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        read = import_module("daft").read_webdataset
        # Two and more shards in one call never end with version 0.7.26 on two cores.
        rows = chain.from_iterable(read(url).iter_rows() for url in reading.urls)
        for found in grouped(rows, reading.batch):
            if reading.main == "jpg":
                for sample in found:  # a lazy range of the shard
                    with sample["jpg"].open() as file:
                        sample["jpg"] = file.read()
            yield small(found) if reading.decoded else found


class RayData(Library):
    name = "Ray Data"
    package = "ray"
    imports = ("ray.data",)
    lacks = STREAM | NO_STATE

    def load(self) -> None:
        super().load()
        ray = import_module("ray")
        ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        options: dict[str, Any] = {"decoder": None}
        if reading.remote:
            http = import_module("fsspec").filesystem("http")
            pyarrow = import_module("pyarrow.fs")
            options["filesystem"] = pyarrow.PyFileSystem(pyarrow.FSSpecHandler(http))
        data = import_module("ray.data").read_webdataset(reading.urls, **options)
        for columns in data.iter_batches(batch_size=reading.batch):
            names = [name for name in columns if not name.startswith("__")]
            found = [dict(zip(names, row, strict=True)) for row in zip(*(columns[n] for n in names), strict=True)]
            yield small(found) if reading.decoded else found

    def close(self) -> None:
        import_module("ray").shutdown()


class Spdl(Library):
    name = "SPDL"
    package = "spdl"
    imports = ("spdl.io", "spdl.pipeline")
    lacks = STREAM | NO_STATE | dict.fromkeys(("first-http-1000", "first-http-10000"), "no http: URLs")

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        spdl = import_module("spdl.io")

        def samples(path: str) -> Iterator[Any]:
            with open(path, "rb") as file:
                yield from by_key(spdl.iter_tarfile(file))

        def decoded(sample: Any) -> Any:
            frames = spdl.load_image(bytes(sample["jpg"]), filter_desc=description)
            return spdl.to_numpy(frames)

        description = spdl.get_filter_desc_image(224, 224) if hasattr(spdl, "get_filter_desc_image") else SPDL_FILTER
        builder = import_module("spdl.pipeline").PipelineBuilder().add_source(reading.urls)
        builder = builder.pipe(samples)
        if reading.decoded:
            builder = builder.pipe(decoded, concurrency=2, output_order="input")
        pipeline = builder.aggregate(reading.batch).add_sink(4).build(num_threads=2)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()


SPDL_FILTER = "scale=width=224:height=224,format=pix_fmts=rgb24"


class Datago(Library):
    name = package = "datago"
    about = "tar by HTTP"
    imports = ("datago", "PIL.Image", "numpy")
    lacks = (
        STREAM
        | NO_STATE
        | dict.fromkeys(
            ("order", "small", "first-1000", "first-10000", "first-http-1000", "first-http-10000"),
            "decoded pictures alone",
        )
        | {"damage": "decoded pictures alone"}
    )
    over_http = True

    def batches(self, reading: Reading, state: Any = None) -> Iterator[Sequence[Any]]:
        place = reading.urls[0].rpartition("/")[0]
        numbers = [url.rpartition("/")[2].partition(".")[0] for url in reading.urls]
        source = {"url": f"{place}/{{{numbers[0]}..{numbers[-1]}}}.tar", "random_sampling": False}
        settings = {
            "source_type": "webdataset",
            "source_config": source | {"concurrent_downloads": 8, "rank": 0, "world_size": 1},
            "image_config": {
                "crop_and_resize": True,
                "default_image_size": 224,
                "downsampling_ratio": 32,
                "min_aspect_ratio": 1.0,
                "max_aspect_ratio": 1.0,
                "pre_encode_images": False,
            },
            "prefetch_buffer_size": 128,
            "samples_buffer_size": 64,
            "limit": 1_000_000,
        }
        client = import_module("datago").DatagoClient(json.dumps(settings))
        yield from grouped(iter(client.get_sample, None), reading.batch)
        client.stop()
