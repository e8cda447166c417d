r"""Split a stream of samples into shards, never inside a sample.

Reads samples from each SHARD in turn and writes numbered shards, each with at most -n samples and at most -s bytes (the
size of the tar, including its end). Without -n and -s, shards have at most 1 GB. A sample that is larger than -s gets a
shard of its own. Members are copied byte for byte. The name of each shard is printed when the shard is complete and its
--post has succeeded.

OUTPUT is a prefix or a pattern:

  train             train-000000.tar, train-000001.tar ... (.tgz with -z)
  train.tar.zst     train-000000.tar.zst ...
  dir/              dir/000000.tar ...
  train-%06d.tar    train-000000.tar ...; {shard:06d} means the same
  train.parquet     train-000000.parquet ...: tables that list the samples
  {part}-%06d.tar   a set of shards for each part of --parts
  {cls}-%06d.tar    a set of shards for each value of cls, with --by cls

New shards never mix with those of an earlier run: if any shard that OUTPUT can name exists, tarsplit writes nothing and
fails. With --force the new shards replace the old set: once the last one is complete and its --post has succeeded,
those that OUTPUT can name and this run did not write are removed, each named on stderr. With --start N, shards with
numbers below N stay. With --start N and --max-shards M, so do those from N+M on: other runs may have written them.
Nothing is removed after a failure, or if the input has no samples. If an old shard can't be removed, this is reported,
and the exit status is 1.

A table lists samples without moving them; -n, -s and --shards count what tarcat would write from it.

Web servers can't be listed. There, only the first shard and the inputs are checked beforehand; with --force, old shards
after the last new one are named and stay. In an http: URL, write a pattern as %06d (with the 0) or {shard}.

--parts makes a set of shards for each part, whose name stands for {part} in OUTPUT. A hash of the key alone decides the
part of a sample, so it is the same in every run, order and sharding: the first part of --parts train:0.9,val:0.1 has
the samples of tarfilter --share 0:0.9. With --stratify FIELD, each part gets its share of the samples of each value of
FIELD, to within one sample; again the sets depend on keys and values alone, but they change if samples are added.

--group FIELD keeps all samples with one value of FIELD, such as those of a patient or a speaker, in one part. A hash of
the value decides, so the parts are the same in every run, and the first one has the samples of tarfilter --share 0:0.9
--group FIELD. With few or large groups, the parts miss their shares. With --stratify, groups are assigned from the
largest to the smallest, so that each part gets its share of all samples, and of those of each value, as far as whole
groups allow; up to 200 groups are then moved and swapped. -v prints the shares of the parts, and the largest difference
to them. A warning names parts with a fifth too many or too few samples.

--by FIELD makes a set of shards for each value of FIELD, which replaces {FIELD} in OUTPUT; folders are created. There
may be up to 1,000 values, because all their outputs are open at once; each object on a server needs up to 16 MB of
memory. A value that can't be a file name is an error that names the sample: one that is empty, has a slash or control
characters, is .. or longer than 200 bytes, or differs from another one only in case or blanks.

--sums lists the SHA-256 of all shards, computed while they are written, with names relative to the folder of the list:
sha256sum -c reads it there. It appears after the last shard, so not after a failure.

With parts, -n, -s, --shards, --start and --post apply to each part. OUTPUT may be a name without a number, such as
{part}.tar; then each part is one shard. The last shards of all parts appear when all samples have been read. --force
removes only old shards of the parts; those of values that are not in the input stay. -v prints the numbers of samples
and shards of each part.

--shards and --stratify read the inputs twice: stdin and pipe: are copied to --tmpdir first, which needs as much disk
space as they have bytes.

Examples:
  Split a data set 90/10, for training and validation:
    tarsplit --parts train:0.9,val:0.1 -o '{part}-{shard:06d}.tar' all.tar
  The same, with 90 percent of each class:
    tarsplit --parts train:0.9,val:0.1 --stratify cls \
      -o '{part}-{shard:06d}.tar' all.tar
  The same, with all pictures of a patient in one of them:
    tarsplit -v --parts train:0.9,val:0.1 --stratify cls \
      --group json:patient -o '{part}-{shard:06d}.tar' all.tar
  Make shards for each class, in a folder of its own:
    tarsplit --by cls -o 'classes/{cls}/{shard:06d}.tar' all.tar
  Make two shards of up to 1 GB from a folder:
    tar -cf - --sort=name -C raw train |
      tarsplit -s 1e9 -o imagenet_train --max-shards 2
  Add shards after train-000099.tar, and replace those of a killed run:
    tarsplit --start 100 --force -n 10000 -o train more.tar
  Split an archive into shards of 10,000 samples, with names of your own:
    tarsplit -n 10000 -o train-%06d.tar big.tar
  Spread all samples evenly over 16 compressed shards:
    tarsplit --shards 16 -o 'part-{shard:02d}.tgz' 'train-*.tar'
  List the checksums of the shards, and compare:
    tarsplit -o out/train --sums out/SHA256SUMS all.tar
    (cd out && sha256sum -c SHA256SUMS)
  Upload each shard when it is complete, and remove the local file:
    tarsplit -o /tmp/train --post 'gsutil cp {} gs://bucket/' --remove big.tar
"""

import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import UsageError
from tartools.samples.account import Account
from tartools.samples.values import Column
from tartools.shards import numbering
from tartools.shards.dataset import DataSet
from tartools.shards.delivery import allow_open_files
from tartools.shards.reading import Reading
from tartools.shards.series import MAX_PARTS_REPORTED, Limits, PartOutputs, PartShards
from tartools.shards.writing import codec_for
from tartools.stages import shares
from tartools.storage.url import Url
from tartools.tables.listed import column_names
from tartools.tar.groups import Need

DEFAULT_SIZE = 10**9  # bytes
RESERVED_OPEN_FILES = 200  # that are open besides the outputs

Pattern = Annotated[str, Option("-o --output OUTPUT", "Prefix or pattern of the shards' names.")]


class Partition(cli.Group):
    """Options that make several sets of shards.

    Attributes:
      parts: their names and shares; a hash decides.
      stratify: each part gets its share of each value of this field.
      group: all samples with one value of this field are in one part.
      by: a set of shards for each value of this field.
    """

    parts: Annotated[
        tuple[Any, ...] | None,
        Option(
            "--parts PARTS",
            "Split by hash of the key, such as train:0.9,val:0.1 or train:90,val:10.",
            parser=shares.parse_parts,
        ),
    ] = None
    stratify: Annotated[
        str | None, Option("--stratify FIELD", "Give each of --parts its share of each value of this field.")
    ] = None
    group: Annotated[
        str | None, Option("--group FIELD", "Keep all samples with one value of this field in one of --parts.")
    ] = None
    by: Annotated[str | None, Option("--by FIELD", "Make a part for each value of this field.")] = None


class ShardOptions(cli.ShardOutputs):
    """Options for the size of shards, and for a command for each of them.

    Attributes:
      samples, size: samples and bytes in a shard at most.
      even: number of shards of equal size (--shards).
      max_shards: shards at most (--max-shards).
      start: number of the first shard.
      post: command to run after each complete shard.
      remove: remove it after that.
      force: replace existing shards.
      gzip: compress them.
      sums: file to which their checksums are written.
      tmpdir: folder of temporary files.
    """

    samples: Annotated[int | None, Option("-n --samples N", "Put at most N samples in a shard.", minimum=1)] = None
    size: Annotated[
        int | None,
        Option(
            "-s --size BYTES",
            "Make shards of at most this size, such as 500M or 1e9.",
            parser=cli.byte_size,
            default="1e9, unless -n is given",
        ),
    ] = None
    even: Annotated[
        int | None, Option("--shards K", "Make K shards with equal numbers of samples, to within one.", minimum=1)
    ] = None
    max_shards: Annotated[
        int | None,
        Option("--max-shards N", "Stop after N shards; the rest is not read.", minimum=0, aliases="--maxshards"),
    ] = None
    start: Annotated[int | None, Option("--start N", "Number of the first shard.", minimum=0, default="0")] = None
    post: Annotated[
        str | None, Option("--post COMMAND", "Run COMMAND after each complete shard; {} and $TAR_SHARD are its name.")
    ] = None
    remove: Annotated[bool, Option("--remove", "Remove each shard after its --post has succeeded.")] = False
    force: cli.Force = False
    gzip: cli.Gzip = False
    sums: cli.Sums = None
    tmpdir: cli.TmpDir = None


@cli.command(__doc__)
def tarsplit(
    account: Account, source: cli.Inputs, output: Pattern, partition: Partition, shard_options: ShardOptions
) -> None:
    """Split the samples of *source* into shards named by *output*, and print their names. Raises: TarToolsError.

    *output*: a prefix of their names, or a pattern with a number ({shard:06d}) or a part ({part}) in it. *partition*:
    several sets of shards. *shard_options*: the size of shards, and a command for each.
    """
    from tartools.stages.parting import MAX_PART_VALUES, label_samples

    if shard_options.remove and not shard_options.post:
        raise UsageError("--remove needs a --post that copies the shards elsewhere first")
    if shard_options.remove and not Url(output).is_local:
        raise UsageError("--remove removes files, and OUTPUT is not a file", url=output)
    if shard_options.even and (shard_options.samples or shard_options.size):
        raise UsageError("--shards sets the size of shards; it excludes -n and -s")
    column, group = part_columns(partition, shard_options.max_shards)
    by = column if partition.by is not None else None
    word = by.name if by is not None else "part" if partition.parts else None
    with storage.one_commit(output):
        names = numbering.PartNames(output, word, shard_options.gzip)
        limits = limits_of_shards(shard_options, names)
        example = names.numbering_of("x").name(0)
        codec_for(example, shard_options.gzip)
        columns = ["__key__", *column_names(filter(None, [column, group]))] if word else []
        need = Need.PLACES if column is None and group is None else Need.PAYLOADS
        reading = Reading(source.strictness, need, shard_options.tmpdir, columns)
        data = DataSet(source.urls(), account, reading, cli.implicit_workers())
        outputs = PartOutputs(
            names, limits, shard_options.even, shard_options.start, shard_options.force, shard_options.gzip
        )
        part_names = [part.name for part in partition.parts or ()] if word else [""]
        shards = PartShards(outputs, part_names, data.urls, account)
        if by is not None:
            allow_open_files(MAX_PART_VALUES + RESERVED_OPEN_FILES)
        run = data.to([example], shard_options.force, shard_options.gzip, sums=shard_options.checksums)
        labelled = label_samples(
            run, partition.parts or (), column, group, names.check, shards.set_counts if shard_options.even else None
        )
        if shard_options.max_shards != 0:
            finish_shards(run.split(labelled, shards), shard_options)
            if group is not None and account.samples_in:
                report_shares(partition.parts or (), shards.samples(), group, account)
            elif partition.stratify is not None and account.samples_in:
                warn_of_small_classes(partition, shards.samples(), account)
            shards.report_and_prune(f"values of {by.name}" if by is not None else "parts")


def limits_of_shards(shard_options: ShardOptions, names: numbering.PartNames) -> Limits:
    """Return the limits at which a shard is full; none if each part is one shard, since *names* have no number.

    They are -n, -s and --max-shards; without -n, -s and --shards, a shard is full at 10**9 bytes. Raises: UsageError
    for one of -n, -s, --shards and --start (not 0), if each part is one shard.
    """
    if names.single:
        if shard_options.samples or shard_options.size or shard_options.even or shard_options.start:
            raise UsageError("OUTPUT has no number, so each part is one shard; write {shard:06d} in it for more")
        return Limits()
    size = shard_options.size if shard_options.samples or shard_options.size or shard_options.even else DEFAULT_SIZE
    return Limits(lambda _: shard_options.samples, size, shard_options.max_shards)


def part_columns(partition: Partition, max_parts: int | None) -> tuple[Column | None, Column | None]:
    """Return two columns: of the values of --by or --stratify, and of --group; None for one that is not given.

    *max_parts*: value of --max-shards. Raises: UsageError if options exclude or need each other, or the text of one is
    no column.
    """
    if partition.by is not None and (partition.parts or partition.stratify is not None):
        raise UsageError("--by makes a part of each value; it excludes --parts and --stratify")
    for name, text in (("--stratify", partition.stratify), ("--group", partition.group)):
        if text is not None and not partition.parts:
            raise UsageError(f"{name} needs --parts")
    if max_parts is not None and (partition.by is not None or partition.parts):
        raise UsageError(
            "--max-shards stops reading, and the parts would be cut anywhere; it excludes --parts and --by"
        )
    text = partition.stratify if partition.by is None else partition.by
    column = None if text is None else shares.parse_value_column(text)
    return column, None if partition.group is None else shares.parse_value_column(partition.group)


def report_shares(parts: Sequence[shares.Part], counts: dict[str, int], group: Column, account: Account) -> None:
    """Add lines to the report of *account*, the share of each of up to 20 *parts*; warn of parts far from their share.

    For more than 20 parts no lines are added. Far is over a fifth more or fewer samples. *counts*: number of samples by
    part. *group*: the column of --group, whose values keep samples together; the warning names it as the reason.
    """
    messages, uneven = shares.compare_shares(parts, counts)
    account.progress.totals = [*(messages if len(messages) <= MAX_PARTS_REPORTED else ()), *account.progress.totals]
    if uneven:
        account.warn(f"{'; '.join(uneven)}: the samples of one {group.name} stay together")


def warn_of_small_classes(partition: Partition, counts: dict[str, int], account: Account) -> None:
    """Warn if a part of *partition* has no samples by *counts*: each value of --stratify has too few for all parts.

    *counts*: number of samples by part. A part whose share is 0 may be empty.
    """
    if any(part.weight and not counts.get(part.name) for part in partition.parts or ()):
        name = partition.stratify
        account.warn(
            f"each value of {name} has too few samples for a share in each part; --group {name}, without --stratify, "
            "divides whole values among the parts"
        )


def finish_shards(shards: Iterator[str], shard_options: ShardOptions) -> None:
    """For each complete shard: run the command of --post, remove it with --remove, print its name.

    *shards*: yields the URL of each when it is complete. Raises: StorageError if a command or a removal fails;
    UsageError if a shell might not read the name as one word in the command; the errors of *shards*.
    """
    with storage.open_sink("-") as printed:
        for url in shards:
            if shard_options.post:
                from tartools.storage import pipe  # only when needed: subprocess costs 5 ms

                pipe.run_template(shard_options.post, url)
            if shard_options.remove:
                storage.remove(url)
            printed.write(os.fsencode(url) + b"\n")
