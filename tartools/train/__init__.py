"""PyTorch: datasets, samplers and loaders over shards and the tables of them. The extra `train`.

    loader = tartools.train.loader("train.parquet", batch_size=64, fields=("jpg;png", "cls"), decode="pil")

`fieldchooser` makes of a sample what training takes: chosen fields, decoded, transformed. Two machines bring samples.
Tables: `tabledataset` makes samples and batches of rows, `sampler` their order and its state, `loading` the loader.
Streams: `webdataset` is the class, `streamepoch` one epoch of a reader, `slices` reads shards, `streamstages` has the
stages. `collation` makes batches, `sounddecoding` and `videodecoding` parts of sounds and videos, `tokenblocks` blocks
of tokens for language models. Begin reading at `loading`, and for how streams resume at `cursor`. The names below are
loaded when they are first used: torch takes 1.5 s to import.
"""

from __future__ import annotations

from importlib import import_module

from tartools.errors import how_to_install

_MODULES = {
    "ObjectDataset": "objects",
    "ObjectStream": "objects",
    "Resize": "payloaddecoding",
    "Sound": "sounddecoding",
    "StatefulSampler": "sampler",
    "StorageReader": "distributed",
    "StorageWriter": "distributed",
    "TableDataset": "tabledataset",
    "Video": "videodecoding",
    "WebDataset": "webdataset",
    "ZipDataset": "zips",
    "checkpoint": "",
    "list_urls": "objects",
    "loader": "loading",
    "open_urls": "objects",
    "pack": "packing",
    "padded": "collation",
    "picture": "payloaddecoding",
    "samples": "samplestream",
    "stream_map": "mapping",
    "token_blocks": "tokenblocks",
}

__all__ = [*_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'tartools.train' has no attribute {name!r}")
    try:
        if _MODULES[name]:
            import_module("torch")  # which some modules import only when they need it
        module = import_module(f"tartools.train.{_MODULES[name] or name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        hint = f"tartools.train.{name} needs torch: {how_to_install('torch')}"
        raise ModuleNotFoundError(hint, name=error.name) from None
    return getattr(module, name) if _MODULES[name] else module  # which is itself the name


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"annotations", "how_to_install", "import_module"})
