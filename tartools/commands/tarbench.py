"""Measure how fast your data can be read for training.

Reads the first samples and measures how fast training gets them, with PyTorch's DataLoader: from loose files, from a
zip file, from a tar shard in order, and by a table of the shard in order, in shuffled blocks, and shuffled as a whole.
Prints which format to take and with how many workers; then samples and bytes a second, processor time, where the time
goes, what limits each row, and what to do. Needs tartools[train].

SHARD may also be a table, a zip file, a folder of files, or a prefix of objects, which ends in a slash. Local data
are copied, once for each form, to a folder below --tmpdir, which is removed at the end: give a directory of the file
system that you want to measure. The copies take 4 times the bytes that are read. Data on a server are read as they are,
and nothing is written there; forms that can't be measured so are named.

Each row takes about --seconds, or as long as --passes take. Complete passes are checked: each sample has to come
exactly once. Batches have --batch samples: pictures are decoded to RGB, and cropped or filled to 224 x 224 at their top
left, in one tensor. Orders are shuffled with a fixed seed. Workers are those of DataLoader; the time to start them does
not count.

Parts of the time are those of one process without workers, in seconds a sample:

  list          to list the objects, or to read the table, or the list of a
                zip file, once, shared by all samples
  read          to open, request and read the bytes, and make samples of them
  decode        pictures, arrays (npy) and JSON; other payloads stay bytes
  collate       samples to a batch

--cold drops the files from the page cache before each pass; without it they are in it. If more than 1 % stays there,
because the file system does not drop it, the row is called warm. A disk or a host may still hold the bytes in a cache
of its own.

--json prints one object:

  source, samples,
  bytes, fields      what was measured; bytes of payloads
  batch, seconds,
  passes, cores      how; null without --passes
  others             the share of the processors that other programs used
                     meanwhile; null if that is not known
  left_out           of each form that was left out: form, why
  rows               of each: name, form, order, workers, cache (cold, warm, or
                     null for servers), samples (all that came), passes
                     (complete), run_seconds, samples_per_second,
                     bytes_per_second, cpu_seconds (a sample), parts (seconds
                     a sample; null with workers), limit (the largest part, or
                     processors), says
  answer             which format, how many workers
  says               what to do

Examples:
  Find out whether to pack a folder of pictures:
    tarbench photos/
  From the disk, without the page cache, with 0, 2 and 8 workers:
    tarbench --cold --tmpdir /data --workers '0 2 8' train.parquet
  Read a bucket as it is:
    tarbench s3://bucket/photos/
"""

import io
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import groupby
from json import dumps, loads
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

from tartools import cli, errors, storage
from tartools.cli import Option
from tartools.commands._report import print_facts
from tartools.errors import SampleError, StorageError, TarToolsError, UsageError
from tartools.formats.plan import build_samples
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Sample
from tartools.shards.reading import Reading, closing_upstream, read_samples
from tartools.shards.shardrows import Indexing, row_inputs, rows_at, write_rows
from tartools.shards.writing import write_samples
from tartools.show import benchreport
from tartools.stages import select
from tartools.storage import scratch
from tartools.storage.children import Child
from tartools.storage.local import path_of
from tartools.storage.url import Url
from tartools.tables.schema import is_table
from tartools.tar import split_path

SAMPLES, BYTES = 1000, 256 << 20
LOOSE, ZIP, TAR, TABLE = "loose", "zip", "tar", "table"
ORDERS: dict[str, tuple[str | None, ...]] = {
    LOOSE: ("global",),
    ZIP: ("global",),
    TAR: (None,),
    TABLE: (None, "blocks", "global"),
}
NAMES = {LOOSE: "loose files", ZIP: "zip", TAR: "tar, in order", TABLE: "table"}
TABLE_NAMES = {None: "table, in order", "blocks": "table, blocks", "global": "table, shuffled"}
NOT_WRITTEN = "the data are on a server, where nothing is written"
MOST_WORKERS = 4  # by default
COLD = 0.01  # of the pages of files that may still be cached in a cold run
LOOKED_AT = 1000  # rows of a table


def worker_list(text: str) -> str:
    """Return the numbers of workers in *text*, and 0, which tells where the time goes. Raises: ValueError."""
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 4 for word in words):
        raise ValueError(f"not a list of numbers: {text!r}; write '0 2 4'")
    return " ".join(map(str, sorted({0, *map(int, words)})))


class Data(cli.Group):
    """What to measure."""

    count: Annotated[int, Option("-c --count N", "Take the first N samples.", minimum=1)] = SAMPLES
    size: Annotated[
        int, Option("--bytes BYTES", "Take at most this many bytes.", parser=errors.byte_size, default="256M")
    ] = BYTES
    tmpdir: cli.TmpDir = None


class Ways(cli.Group):
    """How to measure."""

    workers: Annotated[
        str | None,
        Option(
            "--workers LIST",
            "Numbers of workers, in quotes: '0 2 4'.",
            parser=worker_list,
            default="0, and one per core up to 4",
        ),
    ] = None
    batch: Annotated[int, Option("--batch N", "Samples in a batch.", minimum=1)] = 32
    seconds: Annotated[float, Option("--seconds SECONDS", "How long each row is measured.", minimum=0.01)] = 0.5
    passes: Annotated[
        int | None, Option("--passes N", "Measure each row for N passes, however long they take.", minimum=1)
    ] = None
    cold: Annotated[bool, Option("--cold", "Drop the files from the page cache before each pass.")] = False
    dry_run: Annotated[bool, Option("--dry-run", "Only print which rows would be measured.")] = False


@cli.command(__doc__)
def tarbench(
    account: Account,
    source: cli.Inputs,
    data: Data,
    ways: Ways,
    json: Annotated[bool, Option("--json", "Print one JSON object.")] = False,
) -> None:
    """Run the command."""
    check_training()
    urls = source.urls()
    with ExitStack() as stack:
        folder = Path(scratch.private_directory(data.tmpdir))
        stack.callback(scratch.remove_tree, os.fsencode(folder))
        facts = bench_facts(urls, account, source.reading, data, ways, folder)
        account.check()
    print_facts(facts, json, benchreport)


def check_training() -> None:
    """Raise StorageError if what training needs is not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "pyarrow") if find_spec(name) is None]
    if missing:
        raise StorageError(f"this needs {' and '.join(missing)}: {errors.how_to_install(*missing)}")


Origins = list[tuple[str, str]]  # key and shard of each sample in the source


class BenchPlace(NamedTuple):
    """Where samples are, in one *form*: at *urls*; the local *files* that hold them; so many *samples*."""

    form: str
    urls: list[str]
    files: list[str]
    samples: int


def bench_facts(
    urls: Sequence[str], account: Account, reading: Reading, data: Data, ways: Ways, folder: Path
) -> dict[str, Any]:
    """Return what was measured of *urls*, in the shape of --json."""
    before, kind, origins = others_seconds(), form_of_all(urls), Origins()
    far = lists_far(urls[0]) if kind == TABLE else storage.is_far(urls[0])
    with ExitStack() as stack:
        measurer = None if ways.dry_run else stack.enter_context(closing(Measurer()))  # it starts meanwhile
        if far:
            places = remote_places(urls, kind, account, data, folder)
            taken: dict[str, Any] = {"samples": places[0].samples, "bytes": None, "fields": None}
        else:
            taken, origins, places = copies(urls, kind, account, reading, data, folder, ways.dry_run)
        rows = measured_rows(places, ways)
        if measurer is not None:
            measure(measurer, rows, account, origins)
    after = others_seconds()
    facts = {
        "source": [errors.without_query(url) for url in urls],
        **taken,
        "batch": ways.batch,
        "seconds": ways.seconds,
        "passes": ways.passes,
        "cores": cli.workers(0),
        "others": (after[0] - before[0]) / max(after[1] - before[1], 1e-9) if measurer and before and after else None,
        "left_out": [
            {"form": name, "why": NOT_WRITTEN}
            for form, name in NAMES.items()
            if far and form not in {place.form for place in places}
        ],
        "rows": [{name: value for name, value in row.items() if name != "task"} for row in rows],
        "answer": [],
        "says": [],
    }
    if measurer is not None:
        benchreport.advise(facts)
    return facts


def form_of_all(urls: Sequence[str]) -> str:
    """Return the form that all of *urls* have. Raises: UsageError if they differ; StorageError if one is not there."""
    kinds = set()
    for url in urls:
        known = Url(url)
        if known.name.endswith("/") or storage.is_directory(url):
            kinds.add(LOOSE)
        elif known.name.lower().endswith(".zip"):
            kinds.add(ZIP)
        else:
            storage.check_inputs([url])
            kinds.add(TABLE if storage.is_repeatable(url) and is_table(url) else TAR)
    if len(kinds) > 1:
        raise UsageError("these are of several kinds: give folders, or zip files, or shards, or tables")
    if LOOSE in kinds and len(urls) > 1:
        raise UsageError("give one folder, or one prefix")
    return kinds.pop()


def lists_far(url: str) -> bool:
    """Tell whether the first samples of the table *url* are on a server."""
    from tartools.tables import schema, source
    from tartools.tables.rowplaces import Listing

    listing = Listing(url)
    with source.opened(url) as table:
        columns = (schema.SHARD, schema.VERSION, schema.BEGIN, schema.END)
        for rows in table.batches(columns, LOOKED_AT):
            listing.piece(rows, 0, keyed=False)
            break
    return any(listing.far)


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
    urls: Sequence[str], kind: str, account: Account, reading: Reading, data: Data, folder: Path, dry: bool
) -> tuple[dict[str, Any], Origins, list[BenchPlace]]:
    """Return what was taken of *urls*, and where its copies are in *folder*; for a *dry* run only a shard is made."""
    account.progress.phase = Phase("copying")
    found = source_samples(urls, kind, account, reading)
    with closing_upstream(found):
        taken, origins = write_tar(first_of(found, data.count, data.size, account), folder)
    if not origins:
        return taken, [], []
    if not dry:
        unfold(folder)
    loose, shard = folder / LOOSE, str(folder / "data.tar")
    files = [str(path) for path in loose.iterdir()] if not dry else []
    return (
        taken,
        origins,
        [
            BenchPlace(LOOSE, [f"{loose}/"], files, len(origins)),
            BenchPlace(ZIP, [str(folder / "data.zip")], [str(folder / "data.zip")], len(origins)),
            BenchPlace(TAR, [shard], [shard], len(origins)),
            BenchPlace(TABLE, [str(folder / "data.parquet")], [shard], len(origins)),
        ],
    )


def source_samples(urls: Sequence[str], kind: str, account: Account, reading: Reading) -> Iterator[Sample]:
    """Return the samples of *urls*, which are of this *kind*; of files, those of one key are a sample."""
    if kind == ZIP:
        from tartools.formats import zipfiles

        storage.check_inputs(urls)
        return zipfiles.samples(urls, account, None, reading.skip_special)
    if kind != LOOSE:
        return read_samples(urls, account, reading)
    from tartools.formats.folder import Folder, from_folder

    return build_samples(from_folder(Folder(path_of(urls[0])), account, reading.skip_special), account, urls[0])


def first_of(samples: Iterable[Sample], count: int, size: int, account: Account) -> Iterator[tuple[Sample, int]]:
    """Yield the first *count* of *samples*, or those of the first *size* bytes, at least one; and the bytes of each."""
    total = 0
    for sample in select.count(samples, count):
        account.samples_out += 1
        here = sum(member.size for member in sample.members)
        yield sample, here
        total += here
        if total >= size:
            return


def write_tar(samples: Iterable[tuple[Sample, int]], folder: Path) -> tuple[dict[str, Any], Origins]:
    """Write *samples* to a shard in *folder*, under keys that are numbers; return what they are, and were.

    Raises: what *samples* raises.
    """
    origins: Origins = []
    fields: dict[str, None] = {}
    sizes: list[int] = []

    def numbered() -> Iterator[Sample]:
        for sample, size in samples:
            sizes.append(size)
            origins.append((sample.key, sample.shard))
            fields.update(dict.fromkeys(sample.fields))
            yield sample

    write_samples(select.rekey(numbered(), "{index:08d}"), str(folder / "data.tar"))
    return {"samples": len(origins), "bytes": sum(sizes), "fields": list(fields)}, origins


def unfold(folder: Path) -> None:
    """Make of the shard in *folder* its table, a zip file, and loose files."""
    from tartools.formats.zipfiles import write_zip

    shard = str(folder / "data.tar")
    inputs = row_inputs([shard], Account(), Indexing(Reading(), 1))
    write_rows(inputs, str(folder / "data.parquet"))
    with storage.writing(str(folder / "data.zip")) as sink:
        write_zip(read_samples([shard]), sink, Account())
    loose = folder / LOOSE
    storage.make_directory(str(loose))
    for sample in read_samples([shard]):
        for member in sample.members:
            try:
                with scratch.create_file(os.fsencode(loose / os.fsdecode(member.path))) as file:
                    file.write(member.read())
            except OSError as error:
                raise StorageError(error.strerror or str(error), url=str(loose)) from error


def remote_places(urls: Sequence[str], kind: str, account: Account, data: Data, folder: Path) -> list[BenchPlace]:
    """Return where the samples of *urls*, which are on a server, can be read as they are."""
    account.progress.phase = Phase("listing")
    if kind in (LOOSE, ZIP):
        count = min(data.count, object_samples(urls[0]) if kind == LOOSE else zip_samples(urls))
        account.samples_in = account.samples_out = count
        return [BenchPlace(kind, list(urls), [], count)]
    some = list(urls)
    if kind == TAR:  # the first ones, up to these bytes
        some, room = [], data.size
        for url in urls:
            some.append(url)
            room -= storage.plain_size(url) or 0
            if room <= 0:
                break
    inputs = row_inputs(some, account, Indexing(Reading(), 1))
    there_are = sum(part.rows for part in inputs.parts)
    count = min(data.count, there_are)
    table = str(folder / "data.parquet")
    write_rows(inputs, table, account, batches=rows_at(inputs, range(count), str(folder)))
    account.samples_in += count
    places = [BenchPlace(TABLE, [table], [], count)]
    return [*places, BenchPlace(TAR, some, [], there_are)] if kind == TAR else places


def object_samples(prefix: str) -> int:
    """Return how many samples the objects below *prefix* are: those of one key, side by side, are one."""
    from tartools.storage.listing import ls

    found = [entry.url for entry in ls(prefix) if not entry.url.endswith("/")]
    if not found:
        raise StorageError("nothing is listed under this", url=prefix)
    return sum(1 for _ in groupby(found, lambda url: split_path(os.fsencode(url.removeprefix(prefix)))[0]))


def zip_samples(urls: Sequence[str]) -> int:
    """Return how many samples the zip files *urls* have. Raises: what `ZipSamples` raises."""
    from tartools.formats import zipfiles

    return sum(len(zipped) for _, zipped in zipfiles.opened_zip(urls))


def measured_rows(places: Sequence[BenchPlace], ways: Ways) -> list[dict[str, Any]]:
    """Return the rows of *places*, each in its orders, with each number of workers; and the task of each."""
    workers = [*map(int, ways.workers.split())] if ways.workers else [0, min(cli.workers(0), MOST_WORKERS)]
    rows = []
    for place in places:
        for order in ORDERS[place.form]:
            for number in workers:
                name = TABLE_NAMES[order] if place.form == TABLE else NAMES[place.form]
                shown = {None: "in order", "global": "shuffled"}.get(order, order)
                row = {"name": name, "form": place.form, "order": shown, "workers": number}
                asked = {"workers": number, "batch": ways.batch, "seconds": ways.seconds, "passes": ways.passes or 0}
                rows.append({**row, "task": {**place._asdict(), **asked, "order": order, "cold": ways.cold}})
    return rows


def measure(measurer: "Measurer", rows: list[dict[str, Any]], account: Account, origins: Origins) -> None:
    """Measure the *rows*, and add to each what it took."""
    warm = []
    for number, row in enumerate(rows, 1):
        account.progress.phase = Phase(f"row {number} of {len(rows)}")
        try:
            took = measurer.ask(row["task"])
        except TarToolsError as error:
            raise raised_for(error, origins) from None
        cached = took.pop("cached")
        row["cache"] = None
        if row["task"]["files"]:
            row["cache"] = "cold" if row["task"]["cold"] and cached <= COLD else "warm"
            if row["task"]["cold"] and cached > COLD:
                warm.append(cached)
        row |= took
    if warm:
        share = f"{100 * max(warm):.0f} %"
        account.warn(
            f"{len(warm)} rows are warm: {share} of their files stayed in the page cache after they were dropped"
        )


def raised_for(error: TarToolsError, origins: Origins) -> TarToolsError:
    """Return *error*, which a row met in our copies, with the key and the shard that its sample has in the source."""
    start, _, rest = error.message.partition(": ")
    number = start.removeprefix("sample '").removesuffix("'").lstrip("0") or "0"
    if start.startswith("sample '") and number.isdigit() and int(number) < len(origins):
        key, shard = origins[int(number)]
        return SampleError(f"sample {key!r}: {rest}", url=shard)
    return error


class Measurer:
    """The process that measures. It ends with its stdin, and all that it has started with it."""

    def __init__(self) -> None:
        line = [sys.executable, "-m", "tartools.train.bench"]
        self._child = Child(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._tasks = io.BufferedWriter(cast(io.RawIOBase, self._child.stdin))
        self._answers = io.BufferedReader(cast(io.RawIOBase, self._child.stdout))

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """Have it measure *task*; return what it found. Raises: the TarToolsError that it met, with its URL."""
        with suppress(BrokenPipeError):
            self._tasks.write(dumps(task).encode() + b"\n")
            self._tasks.flush()
        line = self._answers.readline() or b'{"bug": "the process that measures has ended"}'
        answer: dict[str, Any] = loads(line)
        if "error" in answer:
            kind: type[TarToolsError] = getattr(errors, answer["error"], StorageError)
            raise kind(answer["message"], url=answer["url"], offset=answer["offset"])
        if "bug" in answer:
            raise RuntimeError(answer["bug"])
        return answer

    def close(self) -> None:
        """End it."""
        self._child.end()
        self._answers.close()
        with suppress(BrokenPipeError):  # of a task that it did not read
            self._tasks.close()
