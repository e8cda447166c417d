"""Shards in pieces that several processes read at once, for what makes something small of every sample.

A large plain file is cut where a group of members seems to begin; whoever reads the piece before finds out whether it
does. Each piece is read by a forked process, which hands over what it made when its piece was all as it should be.
If it was not, be it damage, a link, or a cut in the wrong place, all from the begin of that piece on is read again in
this process: so what is written and said is the same as if there had been no pieces.
"""

from __future__ import annotations

import io
import json
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import IO, NamedTuple, TypeVar

from tartools import shards, storage, tar
from tartools.account import Account
from tartools.errors import StorageError
from tartools.sample import Batch
from tartools.shards import Reading, ShardStream
from tartools.storage.children import MOST, Child, can_fork, write_all

PIECE = 32 << 20  # bytes
HELD = 64 << 20  # bytes that a process makes of its piece
PART = 1 << 20  # bytes that are taken at a time
FAR = 4  # shards on a server that a process reads, at most
WORKERS = 4  # more would wait for the one that takes what they make
COUNTS = (
    "samples_in",
    "samples_out",
    "left_out",
    "joined",
    "dropped",
    "bytes_in",
    "unpacked",
    "directories",
    "shards_done",
)

Told = TypeVar("Told")


class Turn(NamedTuple):
    """Which unit of the input is worked on, from 0 on, and whether that is *apart*, in a process of its own."""

    number: int
    apart: bool


Work = Callable[[Iterator[Batch], Turn], Generator[bytes, None, Told]]


class Piece(NamedTuple):
    """Bytes *begin* up to *cut* of the shard *url*, number *number* of all; *file* says which file it was."""

    number: int
    url: str
    begin: int = 0
    cut: tar.Cut | None = None
    file: tuple[int, int] | None = None


class Unit(NamedTuple):
    """What one process reads: a piece, or several small shards. Only if it is *apart* may that be another process."""

    pieces: list[Piece]
    apart: bool


class _OddError(Exception):
    """A piece is not what it should be, or what is made of it is too much."""


class Plan(NamedTuple):
    """How the input is shared out: among up to *most* processes at a time.

    Shards on servers are read apart only if *far*: then *work* makes nothing, and only returns. With *plain*,
    compressed shards are not.
    """

    most: int
    far: bool = False
    plain: bool = False


def in_pieces(
    urls: Sequence[str],
    account: Account,
    reading: Reading,
    work: Work[Told],
    plan: Plan,
    take: Callable[[Told], object],
) -> Generator[bytes, None, None]:
    """Yield what *work* yields for the samples of *urls*, in order, in the same parts; have *take* what it returns.

    All local files are looked at before this returns a generator.

    *work* is called with the samples of each unit of the input. Apart, what it returns becomes what JSON makes of it,
    and what it raises has it called again, not apart; but failures of servers are handed over. It counts the samples,
    and what becomes of them, in *account*.

    Holds: 1 MiB, and each process up to 64 MiB of what it made.
    Raises: what `shards.read_samples` raises.
    """
    shards.announce(urls, account)
    plan = plan._replace(most=min(plan.most, MOST - 1), far=plan.far and len(urls) > 1)  # one more waits to be heard
    units = planned(urls, account.expected if plan.most > 1 and can_fork() else 0, plan)
    return _worked_off(units, urls, account, reading, work, plan, take)


def digest(
    urls: Sequence[str],
    account: Account,
    reading: Reading,
    look: Callable[[Iterator[Batch]], Told],
    most: int,
    take: Callable[[Told], object],
) -> None:
    """Have *take* what *look* returns for the samples of each unit of the input, in order, as in `in_pieces`.

    Shards on servers are read apart too, since what comes of them is small. Raises: what `in_pieces` raises.
    """

    def work(batches: Iterator[Batch], _turn: Turn) -> Generator[bytes, None, Told]:
        yield from ()  # what it makes of them is what it returns
        return look(batches)

    with closing(in_pieces(urls, account, reading, work, Plan(most, far=True), take)) as parts:
        for _ in parts:
            pass  # there are none


def _worked_off(
    units: Iterator[Unit],
    urls: Sequence[str],
    account: Account,
    reading: Reading,
    work: Work[Told],
    plan: Plan,
    take: Callable[[Told], object],
) -> Generator[bytes, None, None]:
    """Do as `in_pieces` says."""
    ahead: deque[tuple[Unit, Child | None]] = deque()
    begun = done = 0
    try:
        while True:
            while len(ahead) <= plan.most and (unit := next(units, None)):
                ahead.append((unit, _begun(unit, begun, account, reading, work, plan) if unit.apart else None))
                begun += 1
            if not ahead:
                return
            unit, child = ahead.popleft()
            done += 1
            if child is not None:
                with closing(child), io.BufferedReader(child.pipe, PART) as file:
                    line = file.readline()
                    if line.endswith(b"\n"):  # it has done its work
                        made = json.loads(line)
                        if "failure" in made:
                            raise StorageError(made["failure"], url=made["url"], offset=made["at"])
                        yield from _parts(file, made["parts"], unit.pieces[0].url)
                        for name, count in made["counts"].items():
                            setattr(account, name, getattr(account, name) + count)
                        take(made["told"])
                        continue
            pieces = unit.pieces
            if unit.apart:  # from here on, no pieces
                _close(ahead)
                units = iter(())
                rest = pieces[-1].number + 1
                pieces = [pieces[0]._replace(cut=None), *pieces[1:]]
                pieces += [Piece(number, url) for number, url in enumerate(urls[rest:], rest)]
            take((yield from work(_batches(pieces, account, reading), Turn(done - 1, False))))
    finally:
        _close(ahead)


def _parts(file: IO[bytes], sizes: list[int], url: str) -> Iterator[bytes]:
    """Yield parts of *sizes* of *file*."""
    for size in sizes:
        part = file.read(size)
        if len(part) < size:
            raise StorageError("the process that reads this was killed (there may be too little memory)", url=url)
        yield part


def _close(ahead: deque[tuple[Unit, Child | None]]) -> None:
    """Kill what is *ahead*, which nobody waits for."""
    while ahead:
        _, child = ahead.pop()
        if child is not None:
            child.close()


def planned(urls: Sequence[str], size: int | None, plan: Plan) -> Iterator[Unit]:
    """Yield the units of *urls*, in order; of all together, which have *size* bytes, if that is not worth several."""
    if size is not None and size < 2 * PIECE:
        yield Unit([Piece(number, url) for number, url in enumerate(urls)], False)
        return
    weight = -(-PIECE // min(FAR, -(-len(urls) // plan.most)))  # of a shard whose size nobody has asked for
    small: list[Piece] = []
    held = 0
    for number, url in enumerate(urls):
        size = weight if plan.far and storage.is_far(url) else storage.plain_size(url)
        if size is not None and plan.plain and is_compressed(url):
            size = None
        if size is not None and size <= PIECE:
            small.append(Piece(number, url))
            held += size
        if small and (held >= PIECE or small[-1].number != number):
            yield Unit(small, True)
            small, held = [], 0
        if size is None:
            yield Unit([Piece(number, url)], False)
        elif size > PIECE:
            yield from cut_up(number, url)
    if small:
        yield Unit(small, True)


def is_compressed(url: str) -> bool:
    """Tell whether the local file *url* is compressed."""
    with closing(ShardStream(url, Account())) as stream:
        return stream.file is None


def cut_up(number: int, url: str) -> Iterator[Unit]:
    """Yield the pieces of the large file *url*, each alone; all of it as one if it is compressed."""
    with closing(ShardStream(url, Account())) as stream:
        file = stream.file
        if file is None:
            yield Unit([Piece(number, url)], False)
            return
        known = identity(file.fileno())
        begin, size = 0, os.fstat(file.fileno()).st_size
        while begin + 2 * PIECE < size and (cut := tar.find_cut(file, begin + PIECE)):
            yield Unit([Piece(number, url, begin, cut, known)], True)
            begin = cut.place
        yield Unit([Piece(number, url, begin, None, known)], True)


def identity(fd: int) -> tuple[int, int]:
    """Return what tells the open file *fd* from all others."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _batches(pieces: Iterable[Piece], account: Account, reading: Reading) -> Iterator[Batch]:
    """Yield the samples of *pieces*. Raises: _OddError for a cut where the sample before it goes on."""
    for _, url, begin, cut, file in pieces:
        stream = ShardStream(url, account, reading.forks)
        last = b""
        if file is not None and (stream.file is None or identity(stream.file.fileno()) != file):
            stream.close()
            raise StorageError("this file was replaced while it was read", url=url)
        until = cut and cut.place
        with closing(shards.shard_batches(url, account, reading, stream, begin=begin, until=until)) as batches:
            for batch in batches:
                yield batch
                last = batch.keys[-1]
        if cut is not None and last in (b"", cut.key):
            raise _OddError


def _begun(unit: Unit, number: int, account: Account, reading: Reading, work: Work[Told], plan: Plan) -> Child | None:
    """Return the process that does *work* on *unit*, of that *number*; None if none can be had."""
    if not can_fork():
        return None

    def make(pipe: int) -> None:
        said: list[str] = []
        account.say = said.append
        account.specials = 0  # of the first, each process tells
        if plan.far:
            storage.share_memory(plan.most + 1)
        before = {name: getattr(account, name) for name in COUNTS}
        parts: list[bytes] = []
        try:
            making = work(_batches(unit.pieces, account, reading._replace(forks=False)), Turn(number, True))
            told = _run(making, parts)
        except StorageError as error:
            if said or not storage.is_far(error.url):
                raise
            failure = {"failure": error.message, "url": error.url, "at": error.offset}
            write_all(pipe, memoryview(json.dumps(failure).encode() + b"\n"))
            return
        if said:
            raise _OddError
        counts = {name: getattr(account, name) - count for name, count in before.items()}
        header = json.dumps({"told": told, "counts": counts, "parts": list(map(len, parts))}).encode()
        write_all(pipe, memoryview(header + b"\n"))
        write_all(pipe, memoryview(b"".join(parts)))

    try:
        return Child(make)
    except OSError:
        return None


def _run(making: Generator[bytes, None, Told], parts: list[bytes]) -> Told:
    """Return what *making* returns; what it yields is added to *parts*. Raises: _OddError if that is too much."""
    size = 0
    while True:
        try:
            parts.append(next(making))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        size += len(parts[-1])
        if size > HELD:
            raise _OddError
