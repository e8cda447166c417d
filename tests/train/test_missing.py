"""Samples that lack a field are an error, left out with a count, or have None; columns beside fields; torn samples."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tartools import Table
from tartools.errors import SampleError, StorageError
from tartools.train import TableDataset, loader
from tests.conftest import Run, make_tar
from tests.train.conftest import be_rank

COUNT = 20


@pytest.fixture(autouse=True)
def shards(tmp_path: Path) -> Path:
    """Make two shards: each third sample has no txt, each fifth PNG in place of jpg, and the last neither."""
    for shard in range(2):
        members = []
        for n in range(COUNT // 2 * shard, COUNT // 2 * (shard + 1)):
            if n < COUNT - 1:
                members.append((f"{n:02d}.{'PNG' if n % 5 == 0 else 'jpg'}", b"%d" % n))
            if n % 3:
                members.append((f"{n:02d}.txt", b"%d" % n))
            members.append((f"{n:02d}.cls", b"%d" % n))
        Path(f"{shard}.tar").write_bytes(make_tar(members))
    return tmp_path


COMPLETE = [n for n in range(COUNT - 1) if n % 3]


def numbers(batches: Any) -> list[int]:
    return [int(sample[0]) for batch in batches for sample in batch]


@pytest.mark.parametrize("source", ["{0,1}.tar", "t.parquet", "kept"])
def test_samples_without_a_field_are_left_out(source: str, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """They are counted, `len` is that of the others, and ranks share these equally; a state is that of them."""
    options: dict[str, Any] = {"fields": "cls txt jpg;png", "missing": "skip", "collate_fn": list}
    if source == "t.parquet":
        assert run("tarindex", "0.tar", "1.tar", "-o", source).status == 0
    if source == "kept":
        source, options["table"] = "{0,1}.tar", "kept.parquet"
    with caplog.at_level(logging.WARNING, "tartools.train"):
        data = loader(source, 4, **options)
    assert caplog.messages == ["8 of 20 samples left out: 7 without txt, 1 without jpg or png"]
    assert sorted(numbers(data)) == COMPLETE and len(data) == 3
    begun = loader(source, 4, **options)
    had = numbers([next(iter(begun))])
    for workers in (0, 1):
        rest = loader(source, 3, **options, num_workers=workers)
        rest.load_state_dict(begun.state_dict())
        assert sorted(had + numbers(rest)) == COMPLETE
    with pytest.raises(ValueError, match="the state is of an order with samples 12, and here it is 20"):
        loader(source, 4, **options | {"missing": "error"}).load_state_dict(begun.state_dict())


def test_ranks_share_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found, steps = [], set()
    for rank in range(3):
        be_rank(monkeypatch, rank, 3)
        batches = list(loader("{0,1}.tar", 2, fields="cls txt jpg;png", missing="skip"))
        found += numbers(batches)
        steps.add(len(batches))
    assert sorted(found) == COMPLETE and steps == {2}


@pytest.mark.parametrize("workers", [0, 1])
def test_missing_fields_are_none(workers: int) -> None:
    def text(value: bytes) -> str:
        return value.decode()

    options: dict[str, Any] = {"fields": "cls txt jpg;png", "missing": None, "shuffle": False, "num_workers": workers}
    expected = [(b"%d" % n, f"{n}" if n % 3 else None, None if n == COUNT - 1 else b"%d" % n) for n in range(COUNT)]
    batches = loader("{0,1}.tar", 4, transform=(None, text, None), collate_fn=list, **options)
    assert [sample for batch in batches for sample in batch] == expected
    plain = [sample for batch in loader("{0,1}.tar", 4, **options) for sample in batch]
    assert plain == [(cls, txt and txt.encode(), picture) for cls, txt, picture in expected]


def test_without_a_word_they_are_an_error(run: Run) -> None:
    with pytest.raises(SampleError, match="sample '00': has no field 'txt'; its fields are: png cls"):
        list(loader("{0,1}.tar", 4, fields="cls txt", shuffle=False, collate_fn=list, decode="basic"))
    with pytest.raises(ValueError, match="missing is 'error', 'skip' or None, not 'drop'"):
        loader("0.tar", 4, fields="cls", missing="drop")
    with pytest.raises(ValueError, match="missing='skip' leaves out samples without one of fields: give fields"):
        loader("0.tar", 4, missing="skip")
    with pytest.raises(ValueError, match="missing is for tables and shards: this is a TableDataset already"):
        loader(TableDataset("0.tar", "cls"), 4, missing="skip")
    with pytest.raises(ValueError, match="there are no samples"):
        loader("0.tar", 4, fields="wav", missing="skip")
    assert run("tarindex", "0.tar", "-o", "t.parquet").status == 0
    bare = Table.from_arrow(Table("t.parquet").arrow.drop_columns(["__members__"]))
    with pytest.raises(StorageError, match=r"does not say which fields samples have .* make it by tarindex"):
        loader(bare, 4, fields="cls", missing="skip")


def with_column(values: list[Any]) -> Table:
    """Return the table of the shards with a column `clip`."""
    TableDataset("{0,1}.tar", table="t.parquet")
    return Table.from_arrow(Table("t.parquet").arrow.append_column("clip", [values]), "t.parquet")


def test_columns_come_beside_fields() -> None:
    table = with_column([n / 4 for n in range(COUNT)])
    for fields, wanted in (("cls", ["cls", "clip"]), ("clip cls", ["clip", "cls"]), (("cls",), ["cls", "clip"])):
        batches = loader(table, 4, fields=fields, columns="clip", shuffle=False)
        row = list(batches)[1][1]
        assert row == tuple({"cls": b"5", "clip": 1.25}[name] for name in wanted)
    batches = loader(table, 5, fields="cls", columns={"score": "clip"}, transform=[int], shuffle=False)
    first, scores = next(iter(batches))
    assert first.tolist() == [0, 1, 2, 3, 4] and scores.tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_a_column_with_nulls_and_missing(caplog: pytest.LogCaptureFixture) -> None:
    table = with_column([None if n % 4 else float(n) for n in range(COUNT)])
    data = loader(table, 4, fields="cls", columns="clip", missing="skip", shuffle=False)
    assert [sample for batch in data for sample in batch] == [(b"%d" % n, float(n)) for n in range(0, COUNT, 4)]
    assert caplog.messages == ["15 of 20 samples left out: 15 without clip"]
    none = loader(table, 4, fields="cls", columns="clip", missing=None, shuffle=False)
    assert next(iter(none))[1] == (b"1", None)
    texts = loader(table, 4, fields="cls", columns={"txt": "clip"}, missing="skip")
    assert len(texts) == int(np.ceil(sum(n % 4 == 0 or n % 3 > 0 for n in range(COUNT)) / 4))  # those of shards too
