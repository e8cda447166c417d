r"""Add fields to samples, by key, from other shards or from a table of rows.

tarjoin A B writes the samples of A, in order, and appends the fields that B has for their keys. Samples of A whose key
is not in B are left out; --left passes them on unchanged. --anti writes only these. The numbers of samples of A left
out, and of samples of B without a partner in A, are printed on stderr. If no key of A is
in B, so that all of A is left out, the exit status is 1.

A is a single argument: a shard, a table (see TABLES in tartools(7)), - for stdin, or a pattern in quotes that stands
for several ('a-{000..147}.tar'). --with B is another way to name B: then all arguments are shards of A, which is stdin
if there are none.

B is shards or tables of samples, or files of rows, by their names (compressed ones too: .tsv.gz):

  .tsv .csv       a header, and a row for each sample. TSV cells use the
                  escapes of tar2tsv. A cell is a field; an empty cell is an
                  empty field.
  .jsonl .ndjson  an object on each line; null means no field
  .parquet        rows; null means no field. A table of samples stands for its
                  samples, but for its rows with --key-column, with --format,
                  and if -f names a column that is not a field.

--format sets the format for other names, and for stdin and commands (the default is shards). The key is in the column
__key__, key, or the one given by --key-column, as text: the number 7 is the key 7, not 0007. A key may be a file name:
d/0.jpg has the key d/0, and --dots says where the key ends if there are more dots, as for tarcreate. Every other column
becomes a field of the same name, except those whose names begin with __. Text is UTF-8, or in the encoding given by
--encoding; bytes stay bytes, including pictures in Parquet (structs of bytes and path); numbers and dates become text
as in tar2tsv. A list of pictures or of bytes becomes the fields NAME.0.jpg, NAME.1.jpg and so on, a list of numbers the
NumPy array NAME.npy, and other lists and objects become the field NAME.json.

-f selects and renames fields or columns of B: -f 'txt=caption'. With -f '' nothing is added: samples of A that have a
partner are passed on. If a sample would have two fields of one name, that is an error, unless --prefer says which to
use. Without --verbatim, names that differ only in case are the same. A duplicate key in B is an error; several samples
of A with one key all get the fields.

B is held in memory, as far as -M allows; for shards only the places of their samples, and data that are not in plain
local files are copied to a temporary file. Rows that do not fit are sorted to a temporary file.

If OUTPUT ends in .parquet, no sample is read or copied: the table lists for each sample the members in A and those in
B, and all commands and training read it as they would read the copy. Shards are indexed first, and joined tables may
be joined again. Names can't change then, --prefer is refused, and the members chosen by -f or -x have to lie side by
side in each sample of B. If B is rows, its values become columns of the table (see TABLES in tartools(7)).

With --anti or -f '' samples are passed on unchanged.

Examples:
  Add captions from a table with the columns key and caption as txt:
    tarjoin -f 'txt=caption' 'train-{000..147}.tar' captions.tsv \
      -o captioned.tar
  Add the captions of a data set for ImageFolder, by the names of its files:
    tarjoin -f 'txt=text' --key-column file_name train.tar metadata.csv \
      -o captioned.tar
  Add all columns of a table that has scores for some samples:
    tarjoin --left train.tar scores.parquet -o scored.tar
  Add masks from other shards:
    tarjoin -f 'seg.png' 'images-*.tar' 'masks-*.tar' |
      tarsplit -s 1e9 -o both
  Use embeddings from other shards in training, without a copy:
    tarjoin 'train-*.tar' 'emb-*.tar' -o both.parquet
  List the samples that are not in a validation set in a table:
    tarjoin --anti train.parquet val.parquet -o clean.parquet
  Replace labels with new ones from stdin:
    printf 'key\tcls\na\t7\n' |
      tarjoin --prefer b --left --format tsv a.tar - -o new.tar
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from tartools import cli, storage
from tartools.cli import Option
from tartools.commands._foreign import Dots, Encoding
from tartools.errors import UsageError
from tartools.samples.account import Account
from tartools.samples.columnfields import ChosenColumns
from tartools.shards.reading import Reading, count_samples, read_batches
from tartools.shards.writing import write_batches
from tartools.stages import select
from tartools.stages.joining.partners import RowOptions, check_no_rows, make_second, read_second
from tartools.storage.expand import expand
from tartools.storage.outputformats import is_table_name
from tartools.storage.url import Url
from tartools.tar.groups import Need

TWO_INPUTS_HINT = (
    "two data sets are joined, each given as one argument: tarjoin A B; "
    "put patterns in quotes, or name B by --with (see --help)"
)


class JoinOptions(cli.Group):
    """Options of the join of A, whose samples are written, with B, whose fields are added to them.

    Attributes:
      second: URL or pattern of B (--with); None: the last argument.
      form: format of B, "tar", "parquet", "tsv", "csv" or "jsonl"; None: by its suffix, then by its first bytes, else
        "tar"; a table of samples counts as "tar", too.
      key: column of B with the keys; None: __key__ or key.
      dots: "first" or "last": the dot at which keys of B end that are file names; None: a single one before a suffix of
        a type.
      encoding: of the text of B; None: UTF-8.
      fields, exclude: texts of fields of B to add (None: all), and not to add (None: none).
      left: also write samples of A without a partner in B; anti: only those.
      prefer: "a" or "b", for fields that both have; None: an error.
      verbatim: match case.
    """

    second: Annotated[
        str | None, Option("--with B", "The data set with the fields to add; then all arguments are shards of A.")
    ] = None
    form: Annotated[
        Literal["tsv", "csv", "jsonl", "parquet", "tar"] | None,
        Option("--format", "Format of B.", default="by suffix, else tar"),
    ] = None
    key: Annotated[
        str | None, Option("--key-column COLUMN", "The column of B with the keys.", default="__key__, or key")
    ] = None
    dots: Dots = None
    encoding: Encoding = None
    fields: Annotated[
        list[str] | None,
        Option(
            "-f --fields SPEC",
            "Fields or columns of B to add, in quotes: 'txt=caption cls'. 'a;b' takes the first that exists.",
        ),
    ] = None
    exclude: Annotated[
        list[str] | None, Option("-x --exclude NAMES", "Fields or columns of B not to add: 'json url'.")
    ] = None
    left: Annotated[bool, Option("--left", "Also pass on samples of A without a partner.")] = False
    anti: Annotated[bool, Option("--anti", "Pass on only samples of A without a partner.")] = False
    prefer: Annotated[
        Literal["a", "b"] | None, Option("--prefer", "Whose field to use if A and B have one of the same name.")
    ] = None
    verbatim: Annotated[bool, Option("--verbatim", "Match field names by exact case.")] = False


@cli.command(__doc__)
def tarjoin(
    account: Account,
    source: cli.DescribedInputs,
    options: JoinOptions,
    output: cli.Output,
    memory: cli.Memory = 256 << 20,
    tmpdir: cli.TmpDir = None,
) -> None:
    """Write the samples of the data set A with the fields that the data set B has for their keys to *output*.

    Samples of A whose key is not in B are left out; with --left they are written, too, with --anti only these.
    *source*, *options*: name A and B, and say which fields are added. *memory*, *tmpdir*: bytes of memory and folder of
    temporary files for the fields of B. The output may be a table, too. Raises: TarToolsError.
    """
    words = words_of_fields(options)
    adds = words is None or bool(words)
    a, b = urls_of_sides(source, options)
    storage.check_output(output.url, output.force, [*a, *b])
    storage.check_inputs([*a, *b])
    check_no_rows(a)
    reading = Reading(source.strictness, tmpdir=tmpdir)
    chosen = ChosenColumns(words, " ".join(options.exclude or ()).split(), str if options.verbatim else str.lower)
    rows = RowOptions(options.form, options.key, options.dots, options.encoding)
    if adds and is_table_name(output.url):
        from tartools.stages.joining.joinedtables import RowJoin, join_tables

        if options.prefer:
            raise UsageError(
                "a table lists members as they are, so --prefer does not go with it: -x leaves out fields of B"
            )
        second = make_second(b, rows, chosen, account, reading)
        row_join = RowJoin(chosen.fold, options.left, None, tmpdir)
        partners = join_tables(a, second, row_join, output.destination, account, reading, memory)
        partners.report_unmatched(account, left_out=not options.left)
        return
    partners = read_second(b, rows, chosen, account, reading, memory)
    if adds:
        from tartools.stages.joining.adding import FieldAddition, join_batches

        b_fields, raw_fold = partners.second, bytes if options.verbatim else bytes.lower
        how = FieldAddition(b_fields.members, b_fields.single, options.left, options.prefer, raw_fold)
        batches = count_samples(read_batches(a, account, reading), account)
        write_batches(
            partners.check_after(join_batches(batches, partners.find, how, account)), output.destination, account
        )
    else:
        from tartools.shards.dataset import DataSet

        places = reading.with_need(Need.PLACES, ("__key__",))
        run = DataSet(a, account, places, cli.implicit_workers()).to(
            [output.url], output.force, output.gzip, sums=output.checksums
        )

        def flags(keys: Sequence[bytes]) -> list[bool]:
            """Return for each of *keys* whether its sample is written."""
            return [(value is None) is options.anti for value in partners.find(keys)]

        run.select(lambda batch: flags(batch.keys), flags)
    if not options.anti:
        partners.report_unmatched(account, left_out=not options.left)


def words_of_fields(options: JoinOptions) -> list[select.Word] | None:
    """Return the words of -f, parsed; None: all fields are added; []: none is (--anti, or -f '').

    Raises: UsageError for options that exclude each other, and a word of -f that is no field specification.
    """
    if options.anti:
        used_options = {"--left": options.left, "-f": options.fields, "-x": options.exclude, "--prefer": options.prefer}
        for name, value in used_options.items():
            if value:
                raise UsageError(f"--anti adds nothing, so {name} does not go with it")
        return []
    if options.fields is None:
        return None
    words = select.parse_words(options.fields)
    if not words and options.left:
        raise UsageError("--left with nothing to add passes on all of A: tarcat does that")
    return words


def urls_of_sides(source: cli.DescribedInputs, options: JoinOptions) -> tuple[list[Url], list[Url]]:
    """Return the URLs of A, the data set whose samples are written, and of B, whose fields are added.

    *source*, *options*: the arguments, and --with. With --with and without arguments A is stdin. Raises: UsageError if
    they do not say which is B, name stdin twice, or have a password; StorageError for a wildcard without a match, or a
    list that can't be read.
    """
    patterns, lists, separator, trusted = source.expand_arguments
    second = options.second
    if second is None:
        if len(patterns) != (1 if lists else 2):
            raise UsageError(TWO_INPUTS_HINT)
        *patterns, second = patterns
    a, b = expand(patterns, lists, separator, trusted), expand([second])
    if (*a, *b, *lists).count("-") > 1:
        raise UsageError("stdin can be read only once")
    return a, b
