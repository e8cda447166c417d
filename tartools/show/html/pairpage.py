"""The page of pairs of tardedup: each sample that is left out, beside the one that is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest

from tartools import storage
from tartools.errors import several
from tartools.samples.account import Account
from tartools.samples.sample import Sample, raw_bytes
from tartools.show.html import page
from tartools.stages.duplicates.comparison import Comparison, DedupSide, Pair, pair_of
from tartools.stages.duplicates.near import AGAINST, INPUT
from tartools.tar import Member, new_member

SHOWN = 200  # pairs on a page


def write_page(
    pairs: Iterable[bytes],
    sides: Sequence[DedupSide],
    comparison: Comparison,
    url: str,
    *,
    force: bool = False,
    workers: int = 1,
) -> None:
    """Write a page of those of *pairs* that are farthest apart to *url*, side by side.

    Holds: 400 samples.
    """
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
