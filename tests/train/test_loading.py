"""`loader` over datasets of all kinds, and shards in place of a table, which is made first, and can be kept."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset

import tartools
from tartools.errors import SampleError, StorageError, TruncatedError, UsageError
from tartools.train import ObjectDataset, TableDataset, WebDataset, ZipDataset, loader
from tartools.train.fieldchooser import FieldChooser
from tests.commands.test_zip import zipped
from tests.conftest import Result, Run, make_samples, make_tar, start
from tests.tiers import also

COUNT = 23


class Squares(Dataset[int]):
    """The squares of numbers."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index * index


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loading")
    for name in "ab":
        members = [(f"{name}{n:02d}.{field}", b"%d" % n) for n in range(COUNT) for field in ("cls", "txt")]
        (folder / f"{name}.tar").write_bytes(make_tar(members))
    (folder / "a.zip").write_bytes(zipped([(f"a{n:02d}.cls", b"%d" % n) for n in range(COUNT)]))
    (folder / "empty.tar").write_bytes(make_tar([]))
    (folder / "objects").mkdir()
    for n in range(COUNT):
        (folder / "objects" / f"{n:02d}").write_bytes(b"%d" % n)
    return folder


def table(folder: Path, name: str = "a") -> TableDataset:
    return TableDataset(folder / f"{name}.tar", fields=("__key__", "cls"), decode="basic")


KINDS: dict[str, Any] = {
    "any": lambda folder: Squares(),
    "zip": lambda folder: ZipDataset(folder / "a.zip", "__key__ cls", "basic"),
    "objects": lambda folder: ObjectDataset(folder / "objects"),
    "subset": lambda folder: Subset(table(folder), range(3, 19)),
    "concat": lambda folder: ConcatDataset([table(folder), Subset(table(folder, "b"), [4, 2])]),
    "stack": lambda folder: StackDataset(sample=table(folder), square=Squares()),
}


def flat(batches: Any) -> list[Any]:
    return [one for batch in batches for one in batch]


@pytest.mark.parametrize("kind", KINDS)
def test_any_dataset_comes_whole_and_goes_on(kind: str, folder: Path) -> None:
    data = KINDS[kind](folder)
    options: dict[str, Any] = {"seed": 3, "collate_fn": list}
    whole = flat(loader(data, 4, **options))
    assert len(whole) == len(data) and sorted(map(str, whole)) == sorted(str(data[n]) for n in range(len(data)))
    first = loader(data, 4, **options)
    had = [batch for _, batch in zip(range(2), first, strict=False)]
    state = first.state_dict()
    for workers, size in ((0, 3), (1, 5)):
        rest = loader(KINDS[kind](folder), size, **options, num_workers=workers)
        _ = [*zip(range(len(rest) - 1), rest, strict=False)]  # a worker was asked for the last one, too
        assert rest.epoch == 0
        rest.set_epoch(0)  # without which the next epoch would follow
        assert flat(rest) == whole and rest.epoch == 1
        rest.load_state_dict(state)
        assert flat(had) + flat(rest) == whole
    other = DataLoader(data, batch_sampler=first.batch_sampler, collate_fn=list)  # as others make loaders anew
    first.set_epoch(0)
    assert flat(other) == whole and first.epoch == 1


def test_a_state_is_that_of_the_same_parts(folder: Path) -> None:
    subset = loader(Subset(table(folder), [1, 2, 3]), 2)
    for other in (Subset(table(folder), [1, 3, 2]), Subset(table(folder, "b"), [1, 2, 3])):
        with pytest.raises(ValueError, match="the state belongs to other data"):
            loader(other, 2).load_state_dict(subset.state_dict())
    loader(Subset(table(folder), [1, 2, 3]), 1).load_state_dict(subset.state_dict())


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"batch_size": "64"}, TypeError, "^batch_size is how many samples a batch has, not '64'"),
    ({"fields": 3}, TypeError, r"^fields are names, as in 'jpg;png cls' or \('jpg;png', 'cls'\), not 3"),
    ({"fields": ()}, ValueError, "^fields names none"),
    ({"fields": "cls", "transform": 3}, ValueError, "one for each of the fields"),
    (
        {"fields": "cls txt.gz", "decode": {"jpg": "pil"}},
        ValueError,
        "^decode names the field 'jpg', and the fields are",
    ),
    ({"decode": "rgb9"}, ValueError, "^no decoder is called 'rgb9'; for pictures there are l8, rgb8, "),
    ({"decode": True}, TypeError, "^decode is 'pil', 'torchrgb8' or another name"),
    ({"fields": "txt", "classes": ["a"]}, ValueError, "classes names the field 'cls', and the fields are txt"),
    *(({"classes": names}, ValueError, "^classes are different names") for names in ([], ["a", "b", "a"], ["a", ""])),
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG)
def test_wrong_arguments(wrong: dict[str, Any], error: type[Exception], message: str, folder: Path) -> None:
    with pytest.raises(error, match=message):
        loader(folder / "a.tar", **{"batch_size": 4} | wrong)


def test_what_a_dataset_has_been_given_or_has_not(folder: Path) -> None:
    for empty in (folder / "empty.tar", Subset(table(folder), [])):
        with pytest.raises(ValueError, match=r"^there are no samples"):
            loader(empty, 4)
    with pytest.raises(ValueError, match=r"^give fields and decode to the dataset: this is a Squares already"):
        loader(Squares(), 4, fields="cls", decode="pil")
    for wrong in ({"shuffle": "blocks"}, {"weights": "cls"}):
        with pytest.raises(ValueError, match="needs a table: this is a Squares"):
            loader(Squares(), 4, **wrong)
    with pytest.raises(ValueError, match="use in_order=True"):
        loader(Squares(), 4, num_workers=1, in_order=False).state_dict()
    with pytest.raises(RuntimeError, match="StopIteration: this is not the end of the epoch"):
        list(loader(Squares(), 4, collate_fn=lambda _: next(iter(()))))
    with pytest.raises(SampleError, match="has no field 'img'; its fields are: cls txt"):
        list(next(iter(loader(folder / "a.tar", 4, fields="img"))))


def test_names_of_classes_become_numbers(folder: Path) -> None:
    names = [f"{n}" for n in reversed(range(COUNT))]
    (folder / "classes.txt").write_text("\n".join(names) + "\n")
    for classes in (names, folder / "classes.txt", {"CLS": names}):
        data = loader(folder / "a.tar", 4, fields="__key__ cls", classes=classes)  # type: ignore[arg-type]
        found = {key: number for keys, numbers in data for key, number in zip(keys, numbers.tolist(), strict=True)}
        assert found == {f"a{n:02d}": COUNT - 1 - n for n in range(COUNT)}
    both = TableDataset(folder / "a.tar", "cls txt", classes={"CLS": names, "txt": names[::-1]})
    assert both.__getitems__([2, 5]) == [(20, 2), (17, 5)] == [both[2], both[5]]
    assert TableDataset(folder / "a.tar", classes=names)[3] | {"__url__": ""} == {
        **{"__key__": "a03", "__url__": "", "cls": 19, "txt": b"3"}
    }
    assert ZipDataset(folder / "a.zip", "cls", "basic", classes=names)[1] == (21,)
    said = r"a.tar: sample 'a00': field 'cls': '0' is none of the 11 classes: 10, 11, 12, .*, 19, \.\.\.$"
    with pytest.raises(SampleError, match=said):
        TableDataset(folder / "a.tar", classes=map(str, range(10, 21)))[0]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Make three shards in the current directory, of which the second has no samples."""
    for name, count in (("a.tar", 5), ("b.tar", 0), ("c.tar", 7)):
        Path(name).write_bytes(make_tar([(f"{name[0]}{path}", data) for path, data in make_samples(count)]))
    return tmp_path


def samples(*urls: str) -> list[Any]:
    return [FieldChooser()(sample) for sample in tartools.read(list(urls))]


def all_of(data: TableDataset) -> list[Any]:
    return data.__getitems__(range(len(data)))


@pytest.mark.parametrize("source", ["{a,b,c}.tar", ["a.tar", "b.tar", "c.tar"], ["a.tar", "t.parquet"]], ids=repr)
def test_shards_are_indexed(source: Any, shards: Path, run: Run) -> None:
    assert run("tarindex", "b.tar", "c.tar", "-o", "t.parquet").status == 0
    expected = samples("a.tar", "b.tar", "c.tar")
    data = TableDataset(source)
    assert all_of(data) == expected and all_of(pickle.loads(pickle.dumps(data))) == expected
    batches = loader(source, 5, shuffle=False, num_workers=1)
    assert [sample for batch in batches for sample in batch] == expected
    assert {*os.listdir()} == {"a.tar", "b.tar", "c.tar", "t.parquet"}


def test_the_table_is_kept(shards: Path) -> None:
    names = ["a.tar", "b.tar", "c.tar"]
    assert all_of(TableDataset(names, table="t.parquet")) == samples(*names)
    before = os.stat("t.parquet")
    assert all_of(TableDataset(names, table="t.parquet")) == samples(*names)
    assert os.stat("t.parquet").st_ino == before.st_ino  # as it was
    Path("a.tar").write_bytes(make_tar([("new.cls", b"1")]))
    Path("d.tar").write_bytes(make_tar([("d.cls", b"2")]))
    for urls in ([*names, "d.tar"], ["d.tar", "a.tar"], names[::-1]):
        assert all_of(TableDataset(urls, table="t.parquet")) == samples(*urls)
        assert all_of(TableDataset("t.parquet")) == samples(*urls)


def rank(number: int, gate: Any) -> None:
    """What a rank does: it makes the table when all are there, and writes what it found."""
    gate.wait()
    table = TableDataset("{a,b,c}.tar", table="sets/t.parquet").table
    Path(f"said-{number}").write_text(f"{len(table)} {table.digest()} {[sample.key for sample in table]}")


def test_ranks_that_make_one_table_together(shards: Path) -> None:
    """Fresh, and when shards have changed: none fails, and all have the same rows."""
    Path("sets").mkdir()
    for count in (12, 8):
        fork = multiprocessing.get_context("fork")
        gate = fork.Barrier(2)
        ranks = [fork.Process(target=rank, args=(number, gate)) for number in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(60)
        assert [process.exitcode for process in ranks] == [0] * 2
        said = {Path(f"said-{number}").read_text() for number in range(2)}
        assert len(said) == 1 and said.pop().split()[0] == str(count)
        Path("c.tar").write_bytes(make_tar(make_samples(3)))
    assert os.listdir("sets") == ["t.parquet"]


def test_a_rank_of_another_machine_was_faster(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TableDataset(["a.tar", "c.tar"], table="t.parquet")
    before = os.stat("t.parquet")
    monkeypatch.setattr("tartools.storage.exists", lambda _: False)  # as it was when this rank looked
    for urls in (["a.tar", "c.tar"], ["c.tar", "a.tar"]):
        assert all_of(TableDataset(urls, table="t.parquet")) == samples(*urls)
        assert (os.stat("t.parquet").st_ino == before.st_ino) == (urls[0] == "a.tar")


def test_messages_name_options_as_python_has_them(shards: Path, run: Run) -> None:
    with pytest.raises(StorageError, match=r"^a.tar: already exists; force=True replaces it$"):
        tartools.write([], "a.tar")
    assert run("tarcat", "a.tar", "-o", "c.tar") == (1, b"", "tarcat: c.tar: already exists; --force replaces it\n")
    with tarfile.open("a.tar") as file:
        end = file.getmembers()[-1].offset_data + 512
    os.truncate("a.tar", end)
    with pytest.raises(TruncatedError, match=r"\(then use lax=True\)$"):
        list(tartools.read("a.tar"))


def test_what_is_no_source(shards: Path) -> None:
    table = tartools.Table.from_arrow(TableDataset("a.tar").table.arrow)
    assert all_of(TableDataset(table)) == samples("a.tar")
    for wrong, kept in ((table, "t.parquet"), ([], None)):
        with pytest.raises(ValueError, match="already" if kept else "no shard and no table is named"):
            TableDataset(wrong, table=kept)
    table.write("t.parquet")
    with pytest.raises(ValueError, match=r"this is a table: t.parquet"):
        TableDataset("t.parquet", table="u.parquet")
    with pytest.raises(ValueError, match="this is a TableDataset"):
        loader(TableDataset("a.tar"), 2, fields="cls")
    with pytest.raises(UsageError):
        TableDataset("pipe:cat a.tar")
    Path("cut.tar").write_bytes(Path("a.tar").read_bytes()[:2000])
    for kept in (None, "v.parquet"):
        with pytest.raises(TruncatedError, match=r"cut.tar: at byte \d+"):
            TableDataset(["a.tar", "cut.tar"], table=kept)
    assert not Path("v.parquet").exists()


NUMBERS = 12
SCRIPT = """
import multiprocessing
import tartools.train
from torch.utils.data import DataLoader


def number(text):
    return int(text)


def main():
    for batch in tartools.train.loader("{0..1}.tar", 4, fields="txt cls", table="t.parquet", num_workers=1):
        print(*(int(cls) for _, cls in batch))
    data = tartools.train.WebDataset("{0..1}.tar", shuffle=5).decode("pil").to_tuple("cls", "txt")
    for numbers, _ in DataLoader(data.map_tuple(number, None).batched(4), batch_size=None, num_workers=1):
        print(*numbers.tolist())


"""


@pytest.fixture
def two_shards() -> None:
    """Make 0.tar and 1.tar in the current directory."""
    for shard in range(2):
        numbers = range(shard * NUMBERS // 2, (shard + 1) * NUMBERS // 2)
        members = [(f"{n}.{name}", b"%d" % n) for n in numbers for name in ("txt", "cls")]
        Path(f"{shard}.tar").write_bytes(make_tar(members))


def program(end: str) -> Result:
    Path("train.py").write_text(SCRIPT + end)
    return start(sys.executable, "train.py")


@pytest.mark.parametrize("method", ["forkserver", *also("spawn")])
@pytest.mark.usefixtures("two_shards")
def test_a_guarded_script(method: str) -> None:
    done = program(f"if __name__ == '__main__':\n    multiprocessing.set_start_method('{method}')\n    main()\n")
    assert done.status == 0, done.stderr
    assert sorted(map(int, done.stdout.split())) == sorted([*range(NUMBERS)] * 2)


@pytest.mark.parametrize("method", ["forkserver", *also("spawn")])
@pytest.mark.usefixtures("two_shards")
def test_a_script_without_a_guard_is_told_of_it(method: str) -> None:
    done = program(f"multiprocessing.set_start_method('{method}', force=True)\nmain()\n")
    guard = (
        f'workers started by {method} import the program: put the code that it runs below `if __name__ == "__main__":`'
    )
    assert done.status == 1 and done.stdout == b""
    assert f"\nRuntimeError: {guard}\n" in done.stderr  # in the worker
    last = done.stderr.rstrip().splitlines()[-1]
    said = re.escape(f"an error of its own, which is above: {guard})")
    assert re.search(rf"^RuntimeError: .*{said}(; 2 batches .*)?$", last)  # it may end before it is asked for some


@pytest.mark.filterwarnings("ignore:Got pickle error", "ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("two_shards")
def test_a_lambda_is_named(run: Run) -> None:
    assert run("tar2zip", "0.tar", "-o", "a.zip").status == 0
    no = lambda value: value  # noqa: E731

    def torchs(data: Any) -> Any:
        return DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="forkserver")

    def ours(**options: Any) -> Any:
        return loader("0.tar", 4, num_workers=1, multiprocessing_context="forkserver", **options)

    makes: list[tuple[str, Callable[[], Any]]] = [
        ("transform", lambda: ours(transform=no)),
        ("transform", lambda: ours(fields="txt cls", transform=(str, no))),
        ("decode", lambda: ours(decode=["pil", no])),
        ("collate_fn", lambda: ours(collate_fn=no)),
        ("worker_init_fn", lambda: ours(worker_init_fn=no)),
        ("transform", lambda: torchs(TableDataset("0.tar", transform=no))),
        ("transform", lambda: torchs(ZipDataset("a.zip", transform=no))),
        ("transform", lambda: torchs(ObjectDataset("0.tar", no))),
        ("transform", lambda: torchs(WebDataset("0.tar", transforms=no))),
        ("what map calls", lambda: torchs(WebDataset("0.tar").map(no))),
        ("what map_tuple calls", lambda: torchs(WebDataset("0.tar", fields="txt cls").map_tuple(no, None))),
    ]
    for what, make in makes:
        with pytest.raises(TypeError) as failure:
            next(iter(make()))
        said = f"{what} can't be sent to workers: test_a_lambda_is_named.<locals>.<lambda> is"
        assert str(failure.value).startswith(said)
    assert len([*loader("0.tar", 3, transform=no, num_workers=1, multiprocessing_context="fork")]) == 2
