"""What tardedup writes: samples, the list of pairs, and the page of pairs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest

from tartools import cli, storage
from tartools.commands._dedup import Comparison, Side
from tartools.commands._filter import Outputs, write_rows, write_samples
from tartools.errors import UsageError, several, shown
from tartools.formats.textrows import escape
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Batch, Sample, raw_bytes
from tartools.shards.reading import Reading, closing_upstream, counted
from tartools.stages.duplicates.pairs import AGAINST, INPUT, Pair, named, pair_of
from tartools.tar import Member, new_member
from tartools.tar.compression import is_table_name

SHOWN = 200  # pairs on a page
Sort = Callable[[Iterable[bytes]], Iterator[bytes]]


def writes_table(output: cli.Output, rest: str | None) -> bool:
    """Tell whether one of the outputs is a table. Raises: UsageError if it is to be compressed."""
    found = any(is_table_name(url) for url in (output.url, rest or ""))
    if found and output.gzip:
        raise UsageError("-z excludes an OUTPUT that ends in .parquet")
    return found


def write(
    side: Side, pairs: Iterable[bytes], output: cli.Output, rest: str | None, account: Account, reading: Reading
) -> None:
    """Write the samples of *side*, without those of *pairs*, to *output*; these to *rest*, if it is given."""
    outputs = Outputs(output, rest)
    if side.rows is not None or writes_table(output, rest):
        import numpy as np

        inputs = side.listed(account)
        side.check(inputs.rows)
        flags = np.ones(inputs.rows, bool)
        for record in pairs:
            flags[pair_of(record).position] = False
        write_rows(inputs, flags, outputs, account, reading)
        return
    account.phase = Phase("writing", side.samples, lambda: account.settled)
    plainly = reading._replace(ranges=True, listed=False)
    batches = counted(side.inputs.batches(account, plainly), account)
    write_samples(checked(batches, side, account), Flags(pairs).of, outputs, account)


class Flags:
    """Tells of samples, in their order, whether they are kept: those that are not are in *pairs*."""

    def __init__(self, pairs: Iterable[bytes]) -> None:
        self._positions = (pair_of(record).position for record in pairs)
        self._next = next(self._positions, -1)
        self._first = 0

    def of(self, batch: Batch) -> list[bool]:
        """Return whether each sample of *batch*, the next ones, is kept."""
        flags = [True] * len(batch)
        while self._first <= self._next < self._first + len(batch):
            flags[self._next - self._first] = False
            self._next = next(self._positions, -1)
        self._first += len(batch)
        return flags


def checked(batches: Iterator[Batch], side: Side, account: Account) -> Iterator[Batch]:
    """Yield *batches*; then raise StorageError if they are not what was compared."""
    with closing_upstream(batches):
        yield from batches
    side.check(account.samples_in)


def write_report(pairs: Iterable[bytes], sides: Sequence[Side], url: str, force: bool, sort: Sort) -> None:
    """Write a line for each of *pairs* to *url*, as TSV."""
    names: list[Iterable[bytes]] = [(), ()]
    for side in sides:
        names[side.number] = side.names or ()
    with storage.writing(url, force) as sink:
        sink.write(b"key\tshard\tkept_key\tkept_shard\tdistance\n")
        for pair, out, kept in named(pairs, names, sort):
            cells = [*key_and_shard(out), *key_and_shard(kept), str(pair.distance)]
            sink.write(("\t".join(cells) + "\n").encode("utf-8", "surrogateescape"))


def key_and_shard(name: bytes) -> list[str]:
    """Return key and shard of the sample with this *name*, escaped."""
    shard, _, key = name.partition(b"\0")
    return [escape(os.fsdecode(key)), escape(shown(os.fsdecode(shard)))]


def write_page(pairs: Iterable[bytes], sides: Sequence[Side], comparison: Comparison, url: str, force: bool) -> None:
    """Write a page of those of *pairs* that are farthest apart to *url*, side by side.

    Holds: 400 samples.
    """
    from tartools.show.html import page

    total = 0

    def count() -> Iterator[Pair]:
        nonlocal total
        for record in pairs:
            total += 1
            yield pair_of(record)

    chosen = sorted(nlargest(SHOWN, count(), key=lambda pair: (pair.distance, -pair.position)))
    known: dict[tuple[int, int], Sample] = {}
    for side in sides:
        wanted = {pair.kept for pair in chosen if pair.side == side.number}
        if side.number == INPUT:
            wanted |= {pair.position for pair in chosen}
        positions = sorted(wanted)
        known.update(zip(((side.number, at) for at in positions), side.samples_at(positions), strict=True))
    both = (
        beside(known[INPUT, pair.position], known[pair.side, pair.kept], pair, comparison)
        for pair in sorted(chosen, key=lambda pair: (-pair.distance, pair.position))
    )
    title = f"{several(total, 'sample')} left out, beside the one that is kept"
    if total > SHOWN:
        title += f": the {SHOWN} that differ most"
    with storage.writing(url, force) as sink:
        choice = page.Choice(None, None, 0)
        workers = min(cli.workers(0), 4)
        page.write(both, sink, title, choice, page.SMALL, workers, Account(lambda _: None), faces=2)


def beside(out: Sample, kept: Sample, pair: Pair, comparison: Comparison) -> Sample:
    """Return one sample with the members of both that were compared first, then the others; for a page."""
    where = " (--against)" if pair.side == AGAINST else ""
    words = f", distance {pair.distance}{where}"
    key = out.raw_key + b" = " + kept.raw_key + words.encode()
    found: list[list[Member]] = []
    for sample, name in ((out, b"out"), (kept, b"kept")):
        compared = comparison._replace(lenient=True).members(sample) or []
        rest = [member for member in sample.members if member not in compared]
        behind = len(sample.raw_key)
        found.append(
            [new_member(key + b"." + name + member.path[behind:], member.read()) for member in compared + rest]
        )
    raw = raw_bytes([*found[0][:1], *found[1][:1], *found[0][1:], *found[1][1:]])
    return Sample.at(key, raw, 0, len(raw))
