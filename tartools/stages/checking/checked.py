"""Read all of a data set to check it: sound shards as other commands do, and the others header by header."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING

from tartools import storage
from tartools.errors import NotFoundError, StorageError, TarFormatError, TruncatedError, shown
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.lastdot import cut_sample
from tartools.samples.sample import Sample
from tartools.shards.reading import Reading, ShardStream, shard_batches
from tartools.shards.workers import ShardTask, Tasks, gather
from tartools.stages.checking.across import Repeated, combination_number, compare_keys, group_repeated_keys
from tartools.stages.checking.codes import SPECIAL_CODES, Place, ShardFinding
from tartools.stages.checking.samples import Rows, check_samples, empty_summary, rows_of_batch, rows_of_samples
from tartools.stages.checking.walk import MemberGroup, Walk
from tartools.stages.externalsort import Spool, presort_blocks, unpack_block, unpack_blocks
from tartools.stages.summary import Summary
from tartools.storage.checks import probe
from tartools.storage.local import canonical_name
from tartools.storage.outputformats import PARQUET_MAGIC
from tartools.storage.scratch import Copy, scratch_file
from tartools.storage.split import parse_part, shard_pattern, split_part_advice
from tartools.storage.streams import chunks, translate_os_errors
from tartools.storage.url import parts_of
from tartools.tables.schema import is_table

if TYPE_CHECKING:
    from tartools.stages.checking.listedrows import TableRows
    from tartools.stages.checking.readers import ReaderRules
    from tartools.storage.checksums import ListedSums

SAMPLES_IN_LOOK = 256  # samples behind damage that are looked at together
HELD_RECORD_BYTES = 16 << 20  # bytes of records of a shard that are held in memory until its end


class InputsToCheck:
    """The inputs of a check, by number: index in *urls*, which are shards and tables.

    `reading`: how they are read.
    `tables`: number -> reader of an input that is a table, whose places are row numbers, not bytes.
    `missing`: number -> the finding about an input that can't be opened.
    `copies`: number -> the copy of an input that can be read only once.
    `unsound`: numbers of shards that are more or less than samples and one end; `Walk` reads these, header by header.
    `incomplete`: number of the first part of a split archive whose parts are not whole -> the finding "missing-part".

    Made by `inputs_to_check`; `Checking` adds to `missing`, `tables` and `unsound` while it reads.
    """

    def __init__(self, urls: Sequence[str], reading: Reading) -> None:
        self.urls = urls
        self.reading = reading
        self.tables: dict[int, TableRows] = {}
        self.missing: dict[int, ShardFinding] = {}
        self.copies: dict[int, Copy] = {}
        self.unsound: set[int] = set()
        self.incomplete: dict[int, ShardFinding] = {}

    @property
    def count(self) -> int:
        """The number of shards: all inputs but tables, also missing ones, and the shards that the tables read list."""
        listed: set[str] = set()
        return len(self.urls) - len(self.tables) + len(listed.union(*(table.shards for table in self.tables.values())))

    @cached_property
    def _named_inputs(self) -> frozenset[str]:
        return frozenset(map(canonical_name, self.urls))

    def add_table(self, number: int) -> None:
        """Record that input *number* is a table, so that its places are row numbers, and no unsound shard."""
        from tartools.stages.checking.listedrows import TableRows  # a check of shards alone needs no tables

        self.unsound.discard(number)
        self.tables[number] = TableRows(self.urls[number], number, self._named_inputs, self.reading.tmpdir)

    def shard_place(self, number: int, byte: int) -> tuple[str, int]:
        """Translate a place in input *number* to (shard URL, byte).

        `byte`: a byte of the shard, a row number in a table that has been read, or -1 for no place, which stays, with
        the URL of the input. An archive that was split has the pattern of its parts as its URL.
        """
        if number in self.tables and byte >= 0:
            return self.tables[number].place(byte)
        return shard_pattern(self.urls[number]), byte

    def stream(self, number: int, account: Account, sums: ListedSums | None = None) -> ShardStream:
        """Return the tar stream of shard *number*, or of a copy if it can be read only once. *account* counts bytes.

        *sums*: the list with which its checksum is compared; None: not at all. The caller closes the stream. Raises:
        StorageError if the shard can't be opened or copied.
        """
        url = self.urls[number]
        if number not in self.copies and not storage.is_repeatable(url):
            self.copies[number] = Copy(storage.open_read(url), url, self.reading.tmpdir, lambda _: None)
        copy = self.copies.get(number)
        return ShardStream(url, account, copy.open() if copy else None, sums)

    def read(self, number: int) -> Iterator[ShardFinding | Rows]:
        """Yield the samples of input *number*, as `Rows`, and findings about it, in order.

        A missing input gives its finding, a table the samples and findings of `TableRows.read`, an input in `unsound`
        the ones of `Walk` (one part of a split archive "split-part", and only findings about special members), any
        other the samples of the reader. Raises: StorageError if the input can't be read, or its server fails;
        TarFormatError if it is not sound, but not in `unsound`.
        """
        if number in self.missing:
            yield self.missing[number]
        elif number in self.tables:
            yield from self.tables[number].read()
        elif number in self.unsound:
            advice = split_part_advice(self.urls[number])
            if advice:  # its damage is where it was cut
                yield ShardFinding("split-part", -1, "", advice)
            for separate, run in groupby(self._walk(number), separate_item):
                if isinstance(separate, ShardFinding):
                    if not advice or separate.code in SPECIAL_CODES.values():
                        yield separate
                    continue
                while groups := [group for group in islice(run, SAMPLES_IN_LOOK) if isinstance(group, MemberGroup)]:
                    samples = [Sample(group.key, tuple(group.members), self.urls[number]) for group in groups]
                    begins: list[int] = [group.byte for group in groups]
                    if self.reading.last_dot:
                        parts = chain.from_iterable(map(cut_sample, samples, begins))
                        samples, begins = map(list, zip(*parts, strict=True))
                    rows = rows_of_samples(samples, number, begins)
                    yield rows._replace(doubtful=groups[0].doubtful, lost=groups[0].lost)
        else:
            quiet = Account(lambda _: None)
            stream = self.stream(number, quiet)
            with closing(shard_batches(self.urls[number], quiet, self.reading, stream)) as batches:
                for batch in batches:
                    sound = rows_of_batch(batch, number)
                    assert sound is not None
                    yield sound
                quiet.check()

    def compare_checksums(self, number: int) -> Iterator[ShardFinding]:
        """Yield findings about the checksum of shard *number*, or of its parts; call it after reading the shard.

        Codes: "no-checksum", "checksum-differs". There are none without a list of checksums, and for tables and missing
        inputs. An unsound shard is read once more. Raises: StorageError if that fails, or for an unusual algorithm.
        """
        sums = self.reading.sums
        if sums is None or number in self.tables or number in self.missing:
            return
        for url in parts_of(self.urls[number]):
            name = "" if url == self.urls[number] else f"{shown(url)}: "
            if sums.checksum_of(url) is None:
                yield ShardFinding("no-checksum", -1, "", f"{name}not in {shown(sums.url)}")
                continue
            if number in self.unsound:
                copy = self.copies.get(number)
                with closing(copy.open() if copy else storage.open_read(url)) as stream:
                    sums.compare_all(url, stream)
            if message := sums.mismatches.get(url):
                yield ShardFinding("checksum-differs", -1, "", f"{name}{message}")

    def _walk(self, number: int) -> Iterator[ShardFinding | MemberGroup]:
        """Yield the member groups of shard *number*, and findings about it, damaged compressed data first.

        Unless it is a plain local file, its decompressed bytes are copied to a scratch file, up to damage. With
        `skip_special`, there are no findings about special members. Raises: StorageError if it can't be read.
        """
        reading, damage = self.reading, None
        with closing(self.stream(number, Account(lambda _: None))) as stream, translate_os_errors(self.urls[number]):
            file = stream.file
            if file is None or stream.start:
                file = scratch_file(reading.tmpdir)  # closed when no sample is in it any more
                damage = copy_and_check(stream, file)
            if damage is not None:
                yield damage
            for item in Walk(file, reading.strictness.lax, damage is None):
                is_special = isinstance(item, ShardFinding) and item.code in SPECIAL_CODES.values()
                if isinstance(item, ShardFinding) and (place := stream.part_place(item.byte)):
                    item = item._replace(detail=f"{item.detail} ({place})" if item.detail else place)
                if not (is_special and reading.strictness.skip_special):
                    yield item


def inputs_to_check(urls: Sequence[str], reading: Reading, faults: Iterable[StorageError] = ()) -> InputsToCheck:
    """Return the inputs *urls* for a check, with tables, missing inputs and incomplete archives recorded.

    *reading*: how to read them. *faults*: the errors of `join_split_parts`, recorded in `incomplete`; the parts are
    among *urls*. Raises: StorageError if a server fails or a scheme can't be read; UsageError as `check_inputs`.
    """
    inputs = InputsToCheck(urls, reading)
    for number, url in enumerate(urls):
        try:
            storage.check_inputs([url])
            if is_table(url):
                inputs.add_table(number)
        except StorageError as error:
            if not storage.is_missing(error):
                raise
            inputs.missing[number] = missing_shard_finding(error.message if error.url == url else str(error))
    storage.check_inputs([url for number, url in enumerate(urls) if number not in inputs.missing])
    for fault in faults:
        numbers = [number for number, url in enumerate(urls) if url.startswith(fault.url)]
        first = next((number for number in numbers if parse_part(urls[number])), numbers[0])  # x.tar.zst is no part
        inputs.incomplete[first] = ShardFinding("missing-part", -1, "", fault.message)
    return inputs


def separate_item(item: ShardFinding | MemberGroup) -> ShardFinding | MemberGroup | None:
    """Return *item* of a shard if it is handled alone, a finding or a group beside damage; None for a sound group.

    A key for `groupby`: sound groups beside each other are handled together.
    """
    return item if isinstance(item, ShardFinding) or item.doubtful or item.lost else None


def missing_shard_finding(why: str) -> ShardFinding:
    """Return the finding "missing-shard", without a byte or key; *why*: its description."""
    return ShardFinding("missing-shard", -1, "", why)


def copy_and_check(stream: ShardStream, file: io.FileIO) -> ShardFinding | None:
    """Copy *stream*, decompressed, to *file*; return the finding about damage of its compressed data, None if sound.

    The bytes before the damage are copied. Codes: "cut-compressed", "garbage-after-compressed", "bad-compressed".
    Raises: StorageError if *stream* can't be read; OSError if *file* can't be written.
    """
    try:
        for chunk in chunks(stream):
            file.write(chunk)
    except TarFormatError as error:
        code = "cut-compressed" if isinstance(error, TruncatedError) else "bad-compressed"
        if error.message.startswith("the bytes after"):
            code = "garbage-after-compressed"
        return ShardFinding(code, error.offset or 0, "", error.message)
    return None


class CheckedShard:
    """The findings of the reader in input *number*, or in a part of it.

    `summary`: counts of its samples, and findings; used only if `is_sound`.
    `is_sound`: True if the input is just samples and one end.
    `missing`: the finding that the shard is not there; None if it is. `is_sound` is False with it.
    `block_count`: blocks of key records in the output of the task that are those of this input or part.
    """

    __slots__ = ("block_count", "is_sound", "missing", "number", "summary")

    def __init__(
        self, number: int, summary: Summary, is_sound: bool = True, missing: ShardFinding | None = None
    ) -> None:
        self.number = number
        self.summary = summary
        self.is_sound = is_sound
        self.missing = missing
        self.block_count = 0


class Checking:
    """Checks all samples of *shards*, in up to *max_workers* workers; with *decode*, payloads are decoded.

    *reader*: the library as which they are read, too, for findings and types of values; None for none. *account*:
    counts shards and bytes read.

    The reader, in workers, checks sound shards: just samples and one end. What it finds in any other shard is dropped;
    `walk` reads that shard again, in this process, once all others have been read. So findings and keys of a shard are
    held until its end:

        worker    part of a large shard -> CheckedShard, records of its keys
        parent    holds these; after the last part, adds them if all parts are sound, else notes the shard for `walk`
        parent    walks the shards noted so, then reads the tables

    Iterate `find_repeats` to its end: then `summary` has all findings, and `sizes` the sizes of the shards. Holds: the
    findings in the shards that are being read, and 16 MiB of the records of their keys; more are in an unnamed file.
    """

    def __init__(
        self,
        shards: InputsToCheck,
        account: Account,
        decode: bool,
        max_workers: int,
        reader: ReaderRules | None = None,
    ) -> None:
        self.shards = shards
        self.reader = reader
        self.account = account
        self.decode = decode
        self.max_workers = max_workers
        self.summary = empty_summary()
        self._sizes: dict[int, int] = {}
        self._numbers = {url: number for number, url in enumerate(shards.urls)}

    def find_repeats(self, sort: Callable[[Iterator[bytes]], Iterator[bytes]]) -> Iterator[Repeated]:
        """Read all samples; yield (group, verdicts) for each group of samples that share a key.

        A sample is (input number, byte, key, fields). Verdicts: (code of the finding, 0 for a part of the first sample
        or 1 for another sample) for each but the first. `sort(records)`: sorts any number of records. At the end
        `summary` has all findings. Raises: StorageError if reading fails, none of the inputs is there, or a table
        comes by stdin or a command.
        """
        records = sort(self._records())
        first = next(records, None)  # now all have been read
        if first is None:
            return
        numbers = {combination_number(combination): combination for combination in self.summary.combinations}
        groups = group_repeated_keys(chain([first], records), numbers)
        yield from compare_keys(groups, self.summary, self.shards.shard_place)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(input number, bytes of its samples) of each shard that has samples or findings, sorted by number."""
        return sorted(self._sizes.items())

    def _records(self) -> Iterator[bytes]:
        """Read all inputs; yield the key records of samples with fields. At the end `summary` has the findings so far.

        Raises: StorageError if none of the inputs is there, reading fails, or a table comes by stdin or a command.
        """
        urls, tables, missing = self.shards.urls, self.shards.tables, self.shards.missing
        shards = [number for number in range(len(urls)) if number not in tables and number not in missing]
        yield from self._read_shards(shards)
        for number in sorted(self.shards.unsound):
            if (
                storage.is_stored_object(urls[number]) and probe(urls[number]).first == PARQUET_MAGIC
            ):  # a table that has another name
                self.shards.add_table(number)
        for number in [*sorted(self.shards.unsound), *tables, *sorted(missing)]:
            if len(missing) == len(urls):
                raise StorageError(missing[number].detail, url=urls[number])
            yield from self._read_again(number)
        for number, finding in self.shards.incomplete.items():
            self.summary.note(finding.code, Place(number, finding.byte, "", finding.detail))
        for number in shards:
            if number not in self._sizes and number not in missing and number not in tables:
                self.summary.note("no-samples", Place(number, 0, ""))

    # ---- what is sound ----

    def _read_shards(self, numbers: Sequence[int]) -> Iterator[bytes]:
        """Read the shards among the inputs *numbers*; yield the key records of sound ones, and add their findings.

        Shards that are not sound are noted in `unsound` of the inputs, those that are not there in `missing`. Raises:
        StorageError if reading fails, and for a table that comes by stdin or a command.
        """
        policy = self.shards.reading.policy._replace(samples_only=True)
        reading = self.shards.reading._replace(policy=policy)
        urls = [self.shards.urls[number] for number in numbers]
        if repeatable := [url for url in urls if storage.is_repeatable(url)]:
            yield from unpack_blocks(
                self._join_parts(
                    gather(
                        repeatable, self.account, reading, self._check_task, max_workers=self.max_workers, remote=True
                    )
                )
            )
        for number, url in zip(numbers, urls, strict=True):
            if not storage.is_repeatable(url):
                stream = self.shards.stream(number, self.account, reading.sums)
                if stream.is_table():
                    stream.close()
                    raise StorageError("is a table: its rows are compared only if it is named as a file", url=url)
                blocks = self._spool()
                shard = self._check(number, shard_batches(url, self.account, reading, stream), blocks)
                self._end_shard(shard)
                if shard.is_sound:
                    for block in blocks:
                        yield from unpack_block(block)

    def _spool(self) -> Spool:
        return Spool(HELD_RECORD_BYTES, self.shards.reading.tmpdir)

    def _check_task(self, task: ShardTask[list[CheckedShard]]) -> Iterator[bytes]:
        """Check the shards of *task*; yield packed blocks of key records of sound ones.

        `task.result` becomes a list with a `CheckedShard` for each shard or part, in order.
        """
        task.result = []
        for part, batches in task.shards:
            blocks = self._spool()
            shard = self._check(self._numbers[part.url], batches, blocks, is_cut=part.cut is not None)
            task.result.append(shard)
            if shard.is_sound:
                for block in blocks:
                    shard.block_count += 1
                    yield block

    def _check(self, number: int, batches: Iterator[Batch], blocks: Spool, *, is_cut: bool = False) -> CheckedShard:
        """Check *batches*, input *number* or a part of it; return the findings, and add key records to *blocks*.

        A shard that is not there is noted as `missing` in the result. The checksum of a sound one is compared, too.
        `blocks`: gets packed blocks of records (`unpack_block`). `is_cut`: the part ends inside the shard: damage is
        raised as TarFormatError, since the cut may be wrong; else it makes the shard unsound. Raises: StorageError.
        """
        shard = CheckedShard(number, empty_summary())
        try:
            for block in presort_blocks(self._check_batches(batches, shard)):
                blocks.add(block)
            for finding in self.shards.compare_checksums(number) if shard.is_sound else ():
                shard.summary.note(finding.code, Place(number, finding.byte, "", finding.detail))
        except NotFoundError as error:
            shard.is_sound, shard.missing = False, missing_shard_finding(error.message)
            self.account.shards_done += 1
        except TarFormatError:
            if is_cut:
                raise
            shard.is_sound = False
            self.account.shards_done += 1
        return shard

    def _check_batches(self, batches: Iterator[Batch], shard: CheckedShard) -> Iterator[list[bytes]]:
        """Yield the key records of each of *batches*, a list, for the sort; add the findings to *shard*.

        For a batch whose places in the shard are not known nothing is yielded, and *shard* is noted as not sound.
        """
        for batch in batches:
            rows = rows_of_batch(batch, shard.number)
            if rows is None:
                shard.is_sound = False
            else:
                yield self._check_rows(rows, shard.summary)

    def _check_rows(self, rows: Rows, summary: Summary) -> list[bytes]:
        """Add the samples *rows*, and findings about them, to *summary*; return their key records.

        Raises: StorageError if a payload can't be read.
        """
        records = check_samples(rows, summary, self.decode)
        if self.reader is not None:
            from tartools.stages.checking.readers import check_as_reader

            check_as_reader(rows, summary, self.reader)
        return records

    def _join_parts(self, tasks: Tasks[list[CheckedShard]]) -> Generator[bytes, None, None]:
        """Yield the key records of the sound shards in *tasks*, in blocks; add the findings about them to `summary`.

        Records of a large shard are held until its last part, since it is sound only if all its parts are. Only a task
        that is one part of a large shard ends inside a shard. The tasks that follow read its other parts; the last one
        may read further shards behind it (`workers.remaining_plan`).
        """
        summary, is_sound, held = empty_summary(), True, self._spool()  # of the parts so far of the shard that is open
        with closing(tasks):
            for task in tasks:
                is_open = task.parts[-1].cut is not None
                has_part = is_open or task.parts[0].begin > 0
                output = self._spool()
                if has_part:
                    for block in task.output:
                        output.add(block)
                else:
                    yield from task.output
                blocks = iter(output)
                for shard in task.result:
                    summary.add(shard.summary)
                    is_sound &= shard.is_sound
                    if has_part:
                        held.extend([*islice(blocks, shard.block_count)])
                    if is_open:
                        continue
                    if is_sound:
                        yield from held
                    self._end_shard(CheckedShard(shard.number, summary, is_sound, shard.missing))
                    summary, is_sound, held = empty_summary(), True, self._spool()

    def _end_shard(self, shard: CheckedShard) -> None:
        """Add the findings in *shard*, which is complete, if it is sound; else note it as missing or unsound."""
        if shard.missing is not None:
            self.shards.missing[shard.number] = shard.missing
        elif not shard.is_sound:
            self.shards.unsound.add(shard.number)
        else:
            self._add(shard.number, shard.summary)

    def _add(self, number: int, summary: Summary) -> None:
        if summary.samples or summary.findings:
            self._sizes[number] = summary.stored
        self.summary.add(summary)

    # ---- what is not ----

    def _read_again(self, number: int) -> Iterator[bytes]:
        """Yield the key records of *number*, an unsound shard, table or missing input; add findings to `summary`."""
        summary = empty_summary()
        for item in self.shards.read(number):
            if isinstance(item, Rows):
                yield from self._check_rows(item, summary)
            elif item.code:
                summary.note(item.code, Place(number, item.byte, item.key, item.detail))
        if number in self.shards.unsound:
            for finding in self.shards.compare_checksums(number):
                summary.note(finding.code, Place(number, finding.byte, "", finding.detail))
            self._add(number, summary)
        else:
            self.summary.add(summary)
