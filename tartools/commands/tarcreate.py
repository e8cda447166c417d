r"""Make a tar from a plan, a folder, or files of other formats.

A PLAN is a table, JSON lines or a recipe. A table (TSV or CSV) has a header, one column per field and one row per
sample; its cells are the payloads. In a column @FIELD the cells are paths or URLs of files to read; an empty cell means
that the sample lacks the field. A column __key__, or that of --key-column, holds the keys; without it, --key-template
makes them from the row's number and its columns: '{split}/{:06d}'. -f selects and renames columns: 'txt=text jpg' takes
the columns text and @jpg. TSV cells use the escapes of tar2tsv (\t \n \r \\), so `tar2tsv --verbatim ... | tarcreate`
restores the fields. A column \@NAME (in TSV \\@NAME), as written by tar2tsv, is the field @NAME, from which nothing is
read. Columns __shard__, __index__ and __size__ are ignored.

JSON lines (.jsonl, .ndjson) have an object per sample, in which names are fields. A string is the payload as text, a
number is its digits as written, other values are JSON without blanks; null means that the sample lacks the field.
Objects and lists become the field NAME.json. {"@base64": "..."} stands for bytes, and "@FIELD": "..." is a path or URL
to read, as in tables. __key__, --key-column, --key-template and -f are as in tables too. A backslash before @ or __ is
not part of a name. tar2jsonl(1) writes all of this. A duplicate name in an object is an error. The lines are read
twice; those from stdin, and compressed ones, are copied to a temporary file first.

A plan may be compressed like a shard: plan.tsv.gz, plan.jsonl.zst. Its text is UTF-8, or in the encoding given by
--encoding; keys and file names may be any bytes. A column of a table that has a blank or a colon in its name is an
error, since no option could name that field. A warning names a column of file names that lacks its @.

A recipe has lines NAME SOURCE: the name of a member, blanks, and text:PAYLOAD, a path, or a URL (file:, pipe:COMMAND).
Adjacent lines with the same key are one sample.

--folder makes a sample from all files in a folder that have the same key, which is the path up to the first dot of the
file name. Samples are sorted by key. With --dots last, the key ends at the last dot, and dots before it become _:
img.2023.01.05.jpg is the field jpg of the sample img_2023_01_05. Two files whose keys would become equal are an error.
Without --dots, there is a warning if a sample gets two dotted fields with the same suffix.

--folder leaves out system files: .DS_Store, Thumbs.db, desktop.ini, ._* and folders such as @eaDir and __MACOSX; and
hidden folders (.git, .ipynb_checkpoints), which would become classes. --exclude-files leaves out more. A GLOB without a
slash is compared with the names of files and folders, others with paths relative to DIR; * matches slashes too.
Symbolic links and special files are skipped and reported; with --skip-special they are skipped silently. --follow
follows links to files and folders, as in the cache of the hub or of git-annex. --class stores the class of each sample,
the name of its directory: --class cls the number of the class in the field cls, and its name in cls.txt, and stderr
lists both (numbers count from 0 in the order of the names; if all names are numbers, they are used unchanged); --class
label.txt, or another field that does not hold numbers, the name alone. The class of files in DIR itself is the name of
DIR, and a warning names one of them. Two files whose suffixes mean the same, such as a.JPG and a.jpeg, become one
sample; a warning names them.

--rows adds fields to the samples of --folder from a table about its files: .csv, .tsv, .jsonl or .parquet, such as the
metadata.csv of Hugging Face's imagefolder. A table that is not in the current directory is looked for in DIR. The file
is named by the column file_name, audio_filepath, path or *_file_name, or the one of --file-column, relative to the
table's folder if that is in DIR, otherwise to DIR; no file outside of DIR is read. All files with the key of that file
belong to the sample; further columns NAME_file_name add a file with another key as NAME.SUFFIX. Other columns become
fields, objects and lists as NAME.json; -f selects and renames them, and its word json stands for one JSON object of all
columns that it does not name: -f 'txt=text json'. Samples are in the order of the rows. Keys are those of the files, or
come from __key__, --key-column or --key-template. Rows without a file, and files without a row, are listed and left
out, and the exit status is 1; --exclude-files accepts such files. tar2folder(1) writes such a folder.

--coco makes a sample of each picture of a COCO file: the files of the picture, and as json what the COCO file says of
it, with the list annotations, in which category is the name of each category. -f 'boxes.json=json' renames it. Pictures
are named, and reported, as with --rows. The COCO file is held in memory, which needs some six times its size.

--zip makes samples from the members of zip files, in the order of each file's directory: adjacent members with the same
key are one sample. Stored and deflated members are read, and their checksums compared. A zip file on a server is read
by ranges; one from stdin is copied to a temporary file first. Directories, hidden folders and system files are left
out; links and names such as a.JPG and a.jpeg are reported as with --folder. Names that are neither
marked as UTF-8 nor valid UTF-8 are read as code page 437, as in the format; a warning shows them in the likely
encoding, and --encoding sets it: gbk, shift_jis, cp949. If a zip file comes from Windows, backslashes in a
name without slashes separate folders, with a warning. Encrypted members, duplicate names, and names that are
absolute or contain '..' are errors. tar2zip(1) writes samples to a zip file.

--parquet makes a sample from each row of Parquet files, such as tar2parquet(1) and Hugging Face's `datasets` write.
Each column is a field: the bytes of a picture or sound (a struct of bytes and path), a string as UTF-8, and bytes
unchanged. Numbers, booleans and dates are written as in tar2tsv, lists and objects as JSON. A list of pictures, sounds
or bytes NAME becomes the fields NAME.0.jpg, NAME.1.jpg and so on (for a name that ends in .jpg, its number comes before
that); other lists and objects that have bytes in them are an error. null means that the sample lacks the field. The
column __key__ has the keys, or that of --key-column; without it, --key-template makes them from the row's number,
counted over all files, and columns. -f selects and renames columns: 'jpg=image cls=label __key__=id'. The payload of a
class label is its number. Other columns called __NAME__ are left out, unless -f names them. A picture with only a path
is an error. A row without any field is left out and reported, and the exit status is 1; so is a record with --tfrecord.
pyarrow reads the columns, and holds several copies of a page of each: it needs up to five times the memory of the
largest page. tar2parquet writes pages of 1 MiB, pyarrow by default of up to 1,024 values (100 MB of photographs, which
need 600 MB), DuckDB of 100 MB.

--tfrecord makes a sample from each record of TFRecord files. A record is a tf.train.Example, and its features are
fields: one bytes value is the payload, a number is its text, several numbers are a JSON list. Several bytes values are
the fields NAME.0, NAME.1 and so on. Slashes in names become dots: image/encoded is the field image.encoded. -f selects
and renames features: 'jpg=image.encoded cls=image.class.label __key__=image.filename'. Without a feature __key__ or
--key-column, --key-template makes keys from the record's number, counted over all files. Features without a value do
not become fields; a warning counts them. Checksums are compared. Files compressed by gzip, zlib or another codec are
recognized. An uncompressed file truncated between two records looks complete.

In the column of the keys, a key may be a file name: n01_1.JPEG has the key n01_1, if it has one dot and the suffix of
a picture, sound or text. Names with other dots are an error, unless --dots says which dot ends the key: with --dots
last, v.1.jpg has the key v_1, as with --folder. With --key-column @jpg, the files of this column are a field, and
their names are the keys.

All local files are checked before anything is written. Keys that are absolute or contain '..' are refused. A table may
not name pipe:, nor files that are not regular (fifos, devices). A PLAN on a server may name only URLs on that server.
--allow-pipe allows all of it: a plan from the network must not run commands, nor read private files. A
PLAN that is not in the current directory is looked for in the directory of -C. Members have mode 0644, owner 0 and time
0: the same input gives the same bytes.

Examples:
  Make an archive from a table with paths below the folder data:
    tarcreate -C data plan.tsv -o train.tar
  Copy two fields to a new archive:
    tar2tsv --verbatim -f 'cls txt' a.tar | tarcreate > b.tar
  Make shards from a folder with one subfolder per class:
    tarcreate --folder photos --class cls | tarsplit -s 1e9 -o photos
  Make samples of pictures and their captions in Hugging Face's format:
    tarcreate --folder photos --rows metadata.csv -f 'txt=text' -o photos.tar
  Make samples of the pictures of COCO, with their boxes as json:
    tarcreate --folder val2017 --coco annotations/instances_val2017.json |
      tarsplit -s 1e9 -o coco
  Make an archive from a folder, without backups and caches:
    tarcreate --folder photos --exclude-files '*~' --exclude-files .cache \
      -o photos.tar
  Make shards from zip files with one folder per class:
    tarcreate --zip 'photos-*.zip' --class cls | tarsplit -s 1e9 -o photos
  Make shards from a data set of Hugging Face:
    tarcreate --parquet 'train-*.parquet' -f 'jpg=image cls=label' |
      tarsplit -s 1e9 -o photos
  Make shards from TFRecord files, with short names:
    tarcreate --tfrecord 'train-*' \
      -f 'jpg=image.encoded cls=image.class.label' | tarsplit -s 1e9 -o photos
  Make shards from a folder of links, such as the hub's cache:
    tarcreate --folder snapshots/main --follow | tarsplit -s 1e9 -o photos
  Make samples from a table that a spreadsheet wrote in Latin-1:
    tarcreate --encoding latin-1 captions.csv -o captions.tar
  Make a sample with a text and a photo:
    printf 'a.txt text:hello\na.jpg photo.jpg\n' |
      tarcreate --format recipe > a.tar
"""

import os
import shlex
from collections.abc import Callable, Iterable
from typing import Annotated, Literal, NamedTuple

from tartools import cli, storage
from tartools.cli import Option
from tartools.commands._foreign import Dots, Encoding
from tartools.errors import SampleError, StorageError, TarToolsError, UsageError
from tartools.formats import packed, plan
from tartools.formats.encodings import read_as_utf8
from tartools.formats.plan import PlannedMember, PlannedSample, PlanOrigin, warn_of_other_forms
from tartools.samples.account import Account
from tartools.samples.filetypes import type_of_file
from tartools.samples.rowchoice import RowChoice, RowKeys
from tartools.samples.sample import make_path
from tartools.shards.writing import write_samples
from tartools.stages import select
from tartools.storage.expand import expand
from tartools.storage.local import path_of
from tartools.storage.url import Url

DEFAULT_KEY_TEMPLATE = "{:09d}"


class PlanOptions(cli.Group):
    """Options for the source of samples: a plan, or one of *folder*, *zips*, *parquets* and *tfrecords*.

    Attributes:
      plan, form: the plan (None: stdin), and its format (None: tsv for stdin, else by suffix).
      template: makes keys from row numbers and columns; None: "{:09d}", if no column has the keys.
      base: directory of relative paths (-C).
      allow_pipe: a plan may name commands.
      folder, zips, parquets, tfrecords: other sources, in place of a plan.
      rows, coco: a table, or a COCO file, about the files of the folder; file_column: its column of file names.
      key_column: column of the keys; None: __key__, if there is one.
      fields: columns or features that become fields; None: all.
      class_field: field for the class of each sample; None: not stored.
      exclude: patterns of files to leave out.
      dots: "first" or "last": which dot of a name ends the key.
      follow, skip_special: follow links; skip special files silently.
      encoding: of text or names; None: UTF-8.
    """

    plan: Annotated[str | None, Option("[PLAN]", "The plan; without it, or for -, stdin.")] = None
    form: Annotated[
        Literal["tsv", "csv", "jsonl", "recipe"] | None,
        Option("--format", "Format of the plan.", default="tsv for stdin, else by suffix"),
    ] = None
    template: Annotated[
        str | None,
        Option(
            "--key-template TEMPLATE",
            "Make keys from row numbers and columns.",
            aliases="--key",
            default=DEFAULT_KEY_TEMPLATE,
        ),
    ] = None
    base: Annotated[str, Option("-C --directory DIR", "Directory of relative paths.", default="the current one")] = ""
    allow_pipe: cli.AllowPipe = False
    folder: Annotated[str | None, Option("--folder DIR", "Make samples from the files below DIR, without a plan.")] = (
        None
    )
    rows: Annotated[str | None, Option("--rows FILE", "With --folder: a table about its files.")] = None
    coco: Annotated[str | None, Option("--coco FILE", "With --folder: a COCO file about it.")] = None
    file_column: Annotated[
        str | None,
        Option("--file-column COLUMN", "The column of --rows with file names.", default="file_name and the like"),
    ] = None
    key_column: Annotated[
        str | None, Option("--key-column COLUMN", "The column with the keys.", default="__key__, if there is one")
    ] = None
    zips: Annotated[list[str] | None, Option("--zip FILE", "Make samples from a zip file; repeatable.")] = None
    parquets: Annotated[list[str] | None, Option("--parquet FILE", "Make samples from a Parquet file; repeatable.")] = (
        None
    )
    tfrecords: Annotated[
        list[str] | None, Option("--tfrecord FILE", "Make samples from a TFRecord file; repeatable.")
    ] = None
    fields: Annotated[
        list[str] | None,
        Option(
            "-f --fields SPEC",
            "Columns that become fields, in quotes. 'jpg=image cls=label __key__=id' renames them.",
        ),
    ] = None
    class_field: Annotated[str | None, Option("--class FIELD", "With --folder, --zip: store each class as FIELD.")] = (
        None
    )
    exclude: Annotated[
        list[str] | None,
        Option(
            "--exclude-files GLOB",
            "With --folder: leave out matching files; repeatable.",
            aliases="--exclude",
        ),
    ] = None
    dots: Dots = None
    follow: Annotated[bool, Option("--follow", "With --folder: follow symbolic links.")] = False
    encoding: Encoding = None
    skip_special: Annotated[
        bool,
        Option(
            "--skip-special", "With --folder, --zip: skip links and special files silently. The exit status stays 0."
        ),
    ] = False


@cli.command(__doc__)
def tarcreate(account: Account, options: PlanOptions, output: cli.Output) -> None:
    """Make samples from the source that *options* name, and write them to *output*. Raises: TarToolsError."""
    require_source(options).write(options, account, output)


def write_plan(options: PlanOptions, account: Account, output: cli.Output) -> None:
    """Write the samples planned by a table, JSON lines or a recipe, which *options* name, to *output*.

    A plan that is not in the current directory is looked for in that of -C. Raises: TarToolsError, such as UsageError
    for options that do not go with the format, SampleError for an invalid plan, StorageError for a missing file.
    """
    name = options.plan or "-"
    inside = os.path.join(options.base, name)  # a plan that is not here may be in the directory of -C
    if Url(name).scheme == "" and options.base and not os.path.lexists(name) and os.path.lexists(inside):
        name = inside
    if Url(name).is_local and storage.is_directory(name):
        message = f"is a directory, not a plan: tarcreate --folder {shlex.quote(name)} makes samples of its files"
        raise StorageError(message, url=name)
    storage.check_inputs([name])
    storage.check_output(output.url, output.force, [name])
    origin = PlanOrigin(name, options.base, options.allow_pipe)
    form = options.form or plan.plan_format(name)
    if form == "jsonl":
        write_objects(options, account, output, origin)
        return
    if form == "recipe" and options.template is not None:
        raise UsageError("--key-template is for tables; in a recipe, names hold the keys")
    if form == "recipe" and any(value is not None for value in (options.key_column, options.fields, options.dots)):
        raise UsageError("--key-column, -f and --dots are for tables; a recipe has no columns")
    with packed.open_packed(name) as file:
        check_plan(file.peek(FILE_HEAD_BYTES), name)
        text = read_as_utf8(file, options.encoding, name)
        samples = plan.samples(text, form, origin, row_choice(options).with_named_key(), options.dots)
        write_planned(samples, account, output, origin)


def row_choice(options: PlanOptions) -> RowChoice:
    """Return the fields and keys of rows that *options* choose. Raises: UsageError for a bad word or template."""
    words = None if options.fields is None else select.parse_words(options.fields)
    return RowChoice(words, options.key_column, RowKeys(options.template or DEFAULT_KEY_TEMPLATE))


def check_plan(head: bytes, name: str) -> None:
    """Raise SampleError if *head* shows that the file *name* is a tar, zip, Parquet or other binary file, and no plan.

    *head*: its first bytes, 262 or more to find the magic of ustar. The message says which command reads the file.
    """
    if option := MAGIC_OPTIONS.get(head[:4]):
        raise SampleError(f"this is not a plan; tarcreate {option} FILE makes samples of it", url=name)
    if head[TAR_MAGIC] == b"ustar":
        raise SampleError("this is a tar archive, not a plan: tarcat reads it", url=name)
    kind = type_of_file(head)
    if kind is not None and b"\0" in head:  # some types begin with letters, as text may
        message = f"this is {kind.what}, not a plan: tarcreate --folder DIR makes samples of the files in a folder"
        raise SampleError(f"{message}, and a line of a recipe, NAME.SUFFIX PATH, a sample of one file", url=name)


def write_folder(options: PlanOptions, account: Account, output: cli.Output) -> None:
    """Write the samples made of the files below the folder that *options* name to *output*.

    Raises: TarToolsError, such as SampleError if a sample gets one field twice, or two files one key, or StorageError
    if a file can't be read or written.
    """
    from tartools.formats.folder import Folder, plan_folder

    path = os.path.join(options.base, options.folder or "")
    folder = Folder(path, options.class_field, options.exclude or (), options.dots, options.follow)
    write_planned(plan_folder(folder, account, options.skip_special), account, output, PlanOrigin(path))


def write_folder_with_rows(options: PlanOptions, account: Account, output: cli.Output) -> None:
    """Write the samples of the folder that *options* name, with fields from a table or a COCO file about its files.

    Writes to *output*. A relative path of a table that does not exist is looked for in the folder. Raises:
    TarToolsError, such as SampleError for an invalid table, or StorageError if a file can't be read or written.
    """
    from tartools.formats.folder import Folder
    from tartools.formats.folderrows import FolderTable, plan_folder_rows
    from tartools.formats.rowreading import is_text_table, read_coco, read_rows

    path = os.path.join(options.base, options.folder or "")
    name = options.rows or options.coco or ""
    inside = os.path.join(path, name)
    if Url(name).scheme == "" and not os.path.lexists(name) and os.path.lexists(inside):
        name = inside
    storage.check_inputs([name])
    storage.check_output(output.url, output.force, [name])
    rows = read_coco(name) if options.coco else read_rows(name, options.encoding)
    choice = row_choice(options).with_named_key()
    keys = None if options.template is None else choice.keys
    table = FolderTable(name, rows, is_text_table(name), options.file_column, choice.key, keys, choice.words)
    tables = [os.fsencode(os.path.relpath(os.path.realpath(name), os.path.realpath(path)))]
    folder = Folder(path, options.class_field, options.exclude or (), options.dots, options.follow, tables)
    samples = plan_folder_rows(folder, table, account, options.skip_special)
    write_planned(samples, account, output, PlanOrigin(path))


def write_files(options: PlanOptions, account: Account, output: cli.Output) -> None:
    """Write the samples of the zip files, Parquet files or TFRecord files that *options* name to *output*.

    Raises: TarToolsError if a file is damaged, holds something that a sample can't, or can't be read.
    """
    urls = expand(options.zips or options.parquets or options.tfrecords or [])
    storage.check_inputs(urls)
    storage.check_output(output.url, output.force, urls)
    choice = row_choice(options)
    if options.zips:
        from tartools.formats import zipfiles

        samples = zipfiles.samples(urls, account, options.class_field, options.skip_special, options.encoding)
    elif options.parquets:
        from tartools.formats import parquetread

        samples = parquetread.samples(urls, account, choice, options.dots)
    else:
        from tartools.formats import tfrecord

        samples = tfrecord.samples(urls, account, choice, options.dots)
    write_samples(warn_of_other_forms(samples, account), output.destination, account)


class PlanSource(NamedTuple):
    """A kind of source: *name*, its argument or option; *takes*, the options of `PlanOptions` that go with it ("-C").

    `write(options, account, output)`: writes the samples.
    """

    name: str
    takes: tuple[str, ...]
    write: Callable[[PlanOptions, Account, cli.Output], None]


FOLDER_OPTIONS = ("-C", "--class", "--exclude-files", "--dots", "--skip-special", "--follow")
ROW_OPTIONS = ("--key-template", "--key-column", "-f")
FOLDER_WITH_ROWS = PlanSource(
    "--folder with --rows", (*FOLDER_OPTIONS, *ROW_OPTIONS, "--file-column", "--encoding"), write_folder_with_rows
)
SOURCES = (
    PlanSource("a PLAN", ("--format", *ROW_OPTIONS, "--dots", "--allow-pipe", "-C", "--encoding"), write_plan),
    PlanSource("--folder", FOLDER_OPTIONS, write_folder),
    PlanSource("--zip", ("--class", "--skip-special", "--encoding"), write_files),
    PlanSource("--parquet", (*ROW_OPTIONS, "--dots"), write_files),
    PlanSource("--tfrecord", (*ROW_OPTIONS, "--dots"), write_files),
)
FILE_HEAD_BYTES = 512  # bytes of a file that show its type
TAR_MAGIC = slice(257, 262)
MAGIC_OPTIONS = {b"PAR1": "--parquet", b"PK\3\4": "--zip"}  # first bytes of a file -> its option


def require_source(options: PlanOptions) -> PlanSource:
    """Return the kind of source that *options* name; a plan by default.

    Raises: UsageError if they name two, for options that do not go with it or with each other, for an impossible
    --key-template or --class.
    """
    values = options.plan, options.folder, options.zips, options.parquets, options.tfrecords
    sources = [source for source, value in zip(SOURCES, values, strict=True) if value is not None]
    if len(sources) > 1:
        raise UsageError(f"{sources[0].name} and {sources[1].name} exclude each other")
    source = sources[0] if sources else SOURCES[0]
    if options.rows is not None and options.coco is not None:
        raise UsageError("--rows and --coco exclude each other")
    if options.rows is not None or options.coco is not None:
        if options.folder is None:
            raise UsageError(f"{'--rows' if options.coco is None else '--coco'} needs --folder")
        source = FOLDER_WITH_ROWS
    for name, value in {
        "--format": options.form,
        "--key-template": options.template,
        "-f": options.fields,
        "--allow-pipe": options.allow_pipe or None,
        "-C": options.base or None,
        "--class": options.class_field,
        "--exclude-files": options.exclude,
        "--dots": options.dots,
        "--skip-special": options.skip_special or None,
        "--follow": options.follow or None,
        "--encoding": options.encoding,
        "--file-column": options.file_column,
        "--key-column": options.key_column,
    }.items():
        if value is not None and name not in source.takes:
            takers = [one.name for one in (*SOURCES, FOLDER_WITH_ROWS) if name in one.takes]
            raise UsageError(f"{name} needs {' or '.join(takers)}")
    RowKeys(options.template or DEFAULT_KEY_TEMPLATE)
    if options.template is not None and options.key_column is not None:
        raise UsageError("--key-column and --key-template exclude each other")
    try:
        make_path("key", options.class_field or "cls")
    except SampleError:
        raise UsageError(f"not a name for a field: {options.class_field!r}") from None
    return source


def write_objects(options: PlanOptions, account: Account, output: cli.Output, origin: PlanOrigin) -> None:
    """Write the samples that the JSON lines of *origin* plan to *output*; read them twice, first to check their files.

    Raises: TarToolsError, such as SampleError, with the line, if that is invalid, or StorageError for a missing file.
    """
    from tartools.formats import jsonl

    with packed.open_seekable_packed(origin.name) as file:
        choice = row_choice(options).with_named_key()
        check_sources(
            jsonl.find_sources(read_as_utf8(file, options.encoding, origin.name), origin, choice), output, origin
        )
        file.seek(0)
        text = read_as_utf8(file, options.encoding, origin.name)
        write_planned(jsonl.samples(text, origin, choice, options.dots), account, output, origin)


def write_planned(samples: Iterable[PlannedSample], account: Account, output: cli.Output, origin: PlanOrigin) -> None:
    """Write the samples that *origin* plans to *output*.

    If they are a list, `check_sources` checks their files before. Raises: TarToolsError, with the line of the plan if
    it has lines, for a file that can't be read; the errors of *samples*, and of writing.
    """
    if isinstance(samples, list):
        check_sources((part for sample in samples for part in sample.parts), output, origin)
    checked_samples = plan.warn_of_file_names(samples, account, origin.name)
    built = plan.build_samples(checked_samples, account, origin.name)
    write_samples(warn_of_other_forms(built, account), output.destination, account)


def check_sources(parts: Iterable[PlannedMember], output: cli.Output, origin: PlanOrigin) -> None:
    """Check the local files of *parts*, planned by *origin*: they exist and can be read, and *output* is none of them.

    Raises: TarToolsError, with the line of the plan if the file is named in one; the errors of `storage.check_output`.
    """
    sources: dict[str, PlannedMember] = {}  # URLs, each with the first part that names it
    listed: list[str] = []  # files found in a folder, which has each one once
    for part in parts:
        if part.line:
            if part.url is not None:
                sources.setdefault(part.url, part)
        elif part.url is not None:
            listed.append(part.url)
    storage.check_listed(listed)
    try:
        storage.check_inputs(list(sources))
    except TarToolsError as error:
        wrong = sources.get(error.url)
        if wrong is None:
            raise
        raise plan.add_plan_place(error, wrong, origin.name, directory_advice(error.url, origin)) from None
    storage.check_output(output.url, output.force, [*sources, *listed])


def directory_advice(url: str, origin: PlanOrigin) -> str:
    """Return advice about -C, to end a message that *url*, a relative path in *origin* behind its -C, does not exist.

    "; it exists in the folder of the plan: add -C FOLDER" if it does; else, without a -C, what paths are relative to.
    "" otherwise, and if *url* exists, is no local file, or was absolute.
    """
    if not Url(url).is_local or storage.exists(url):
        return ""
    path = path_of(url)
    if os.path.isabs(path) and not os.path.isabs(origin.base):
        return ""
    relative = os.path.relpath(path, origin.base or ".")
    folder = os.path.dirname(path_of(origin.name)) if Url(origin.name).is_local else ""
    if folder and storage.exists(os.path.join(folder, relative)):
        return f"; it exists in the folder of the plan: add -C {shlex.quote(folder)}"
    return "" if origin.base else "; paths are relative to the current directory, or to that of -C"
