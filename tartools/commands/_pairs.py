"""What tardedup writes: samples, the list of pairs, and the page of pairs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest

from tartools import cli, storage
from tartools.commands._dedup import Comparison, DedupSide
from tartools.errors import several, shown
from tartools.formats.textrows import escape
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Sample, raw_bytes
from tartools.shards.delivery import Picked, deliver_flags
from tartools.shards.writing import Destination
from tartools.stages.duplicates.pairs import AGAINST, INPUT, Pair, named, pair_of
from tartools.tar import Member, new_member

SHOWN = 200  # pairs on a page
Sort = Callable[[Iterable[bytes]], Iterator[bytes]]


def write(
    side: DedupSide, pairs: Iterable[bytes], chosen: Destination, rest: Destination | None, account: Account
) -> None:
    """Write the samples of *side*, without those of *pairs*, to *chosen*; these to *rest*, if it is given.

    Raises: StorageError if they are not what was compared.
    """
    account.phase = Phase("writing", side.samples, lambda: account.settled)
    kept = Picked((pair_of(record).position for record in pairs), False)
    plainly = side.data.reading._replace(ranges=True, listed=False, columns=("__key__",))
    deliver_flags(side.data.answered(kept.of, kept.of, plainly), chosen, rest, account)


def write_report(pairs: Iterable[bytes], sides: Sequence[DedupSide], url: str, force: bool, sort: Sort) -> None:
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


def write_page(
    pairs: Iterable[bytes], sides: Sequence[DedupSide], comparison: Comparison, url: str, force: bool
) -> None:
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
        known.update(zip(((side.number, at) for at in positions), side.data.samples_at(positions), strict=True))
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
