"""`tartools.Table`: samples by number and by key, as `tartools.read` gives them; in other processes and threads too."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tartools
from tartools.errors import StorageError, TarFormatError
from tartools.tables.extents import valid_mask
from tests.conftest import Run, make_samples, make_tar, members_of, open_descriptors, python
from tests.tables.test_tables import as_before
from tests.tiers import also

Values = tuple[str, list[tuple[str, bytes]]]


def values(sample: tartools.Sample) -> Values:
    return sample.key, list(sample.items())


def varied() -> bytes:
    """Return an archive of samples of all sizes, some without a class, with long names."""
    draw = random.Random(3)
    members = []
    for number in range(60):
        key = f"{draw.choice(['a', 'x' * 120])}/{number:03d}"
        members += [(f"{key}.jpg", draw.randbytes(draw.choice([0, 1, 512, 513, 70_000, 300_000])))]
        members += [(f"{key}.cls", b"%d" % (number % 7))] * (number % 5 > 0)
    return make_tar(members, tarfile.PAX_FORMAT)


@pytest.fixture
def folder(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, with shards and their table `sets/t.parquet`."""
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets/a.tar").write_bytes(varied())
    (tmp_path / "sets/b.tar").write_bytes(make_tar([(f"b/{name}", data) for name, data in make_samples(40)]))
    (tmp_path / "sets/c.tar").write_bytes(
        make_tar([("big.bin", random.Random(1).randbytes(3 << 20)), ("big.cls", b"0")])
    )
    run("tarindex", "-f", "cls", "sets/a.tar", "sets/b.tar", "sets/c.tar", "-o", "sets/t.parquet").output()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expected(folder: Path) -> list[Values]:
    return [values(sample) for sample in tartools.read([str(folder / f"sets/{name}.tar") for name in "abc"])]


def test_by_number(folder: Path) -> None:
    whole, table = expected(folder), tartools.Table("sets/t.parquet")
    assert len(table) == len(whole)
    assert [values(sample) for sample in table] == whole
    assert [values(table[n]) for n in range(len(whole))] == whole
    assert values(table[-1]) == whole[-1] and values(table[np.int32(2)]) == whole[2]
    for rows in ([3, 1, 2], [5, 5, 5, -1], [], np.array([70, 2], np.uint8), slice(None, None, -7), range(4, 9)):
        picked = whole[rows] if isinstance(rows, slice) else [whole[n] for n in rows]
        assert [values(sample) for sample in table[rows]] == picked
    assert table[0].shard == "sets/a.tar"
    for wrong in (len(whole), -len(whole) - 1, [0, len(whole)]):
        with pytest.raises(IndexError):
            table[wrong]
    for wrong in ("0", [0.5], [True, False], [[1, 2]], None):
        with pytest.raises(TypeError, match=r"^rows are whole numbers, as in table|is not iterable$"):
            table[wrong]  # type: ignore[index]


def test_by_key(folder: Path) -> None:
    whole, table = expected(folder), tartools.Table("sets/t.parquet")
    for key, members in random.Random(2).sample(whole, 20):
        assert values(table.find(key)) == (key, members)
    with pytest.raises(KeyError, match=r"none of 101 samples has the key 'nothing'; keys look like 'a/000'"):
        table.find("nothing")
    twice = table.take([30, 31, 29, 30])
    assert values(twice.find(whole[29][0])) == whole[29]
    with pytest.raises(KeyError):
        twice.find(whole[0][0])


def test_columns_and_subsets(folder: Path) -> None:
    whole, table = expected(folder), tartools.Table("sets/t.parquet")
    labels = [float(dict(members).get("cls", b"nan")) for _, members in whole]
    np.testing.assert_array_equal(table.column("cls"), labels)
    with pytest.raises(KeyError, match="no column 'nothing'"):
        table.column("nothing")
    order = random.Random(5).choices(range(len(whole)), k=50)
    for warm in (False, True):  # the places are read, or not
        some = table.take(order).take(slice(10, 40))
        assert len(some) == 30 and [values(sample) for sample in some[:]] == [whole[n] for n in order[10:40]]
        np.testing.assert_array_equal(some.column("cls"), [labels[n] for n in order[10:40]])
        if not warm:
            table[:]


def test_written_and_read_by_commands(folder: Path, run: Run) -> None:
    table = tartools.Table("sets/t.parquet").take([5, 3, 60, 3])
    table.write("sets/some.parquet")
    table.write("some.parquet")
    assert pq.read_table("sets/some.parquet").column("__shard__").to_pylist() == ["a.tar", "a.tar", "b.tar", "a.tar"]
    assert pq.read_table("some.parquet").column("__shard__").to_pylist()[0] == "sets/a.tar"
    done = run("tarcat", "sets/some.parquet")
    assert done.status == 0 and done == run("tarcat", "some.parquet")
    assert members_of(done.stdout) == [
        (f"{sample.key}.{field}", data) for sample in table for field, data in sample.items()
    ]
    with pytest.raises(StorageError, match="already exists"):
        table.write("some.parquet")
    table.take([0]).write("some.parquet", force=True)
    assert len(tartools.Table("some.parquet")) == 1


def test_from_arrow(folder: Path) -> None:
    whole, table = expected(folder), tartools.Table("sets/t.parquet")
    rows = table.arrow
    assert rows.column("__shard__").to_pylist()[0] == "sets/a.tar" and len(rows) == len(table)
    some = tartools.Table.from_arrow(rows.filter(pc.equal(rows["cls"], 3)))
    assert 0 < len(some) < len(table)
    assert [values(s) for s in some] == [w for w, cls in zip(whole, table.column("cls"), strict=True) if cls == 3]
    same = tartools.Table.from_arrow(pq.read_table("sets/t.parquet"), url="sets/t.parquet")
    assert values(same[7]) == values(pickle.loads(pickle.dumps(same))[7]) == whole[7]
    assert (
        same.find(whole[9][0]).key == whole[9][0]
        and same.column("__begin__").tolist() == table.column("__begin__").tolist()
    )
    with pytest.raises(TarFormatError, match="no column __begin__"):
        tartools.Table.from_arrow(pa.table({"__shard__": ["a.tar"]}))


def taken(table: tartools.Table, number: int, result: Path) -> None:
    """Write a sample to *result*: in another process."""
    result.write_bytes(pickle.dumps((values(table[number]), values(table.find("b/000003")))))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", *also("forkserver")])
def test_other_processes(method: str, folder: Path) -> None:
    whole, table = expected(folder), tartools.Table("sets/t.parquet").take(slice(None, None, -1))
    assert len(table[:]) == len(whole)
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=taken, args=(table, n, folder / f"{n}")) for n in range(3)]
    for worker in workers:
        worker.start()
    for n, worker in enumerate(workers):
        worker.join()
        assert worker.exitcode == 0
        by_number, by_key = pickle.loads((folder / f"{n}").read_bytes())
        assert by_number == whole[len(whole) - 1 - n] and by_key[0] == "b/000003"


def test_threads(folder: Path) -> None:
    whole, table = expected(folder), tartools.Table("sets/t.parquet")
    order = random.Random(1).choices(range(len(whole)), k=400)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda n: values(table[n]), order)) == [whole[n] for n in order]


def test_what_was_changed_is_a_failure(folder: Path) -> None:
    table = tartools.Table("sets/t.parquet")
    pickled = pickle.dumps(table)
    shard = folder / "sets/b.tar"
    row = table.column("__shard__").tolist().index("b.tar")
    content = shard.read_bytes()
    begin = int(table.column("__begin__")[row + 2])
    as_before(shard, content[: begin + 3] + b"#" + content[begin + 4 :])  # a byte of a header
    assert values(table[row])[0].startswith("b/")
    with pytest.raises(StorageError, match=rf"sets/b.tar: at byte {begin}: .*\(row {row + 2} of sets/t.parquet"):
        table[[0, row + 2]]
    shard.write_bytes(content)
    with pytest.raises(StorageError, match="changed"):
        table.take([row])[0]
    os.utime("sets/t.parquet", ns=(1, 1))
    for changed in (tartools.Table("sets/t.parquet"), pickle.loads(pickled)):
        if changed is not table and pickle.dumps(changed) == pickled:
            with pytest.raises(StorageError, match="was replaced since it was opened"):
                changed[0]
    with pytest.raises(TarFormatError, match="this table is truncated: its end is missing"):
        (folder / "cut.parquet").write_bytes((folder / "sets/t.parquet").read_bytes()[:-50])
        tartools.Table("cut.parquet")
    with pytest.raises(StorageError, match="No such file"):
        tartools.Table("nothing.parquet")


@pytest.mark.parametrize("size", [10, 40_000])
@pytest.mark.parametrize("names", ["{:02d}", "{}"])
def test_the_key_is_compared(names: str, size: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a shard with the size and the time of before, whose samples lie where they lay, by other names."""
    monkeypatch.chdir(tmp_path)

    def shard(*numbers: int) -> bytes:
        return make_tar([(f"{names.format(n)}.{name}", b"x" * size) for n in numbers for name in ("jpg", "cls")])

    path = Path("a.tar")
    path.write_bytes(shard(*range(12)))
    assert run("tarindex", "a.tar", "-o", "t.parquet").status == 0
    as_before(path, shard(*range(5), 6, 5, *range(7, 12)))
    table = tartools.Table("t.parquet")
    nameless = tartools.Table.from_arrow(table.arrow.drop_columns("__key__"), "t.parquet")
    begin = int(table.column("__begin__")[5])
    for some in (table, pickle.loads(pickle.dumps(table)), table.take(range(3, 8)).take([0, 1, 2, 3])):
        row = list(some.column("__key__")).index(names.format(5))
        others = [n for n in range(len(some)) if n not in (row, row + 1)]
        assert [some[n].key for n in others] == [sample.key for sample in some[others]]
        bulk = some.bulk(others)
        assert bulk is not None and len(bulk) == len(others)
        assert some.bulk(range(len(some))) is None
        for rows in (row, slice(None), [others[0], row]):
            with pytest.raises(StorageError) as failure:
                some[rows]
            assert str(failure.value).startswith(
                f"a.tar: at byte {begin}: the key of the sample there is '{names.format(6)}', and that of the row is "
                "another (row 5 of t.parquet; "
            )
    assert [sample.key for sample in nameless][5:7] == [names.format(6), names.format(5)]


def test_a_table_that_outlives_all_modules_ends_in_silence(folder: Path) -> None:
    program = "import os, tartools; os.kept = tartools.Table('sets/t.parquet'); print(os.kept[0].key)"
    assert python(program).output().decode() == tartools.Table("sets/t.parquet")[0].key + "\n"


def test_nothing_stays_open(folder: Path) -> None:
    before = open_descriptors()
    table = tartools.Table("sets/t.parquet")
    table[:]
    table.find("b/000003")
    del table
    assert open_descriptors() == before


@pytest.mark.parametrize("groups", [1, 7])
def test_many_row_groups(groups: int, folder: Path) -> None:
    """The first sample costs its own row group alone."""
    whole = expected(folder)
    rows = pq.read_table("sets/t.parquet")
    pq.write_table(rows, "sets/g.parquet", row_group_size=-(-len(rows) // groups))
    table = tartools.Table("sets/g.parquet")
    for n in (50, 49, 0, len(whole) - 1, 51):
        assert values(table[n]) == whole[n]


def test_other_types(folder: Path) -> None:
    """Rows of other programs: text as large strings, places as other whole numbers."""
    rows = pq.read_table("sets/t.parquet").select(["__key__", "__end__", "__shard__", "__begin__"])
    whole = expected(folder)
    kinds: list[tuple[pa.DataType, pa.DataType]] = [
        (pa.large_string(), pa.int32()),
        (pa.string_view(), pa.float64()),
        (pa.dictionary(pa.int8(), pa.string()), pa.decimal128(20, 0)),
        (pa.binary(), pa.uint32()),
    ]
    shards, keys = (rows.column(name).cast(pa.string()) for name in ("__shard__", "__key__"))
    for text, number in kinds:
        made = {
            "__shard__": shards if text == pa.binary() else shards.cast(text),
            "__key__": keys if pa.types.is_dictionary(text) else keys.cast(text),
            **{name: rows.column(name).cast(number) for name in ("__begin__", "__end__")},
        }
        pq.write_table(pa.table(made), "sets/made.parquet")
        table = tartools.Table("sets/made.parquet")
        assert values(table.find(whole[20][0])) == whole[20]
        assert [values(sample) for sample in tartools.read("sets/made.parquet")] == whole


def test_nothing_imports_pandas(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow does, for most conversions, where pandas is installed; it takes 0.2 s."""
    for name, fields in (("first", "-xcls"), ("second", "-fcls")):  # some samples have no part in the second set
        run("tarcat", fields, "sets/a.tar", "-o", f"{name}.tar").output()
        run("tarindex", f"{name}.tar", "-o", f"{name}.parquet").output()
    run("tarjoin", "--left", "first.parquet", "second.parquet", "-o", "joined.parquet").output()
    (folder / "seen").mkdir()
    (folder / "seen/pandas.py").write_text("print('pandas')\nraise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(folder / "seen"))
    lines = [
        "import pyarrow; pyarrow.array([1])",
        "from tartools.commands.tarindex import tarindex as run; sys.argv += ['sets/a.tar', '-o', 'u.parquet']; run()",
        "from tartools.commands.tarsort import tarsort as run; sys.argv += ['sets/t.parquet', '-o', 's.tar']; run()",
        "import tartools; table = tartools.Table('sets/t.parquet'); table[3]; table.find('b/000005'); table[[7, 2]]",
        "from tartools.train import TableDataset; TableDataset('sets/t.parquet').__getitems__([3, 1])",
        "from tartools.train import TableDataset; TableDataset('joined.parquet').__getitems__([3, 0])",
        "import tartools; tartools.Table('joined.parquet').has_field('cls')",
        "from tartools.commands.tarsort import tarsort as run; sys.argv += ['joined.parquet', '-o', 'j.tar']; run()",
    ]
    done = [python(f"import sys; {line}") for line in lines]
    assert [(each.status, {*each.stdout.split()}) for each in done] == [(0, {b"pandas"}), *[(0, set())] * 7]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the threads")
def test_reading_starts_no_threads(folder: Path) -> None:
    """One of pyarrow that holds the file when the process ends aborts it: "terminate called", one run in 25."""
    program = """
import os, numpy, pyarrow.parquet, tartools
before = len(os.listdir("/proc/self/task"))
table = tartools.Table("sets/t.parquet")
table.has_field("cls"), table.column("cls"), table.arrow, table[3], table.find("b/000005")
assert len(os.listdir("/proc/self/task")) == before
"""
    done = python(program)
    assert (done.status, done.stderr) == (0, "")


def test_masks_of_all_kinds_of_columns() -> None:
    text = pa.array(["a", None, "b", None, *"cdefghi"])
    union = pa.UnionArray.from_dense(pa.array([0, 0, 0], pa.int8()), pa.array([0, 1, 2], pa.int32()), [text[:3]])
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], ["a", None])
    places = pa.array([{"offset": 1}, None, {"offset": None}])
    for column in (text, text[3:9], text.dictionary_encode()[1:], pa.nulls(3), pa.array([1]), union, runs, places):
        assert valid_mask(column).tolist() == column.is_valid().to_pylist()
