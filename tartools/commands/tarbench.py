"""Measure how fast your data can be read for training.

Reads the first samples and measures how fast training gets them, with PyTorch's DataLoader: from loose files, from a
zip file, from a tar shard in order, and by a table of the shard in order, in shuffled blocks, and fully shuffled.
Recommends a format and a number of workers; then prints samples and bytes per second, CPU time, where the time goes,
and the bottleneck of each row. Needs the extra train.

SHARD may also be a table, a zip file, a folder of files, or a prefix of objects, which ends in a slash. Local data
are copied, once for each form, to a folder below --tmpdir, which is removed at the end: give a directory on the file
system that you want to measure. The copies need 4 times the bytes that are read. Data on a server are measured in
place, and nothing is written there.

Each row takes about --seconds, or as long as --passes need. Complete passes are checked: each sample must be read
exactly once. Batches have --batch samples: pictures are decoded to RGB, cropped or padded to 224 x 224 from the top
left, and collated into one tensor. Shuffles use a fixed seed. Workers are those of DataLoader; the time to start them
does not count.

The parts of the time are measured in one process without workers, in seconds per sample:

  list          to list the objects, or to read the table, or the list of a
                zip file, once, shared by all samples
  read          to open, request and read the bytes, and make samples of them
  decode        pictures, arrays (npy) and JSON; other payloads stay bytes
  collate       samples to a batch

--cold drops the files from the page cache before each pass; otherwise they are cached. If more than 1 % stays cached,
because the file system does not drop it, the row is called warm. A disk or a host may still have a cache of its own.

--json prints one object:

  source, samples,
  bytes, fields      what was measured; bytes of payloads
  batch, seconds,
  passes, cores      how; null without --passes
  others             the share of the CPU that other programs used in the
                     meantime; null if unknown
  rows               objects: name, form, order, workers, cache (cold, warm;
                     null for servers), samples (all that were read), passes
                     (complete), run_seconds, samples_per_second,
                     bytes_per_second, cpu_seconds (per sample), parts
                     (seconds per sample; null with workers), limit (the
                     largest part, or processors)
  advice             the recommended format and number of workers

Examples:
  Find out whether to pack a folder of pictures:
    tarbench photos/
  From the disk, without the page cache, with 0, 2 and 8 workers:
    tarbench --cold --tmpdir /data --workers '0 2 8' train.parquet
  Read a bucket as it is:
    tarbench s3://bucket/photos/
"""

import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from re import match
from typing import Annotated, Any, NamedTuple
from zipfile import ZipFile

from tartools import cli, errors, storage
from tartools.cli import Option
from tartools.commands._report import print_facts
from tartools.errors import NotFoundError, SampleError, StorageError, TarToolsError, UsageError
from tartools.formats import zipfiles
from tartools.formats.plan import build_samples
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Sample
from tartools.shards.reading import Reading, close_at_end, read_samples
from tartools.shards.shardrows import Indexing, row_inputs, write_rows
from tartools.shards.writing import Destination, write_samples
from tartools.show import benchreport
from tartools.stages import select
from tartools.storage import scratch
from tartools.storage.interrupts import defer_signals
from tartools.storage.listing import ls
from tartools.storage.local import path_of
from tartools.storage.url import Url
from tartools.tables.schema import is_table

DEFAULT_SAMPLES, DEFAULT_SAMPLE_BYTES = 1000, 256 << 20
LOOSE_FORM, ZIP_FORM, TAR_FORM, TABLE_FORM = "loose", "zip", "tar", "table"
FORM_ORDERS = {  # form and order
    "loose files": (LOOSE_FORM, "shuffled"),
    "zip": (ZIP_FORM, "shuffled"),
    "tar, in order": (TAR_FORM, "in order"),
    "table, in order": (TABLE_FORM, "in order"),
    "table, blocks": (TABLE_FORM, "blocks"),
    "table, shuffled": (TABLE_FORM, "shuffled"),
}
DEFAULT_MAX_WORKERS = 4  # by default


def worker_list(text: str) -> str:
    """Convert a list such as "4 2" or "4,2" to numbers of workers, sorted, separated by blanks, with 0 added: "0 2 4".

    Each number comes once. The parts of the time can be measured only without workers, so 0 is always there. Raises:
    ValueError for a list without numbers, and for a word that is no number of up to three digits.
    """
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 4 for word in words):
        raise ValueError(f"not a list of numbers: {text!r}; write '0 2 4'")
    return " ".join(map(str, sorted({0, *map(int, words)})))


class DataOptions(cli.Group):
    """Options for the data to measure: count (samples at most), size (bytes), tmpdir (folder for copies, or None).

    The sample by which `size` is reached is the last one. Of data on a server `size` limits shards only: the shard by
    which it is reached is the last one.
    """

    count: Annotated[int, Option("-c --count N", "Take the first N samples.", minimum=1)] = DEFAULT_SAMPLES
    size: Annotated[
        int, Option("--bytes BYTES", "Take at most this many bytes.", parser=errors.byte_size, default="256M")
    ] = DEFAULT_SAMPLE_BYTES
    tmpdir: cli.TmpDir = None


class MeasuringOptions(cli.Group):
    """Options for the measurements.

    Attributes:
      workers: numbers of DataLoader workers, such as "0 2 4"; None: 0, and the number of cores, at most 4.
      batch: samples in a batch.
      seconds: how long each row is measured, about; not used with *passes*.
      passes: number of passes for each row, however long they take; None: as many as fit into *seconds*.
      cold: drop the files from the page cache before each pass.
      dry_run: only list the rows; samples are read to count them.
    """

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
    data: DataOptions,
    timing: MeasuringOptions,
    json: Annotated[bool, Option("--json", "Print one JSON object.")] = False,
) -> None:
    """Measure how fast training can read the first samples of *source*, and print facts and advice.

    *data*: how many samples, and where copies of local data are, which are removed at the end. *timing*: numbers of
    workers, batch, time of each measurement. *json*: print one JSON object. Raises: TarToolsError, such as
    StorageError if torch or pyarrow is not installed.
    """
    if missing := [name for name in ("torch", "pyarrow") if importlib.util.find_spec(name) is None]:
        raise StorageError(f"this needs {' and '.join(missing)}: {errors.how_to_install(*missing)}")
    urls = source.urls()
    with ExitStack() as stack:
        with defer_signals():
            folder = Path(scratch.private_directory(data.tmpdir))
            stack.callback(scratch.remove_tree, os.fsencode(folder))
        facts = bench_facts(urls, account, Reading(source.strictness), data, timing, folder)
        account.check()
    print_facts(facts, json, benchreport)


class BenchPlace(NamedTuple):
    """The samples to measure in one form.

    Attributes:
      form: LOOSE_FORM, ZIP_FORM, TAR_FORM or TABLE_FORM.
      urls: the URLs to give to a data set of that form.
      files: local files with the payloads, to drop from the page cache; [] for data on a server, and for LOOSE_FORM in
        a dry run.
      samples: number of samples to measure in a pass.
    """

    form: str
    urls: list[str]
    files: list[str]
    samples: int


Origins = list[tuple[str, str]]  # key and shard of each sample in the source
Taken = dict[str, Any]  # what is measured: samples, bytes, fields


def bench_facts(
    urls: Sequence[str], account: Account, reading: Reading, data: DataOptions, timing: MeasuringOptions, folder: Path
) -> dict[str, Any]:
    """Measure the samples of *urls* in each form and order with each number of workers; return the facts of --json.

    Local data are measured in all forms; data on a server in their own form, shards also as a table. *urls*: at least
    one. *data*, *timing*: how many samples, and how they are measured. *folder*: temporary folder for copies. Facts:
    "source" (URLs without secrets); "samples", "bytes" and "fields" as `places_of_copies` or `places_on_server` returns
    them; "batch", "seconds", "passes" of *timing*; "cores"; "others", the share of the cores that other programs used,
    about 0 to 1, or None; "rows": dicts of name, form, order, workers, the results of `measure_row` and "limit" (see
    `add_advice`); "advice", lines. A dry run measures nothing: no results, no advice. Raises: TarToolsError, with key
    and shard in the source if a sample of a copy fails.
    """
    kind, origins = form_of_all(urls), Origins()
    if is_on_server(urls[0], kind):
        data_facts, places = places_on_server(urls, kind, account, data, folder)
    else:
        data_facts, places, origins = places_of_copies(urls, kind, account, reading, data, folder, timing.dry_run)
    default_workers = f"0 {min(cli.count_workers(0), DEFAULT_MAX_WORKERS)}"
    workers = [*map(int, (timing.workers or default_workers).split())]
    planned: list[tuple[BenchPlace, dict[str, Any]]] = [
        (place, {"name": name, "form": form, "order": order, "workers": number})
        for place in places
        for name, (form, order) in FORM_ORDERS.items()
        if form == place.form
        for number in workers
    ]
    facts: dict[str, Any] = {
        "source": [errors.redacted(url) for url in urls],
        **data_facts,
        "batch": timing.batch,
        "seconds": timing.seconds,
        "passes": timing.passes,
        "cores": cli.count_workers(0),
        "others": None,
        "rows": [row for _, row in planned],
        "advice": [],
    }
    if timing.dry_run:
        return facts
    from tartools.train.bench import BenchRow, measure_row

    before = other_cpu_seconds()
    for number, (place, row) in enumerate(planned, 1):
        account.progress.phase = Phase(f"row {number} of {len(planned)}")
        how = (timing.batch, timing.seconds, timing.passes, timing.cold)
        try:
            row |= measure_row(BenchRow(*place, row["order"], row["workers"], *how))
        except TarToolsError as error:
            raise error_in_source(error, origins) from None
    if before and (after := other_cpu_seconds()):
        facts["others"] = (after[0] - before[0]) / max(after[1] - before[1], 1e-9)
    benchreport.add_advice(facts)
    return facts


def form_of_all(urls: Sequence[str]) -> str:
    """Return the form that all of *urls* have: LOOSE_FORM (a folder, a prefix), ZIP_FORM, TABLE_FORM or TAR_FORM.

    *urls*: at least one. LOOSE_FORM: a local directory, or a name that ends in a slash; ZIP_FORM: by the suffix .zip;
    TABLE_FORM: by the first bytes. Raises: UsageError if they differ, for two folders, and for an unsuitable URL;
    StorageError if a local shard or table does not exist, or an object with the name of a table can't be read. Zip
    files are not looked at.
    """
    kinds = set()
    for url in urls:
        parsed = Url(url)
        if parsed.name.endswith("/") or storage.is_directory(url):
            kinds.add(LOOSE_FORM)
        elif parsed.name.lower().endswith(".zip"):
            kinds.add(ZIP_FORM)
        else:
            storage.check_inputs([url])
            kinds.add(TABLE_FORM if storage.is_repeatable(url) and is_table(url) else TAR_FORM)
    if len(kinds) > 1:
        raise UsageError("these are of several kinds: give folders, or zip files, or shards, or tables")
    if LOOSE_FORM in kinds and len(urls) > 1:
        raise UsageError("give one folder, or one prefix")
    return kinds.pop()


def is_on_server(url: str, kind: str) -> bool:
    """True if the samples of *url* are on a server; for a table, if one of its first rows, up to 1,000, says so.

    For a table, shards from a command (`pipe:`, `GOPEN_<SCHEME>`) count as on a server, otherwise they do not. *kind*:
    LOOSE_FORM, ZIP_FORM, TAR_FORM or TABLE_FORM, the form of *url*. Raises: TarToolsError if a table can't be read.
    """
    if kind != TABLE_FORM:
        return storage.is_stored_object(url)
    from tartools.tables import source
    from tartools.tables.catalog import ShardCatalog

    catalog = ShardCatalog(url)
    with source.open_table(url) as table:
        for rows in islice(table.batches(source.REQUIRED_COLUMNS, DEFAULT_SAMPLES), 1):
            catalog.extents(rows, 0)
    return any(catalog.is_remote)


def other_cpu_seconds() -> tuple[float, float] | None:
    """Return (CPU seconds of other programs, CPU seconds of all cores, idle ones too), since the start of the system.

    Other programs are all but this process and those of its children that have ended; the kernel counts as one. None if
    there is no /proc/stat.
    """
    try:
        ticks = [int(word) for word in storage.read_content("/proc/stat").split()[1:9]]  # proc(5)
    except StorageError:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / tick - sum(os.times()[:4]), sum(ticks) / tick


def places_of_copies(
    urls: Sequence[str], kind: str, account: Account, reading: Reading, data: DataOptions, folder: Path, dry: bool
) -> tuple[Taken, list[BenchPlace], Origins]:
    """Copy the first samples of *urls* into *folder* in each form, with numbers as keys (from "00000000" on).

    Return (facts about the data, the place of each form, key and shard in the source of each sample). Facts:
    "samples", their number; "bytes", of their payloads; "fields", a list of names. *kind*: form of *urls*. *data*:
    limits; the sample that reaches the bytes is the last. A *dry* run makes only the shard, but returns all places, of
    which the others do not exist. Without samples there are no places. Raises: TarToolsError if samples can't be read,
    or copies not written.
    """
    account.progress.phase = Phase("copying")
    origins: Origins = []
    fields: dict[str, None] = {}
    size = 0

    def numbered(samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the first *samples*, at most `data.count`, up to the one by which payloads have `data.size` bytes.

        Counts them in *account* as written; records their keys, shards, fields and bytes.
        """
        nonlocal size
        for sample in select.take_first(samples, data.count):
            account.samples_out += 1
            size += sum(member.size for member in sample.members)
            origins.append((sample.key, sample.shard))
            fields.update(dict.fromkeys(sample.fields))
            yield sample
            if size >= data.size:
                return

    loose, zipped, shard, table = (str(folder / name) for name in ("loose", "data.zip", "data.tar", "data.parquet"))
    originals = source_samples(urls, kind, account, reading)
    with close_at_end(originals):
        write_samples(select.rekey(numbered(originals), "{index:08d}"), Destination(shard), Account())
    data_facts = {"samples": len(origins), "bytes": size, "fields": list(fields)}
    files: list[str] = []
    if origins and not dry:
        write_rows(row_inputs([shard], Account(), Indexing(Reading(), 1)), table)
        with storage.open_sink(zipped) as sink:
            zipfiles.write_zip(read_samples([shard]), sink, Account())
        with ZipFile(zipped) as archive:
            archive.extractall(loose)
        files = [entry.path for entry in os.scandir(loose)]
    forms = {
        LOOSE_FORM: (f"{loose}/", files),
        ZIP_FORM: (zipped, [zipped]),
        TAR_FORM: (shard, [shard]),
        TABLE_FORM: (table, [shard]),
    }
    places = [BenchPlace(form, [url], payloads, len(origins)) for form, (url, payloads) in forms.items() if origins]
    return data_facts, places, origins


def source_samples(urls: Sequence[str], kind: str, account: Account, reading: Reading) -> Iterator[Sample]:
    """Return an iterator over the samples of *urls*: zip files, a folder, or shards and tables, in order.

    *kind*: ZIP_FORM, LOOSE_FORM (*urls* is one local folder), or any other. Adjacent members of a zip file with one key
    are a sample, and all files of the folder with one key, in order of keys. *account* counts them as read. Raises:
    TarToolsError, also while it is iterated over.
    """
    if kind == ZIP_FORM:
        storage.check_inputs(urls)
        return zipfiles.samples(urls, account, None, reading.strictness.skip_special)
    if kind != LOOSE_FORM:
        return read_samples(urls, account, reading)
    from tartools.formats.folder import Folder, plan_folder

    return build_samples(
        plan_folder(Folder(path_of(urls[0])), account, reading.strictness.skip_special), account, urls[0]
    )


def places_on_server(
    urls: Sequence[str], kind: str, account: Account, data: DataOptions, folder: Path
) -> tuple[Taken, list[BenchPlace]]:
    """Choose samples of *urls*, on a server, to be measured in place; return facts about them, and their places.

    *kind*: LOOSE_FORM, ZIP_FORM, TAR_FORM or TABLE_FORM, the form of *urls*. The first `data.count` samples, fewer if
    there are fewer; of shards, only the first ones that together reach `data.size` bytes are used. For shards and
    tables a table of the samples is written to *folder*. Shards have two places: this table, and a tar with all samples
    of the shards used; other forms have one. *account* counts the samples as read and written. Facts: "samples", their
    number; "bytes" and "fields" are None, since they are unknown. Raises: TarToolsError if *urls* can't be read.
    """
    from tartools.train.bench import bench_dataset
    from tartools.train.tabledataset import table_of

    account.progress.phase = Phase("listing")
    chosen_urls, free_bytes = [], data.size
    for url in urls:
        chosen_urls.append(url)
        if kind == TAR_FORM:
            if (listed := next(ls(url), None)) is None:
                raise NotFoundError("no such object", url=url)
            free_bytes -= listed.size or 0
        if free_bytes <= 0:  # the first shards, up to these bytes
            break
    if kind in (LOOSE_FORM, ZIP_FORM):
        count = min(data.count, len(bench_dataset(kind, chosen_urls)))
        places = [BenchPlace(kind, chosen_urls, [], count)]
    else:
        rows, table = table_of(chosen_urls), str(folder / "data.parquet")
        count = min(data.count, len(rows))
        rows.take(slice(count)).write(table)
        places = [BenchPlace(TABLE_FORM, [table], [], count)]
        if kind == TAR_FORM:
            places.append(BenchPlace(TAR_FORM, chosen_urls, [], len(rows)))
    account.samples_in = account.samples_out = count
    return {"samples": count, "bytes": None, "fields": None}, places


def error_in_source(error: TarToolsError, origins: Origins) -> TarToolsError:
    """Return a SampleError for *error*, about a sample of our copies, with its key and shard in the source.

    *origins*: key and shard by number of the sample. An error that names no sample of eight digits is returned
    unchanged, and so is each one if *origins* is empty.
    """
    key_match = match(r"sample '(\d{8})'", error.message)
    if key_match is None or not origins:
        return error
    key, shard = origins[int(key_match[1])]
    return SampleError(f"sample {key!r}{error.message[key_match.end() :]}", url=shard)
