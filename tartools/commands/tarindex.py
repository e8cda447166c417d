r"""Make a table of the samples in shards.

Reads each SHARD, local or remote, and writes a Parquet file with a row for each sample: its shard, its bytes in the
shard, and the places of its members. Every command that reads shards also reads such a table, and DuckDB, Polars,
pandas and Spark can select and order its rows. So a subset, an order or a mixture of a data set is a small file, not a
copy.

The columns are __shard__, __version__ (of the shard), __index__ (number of the sample in its shard), __key__,
__begin__ and __end__ (bytes in the shard), and __members__ (offset and size of each field). -f adds columns of values:
FIELD, 'a;b' (the first of these that the sample has), NEW=FIELD, FIELD:path.in.json. The values of a column are
integers if all of them are, otherwise numbers, otherwise text; values inside JSON keep their type if they all have the
same. A missing value is null; a field that no sample has is an error. Large payloads of local files are read only if a
column needs them.

--pictures adds five columns for each picture field (recognized by its last part: jpg, png ...): FIELD.width,
FIELD.height, FIELD.format (such as JPEG), FIELD.mode (such as RGB; these are Pillow's names) and FIELD.broken (the
reason if it can't be read, otherwise null). Only the header of a picture is read; --decode decodes the whole picture
(only the first frame of an animation), to find truncated and damaged ones too. Pictures of more than 89,478,485 pixels
are not decoded. If simplejpeg is installed, it decodes JPEGs: it is strict, and finds damage that Pillow does not
notice, but it also refuses a few valid but unusual ones.

--facts adds the columns of --pictures, and FIELD.upright_width and FIELD.upright_height: the size of a picture once it
is turned as its EXIF data say; FIELD.width is always that of the stored pixels. For each sound field (wav, flac, ogg,
opus, mp3, m4a) it adds FIELD.seconds, FIELD.rate, FIELD.channels, FIELD.format and FIELD.broken; for each video field
(mp4, m4v, mov, mkv, webm, avi) FIELD.seconds, FIELD.width, FIELD.height, FIELD.fps (frames per second, the mean),
FIELD.codec and FIELD.broken. Only headers are read, or all frame headers of an MP3 that does not say its length;
with --decode, pictures, WAV, FLAC and Ogg are decoded. Facts of a payload that can't be read are null. Videos and m4a
need PyAV, the extra video. FFmpeg reads their bytes alone: playlists, and what else names files or servers,
are no videos here.

--hash adds FIELD.blake2b: the 16-byte BLAKE2b digest of the payload (b2sum -l 128). --dhash adds FIELD.dhash, 64 bits
that are similar for pictures that look alike: Pillow converts the picture to grey (mode L) and resizes it to 9 x 8
pixels (Lanczos); then, row by row from the top left, a bit is 1 if a pixel is darker than its right neighbour. The
first bit is the highest. It is null for pictures that are broken or have more than 89,478,485 pixels. It equals the
dhash of imagehash. FIELD.colours has the means of red, green and blue in 4 by 4 parts of the picture, 48 bytes;
tardedup --near compares these too, and FIELD.width and FIELD.height, which are also added.

A SHARD may also be a table: the new table has the rows of all inputs, in order, with all their columns, and refers to
shards, not to tables.

--update OLD copies the rows of the table OLD for shards whose version has not changed. Shards that are new, changed or
incomplete in OLD are read; those that are not named are dropped. Without a SHARD, tarindex uses the shards of OLD that
still exist. Give the same options as for OLD: if OLD lacks a column, all shards are read, and a column that only OLD
has is null for shards that are read now.

A shard below the directory of the table is named relative to it, so that both can be moved together. Shards must not be
compressed, because a compressed shard can't be read in parts: tarcat a.tgz -o a.tar unpacks one.

--for writes an index for another tool instead of a table: beside each shard, or into the directory given by -o. The
tool then finds samples without reading all headers first. Members without a field are not in these indexes, which is
reported; samples that a tool would miss or misread are an error.

  dali      SHARD.idx beside SHARD.tar, for fn.readers.webdataset of NVIDIA
            DALI (index_paths). Names must not contain blanks.
  wids      shardindex.json in the directory that has all shards, for
            wids.ShardListDataset. wids reads names of up to 100 bytes.
  openclip  sizes.json in the directory of the shards: the number of samples
            in each, so that open_clip needs no --train-num-samples. It looks
            for the file beside the first shard.
  webshart  SHARD.json beside SHARD.tar.
  energon   SHARD.tar.idx beside SHARD.tar, and .nv-meta in the directory that
            has all shards (or that -o names), for Megatron-Energon. All
            shards belong to the split train in .nv-meta/split.yaml. No two
            samples may have the same key. You write .nv-meta/dataset.yaml,
            which says what a sample is.

Examples:
  Make a table of 148 shards, with the class of each sample:
    tarindex -f cls 'train-{000..147}.tar' -o train.parquet
  Find small and broken pictures:
    tarindex --pictures --decode 'train-*.tar' -o train.parquet
    duckdb -c "SELECT __key__, \"jpg.broken\" FROM 'train.parquet'
               WHERE \"jpg.width\" < 200 OR \"jpg.broken\" IS NOT NULL"
  Find sounds of more than 30 seconds, and add up the hours of all:
    tarindex --facts 'speech-*.tar' -o speech.parquet
    tarfilter -S "seconds('flac') > 30" speech.parquet -o long.parquet
    duckdb -c "SELECT sum(\"flac.seconds\") / 3600 FROM 'speech.parquet'"
  Leave out duplicate pictures, byte for byte:
    tarindex --hash jpg 'train-*.tar' -o train.parquet
    duckdb -c "COPY (SELECT DISTINCT ON (\"jpg.blake2b\") *
               FROM 'train.parquet') TO 'unique.parquet'"
  Find pairs of pictures that look alike:
    tarindex --dhash jpg 'train-*.tar' -o train.parquet
    duckdb -c "SELECT a.__key__, b.__key__
               FROM 'train.parquet' a, 'train.parquet' b
               WHERE a.__key__ < b.__key__
               AND bit_count(xor(a.\"jpg.dhash\", b.\"jpg.dhash\")) < 6"
  Select samples by SQL, and read them:
    duckdb -c "COPY (FROM 'train.parquet' WHERE cls = 7) TO 'sevens.parquet'"
    tarcat sevens.parquet > sevens.tar
  Update the table after some shards have changed:
    tarindex -f cls --update train.parquet 'train-*.tar' -o train.parquet \
      --force
  Join the tables of many machines:
    tarindex 's3://bucket/tables/*.parquet' -o all.parquet
  Make an index for DALI of each shard, such as train-000.idx:
    tarindex --for dali 'train-*.tar'
  Make data/shardindex.json, for wids:
    tarindex --for wids 'data/train-*.tar'
  Make data/sizes.json, for the training of open_clip:
    tarindex --for openclip 'data/train-*.tar'
  Make an index for webshart of each shard, such as index/train-000.json:
    tarindex --for webshart 'data/train-*.tar' -o index
  Make a data set of Megatron-Energon, whose samples are read as they are:
    tarindex --for energon 'data/train-*.tar'
    echo '{__module__: megatron.energon, __class__: CrudeWebdataset}' \
      > data/.nv-meta/dataset.yaml
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Annotated, Literal

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import UsageError, shown
from tartools.samples import decoding
from tartools.samples.account import Account
from tartools.shards import shardrows
from tartools.shards.reading import Reading, count_samples
from tartools.storage.outputformats import PARQUET
from tartools.tables import facts, schema
from tartools.tables.inputs import RowInputs
from tartools.tables.tablewriter import RowBatch


class TableOutput(cli.Group):
    """Options for the output.

    Attributes:
      url: a table, which must be given; with --for a directory, "" for the one of the shards.
      force: replace existing files.
      format: the tool of --for; None: write a table.
    """

    url: Annotated[str, Option("-o --output TABLE", "File or URL to write; with --for, a directory.")] = ""
    force: cli.Force = False
    format: Annotated[
        Literal["dali", "wids", "openclip", "webshart", "energon"] | None,
        Option("--for TOOL", "An index for another tool: dali, wids, openclip, webshart, energon."),
    ] = None


class ColumnOptions(cli.Group):
    """Options for further columns of the table, besides the columns of every table.

    Attributes:
      fields: texts of columns of values, such as "cls w=json:width" (-f); None: none.
      measured: columns of facts about pictures, sounds and videos (--facts).
      pictures: columns of facts about pictures alone.
      decode: decode pictures and sounds, to find broken ones; without *measured* it adds the columns of *pictures*.
      hashed: texts of fields to add digests for, such as "jpg txt" (--hash); None: none.
      likened: texts of fields to add picture hashes for (--dhash); None: none.
    """

    fields: Annotated[
        list[str] | None, Option("-f --fields SPEC", "Columns of values, in quotes: 'cls json:score'.")
    ] = None
    measured: Annotated[bool, Option("--facts", "Columns of facts about pictures, sounds and videos.")] = False
    pictures: Annotated[bool, Option("--pictures", "Columns of size, format and mode of pictures alone.")] = False
    decode: Annotated[bool, Option("--decode", "Decode pictures (and sounds), to find broken ones.")] = False
    hashed: Annotated[list[str] | None, Option("--hash FIELD", "A column of digests, to find equal payloads.")] = None
    likened: Annotated[
        list[str] | None, Option("--dhash FIELD", "Columns of hashes and colours, to find similar pictures.")
    ] = None

    @property
    def is_given(self) -> bool:
        """True if any of these options is given."""
        return bool(self.fields or self.measured or self.pictures or self.decode or self.hashed or self.likened)

    def table_facts(self) -> facts.TableFacts:
        """Return the facts about samples that these options store in columns.

        Raises: UsageError for a word that is no column, two columns with one name or one with the name of a column of
        every table, or --facts with --pictures.
        """
        table_facts = facts.parse_facts(self.fields or (), self.hashed or (), self.likened or ())
        if self.measured and self.pictures:
            raise UsageError("--facts has the columns of --pictures, and more: give one of them")
        measured = "all" if self.measured else facts.PICTURE_COLUMNS_ONLY if self.pictures or self.decode else ""
        return table_facts._replace(measured=measured, decoded=self.decode)


@cli.command(__doc__)
def tarindex(
    account: Account,
    source: cli.Inputs,
    output: TableOutput,
    columns: ColumnOptions,
    old: Annotated[str | None, Option("--update OLD", "Copy the rows of the table OLD for unchanged shards.")] = None,
    parallel: cli.Workers = None,
    tmpdir: cli.TmpDir = None,
) -> None:
    """Write a table of the samples of *source*, or with --for indexes for another tool. Raises: TarToolsError.

    *output*: the table or the directory of indexes. *columns*: further columns. *old*: table whose rows are copied for
    unchanged shards (--update). *parallel*: number of workers, 0 for one per core; None: one per core, up to 8.
    *tmpdir*: folder of temporary files.
    """
    urls = source.urls()
    reading = Reading(source.strictness, tmpdir=tmpdir)
    indexing = shardrows.Indexing(reading, cli.count_workers(parallel))
    if output.format:
        from tartools.tables import foreignindexes

        if columns.is_given or old:
            raise UsageError("an index for another tool has no columns of values, pictures or hashes, and no --update")
        where = foreignindexes.index_places(output.format, urls, output.url, output.force, tmpdir)
        versions = shardrows.shard_versions(urls)
        with closing(shardrows.blocks_of_shards(urls, account, indexing)) as blocks:
            foreignindexes.write_index(output.format, blocks, versions, where, account)
        return
    if not output.url:
        raise UsageError("-o TABLE is required")
    storage.check_output(output.url, output.force, urls, form=PARQUET)
    indexing = indexing._replace(facts=columns.table_facts())
    if old:
        inputs, batches = update_table(urls if source.inputs or source.files_from else [], old, account, indexing)
    else:
        inputs = shardrows.row_inputs(urls, account, indexing)
        batches = shardrows.all_rows(inputs)
    if columns.decode and (hint := decoding.simplejpeg_hint(schema.fields_of(inputs.schema))):
        account.warn(hint)
    shardrows.write_rows(inputs, output.url, account, force=output.force, batches=count_samples(batches, account))


def update_table(
    urls: Sequence[str], old: str, account: Account, indexing: shardrows.Indexing
) -> tuple[RowInputs, Iterator[RowBatch]]:
    """Return (inputs, batches of rows) of the table *old*, updated for the shards *urls*, in their order.

    *urls*: empty stands for the shards of *old* that still exist. *indexing*: how changed and new shards are read, and
    which columns they get. It warns of the numbers of shards taken over, read and dropped, and, if there are any,
    of columns that are null in shards read now. Raises: the errors of `shardrows.update_rows`; the iterator those of
    reading rows.
    """
    update = shardrows.update_rows(urls, old, account, indexing)
    read_and_dropped = f"read: {update.shards_read}, dropped: {update.shards_dropped}"
    account.warn(f"{shown(old)}: shards taken over: {update.shards_kept}, {read_and_dropped}")
    if lost := shardrows.empty_columns(update):
        account.warn(
            f"{shown(old)}: no option names these columns, which are null in shards read now: {' '.join(lost)}"
        )
    return update.inputs, shardrows.rows_at(update.inputs, update.rows, indexing.reading.tmpdir)
