"""Loose objects under prefixes: `Objects` by number, `ObjectStream` as they come, `list_urls` and `open_urls`."""

from __future__ import annotations

import io
import operator
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, overload

import torch
from torch.utils.data import Dataset, IterableDataset

from tartools.errors import StorageError
from tartools.storage import contents, seekable
from tartools.storage.listing import ls
from tartools.storage.names import is_literal, unfolded
from tartools.storage.objects import object_at
from tartools.storage.objects.contract import Listed
from tartools.storage.objects.http import read_all
from tartools.storage.objects.retry import with_retries
from tartools.storage.url import Name, Url, name_of, names_of
from tartools.train.ranks import this_rank, this_worker
from tartools.train.sending import check_sent

BEGINNING = 4 << 20  # bytes of each object that `open_urls` holds

Transform = Callable[[bytes, str], Any]


class Listing(Sequence[tuple[str, int]]):
    """Objects as (URL, bytes), sorted by the bytes of their URLs; of each also the version.

    Empty objects whose names end in a slash, which stand for folders, are left out. Pickles to some 30 bytes an
    object, and most of that are versions. Holds: the bytes of the URLs, and 24 for each: forks share them.

    Raises: StorageError if a prefix can't be listed, nothing is there, or an object has no known size.
    """

    def __init__(self, prefixes: Name | Iterable[Name]) -> None:
        names = names_of(prefixes)
        found = [(_sized(entry), entry) for entry in _listed(names)]
        rows = [(entry.url.encode("utf-8", "surrogateescape"), size, entry.version) for size, entry in found]
        rows = [row for row in rows if row[1] or not row[0].endswith(b"/")]
        rows.sort(key=operator.itemgetter(0))
        self._text, self._ends, self._sizes = bytearray(), array("Q"), array("Q")
        last = None
        for name, size, version in rows:
            if name != last:  # prefixes may overlap
                self._text += name + b"\0" + version.encode()
                self._ends.append(len(self._text))
                self._sizes.append(size)
            last = name

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> tuple[str, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, int] | list[tuple[str, int]]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        entry = self.entry(index)
        return entry.url, entry.size or 0

    def entry(self, index: int) -> Listed:
        """Return what was listed of the object number *index*. Raises: IndexError."""
        number = range(len(self))[index]
        begin = self._ends[number - 1] if number else 0
        name, _, version = self._text[begin : self._ends[number]].partition(b"\0")
        return Listed(name.decode("utf-8", "surrogateescape"), self._sizes[number], None, version.decode())

    def digest(self) -> str:
        """Return what other URLs or versions would change."""
        return blake2b(self._text, digest_size=16).hexdigest()

    def __getstate__(self) -> bytes:
        numbers = self._ends.tobytes() + self._sizes.tobytes()
        return zlib.compress(len(self).to_bytes(8, "little") + numbers + self._text, 1)

    def __setstate__(self, state: bytes) -> None:
        data = zlib.decompress(state)
        count = int.from_bytes(data[:8], "little")
        self._ends, self._sizes = array("Q", data[8 : 8 + 8 * count]), array("Q", data[8 + 8 * count : 8 + 16 * count])
        self._text = bytearray(data[8 + 16 * count :])


class Objects(Dataset[Any]):
    """The loose objects below *prefixes*, each by its number: a dataset for `torch.utils.data.DataLoader`.

        data = tartools.train.Objects("gs://bucket/train/", lambda data, name: (decode(data), label(name)))
        data.objects[0]   # ("gs://bucket/train/0001.jpg", 110372)
        data[0]

    *prefixes* is a URL, or several: of a store all objects whose names begin so, or match wildcards; local folders
    with all that is below them; files of web servers, one by one, with braces. They are listed once: `objects` has
    URLs and sizes, sorted, each once, in whatever storage class. Empty objects whose names end in a slash are left out.

    An item is what *transform* returns for the bytes and the URL of the object; without it the bytes. A batch
    (`__getitems__`, which DataLoader calls) is read with up to 64 requests at once; while it is transformed up to 256
    MiB more are held. Pickles small, and may be used in forks and other processes.

    Raises: StorageError with the URL, if an object is gone, can't be read, or was replaced since it was listed: of
    another version or time, or at least, where a server has no versions, of another size.

    With `Order` as the sampler each object comes once an epoch, over all ranks, and a run that was stopped goes on
    exactly, also with other numbers of ranks and workers.
    """

    def __init__(self, prefixes: Name | Iterable[Name], transform: Transform | None = None) -> None:
        self.objects = Listing(prefixes)
        self.transform = transform

    def __getstate__(self) -> dict[str, Any]:
        check_sent("transform", [self.transform])
        return self.__dict__

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> Any:
        entry = self.objects.entry(index)
        return self._made(contents.content_of(entry), entry.url)

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """Return the items of the numbers *indices*, in this order."""
        return list(self.items(indices))

    def digest(self) -> str:
        """Return what tells these objects from others, or other versions of them."""
        return self.objects.digest()

    def items(self, indices: Iterable[int]) -> Iterator[Any]:
        """Yield the items of the numbers *indices*, in this order, requested ahead."""
        urls: deque[str] = deque()

        def entries() -> Iterator[Listed]:
            for index in indices:
                entry = self.objects.entry(index)
                urls.append(entry.url)
                yield entry

        for data in contents.contents(entries()):
            yield self._made(data, urls.popleft())

    def _made(self, data: bytes, url: str) -> Any:
        if self.transform is None:
            return data
        try:
            return self.transform(data, url)
        except Exception as error:
            error.add_note(str(StorageError("the transform failed", url=url)))
            raise


class ObjectStream(IterableDataset[Any]):
    """The items of `Objects(prefixes, transform)`, each exactly once an epoch over all ranks and workers.

    In order, or with *shuffle* in one that follows from *seed* and epoch; `set_epoch` before each epoch but the first.
    With *drop_last* all workers of all ranks get equally many, and up to ranks times workers, minus 1, are left out.

    An epoch ends when the iteration ends. Ranks are those of torch.distributed if it was initialised, or else RANK and
    WORLD_SIZE of the environment, also in workers of any start method. Holds: up to 256 MiB in each worker.

    A run that was stopped goes on at the next item, with torchdata's StatefulDataLoader and as many ranks and workers,
    or by `state_dict` and `load_state_dict` with a loader without workers. `Objects` with `Order` knows no such limits.
    If a plain DataLoader with workers goes on from a state, call `set_epoch` before each later epoch: its workers begin
    again, and can't tell that an epoch has ended.
    """

    def __init__(
        self,
        prefixes: Name | Iterable[Name],
        transform: Transform | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self._source = Objects(prefixes, transform)
        self.objects = self._source.objects
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        known = {"objects": len(self.objects), "data": self.objects.digest()}
        self._kind = known | {"shuffle": shuffle, "drop_last": drop_last}  # what a state has in common with this
        self._rank: tuple[int, int] | None = None  # that of the process that pickled this
        self._state: dict[str, int] | None = None  # of the iteration that was begun last
        self._loaded: dict[str, Any] | None = None  # where the next iteration begins
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]  # workers see it

    def set_epoch(self, epoch: int) -> None:
        """Give the next iteration the order of *epoch*, also in workers that are there already.

        It begins at the place of a state that was loaded, if that is of the same epoch.
        """
        if self.state_dict()["epoch"] != epoch:
            self._loaded = self._state = None
        self._epoch[0] = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return where the iteration is that was begun last, in this process."""
        if self._loaded is not None:
            return self._loaded
        place = self._state or {"epoch": int(self._epoch[0]), "begin": 0, "taken": 0, **self._place()}
        return {"seed": self._seed, **self._kind, **place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration go on where *state* was made.

        That of a loader without workers may go on with other numbers of ranks and workers: all ranks are taken to have
        had equally many items. Raises: ValueError if it is the state of other objects, or of another kind of order.
        """
        if not isinstance(state, dict) or not {"seed", "epoch", "begin", "taken", *self._kind} <= {*state}:
            raise ValueError("this is not a state of an ObjectStream")
        if state["data"] != self._kind["data"]:
            raise ValueError("the state is that of other objects, or of other versions of them")
        for name, value in self._kind.items():
            if state[name] != value:
                raise ValueError(f"the state is of a stream with {name} {state[name]!r}, and here it is {value!r}")
        self._loaded, self._seed, self._epoch[0] = dict(state), state["seed"], state["epoch"]

    def _place(self) -> dict[str, int]:
        """Return which rank and worker this process is."""
        (rank, world), (worker, workers) = self._rank or this_rank(), this_worker()
        return {"rank": rank, "world": world, "worker": worker, "workers": workers}

    def _begun(self) -> dict[str, int]:
        """Return where the next iteration begins. Raises: ValueError if the state that was loaded is another worker's.

        All share what lies behind *begin*, and this process has had the first *taken* items of its part.
        """
        epoch, place, (state, self._loaded) = int(self._epoch[0]), self._place(), (self._loaded, None)
        if state is None or state["epoch"] != epoch:  # a worker that persists is not told of another epoch
            return {"epoch": epoch, "begin": 0, "taken": 0, **place}
        begin, taken = state["begin"], state["taken"]
        if any(state[name] != value for name, value in place.items()):
            if state["workers"] > 1:
                made = f"worker {state['worker']} of {state['workers']}, rank {state['rank']} of {state['world']}"
                raise ValueError(f"the state is that of {made}: go on with as many workers and ranks, or use Order")
            begin, taken = begin + taken * state["world"], 0
        return {"epoch": epoch, "begin": begin, "taken": taken, **place}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rank": self._rank or this_rank()}

    def __iter__(self) -> Iterator[Any]:
        self._state = state = self._begun()
        begin, count, shares = state["begin"], len(self.objects), state["world"] * state["workers"]
        if self._drop_last:
            count -= max(count - begin, 0) % shares
        first = begin + state["rank"] * state["workers"] + state["worker"]
        mine: Sequence[int] = range(first, count, shares)[state["taken"] :]
        if self._shuffle:
            made = torch.Generator().manual_seed((self._seed << 20) + state["epoch"])
            order = torch.randperm(len(self.objects), generator=made)
            mine = order[torch.tensor(mine, dtype=torch.int64)].tolist()
        return self._counted(mine, state)

    def _counted(self, numbers: Sequence[int], state: dict[str, int]) -> Iterator[Any]:
        """Yield the items of *numbers*, and count them in *state*."""
        for item in self._source.items(numbers):
            state["taken"] += 1
            yield item


def list_urls(prefixes: Name | Iterable[Name]) -> Iterator[str]:
    """Yield the URLs of all objects below each of *prefixes*, one after the other; see `Objects`.

    Raises: StorageError.
    """
    for entry in _listed(names_of(prefixes)):
        yield entry.url


def open_urls(urls: Iterable[Name]) -> Iterator[tuple[str, io.BufferedIOBase]]:
    """Yield (URL, file) for each of *urls*, in order. The files can seek, where the URLs are files or objects.

    Up to 64 objects are requested ahead. Holds: up to 4 MiB of each; larger ones are read from the server as the file
    is read. Whoever takes a file closes it. Raises: StorageError.
    """
    waiting: deque[tuple[str, Callable[[], bytes | None]]] = deque()
    for url in map(name_of, urls):
        remote = Url(url).is_stored and not Url(url).read_command
        task = partial(_beginning, url) if remote else None
        waiting.append((url, contents.requests().ask(task) if task else lambda: None))
        if len(waiting) >= contents.requests_at_once():
            yield _opened(*waiting.popleft())
    while waiting:
        yield _opened(*waiting.popleft())


def _opened(url: str, answer: Callable[[], bytes | None]) -> tuple[str, io.BufferedIOBase]:
    data = answer()
    return url, seekable.reading(url) if data is None else io.BytesIO(data)


def _beginning(url: str) -> bytes | None:
    """Return all bytes of the object *url*; None if they are more than 4 MiB, or the server does not say how many."""

    def attempt() -> bytes | None:
        reply = object_at(url).get(0, BEGINNING, "")
        if not reply.framed or reply.size is None or reply.size > BEGINNING:
            reply.body.close()
            return None
        data = read_all(reply.body, url)
        return data if len(data) == reply.size else None

    return with_retries(attempt, url)


def _sized(entry: Listed) -> int:
    if entry.size is None:
        raise StorageError(
            "its size is not known: this is not a regular file, or its server does not say", url=entry.url
        )
    return entry.size


def _all(url: str) -> list[Listed]:
    return list(ls(url))


def _listed(names: Iterable[str]) -> Iterator[Listed]:
    """Yield what *names* stand for; web servers are asked side by side. Raises: StorageError, also if it is nothing."""
    waiting: deque[Callable[[], list[Listed]]] = deque()
    for url in (url for name in names for url in ([name] if is_literal(name) else unfolded(name))):
        one = Url(url).is_stored and not Url(url).is_listed
        if one:
            waiting.append(contents.requests().ask(partial(_all, url)))
        while waiting and (not one or len(waiting) >= contents.requests_at_once()):
            yield from waiting.popleft()()
        if not one:
            entry = None
            for entry in ls(url):
                yield entry
            if entry is None:
                raise StorageError("nothing is listed under this", url=url)
    while waiting:
        yield from waiting.popleft()()
