"""The unix toolbox for machine-learning datasets kept as tar shards, from Python.

    for sample in tartools.read("train-{000..147}.tar"):
        sample.key, sample["jpg"]

    with tartools.TarWriter("out.tar") as writer:
        writer.write({"__key__": "n01", "jpg": picture, "cls": 3})

    table = tartools.Table("train.parquet")
    table[41], table[[7, 3, 99]], table.find("train/n01/a")

    tartools.map_samples(function, "train-{000..147}.tar", "out.tar", workers=4)

`read`, `write`, `open`, `TarWriter`, `ShardWriter`, `Sample`, `Table`, `map_samples` and `map_shards` are the public
names, with the errors in `tartools.errors`, and `tartools.train` for PyTorch. They are loaded when they are first used,
so that a command pays only for what it needs.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which takes 3 ms to import: a command can't deal with SIGINT before
if TYPE_CHECKING:
    from tartools.run.functions import map_samples, map_shards
    from tartools.samples.sample import Sample
    from tartools.shards.library import ShardWriter, TarWriter, open, read, write
    from tartools.tables.table import Table

    __version__: str

__all__ = ["Sample", "ShardWriter", "Table", "TarWriter", "map_samples", "map_shards", "open", "read", "write"]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("tartools")
    if name not in (*__all__, "train"):
        raise AttributeError(f"module 'tartools' has no attribute {name!r}")
    if name == "train":
        import tartools.train as train  # noqa: PLR0402  # not from tartools: that would ask this function again

        return train
    if name == "Table":
        from tartools.tables.table import Table

        return Table
    from tartools.run import functions
    from tartools.shards import library

    return getattr(functions if name.startswith("map_") else library, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__", "train"} - {"TYPE_CHECKING", "annotations"})
