"""Code of the commands that write samples to one file of another format."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from tartools import cli, storage
from tartools.cli import process
from tartools.errors import SampleError, UsageError
from tartools.formats import packed
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Sample
from tartools.samples.values import require_safe_key
from tartools.shards.reading import Reading, close_at_end, read_samples
from tartools.stages import select
from tartools.storage.outputformats import JSON_LINES, OutputFormat
from tartools.storage.streams import Sink, write_lines
from tartools.storage.url import Url
from tartools.tar.compression import split_packed


class ExportOutput(cli.Group, shared=True):
    """Options for the one file to write: url ("-" is stdout), force (replace it)."""

    url: cli.Url = "-"
    force: cli.Force = False

    @property
    def is_terminal(self) -> bool:
        """True if the output is a terminal: `url` is "-", and stdout is one."""
        return self.url == "-" and os.isatty(1)


class SampleSelection(cli.Fields):
    """Options of the samples to export: their fields (fields, exclude, verbatim), and count, the number to write."""

    count: cli.Count = None


def export(
    account: Account,
    source: cli.Inputs,
    output: ExportOutput,
    form: OutputFormat,
    write: Callable[[Iterator[Sample], Sink], None],
    selection: SampleSelection,
    specs: Sequence[str] | None = None,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Write the samples of the inputs *source* to the file *output* in the format *form*.

    All tar2... commands but tar2tsv and tar2folder call it. `write(samples, file)`: writes the samples, and counts them
    in *account*. *specs*: the fields to keep, as -f gives them; None if *write* selects them. *selection*: has the
    fields to drop, and the count. `check()`: raises if a library is missing; called once the inputs exist.
    Raises: UsageError if stdout is a terminal and the format is binary, if the name of the output does not fit the
    format (train.zip.gz: its files are not compressed as a whole), and for wrong *specs* or inputs; SampleError for
    samples that tarcreate could not make again; StorageError and TarFormatError if an input can't be read, or the
    output can't be written; the errors of *check*, of *write* and of the checks of *account* (no sample had a field).
    """
    full_url = Url(output.url)
    if not form.is_packed and full_url.scheme != "pipe" and (bare := split_packed(full_url.name)[0]) != full_url.name:
        raise UsageError(f"a {form.name} file is compressed inside: call it {bare}, not {full_url.name}")
    urls = source.urls()
    storage.check_output(output.url, output.force, urls, form=form)
    if form != JSON_LINES and output.is_terminal:
        raise UsageError(f"stdout is a terminal, which cannot show a {form.name} file: use -o FILE, > FILE or a pipe")
    samples = read_samples(urls, account, Reading(source.strictness))
    check()
    samples = select.select_by_specs(samples, specs, selection.exclude, account, verbatim=selection.verbatim)
    if selection.count is not None:
        samples = stop_after_written(samples, selection.count, account)
        account.progress.phase = Phase("", selection.count, lambda: account.samples_out)
    writing = packed.open_packed_sink if form.is_packed else storage.open_sink
    with close_at_end(samples), writing(output.url, output.force) as sink:
        write(check_readable_back(samples), sink)
        account.check()


def stop_after_written(samples: Iterable[Sample], count: int, account: Account) -> Iterator[Sample]:
    """Yield *samples* until *account* has counted *count* of them as written; read no further.

    The writer counts a sample, or leaves it out because it has none of the fields, before it takes the next one. So -c
    counts after -f, whether a stage or the writer selects fields.
    """
    if count:
        for sample in samples:
            yield sample
            if account.samples_out >= count:
                return


def check_readable_back(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield *samples* unchanged, after checking that tarcreate can make the same samples from the file.

    Raises: SampleError for a key that tarcreate refuses (empty, absolute, or with a part `..`), and for two adjacent
    samples with one key, which readers would take for one; a sample whose only member has no field is not compared.
    """
    last: bytes | None = None
    for sample in samples:
        if sample.raw_key == last and sample.grouped:
            raise SampleError(
                f"two samples with the key {sample.key!r} side by side, which readers would take for one: "
                "--rekey of tarcat gives new keys, tarsort joins them",
                url=sample.shard,
            )
        last = sample.raw_key if sample.grouped else None
        yield check_safe_key(sample)


def check_safe_key(sample: Sample) -> Sample:
    """Return *sample* unchanged. Raises: SampleError if its key is empty or absolute, or a part of its path is `..`."""
    if b".." in sample.raw_key or sample.raw_key[:1] in (b"", b"/"):
        try:
            require_safe_key(sample.key)
        except SampleError as error:
            raise SampleError(f"{error.message}; --rekey of tarcat gives new keys", url=sample.shard) from None
    return sample


def write_readable(lines: Iterable[bytes], sink: Sink, output: ExportOutput) -> None:
    """Write *lines* to *sink*; if *output* is a terminal, with control characters escaped by `printable_lines`."""
    write_lines(map(process.printable_lines, lines) if output.is_terminal else lines, sink)
