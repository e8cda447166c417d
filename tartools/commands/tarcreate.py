r"""Make a tar from a plan, or from a folder.

A PLAN in TSV or CSV has a header. A column is a field, and its cells are the payloads; of a column @FIELD the cells
are paths or URLs to read, and an empty one says that this sample lacks the field. A column __key__ holds the keys,
without one --key makes them from the number of the row. TSV cells use the escapes of tar2tsv (\t \n \r \\), so that
`tar2tsv --verbatim ... | tarcreate` gives the fields back. Columns __shard__, __index__ and __size__ are ignored.

A recipe has lines NAME SOURCE: a member's name, blanks, and text:PAYLOAD, a path, or a URL (file:, pipe:COMMAND).
Adjacent lines of one key are one sample.

--folder makes a sample of the files in a tree that have one key, which is their path up to the first dot of the
name, sorted by key. Symbolic links and special files are reported, not followed; --skip-special says that this is
meant. With --class, the name of the directory that holds a sample becomes a field.

All local sources are looked at before anything is written. Keys that are absolute or hold '..' are refused, and so
is pipe: in a table unless --allow-pipe is given: a plan that was downloaded is data. A PLAN that is not found here
is looked for in the directory of -C. Members have mode 0644, owner and time 0: same input, same bytes.

Examples:
  tarcreate -C data plan.tsv -o train.tar
  tar2tsv --verbatim -f 'cls txt' a.tar | tarcreate > b.tar
  tarcreate --folder photos --class cls | tarsplit -s 1e9 -o photos
  printf 'a.txt text:hello\na.jpg photo.jpg\n' | tarcreate --format recipe > a.tar
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

import typer

from tartools import cli, plan, shards, sources, storage
from tartools.account import Account
from tartools.errors import SampleError, UsageError
from tartools.plan import Plan
from tartools.sample import checked_path
from tartools.sources import Planned
from tartools.stages import table
from tartools.storage.names import scheme_of
from tartools.storage.streams import stream_file

FORMATS = ("tsv", "csv", "recipe")
KEYS = "{:09d}"


def plan_format(text: str) -> str:
    """Return *text* if it is a format of plans. Raises: typer.BadParameter."""
    if text not in FORMATS:
        raise typer.BadParameter(f"not a format: {text!r}; there are {', '.join(FORMATS)}")
    return text


@cli.group
class Sources(NamedTuple):
    """What samples are made of."""

    plan: Annotated[str | None, typer.Argument(metavar="[PLAN]", help="The plan; none, or -, is stdin.")] = None
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", parser=plan_format, help="tsv, csv or recipe; else the suffix tells."
        ),
    ] = None
    template: Annotated[
        str | None, typer.Option("--key", metavar="TEMPLATE", help="Keys of a table without __key__: '{:09d}'.")
    ] = None
    base: Annotated[
        str, typer.Option("-C", "--directory", metavar="DIR", help="Relative paths begin in DIR, not here.")
    ] = ""
    allow_pipe: Annotated[bool, typer.Option("--allow-pipe", help="Run the commands that a table names.")] = False
    folder: Annotated[
        str | None, typer.Option("--folder", metavar="DIR", help="Make samples of the files below DIR.")
    ] = None
    class_field: Annotated[
        str | None, typer.Option("--class", metavar="FIELD", help="Store the name of the directory as FIELD.")
    ] = None
    skip_special: Annotated[
        bool, typer.Option("--skip-special", help="Leave out links and special files without a word.")
    ] = False


@cli.command(__doc__)
def tarcreate(account: Account, wanted: Sources, output: cli.Output) -> None:
    """Run the command."""
    check_usage(wanted)
    if wanted.folder is not None:
        folder = os.path.join(wanted.base, wanted.folder)
        reported = None if wanted.skip_special else account
        write(plan.from_folder(folder, wanted.class_field, reported), account, output)
        return
    name = found_plan(wanted)
    storage.check_inputs([name])
    storage.check_output(output.url, output.force, [name])
    with stream_file(storage.open_read(name), name) as file:
        write(planned(wanted, file, Plan(name, wanted.base, wanted.allow_pipe)), account, output)


def write(samples: Iterable[Planned], account: Account, output: cli.Output) -> None:
    """Write the planned *samples*. If they are a list, all their sources are looked at before."""
    if isinstance(samples, list):
        urls = sources.urls_of(samples)
        storage.check_inputs(urls)
        storage.check_output(output.url, output.force, urls)
    shards.write_samples(sources.build(samples, account), output.url, account, force=output.force, gzip=output.gzip)


def check_usage(wanted: Sources) -> None:
    """Raise UsageError for options that do not go together, a key template or a field that can be none."""
    template = wanted.template or KEYS
    try:
        template.format(0, index=0)
        checked_path("key", wanted.class_field or "cls")
    except (KeyError, IndexError, ValueError, AttributeError):
        raise UsageError(f"not a template for keys: {template!r}; write '{{:09d}}' or 'name-{{index}}'") from None
    except SampleError:
        raise UsageError(f"not a name for a field: {wanted.class_field!r}") from None
    if wanted.folder is None:
        if wanted.class_field is not None:
            raise UsageError("--class needs --folder")
    elif wanted.plan or wanted.form or wanted.template:
        raise UsageError("with --folder there is no PLAN, and neither --format nor --key")


def found_plan(wanted: Sources) -> str:
    """Return the URL of the plan: one that is not here may be in the directory of -C."""
    name = wanted.plan or "-"
    inside = os.path.join(wanted.base, name)
    if scheme_of(name) == "" and wanted.base and not os.path.lexists(name) and os.path.lexists(inside):
        return inside
    return name


def planned(wanted: Sources, file: io.BufferedReader, origin: Plan) -> Iterable[Planned]:
    """Return the samples that the plan *file* describes: as a list if they have sources, which must be looked at."""
    suffix = origin.name.partition("?")[0].rpartition(".")[2].lower()
    form = wanted.form or ("tsv" if origin.name == "-" else suffix)
    if form not in ("tsv", "csv"):
        if wanted.template is not None:
            raise UsageError("--key is for tables; in a recipe, names hold the keys")
        samples = list(plan.from_recipe(table.text_lines(file, "\n"), origin))
        if not samples:
            raise SampleError("the plan is empty: it names no member", url=origin.name)
        return samples
    rows: Iterator[table.Row] = table.read_rows(file, form, origin.name)
    header = next(rows, None)
    if header is None:
        raise SampleError("the plan is empty: a table has a header", url=origin.name)
    columns = plan.read_header(header.cells, origin, header.line)
    key_at = header.cells.index("__key__") if "__key__" in header.cells else None
    found = plan.from_table(columns, rows, origin, wanted.template or KEYS, key_at)
    return list(found) if any(column.reads for column in columns) else found
