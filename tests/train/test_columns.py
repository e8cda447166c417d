"""Columns of a table as fields of samples: in batches of payloads and decoded, from all workers, in place of fields."""

from __future__ import annotations

import pickle
import tarfile
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import tartools
from tartools.errors import SampleError
from tartools.train import TableDataset, loader
from tartools.train.tabledataset import TableBatch, table_of
from tests.conftest import make_tar
from tests.tiers import also

COUNT = 12
CAPTIONS = [None if n % 4 == 1 else f"new {n}" for n in range(COUNT)]
VECTORS = [[n, n + 0.5] for n in range(COUNT)]


@pytest.fixture(scope="module", params=["small", "large", "odd"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a table with columns; in shards of odd samples, names are long."""
    folder = tmp_path_factory.mktemp("columns")
    key = "x" * 120 if request.param == "odd" else "x"
    size = 30_000 if request.param == "large" else 3
    members = [(f"{key}{n:02d}.{f}", b"%d" % n * size) for n in range(COUNT) for f in ("cls", "txt")]
    (folder / "a.tar").write_bytes(make_tar(members, tarfile.PAX_FORMAT))
    rows = table_of(folder / "a.tar").arrow
    new = {"score": pa.array(range(COUNT)), "caption": pa.array(CAPTIONS), "vector": pa.array(VECTORS)}
    for name, column in {**new, "label": pa.array(["cat", "dog"] * (COUNT // 2))}.items():
        rows = rows.append_column(name, column)
    tartools.Table.from_arrow(rows).write(folder / "t.parquet")
    return str(folder / "t.parquet")


def test_columns_are_fields_of_each_sample(url: str) -> None:
    whole = TableDataset(url)
    data = TableDataset(url, columns=["score", "caption", "vector"])
    rows = [5, 3, 3, 11, 0]
    for found in (data.__getitems__(rows), [data[row] for row in rows], list(data.batch(rows))):
        for row, sample in zip(rows, found, strict=True):
            vector, stored = sample.pop("vector"), whole[row]
            assert isinstance(vector, np.ndarray) and vector.tolist() == VECTORS[row]
            caption = {} if CAPTIONS[row] is None else {"caption": CAPTIONS[row]}
            assert sample == {**stored, "score": row, **caption} and type(sample["score"]) is int
    batch = data.batch(rows)
    assert [one["score"] for one in batch] == rows == [batch[n]["score"] for n in range(len(rows))]
    assert data[-1]["score"] == COUNT - 1
    assert list(TableDataset(url, columns={"TXT": "caption"}).batch(rows)) == [
        {**whole[row], "txt": CAPTIONS[row] or whole[row]["txt"]} for row in rows
    ]


@pytest.mark.parametrize("fields", ["score caption;txt", "cls score", "txt;caption __key__", "score label"])
def test_chosen_among_fields_and_columns(fields: str, url: str) -> None:
    rows = list(range(COUNT))
    stored = TableDataset(url).__getitems__(rows)

    def of(row: int, name: str) -> Any:
        column = {"score": row, "caption": CAPTIONS[row], "label": ("cat", "dog")[row % 2]}.get(name)
        return stored[row].get(name) if column is None else column

    expected = [
        tuple(
            next(value for name in names.split(";") if (value := of(row, name)) is not None) for names in fields.split()
        )
        for row in rows
    ]
    data = TableDataset(url, fields, columns=["score", "caption", "label"])
    assert list(data.batch(rows)) == expected == [data[row] for row in rows]


@pytest.mark.parametrize("method", ["", "fork", *also("forkserver")])
@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_columns_in_batches_of_a_loader(method: str, url: str) -> None:
    options: dict[str, Any] = {"columns": ["score", "vector", "label"], "shuffle": False}
    options |= {"num_workers": 1, "multiprocessing_context": method} if method else {}
    decoded = loader(url, 5, fields="score vector label", classes={"label": ["dog", "cat"]}, **options)
    scores, vectors, labels = (torch.cat(part) for part in zip(*decoded, strict=True))
    assert scores.tolist() == list(range(COUNT)) and vectors.tolist() == VECTORS and labels.tolist() == [1, 0] * 6
    raw = list(loader(url, 5, fields="__key__ score", **options))
    assert [score for batch in raw for _, score in batch] == list(range(COUNT))
    assert all(isinstance(batch, TableBatch) for batch in raw) or "x" * 120 in raw[0][0][0]


def test_wrong_columns(url: str) -> None:
    with pytest.raises(KeyError, match=r"the table has no column 'size'; it has .* score caption vector label"):
        TableDataset(url, columns="score size")
    with pytest.raises(ValueError, match="no field is called '__key__'; name one: "):
        loader(url, 4, columns=["__key__"])
    with pytest.raises(TypeError, match=r"^columns are names"):
        TableDataset(url, columns=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^give columns to the dataset"):
        loader(TableDataset(url), 4, columns="score")
    with pytest.raises(SampleError, match=r"has no field 'caption'; its fields are: cls txt score$"):
        TableDataset(url, "caption", columns="caption score").__getitems__([1])
    assert TableDataset(url, "key", columns={"key": "__key__"})[0][0].endswith("00")


def test_columns_don_t_travel(url: str) -> None:
    data = TableDataset(url, "score", columns="score caption")
    again = pickle.loads(pickle.dumps(data))
    assert len(pickle.dumps(data)) < 1200 and again[7] == (7,)
