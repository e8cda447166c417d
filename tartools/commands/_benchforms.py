"""What tarbench makes of its source: the same samples in all forms, in a temporary folder."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from tartools import storage
from tartools.errors import SampleError, StorageError, TarToolsError, UsageError
from tartools.formats.build import PlannedMember, build_samples
from tartools.formats.plan import grouped
from tartools.samples import pictures
from tartools.samples.account import Account
from tartools.samples.sample import Sample, build
from tartools.shards.listing import Indexing, TableDestination, listed, row_batches, rows_at
from tartools.shards.reading import Reading, closing_upstream, read_samples
from tartools.shards.writing import write_batches, write_samples
from tartools.stages import select
from tartools.storage.local import path_of
from tartools.storage.scratch import write_file
from tartools.storage.url import Url
from tartools.tar import split_path
from tartools.tar.compression import is_table

LOOSE, ZIP, TAR, TABLE = "loose", "zip", "tar", "table"
ENCODED, RAW = "encoded", "raw"
LOOKED_AT = 1000  # rows of a table
RAW_LIMIT = 1 << 30  # bytes of decoded pictures in one form


class Taken(NamedTuple):
    """What was taken of the source: *samples*, their *bytes* and *fields*; the key and shard of each."""

    samples: int
    bytes: int
    fields: list[str]
    origins: list[tuple[str, str]]


def kind_of(urls: Sequence[str]) -> str:
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


def source_samples(urls: Sequence[str], kind: str, account: Account, reading: Reading) -> Iterator[Sample]:
    """Return the samples of *urls*, which are of this *kind*; of files, those of one key are a sample."""
    if kind == ZIP:
        from tartools.formats import zipped

        storage.check_inputs(urls)
        return zipped.samples(urls, account, None, reading.skip_special)
    if kind != LOOSE:
        return read_samples(urls, account, reading)
    if Url(urls[0]).is_local:
        from tartools.formats.folder import Folder, from_folder

        return build_samples(from_folder(Folder(path_of(urls[0])), account, reading.skip_special), account, urls[0])
    return build_samples(grouped(objects(urls[0]), urls[0]), account, urls[0])


def objects(prefix: str) -> Iterator[PlannedMember]:
    """Yield the objects below *prefix* as members. Raises: StorageError if there are none."""
    from tartools.storage.names.listing import ls

    found = [entry.url for entry in ls(prefix) if not entry.url.endswith("/")]
    if not found:
        raise StorageError("nothing is listed under this", url=prefix)
    for url in found:
        yield PlannedMember(os.fsencode(url.removeprefix(prefix)), url=url)


def lists_far(url: str) -> bool:
    """Tell whether the first samples of the table *url* are on a server."""
    from tartools.tables import schema, source
    from tartools.tables.places import Listing

    listing = Listing(url)
    with source.opened(url) as table:
        columns = (schema.SHARD, schema.VERSION, schema.BEGIN, schema.END)
        for rows in table.batches(columns, LOOKED_AT):
            listing.piece(rows, 0, keyed=False)
            break
    return any(listing.far)


def object_samples(prefix: str) -> int:
    """Return how many samples the objects below *prefix* are: those of one key, side by side, are one."""
    return sum(1 for _ in groupby(objects(prefix), lambda member: split_path(member.path)[0]))


def zip_samples(urls: Sequence[str]) -> int:
    """Return how many samples the zip files *urls* have. Raises: what `Zipped` raises."""
    from tartools.formats.zipped import Zipped
    from tartools.storage import files

    count = 0
    for url in urls:
        with files.seekable(url) as file:
            count += len(Zipped(file, url))
    return count


def taken(samples: Iterable[Sample], count: int, size: int, account: Account) -> Iterator[tuple[Sample, int]]:
    """Yield the first *count* of *samples*, or those of the first *size* bytes, at least one; and the bytes of each."""
    total = 0
    for sample in select.count(samples, count):
        account.samples_out += 1
        here = sum(member.size for member in sample.members)
        yield sample, here
        total += here
        if total >= size:
            return


def write_tar(samples: Iterable[tuple[Sample, int]], folder: Path) -> Taken:
    """Write *samples* to a shard in *folder*, under keys that are numbers. Raises: what *samples* raises."""
    origins: list[tuple[str, str]] = []
    fields: dict[str, None] = {}
    total = 0

    def numbered() -> Iterator[Sample]:
        nonlocal total
        for sample, size in samples:
            total += size
            origins.append((sample.key, sample.shard))
            fields.update(dict.fromkeys(sample.fields))
            yield sample

    write_samples(select.rekey(numbered(), "{index:08d}"), str(folder / "data.tar"))
    return Taken(len(origins), total, list(fields), origins)


def unfold(folder: Path) -> int:
    """Make of the shard in *folder* its table, a zip file, and loose files; return how many samples it has."""
    from tartools.formats.zipwrite import write_zip

    shard = str(folder / "data.tar")
    inputs = listed([shard], Account(), Indexing(Reading(), 1))
    write_batches(row_batches(inputs), TableDestination(str(folder / "data.parquet"), False, lambda: inputs), Account())
    with storage.writing(str(folder / "data.zip")) as sink:
        write_zip(read_samples([shard]), sink, Account())
    loose = folder / "loose"
    storage.make_directory(str(loose))
    count = 0
    for sample in read_samples([shard]):
        for member in sample.members:
            try:
                write_file(os.fsencode(loose / os.fsdecode(member.path)), member.read())
            except OSError as error:
                raise StorageError(error.strerror or str(error), url=str(loose)) from error
        count += 1
    return count


def write_raw(source: Path, folder: Path, origins: Sequence[tuple[str, str]]) -> None:
    """Write the samples of the shard in *source* to one in *folder*, with decoded pictures in place of files.

    They end with the sample in which the pictures exceed 1 GiB. Raises: SampleError for a picture that is broken.
    """
    storage.make_directory(str(folder))

    def decoded() -> Iterator[Sample]:
        total = 0
        for sample, (key, shard) in zip(read_samples([str(source / "data.tar")]), origins, strict=True):
            made: dict[str, Any] = {"__key__": sample.key}
            for field, payload in sample.items():
                if not is_picture(field):
                    made[field] = payload
                    continue
                name, value = raw_picture(field, payload, partial(broken, key, shard, field))
                made[name] = value
                total += len(value)
            yield build(made)
            if total > RAW_LIMIT:
                return

    with closing_upstream(samples := decoded()):
        write_samples(samples, str(folder / "data.tar"))


def is_picture(field: str) -> bool:
    """Tell whether *field* is a picture, by the last part of its name."""
    return field.rpartition(".")[2].lower() in pictures.SUFFIXES


def broken(key: str, shard: str, field: str, what: str) -> SampleError:
    """Return the failure of a picture."""
    return SampleError(f"sample {key!r}: field {field!r}: {what}", url=shard)


def raw_picture(field: str, payload: bytes, failure: Callable[[str], SampleError]) -> tuple[str, bytes]:
    """Return the name and the bytes of the array of pixels that *payload* is."""
    import numpy as np
    from PIL.Image import DecompressionBombError

    try:
        pixels = pictures.array(payload, "RGB")
    except SampleError as error:
        raise failure(error.message) from None
    except (OSError, ValueError, SyntaxError, EOFError, DecompressionBombError) as error:
        raise failure(f"{type(error).__name__}: {error}") from None
    file = io.BytesIO()
    np.save(file, pixels)
    front, dot, _ = field.rpartition(".")
    return f"{front}{dot}npy", file.getvalue()


class FarTable(NamedTuple):
    """The table *url* of so many *samples*: the first ones of *shards*, which have so many *rows*."""

    url: str
    samples: int
    shards: list[str]
    rows: int


def far_table(urls: Sequence[str], count: int, size: int, folder: Path, account: Account) -> FarTable:
    """Make the table of the first *count* samples of tables and shards that are far.

    Of shards, the first ones are read, up to *size* bytes of them, but at least one.
    """
    some = list(urls)
    if not is_table(urls[0]):
        some, room = [], size
        for url in urls:
            some.append(url)
            room -= storage.plain_size(url) or 0
            if room <= 0:
                break
    inputs = listed(some, account, Indexing(Reading(), 1))
    there_are = sum(part.rows for part in inputs.parts)
    most = min(count, there_are)
    url = str(folder / "data.parquet")
    write_batches(rows_at(inputs, range(most), str(folder)), TableDestination(url, False, lambda: inputs), account)
    account.samples_in += most
    return FarTable(url, most, some, there_are)


def raised_for(error: TarToolsError, origins: Sequence[tuple[str, str]]) -> TarToolsError:
    """Return *error*, which a row met in our copies, with the key and the shard that its sample has in the source."""
    start, _, rest = error.message.partition(": ")
    number = start.removeprefix("sample '").removesuffix("'").lstrip("0") or "0"
    if start.startswith("sample '") and number.isdigit() and int(number) < len(origins):
        key, shard = origins[int(number)]
        return SampleError(f"sample {key!r}: {rest}", url=shard)
    return error
