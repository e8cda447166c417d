"""Loose objects under prefixes: `ObjectDataset` by number, `ObjectStream` in sequence, `list_urls` and `open_urls`."""

from __future__ import annotations

import io
import operator
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import tee
from typing import Any, overload

from torch.utils.data import Dataset, IterableDataset

from tartools.errors import StorageError
from tartools.samples.sample import DICT_URL
from tartools.storage import is_stored_object, listing, seekable
from tartools.storage.listing import ls
from tartools.storage.names import expand_braces, is_literal
from tartools.storage.objects import object_at, requests_at_once
from tartools.storage.objects.contract import ListedObject
from tartools.storage.objects.http import read_all
from tartools.storage.objects.retry import call_with_retries
from tartools.storage.pool import Threads, call_in_window
from tartools.storage.url import Name, Url, name_of, names_of
from tartools.train.ranks import ReaderRank, SharedEpoch, SingleResume, this_worker
from tartools.train.sampler import SamplerIteration, StatefulSampler
from tartools.train.sampleseeds import SharedSeeds, call_with_seed, seed_parameter
from tartools.train.sending import check_sent
from tartools.train.states import StateError, check_state, is_bool, is_count, is_reader, make_state
from tartools.train.workererrors import guard_worker, note_result

OPEN_BYTES = 4 << 20  # bytes of each object that `open_urls` holds

Transform = Callable[[bytes, str], Any]


class ObjectList(Sequence[tuple[str, int]]):
    """The objects under *prefixes* as (URL, bytes), sorted by the bytes of their URLs, each once; with their versions.

    A sequence: an item is the URL and the size in bytes of an object, and `entry` returns its version, too.

    Empty objects whose names end in a slash, which stand for folders, are left out. Pickles to some 30 bytes an
    object, and most of that are versions. Holds: the bytes of the URLs and versions, and 17 for each: forks share
    them.

    Raises: StorageError if a prefix can't be listed, nothing is under one of them, or an object has no known size;
    UsageError for an invalid URL.
    """

    def __init__(self, prefixes: Name | Iterable[Name]) -> None:
        names = names_of(prefixes)
        entries = {
            entry.url.encode("utf-8", "surrogateescape"): entry for entry in _list_objects(names)
        }  # some may overlap
        self._text, self._ends, self._sizes = bytearray(), array("Q"), array("Q")
        for name, entry in sorted(entries.items(), key=operator.itemgetter(0)):
            if entry.size is None:
                message = "its size is not known: this is not a regular file, or its server does not say"
                raise StorageError(message, url=entry.url)
            if entry.size or not name.endswith(b"/"):
                self._text += name + b"\0" + entry.version.encode()
                self._ends.append(len(self._text))
                self._sizes.append(entry.size)

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

    def entry(self, index: int) -> ListedObject:
        """Return the record of object number *index* (negative: from the end): URL, size, version; its time is None.

        Raises: IndexError.
        """
        number = range(len(self))[index]
        begin = self._ends[number - 1] if number else 0
        name, _, version = self._text[begin : self._ends[number]].partition(b"\0")
        return ListedObject(name.decode("utf-8", "surrogateescape"), self._sizes[number], None, version.decode())

    @cached_property
    def digest(self) -> str:
        """A fingerprint of all URLs and versions: 32 hex digits."""
        return blake2b(self._text, digest_size=16).hexdigest()

    def __getstate__(self) -> bytes:
        numbers = self._ends.tobytes() + self._sizes.tobytes()
        return zlib.compress(len(self).to_bytes(8, "little") + numbers + self._text, 1)

    def __setstate__(self, state: bytes) -> None:
        data = zlib.decompress(state)
        count = int.from_bytes(data[:8], "little")
        self._ends, self._sizes = array("Q", data[8 : 8 + 8 * count]), array("Q", data[8 + 8 * count : 8 + 16 * count])
        self._text = bytearray(data[8 + 16 * count :])


class ObjectDataset(Dataset[Any]):
    """The loose objects below *prefixes*, each by its number: a dataset for `torch.utils.data.DataLoader`.

        data = tartools.train.ObjectDataset("gs://bucket/train/", lambda data, name: (decode(data), label(name)))
        data.objects[0]   # ("gs://bucket/train/0001.jpg", 110372)
        data[0]

    *prefixes* is a URL, or several: of a store all objects whose names begin so, or match wildcards; local folders with
    all that is below them; files of web servers, one by one, with braces. They are listed once: `objects` has URLs and
    sizes, sorted, each once, in whatever storage class. Empty objects whose names end in a slash are left out.

    An item is what *transform* returns for the bytes and the URL of the object; without it the bytes. A *transform*
    with a parameter `seed` (a number) or `rng` (a numpy Generator) gets one that follows from seed, epoch and the part
    of the object's URL behind the last slash. A batch (`__getitems__`, which DataLoader calls) is read with up to 64
    requests at once; while it is transformed up to 256 MiB more are held. Pickles small, and may be used in forks and
    other processes.

    Raises, when it is made: StorageError if a prefix can't be listed, or nothing is under it. Later: StorageError with
    the URL, if an object is gone, can't be read, or was replaced since it was listed: of another version or time, or at
    least, where a server has no versions, of another size; IndexError; errors of the transform, with a note.

    With `StatefulSampler` each object comes once an epoch, over all ranks, and a run that was stopped resumes exactly,
    also with other numbers of ranks and workers.
    """

    def __init__(self, prefixes: Name | Iterable[Name], transform: Transform | None = None) -> None:
        self.objects = ObjectList(prefixes)
        self.transform = transform
        self._seed_parameter = seed_parameter(transform)
        self.seeds = SharedSeeds() if self._seed_parameter else None

    def __getstate__(self) -> dict[str, Any]:
        check_sent("transform", [self.transform])
        return self.__dict__

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> Any:
        guard_worker()
        entry = self.objects.entry(index)
        return self._make_item(listing.content_of(entry), entry.url)

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """Return the items of the objects numbered *indices*, in this order.

        Raises: IndexError; StorageError if an object can't be read, or is not as it was listed; errors of the
        transform.
        """
        return list(self.items(indices))

    def digest(self) -> str:
        """Return a fingerprint of the URLs and versions of the objects: 32 hex digits."""
        return self.objects.digest

    def items(self, indices: Iterable[int]) -> Iterator[Any]:
        """Yield the items of the objects numbered *indices*, in this order.

        Up to 64 (MAX_OBJECT_REQUESTS) are requested ahead, and *indices* read so far. Raises: IndexError; StorageError
        if an object can't be read, or is not as it was listed; errors of the transform, with a note that names the
        object.
        """
        guard_worker()
        entries, requested = tee(map(self.objects.entry, indices))
        for data, entry in zip(listing.read_contents(requested), entries, strict=True):
            yield self._make_item(data, entry.url)

    def _make_item(self, data: bytes, url: str) -> Any:
        """Return the item of the object *url* with the bytes *data*: the result of the transform for both.

        The transform gets a seed, too, if it asks for one. Without a transform it is *data*. Raises: errors of the
        transform, with a note that names the object.
        """
        if self.transform is None:
            return data
        try:
            if self._seed_parameter and self.seeds is not None:
                result = call_with_seed(self.transform, self._seed_parameter, self.seeds.of(url, ""), data, url)
            else:
                result = self.transform(data, url)
        except Exception as error:
            error.add_note(str(StorageError("the transform failed", url=url)))
            raise
        note_result(result, {DICT_URL: url})
        return result


class ObjectStream(IterableDataset[Any]):
    """The items of `ObjectDataset(prefixes, transform)`, each exactly once an epoch over all ranks and workers.

    In order, or with *shuffle* in one that follows from *seed* and epoch: each iteration is the next epoch, unless
    `set_epoch` says otherwise. With *drop_last* all workers of all ranks get equally many, and up to ranks times
    workers, minus 1, are left out.

    An iteration that is left early ends its epoch, too. Ranks are those of torch.distributed if it was initialised, or
    else RANK and WORLD_SIZE of the environment, also in workers of any start method. Holds: up to 256 MiB, or one
    larger object, in each worker.

    A run that was stopped resumes at the next item, with torchdata's StatefulDataLoader and as many ranks and workers,
    or by `state_dict` and `load_state_dict` with a loader without workers. `ObjectDataset` with `StatefulSampler` has
    no such limits. `objects`: the `ObjectList` of URLs and sizes.

    Raises: StorageError if prefixes can't be listed; in an iteration, if an object can't be read, or is not as it was
    listed; there also errors of the transform, StateError for a state of another worker, and ValueError for a bad RANK
    or WORLD_SIZE in the environment.
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
        self._source = ObjectDataset(prefixes, transform)
        self.objects = self._source.objects
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self._epoch, self._rank, self._resume = SharedEpoch(), ReaderRank(), SingleResume()
        self._positions: SamplerIteration | None = None  # of the iteration that was begun last
        self._loaded: dict[str, Any] | None = None  # where the next iteration begins

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the epoch of the next iteration, also in workers that are there already.

        A state that was loaded is used if it is of the same epoch, and otherwise forgotten.
        """
        if epoch != self._epoch.number:
            self._loaded = self._positions = None
        self._epoch.number = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the latest iteration in this process: after the items that it has yielded.

        Before the first one, and after `set_epoch` with another epoch, it is the begin of the epoch; after
        `load_state_dict` the loaded state; after all items the end of the epoch, of which nothing is then to be read.
        """
        if self._loaded is not None:
            return self._loaded
        if self._positions is None:
            return self._state(self._sampler(self._epoch.number).state_dict())
        return self._state(self._positions.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration resume from *state*, and replace seed and epoch of this stream by the state's.

        The state of a loader with one worker or none is also for other numbers of ranks and workers: all ranks are
        taken to have had equally many items. The state of one of several workers is for the same worker of as many: the
        next iteration raises StateError in any other. Raises: StateError if it is malformed, or belongs to other
        objects, to another kind of order, or to a stream with another `drop_last`.
        """
        checks = {"reader": is_reader, "workers": is_count, "epoch": is_count, "drop_last": is_bool}
        check_state(state, "an ObjectStream", checks)
        self._sampler(0).load_state_dict(state)
        if state["drop_last"] != self._drop_last:
            raise StateError(f"the state is of a stream with drop_last {state['drop_last']!r}, unlike this one")
        self._loaded, self._seed = dict(state), state["seed"]
        self._epoch.number = state["epoch"]
        self._resume.load()

    def _sampler(self, epoch: int) -> StatefulSampler:
        """Return a sampler of the numbers of the objects that this process reads in *epoch*, at the begin of it.

        Its ranks are the readers: each worker of each rank.
        """
        number, readers = self._rank.reader()
        options: dict[str, Any] = {"rank": number, "world_size": readers, "drop_last": self._drop_last}
        sampler = StatefulSampler(self._source, self._seed, self._shuffle, **options)
        sampler.set_epoch(epoch)
        return sampler

    def _state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return *state*, of a sampler, as a state of this stream: with drop_last, reader, and number of workers."""
        reader, workers = self._rank.reader(), this_worker()[1]
        return make_state(state | {"drop_last": self._drop_last, "reader": reader, "workers": workers})

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_positions": None}

    def __iter__(self) -> Iterator[Any]:
        number, may_resume = self._epoch.begin(), self._resume.begin()
        state, sampler = self._loaded, self._sampler(number)
        if may_resume and state is not None and state["epoch"] == number:
            number, readers = state["reader"]
            if state["workers"] > 1 and (number, readers) != self._rank.reader():
                raise StateError(
                    f"the state is that of reader {number} of {readers} (ranks times workers): go on with as many, or "
                    "use an ObjectDataset with a StatefulSampler"
                )
            sampler.load_state_dict(state)
        sampler.loader_counts = True
        self._loaded, self._positions = None, iter(sampler)
        return self._count_items(self._positions)

    def _count_items(self, positions: SamplerIteration) -> Iterator[Any]:
        """Yield the items of the objects with the numbers in *positions*; count each as consumed before it is yielded.

        *positions*: an iteration of the sampler, whose `consumed` is the count.
        """
        for item in self._source.items(positions):
            positions.consumed += 1
            yield item


def list_urls(prefixes: Name | Iterable[Name]) -> Iterator[str]:
    """Yield the URLs of all objects below each of *prefixes*, one prefix after the other.

    *prefixes*: a URL, or several: prefixes or wildcards in stores, local folders, files of web servers. Braces are
    expanded in their order, and the URLs below each result are sorted by bytes. An object below two of them comes
    twice, and empty objects that stand for folders come, too. Raises: StorageError, also if nothing is under one of
    them; UsageError for an invalid URL.
    """
    for entry in _list_objects(names_of(prefixes)):
        yield entry.url


def open_urls(urls: Iterable[Name]) -> Iterator[tuple[str, io.BufferedIOBase]]:
    """Yield (URL, file) for each of *urls*, in order. The files can seek, where the URLs are files or objects.

    *urls*: single names, in which braces and wildcards are not expanded; `list_urls` gives such.
    Up to 64 objects are requested ahead. Holds: up to 4 MiB of each; larger ones are read from the server as the file
    is read. Whoever takes a file closes it. Raises: StorageError, also when a file is read; UsageError for an invalid
    URL.
    """
    for url, answer in _call_ahead(_read_small_object, map(name_of, urls)):
        data = answer()
        yield url, seekable.open_as_file(url) if data is None else io.BytesIO(data)


def _read_small_object(url: str) -> bytes | None:
    """Return all bytes of the object *url* by one request, which is retried.

    None if it is no object of a store or web server, or is larger than OPEN_BYTES (4 MiB), of unknown size, sent
    without a length, or came incomplete. Raises: StorageError.
    """
    if not is_stored_object(url):
        return None

    def attempt() -> bytes | None:
        """Return the bytes by one request; None if they are too many, their number is unknown, or some are missing.

        Raises: TransientError for a failure that may pass; StorageError.
        """
        reply = object_at(url).get(0, OPEN_BYTES, "")
        if not reply.is_framed or reply.size is None or reply.size > OPEN_BYTES:
            reply.body.close()
            return None
        data = read_all(reply.body, url)
        return data if len(data) == reply.size else None

    return call_with_retries(attempt, url)


def _list_objects(names: Iterable[str]) -> Iterator[ListedObject]:
    """Yield the objects of the URLs and patterns *names*, in their order; requests to web servers are parallel.

    Objects under one name are sorted by bytes; braces are expanded before, unless a local file has literally this name.
    Raises: StorageError, also if there is nothing under one of them; UsageError for an invalid URL.
    """
    urls = (url for name in names for url in ([name] if is_literal(name) else expand_braces(name)))
    for url, answer in _call_ahead(_list_entries, urls):
        entry = None
        for entry in answer():
            yield entry
        if entry is None:
            raise StorageError("nothing is listed under this", url=url)


def _list_entries(url: str) -> Iterable[ListedObject]:
    """Return the objects under *url*, sorted by bytes: a list for one object of a web server, else an iterator.

    Raises: StorageError; from an iterator as it is read.
    """
    entries = ls(url)
    return list(entries) if Url(url).is_stored and not Url(url).is_listed else entries


def _call_ahead(work: Callable[[str], Any], urls: Iterable[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield (url, function that returns `work(url)`) for each of *urls*, in order; calls run ahead.

    At once: 64 (MAX_OBJECT_REQUESTS), or `TARTOOLS_READAHEAD` if that is set. The function raises what `work` raised.
    Raises: UsageError for an invalid `TARTOOLS_READAHEAD`, at once.
    """
    max_requests = requests_at_once(listing.MAX_OBJECT_REQUESTS)
    return call_in_window(urls, Threads(max_requests, work), max_requests)
