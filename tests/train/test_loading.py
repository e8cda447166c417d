"""`loader` over datasets of all kinds: each sample once, and on from a state; and what it says of wrong arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset

from tartools.errors import SampleError
from tartools.train import ObjectDataset, TableDataset, ZipDataset, loader
from tests.commands.test_zip import zipped
from tests.conftest import make_tar

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
        rest.load_state_dict(state)
        assert flat(had) + flat(rest) == whole


def test_a_state_is_that_of_the_same_parts(folder: Path) -> None:
    subset = loader(Subset(table(folder), [1, 2, 3]), 2)
    for other in (Subset(table(folder), [1, 3, 2]), Subset(table(folder, "b"), [1, 2, 3])):
        with pytest.raises(ValueError, match="the state is that of other data"):
            loader(other, 2).load_state_dict(subset.state_dict())
    loader(Subset(table(folder), [1, 2, 3]), 1).load_state_dict(subset.state_dict())


def test_no_samples_are_an_error(folder: Path) -> None:
    for empty in (folder / "empty.tar", Subset(table(folder), [])):
        with pytest.raises(ValueError, match=r"^there are no samples"):
            loader(empty, 4)


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
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG)
def test_wrong_arguments(wrong: dict[str, Any], error: type[Exception], message: str, folder: Path) -> None:
    with pytest.raises(error, match=message):
        loader(folder / "a.tar", **{"batch_size": 4} | wrong)


def test_what_a_dataset_has_been_given_or_has_not(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^give fields and decode to the dataset: this is a Squares already"):
        loader(Squares(), 4, fields="cls", decode="pil")
    for wrong in ({"shuffle": "blocks"}, {"weights": "cls"}):
        with pytest.raises(ValueError, match="needs a table: this is a Squares"):
            loader(Squares(), 4, **wrong)
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


@pytest.mark.parametrize("wrong", [[], ["a", "b", "a"], ["a", ""]])
def test_classes_that_are_none(wrong: list[str], folder: Path) -> None:
    with pytest.raises(ValueError, match=r"^classes are different names"):
        TableDataset(folder / "a.tar", classes=wrong)
    with pytest.raises(ValueError, match="classes names the field 'cls', and the fields are txt"):
        TableDataset(folder / "a.tar", "txt", classes=["a"])
