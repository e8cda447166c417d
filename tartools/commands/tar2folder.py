r"""Write samples to a folder of files.

Reads the samples of each SHARD, or those listed in a table, and writes each member to a file of DIR, named as in the
archive: the field txt of the sample cats/1 is the file cats/1.txt. tarcreate --folder makes the same samples again.

--class puts samples into folders by the value of FIELD, which may be a value in JSON (json:label): with cls.txt, 1.jpg
of the class cat becomes cat/1.jpg. There is no file of the field itself; tarcreate --folder --class cls.txt restores
it. The class is the last folder of a path: a/1.jpg becomes a/cat/1.jpg, and cat/1.jpg stays.

--rows writes text and JSON to one table in DIR, with a row for each sample, in order, and only the other fields to
files. The column file_name has the path of the picture (else sound, video or other file), NAME_file_name those of other
pictures, and every text field has a column of its name. If NAME is metadata.csv or metadata.jsonl, Hugging Face's
`datasets` loads it: load_dataset("imagefolder", data_dir=DIR). With --rows it takes no labels from folders. In JSON
lines, JSON fields are values (line breaks in them become blanks), and numbers in cls and the like are numbers; a field
that a sample lacks is left out. In CSV all samples must have the same text fields. Final newlines of text are removed,
unless --verbatim. tarcreate --folder DIR --rows metadata.jsonl makes samples of both again.

All files stay in DIR: keys that are absolute or contain '..' are errors, and so are links in DIR on the way to a file.
Duplicate names, names that differ only in case or Unicode form (one file on macOS and Windows), and two samples with
one key are errors. If DIR does not exist, it appears when all files are complete. If it exists, its other files stay;
a file that exists is an error, and nothing is changed, unless --force replaces it. Files have the usual permissions of
new files. DIR is a local folder. The command needs about 500 bytes of memory per file.

Examples:
  Unpack shards:
    tar2folder 'train-*.tar' -o train
  Make a folder for each class:
    tar2folder --class cls.txt -x cls 'train-*.tar' -o train
  Write pictures and captions as Hugging Face's imagefolder reads them:
    tar2folder --rows metadata.csv -f 'jpg text=txt' 'train-*.tar' -o train
  Change 100 samples by hand, and make a shard again:
    tar2folder -c 100 train.tar -o some && tarcreate --folder some -o some.tar
"""

from typing import Annotated

from tartools import cli
from tartools.cli import Option
from tartools.commands._export import SampleSelection, check_safe_key, stop_after_written
from tartools.errors import UsageError
from tartools.samples.account import Account, Phase
from tartools.samples.values import parse_column
from tartools.shards.reading import Reading, close_at_end, read_samples
from tartools.stages import select


class FolderOptions(cli.Group):
    """Options for the folder.

    Attributes:
      url: its name; "" if none was given, which is an error.
      force: replace files that exist.
      class_field: field, or value in JSON (json:label), that names the folder of a sample; None: keys alone do.
      rows: name of the table of text and JSON fields, which ends in .csv or .jsonl; None: they are files.
    """

    url: Annotated[str, Option("-o --output DIR", "Folder to write; if new, it appears once it is complete.")] = ""
    force: cli.Force = False
    class_field: Annotated[
        str | None, Option("--class FIELD", "Put samples into folders by the value of FIELD, such as cls.txt.")
    ] = None
    rows: Annotated[
        str | None, Option("--rows NAME", "Write text and JSON to this table in DIR: metadata.csv or metadata.jsonl.")
    ] = None


class FolderSelection(SampleSelection):
    """Options of the samples to write: `SampleSelection`, where verbatim also keeps final newlines of text."""

    verbatim: cli.Verbatim = False


@cli.command(__doc__)
def tar2folder(account: Account, source: cli.Inputs, selection: FolderSelection, output: FolderOptions) -> None:
    """Write the chosen members of the samples of *source* to files of a folder, in order.

    *selection*: the fields to write, and how many samples; a sample without any of these fields is left out. *output*:
    the folder, and whether samples are put into folders by class, and text into a table. The exit status is 0, but 1
    after an omission, such as a link in a shard. Raises: TarToolsError, such as UsageError without -o, or if --rows is
    not a name that ends in .csv or .jsonl; SampleError for a name that can't be a file, or is taken, and for a sample
    that has no class or does not fit the table.
    """
    from tartools.formats.folderwrite import TABLE_NAME_SUFFIXES, FolderLayout, write_sample_files
    from tartools.storage.outputfolder import check_folder, open_output_folder

    if not output.url:
        raise UsageError("-o DIR is required")
    if output.rows is not None and (
        "/" in output.rows or output.rows[:1] in ("", ".") or output.rows.rpartition(".")[2] not in TABLE_NAME_SUFFIXES
    ):
        raise UsageError(f"not a name for --rows: {output.rows!r}; write metadata.csv or metadata.jsonl")
    column = None if output.class_field is None else parse_column(output.class_field)
    layout = FolderLayout(column, output.rows, selection.verbatim)
    urls = source.urls()
    check_folder(output.url)
    samples = read_samples(urls, account, Reading(source.strictness))
    samples = select.select_by_specs(samples, selection.fields, selection.exclude, account, verbatim=selection.verbatim)
    if selection.count is not None:
        samples = stop_after_written(samples, selection.count, account)
        account.progress.phase = Phase("", selection.count, lambda: account.samples_out)
    with close_at_end(samples), open_output_folder(output.url, output.force, urls) as folder:
        write_sample_files(map(check_safe_key, samples), folder, account, layout)
        account.check()
