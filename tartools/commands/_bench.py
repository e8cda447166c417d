"""tarbench: the forms of a source are made, measured in a process of its own, and described."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from tartools import cli, storage
from tartools.commands import _benchforms as forms
from tartools.commands._benchforms import ENCODED, LOOSE, RAW, TABLE, TAR, ZIP
from tartools.commands._benchrows import Measurer, Place, Wanted, rows, served
from tartools.errors import StorageError, TarToolsError, without_query
from tartools.samples.account import Account, Phase
from tartools.shards.reading import Reading, closing_upstream
from tartools.show import benchadvice

MOST_WORKERS = 4  # by default
COLD = 0.01  # of the pages of files that may still be cached in a cold run
NOT_WRITTEN = "the data are on a server, where nothing is written; --delay compares copies"
NAMES = {LOOSE: "loose files", ZIP: "zip", TAR: "tar, in order", TABLE: "table"}


def facts_of(urls: Sequence[str], account: Account, reading: Reading, options: Any, folder: Path) -> dict[str, Any]:
    """Return what was measured of *urls*, in the shape of --json. *options* are those of the command."""
    ways, before = options[1], others_seconds()
    kind = forms.kind_of(urls)
    far = ways.delay is None and (forms.lists_far(urls[0]) if kind == TABLE else storage.is_far(urls[0]))
    left: list[dict[str, str]] = []
    taken: Any = None
    with ExitStack() as stack:
        measurer = None if ways.dry_run else stack.enter_context(closing(Measurer()))  # it starts meanwhile
        if far:
            places = remote_places(urls, kind, account, options, folder, left)
        else:
            taken, places = copies(urls, kind, account, reading, options, folder, left)
        if ways.delay is not None:
            places = [behind_server(place, folder) for place in places]
        workers = [*map(int, ways.workers.split())] if ways.workers else [0, min(cli.workers(0), MOST_WORKERS)]
        wanted = Wanted(workers, ways.batch, ways.seconds, ways.passes or 0, ways.cold, far or ways.delay is not None)
        found = rows(places, wanted)
        if measurer is not None:
            if ways.delay is not None:
                serve(measurer, places, folder, ways.delay)
            measure(measurer, found, account, taken.origins if taken else ())
    after = others_seconds()
    for row in found:
        row.pop("task")
    facts = {
        "source": [without_query(url) for url in urls],
        "samples": taken.samples if taken else places[0].samples,
        "bytes": taken.bytes if taken else None,
        "fields": taken.fields if taken else None,
        "batch": ways.batch,
        "seconds": ways.seconds,
        "passes": ways.passes,
        "delay": ways.delay,
        "cores": cli.workers(0),
        "others": None
        if measurer is None or before is None or after is None
        else (after[0] - before[0]) / max(after[1] - before[1], 1e-9),
        "left_out": left,
        "rows": found,
        "answer": [],
        "says": [],
    }
    if measurer is not None:
        benchadvice.advise(facts)
    return facts


def others_seconds() -> tuple[float, float] | None:
    """Return the seconds that processors have worked for other programs, and what they could have; None if unknown."""
    try:
        ticks = [int(word) for word in storage.content("/proc/stat").split()[1:9]]  # proc(5)
    except StorageError:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / tick - sum(os.times()[:4]), sum(ticks) / tick


def copies(
    urls: Sequence[str], kind: str, account: Account, reading: Reading, options: Any, folder: Path, left: list[Any]
) -> tuple[forms.Taken, list[Place]]:
    """Return what was taken of *urls*, and where its copies are in *folder*; none are made for a dry run."""
    data, ways = options
    account.phase = Phase("copying")
    encoded, raw = folder / ENCODED, folder / RAW
    storage.make_directory(str(encoded))
    samples = forms.source_samples(urls, kind, account, reading)
    with closing_upstream(samples):
        some = forms.taken(samples, data.count, data.size, account)
        taken = forms.write_tar(some, encoded)
    pictures = any(map(forms.is_picture, taken.fields))
    if not pictures or data.encoded:
        why = "--no-raw" if pictures else "there are no pictures"
        left.append({"form": RAW, "why": why})
    if not taken.samples:
        return taken, []
    folders = {ENCODED: (encoded, taken.samples)}
    if not ways.dry_run:
        forms.unfold(encoded)
    if pictures and not data.encoded:
        folders[RAW] = (raw, taken.samples)
        if not ways.dry_run:
            forms.write_raw(encoded, raw, taken.origins)
            folders[RAW] = (raw, forms.unfold(raw))
    return taken, [
        local_place(form, stored, where, count)
        for stored, (where, count) in folders.items()
        for form in (LOOSE, ZIP, TAR, TABLE)
        if stored == ENCODED or form != ZIP
    ]


def local_place(form: str, stored: str, folder: Path, count: int) -> Place:
    """Return where the copies of one *form* are."""
    if form == LOOSE:
        loose = folder / "loose"
        files = [str(path) for path in loose.iterdir()] if loose.is_dir() else []
        return Place(form, stored, [f"{loose}/"], files, count)
    shard, name = str(folder / "data.tar"), {ZIP: "data.zip", TAR: "data.tar", TABLE: "data.parquet"}[form]
    return Place(form, stored, [str(folder / name)], [shard] if form == TABLE else [str(folder / name)], count)


def behind_server(place: Place, folder: Path) -> Place:
    """Return *place* as it is on our server, which serves *folder*; a table that lists objects is local."""
    if place.form == TABLE:
        return place._replace(urls=[str(folder / f"{place.stored}.parquet")])
    return place._replace(
        urls=[served(os.path.relpath(url, folder) + "/" * (place.form == LOOSE)) for url in place.urls]
    )


def serve(measurer: Measurer, places: Sequence[Place], folder: Path, delay: float) -> None:
    """Start the server, and make the tables of the shards that it has."""
    measurer.ask(do="serve", folder=str(folder), delay=delay)
    for place in places:
        if place.form == TABLE:
            measurer.ask(do="index", url=served(f"{place.stored}/data.tar"), table=place.urls[0])


def remote_places(
    urls: Sequence[str], kind: str, account: Account, options: Any, folder: Path, left: list[Any]
) -> list[Place]:
    """Return where the samples of *urls*, which are on a server, can be read as they are."""
    data, _ = options
    there = {LOOSE: [LOOSE], ZIP: [ZIP], TABLE: [TABLE], TAR: [TAR, TABLE]}[kind]
    left += [{"form": NAMES[form], "why": NOT_WRITTEN} for form in NAMES if form not in there]
    left.append({"form": RAW, "why": NOT_WRITTEN})
    account.phase = Phase("listing")
    if kind in (LOOSE, ZIP):
        there_are = forms.object_samples(urls[0]) if kind == LOOSE else forms.zip_samples(urls)
        count = min(data.count, there_are)
        account.samples_in = account.samples_out = count
        return [Place(kind, ENCODED, list(urls), [], count)]
    listed = forms.far_table(urls, data.count, data.size, folder, account)
    places = [Place(TABLE, ENCODED, [listed.url], [], listed.samples)]
    return [*places, Place(TAR, ENCODED, listed.shards, [], listed.rows)] if kind == TAR else places


def measure(measurer: Measurer, found: list[dict[str, Any]], account: Account, origins: Sequence[Any]) -> None:
    """Measure the rows *found*, and add to each what it took."""
    for number, row in enumerate(found, 1):
        account.phase = Phase(f"row {number} of {len(found)}")
        try:
            took = measurer.ask(**row["task"])
        except TarToolsError as error:
            raise forms.raised_for(error, origins) from None
        cache = None
        if row["task"]["files"]:
            cache = "cold" if row["task"]["cold"] and took["cached"] <= COLD else "warm"
            if row["task"]["cold"] and cache == "warm":
                row["warm"] = took["cached"]
        row |= {
            "cache": cache,
            "samples": took["samples"],
            "passes": took["passes"],
            "run_seconds": took["seconds"],
            "samples_per_second": took["samples_per_second"],
            "bytes_per_second": took["bytes_per_second"],
            "cpu_seconds": took["cpu_seconds"],
            "parts": took["parts"],
        }
    warm = [row.pop("warm") for row in found if "warm" in row]
    if warm:
        share = f"{100 * max(warm):.0f} %"
        account.warn(
            f"{len(warm)} rows are warm: {share} of their files stayed in the page cache after they were dropped"
        )
