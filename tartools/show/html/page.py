"""The pages of `tarshow --html` and `tardedup --html`: one self-contained file that needs no network.

Its template, style and script are `page.html`, `page.css` and `page.js`. The policy of the page (W3C, Content Security
Policy Level 3) allows this style and this script, by their SHA-256 sums, and data: URLs for pictures and sounds; so
code that a hostile name might smuggle in would not run.
"""

from __future__ import annotations

import base64
import hashlib
import pkgutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from heapq import nlargest
from string import Template
from typing import NamedTuple

from tartools import storage
from tartools.errors import TarToolsError, in_units, several
from tartools.samples.account import Account, Phase
from tartools.samples.kinds import may_be_sound
from tartools.samples.sample import Sample, raw_bytes
from tartools.show.html import cards
from tartools.show.html.cards import Overview, broken_pictures, grouped_samples
from tartools.show.html.tile import BROKEN_FACET, IS_FACET, PageTile, is_video, make_tile, safe
from tartools.stages import select, shuffle
from tartools.stages.duplicates import AGAINST_SIDE, INPUT_SIDE
from tartools.stages.duplicates.comparison import Comparison, DedupSide, Pair, unpack_pair
from tartools.stages.externalsort import Spool
from tartools.storage.pool import Threads, call_in_window
from tartools.storage.streams import Sink
from tartools.tar import Member, new_member

SOUND_LIMIT, VIDEO_LIMIT = 2 << 20, 8 << 20  # bytes of sounds, videos of a sample; larger ones are not embedded
PLAYED_LIMIT = 24 << 20  # bytes of sounds and videos of the page
MAX_SAMPLES_AHEAD = 16  # samples in progress, or finished and waiting for an earlier one
DEFAULT_SAMPLES_ON_PAGE = 200  # samples on a page, unless the user says how many
MAX_PAIRS_ON_PAGE = 200  # on a page of pairs
TILE_PIXELS, LARGE_VIEW_PIXELS = 384, 1024  # pixels of a picture; a tile shows some 200, the large view up to 900


class Choice(NamedTuple):
    """Which samples are shown: the first *first* (None: all), of these *drawn* ones at random by *seed* (None: all).

    If there are fewer, all are shown.
    """

    first: int | None
    drawn: int | None
    seed: int


def write_page(
    samples: Iterator[Sample],
    sink: Sink,
    title: str,
    choice: Choice,
    side: int,
    workers: int,
    account: Account,
    faces: int = 1,
) -> Overview:
    """Write the page of *samples* with this *title* to *sink*; return the facts about all samples.

    Counts cover all samples, or the first `choice.first`, all pictures of which are decoded, also if only some of these
    samples are shown; broken sounds, videos and compressed payloads only count in samples shown. Pictures have up to
    *side* by *side* pixels; *faces* pictures of a sample are side by side, and with more than one there are no charts
    of classes. *workers*: threads that decode. *account*: counts samples shown as written, the others as left out.
    Order: input order. Holds: the page, some 20 KB for a sample with a photograph; 16 samples, or one for each of more
    workers; the samples drawn, with their own bytes. Raises: TarToolsError.
    """
    from PIL import Image

    Image.init()  # once, before the threads start
    overview = Overview(has_charts=faces == 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd metadata; warning filters are shared by all threads
        if choice.first is not None:
            samples = first_samples(samples, choice.first, overview, account)
        if choice.drawn is None:
            account.progress.phase = Phase("", choice.first, lambda: account.samples_out)
            samples = tally_samples(samples, overview)
        else:
            account.progress.phase = Phase("reading")
            samples = shuffle.draw_samples(
                check_pictures(samples, overview, workers), choice.drawn, choice.seed, account
            )
        makers: Threads[tuple[Sample, bool], PageTile] = Threads(workers, lambda item: make_tile(*item, side, faces))
        tiles: list[PageTile] = []
        with closing(
            call_in_window(flag_playable(samples), makers, max(MAX_SAMPLES_AHEAD, workers), max_calls=2 * workers)
        ) as made:
            for _, answer in made:
                tile = answer()
                if not tiles and choice.drawn is not None:  # the input has ended
                    total = min(choice.drawn, overview.counts.samples)
                    account.progress.phase = Phase("drawing", total, lambda: account.samples_out)
                tiles.append(tile)
                account.samples_out += 1
                overview.add_broken(broken for broken in tile.broken if choice.drawn is None or broken.sound)
    overview.shown_count = len(tiles)
    sink.write(html_page(tiles, title, overview).encode())
    return overview


def first_samples(samples: Iterator[Sample], count: int, overview: Overview, account: Account) -> Iterator[Sample]:
    """Yield the first *count* samples; then set `overview.has_more` if there are more, which *account* does not count.

    A TarToolsError in reading the next sample is ignored, and counts as more samples.
    """
    yield from select.take_first(samples, count)
    try:
        next(samples)
    except StopIteration:
        return
    except TarToolsError:  # nothing is checked after the last sample that was asked for
        pass
    else:
        account.samples_in -= 1  # nor counted
    overview.has_more = True


def tally_samples(samples: Iterable[Sample], overview: Overview) -> Iterator[Sample]:
    """Yield *samples* in input order; count each list of `grouped_samples` in *overview* before its first sample.

    Holds: up to 1 MiB of them, or one larger sample.
    """
    for group in grouped_samples(samples):
        overview.count(group)
        yield from group


def check_pictures(samples: Iterable[Sample], overview: Overview, workers: int) -> Iterator[Sample]:
    """Yield *samples* in order; decode their pictures in *workers* threads; add counts and broken ones to *overview*.

    Holds: up to 16 lists of `grouped_samples`, each of 1 MiB or one larger sample; more with over 16 workers.
    """
    decoders = Threads(workers, broken_pictures)
    with closing(
        call_in_window(grouped_samples(samples), decoders, max(MAX_SAMPLES_AHEAD, workers), max_calls=2 * workers)
    ) as decoded:
        for group, broken in decoded:
            overview.count(group)
            overview.add_broken(broken())
            yield from group


def flag_playable(samples: Iterable[Sample]) -> Iterator[tuple[Sample, bool]]:
    """Yield (sample, True if its sounds and videos are embedded) for each of *samples*.

    They are if its sounds have up to 2 MiB (SOUND_LIMIT) and its videos up to 8 MiB (VIDEO_LIMIT) in all, and both fit
    into the rest of 24 MiB for the page (PLAYED_LIMIT). True without sounds and videos.
    """
    budget = PLAYED_LIMIT
    for sample in samples:
        sounds = sum(member.size for member in sample.members if may_be_sound(member))
        videos = sum(member.size for member in sample.members if is_video(member))
        fits = sounds <= SOUND_LIMIT and videos <= VIDEO_LIMIT and sounds + videos <= budget
        yield sample, fits
        if fits:
            budget -= sounds + videos


def html_page(tiles: Sequence[PageTile], title: str, overview: Overview) -> str:
    """Return the HTML of the page of *tiles* with this *title*; *overview* has the counts of all samples."""
    style, script = part_of_page("css"), part_of_page("js")
    policy = "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            "media-src data:",
            f"style-src '{hash_source(style)}'",
            f"script-src '{hash_source(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return Template(part_of_page("html")).substitute(
        policy=policy,
        title=safe(title),
        style=style,
        script=script,
        totals=totals(tiles, overview),
        summary="\n".join(cards.cards(overview, {tile.key for tile in tiles})),
        tiles="\n".join(tile.html for tile in tiles),
    )


def part_of_page(kind: str) -> str:
    """Return the text of the file page.*kind* beside this module; *kind*: "html", "css" or "js"."""
    return (pkgutil.get_data(__name__, f"page.{kind}") or b"").decode()


def hash_source(inline: str) -> str:
    """Return the hash source ("sha256-...") by which a policy allows the *inline* style or script (CSP, 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}"


def totals(tiles: Sequence[PageTile], overview: Overview) -> str:
    """Return the HTML line of totals from *overview*: samples shown, bytes of all samples, and broken members.

    Broken members are left out if there are none; their number is a button that filters if any is among *tiles*. If
    only some samples are shown, the line says that sizes and counts cover all.
    """
    parts = [overview.choice_text, in_units(overview.sizes.total)]
    if overview.broken.count:
        words = f"{overview.broken.count:,} {BROKEN_FACET}"
        is_on_page = any(tile.broken for tile in tiles)
        parts.append(
            f'<button type="button" data-filter="{IS_FACET}={BROKEN_FACET}">{words}</button>' if is_on_page else words
        )
    if overview.shown_count < overview.counts.samples:
        parts.append("sizes and counts cover all samples")
    return " · ".join(parts)


# ---- the page of pairs ----


def write_pairs(
    pairs: Spool,
    sides: Sequence[DedupSide],
    comparison: Comparison,
    url: str,
    *,
    force: bool = False,
    workers: int = 1,
) -> None:
    """Write a page of up to 200 *pairs* of tardedup, the ones with the largest distances, to *url*.

    Where distances are equal, the first pairs in the input are taken. Tiles come in this order, too, the largest
    distance first. Each shows the sample left out and the one kept, side by side. *pairs*: bytes that each begin with a
    packed `Pair`. *sides*: the data sets to read samples from: the input, and the one of --against. *comparison*: the
    fields that were compared. *force*: replace an existing page. *workers*: threads that decode pictures.
    Holds: 400 samples. Raises: StorageError, also if *url* exists without *force*; TarToolsError if a sample can't be
    read.
    """
    total = sum(1 for _ in pairs)
    chosen = sorted(
        nlargest(MAX_PAIRS_ON_PAGE, map(unpack_pair, pairs), key=lambda pair: (pair.distance, -pair.position))
    )
    samples: dict[tuple[int, int], Sample] = {}
    for side in sides:
        needed = {pair.kept_position for pair in chosen if pair.side == side.number}
        if side.number == INPUT_SIDE:
            needed |= {pair.position for pair in chosen}
        positions = sorted(needed)
        samples.update(zip(((side.number, at) for at in positions), side.run.samples_at(positions), strict=True))
    both = (
        join_pair(samples[INPUT_SIDE, pair.position], samples[pair.side, pair.kept_position], pair, comparison)
        for pair in sorted(chosen, key=lambda pair: (-pair.distance, pair.position))
    )
    title = f"{several(total, 'sample')} left out, each next to the one kept"
    if total > MAX_PAIRS_ON_PAGE:
        title += f": the {MAX_PAIRS_ON_PAGE} that differ most"
    with storage.open_sink(url, force) as sink:
        choice = Choice(None, None, 0)
        write_page(both, sink, title, choice, TILE_PIXELS, workers, Account(lambda _: None), faces=2)


def join_pair(left_out: Sample, kept_sample: Sample, pair: Pair, comparison: Comparison) -> Sample:
    """Return one sample for a page with the members of *left_out* and of *kept_sample*.

    Its key names both: "A = B", or, if pictures were compared, "A next to B (kept), distance 3"; " (--against)" follows
    for a kept sample from there. Its fields begin with "out." and "kept.".
    The first two members are one of each sample, a compared one if there is any; then come all others of *left_out* and
    all others of *kept_sample*, compared ones first. *comparison*: the fields that were compared. Raises: StorageError
    if a payload can't be read.
    """
    where = " (--against)" if pair.side == AGAINST_SIDE else ""
    link = " = " if comparison.near is None else " next to "
    words = where if comparison.near is None else f" (kept), distance {pair.distance}{where}"
    key = left_out.raw_key + link.encode() + kept_sample.raw_key + words.encode()
    members: list[list[Member]] = []
    for sample, name in ((left_out, b"out"), (kept_sample, b"kept")):
        compared = comparison._replace(lenient=True).members(sample) or []
        other_members = [member for member in sample.members if member not in compared]
        key_length = len(sample.raw_key)
        members.append(
            [
                new_member(key + b"." + name + member.path[key_length:], member.read())
                for member in compared + other_members
            ]
        )
    raw = raw_bytes([*members[0][:1], *members[1][:1], *members[0][1:], *members[1][1:]])
    return Sample.at(key, raw, 0, len(raw))
