"""What the commands share that write samples to one file of another format."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from tartools import cli, storage
from tartools.cli import process
from tartools.errors import SampleError, UsageError
from tartools.formats import packed
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.shards.reading import closing_upstream, read_samples
from tartools.stages import select
from tartools.storage.streams import Sink
from tartools.storage.url import Url
from tartools.tar.compression import split_packed

TEXT, TFRECORD = "text", "TFRecord"  # kinds of files that are compressed if their name says so


class ExportOutput(cli.Group, shared=True):
    """The file to write."""

    url: cli.Url = "-"
    force: cli.Force = False

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at what is written."""
        return self.url == "-" and os.isatty(1)


def export(
    account: Account,
    source: cli.Inputs,
    output: ExportOutput,
    kind: str,
    write: Callable[[Iterator[Sample], Sink], None],
    wanted: cli.Fields | None = None,
    specs: Sequence[str] | None = None,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Write the samples of the inputs *source* by *write* to a file of this *kind*.

    Of their fields it gets those that *specs* choose and *wanted* does not exclude. *check* raises if a library is
    missing; it is called once the inputs are known to be there.
    Raises: UsageError for what is not written to a terminal, or compressed inside and named otherwise; as `distinct`;
    what they raise.
    """
    whole = Url(output.url)
    if kind not in (TEXT, TFRECORD) and whole.scheme != "pipe" and (bare := split_packed(whole.name)[0]) != whole.name:
        raise UsageError(f"a {kind} file is compressed inside: call it {bare}, not {whole.name}")
    urls = source.urls()
    storage.check_output(output.url, output.force, urls)
    if kind != TEXT and output.is_terminal:
        raise UsageError(f"stdout is a terminal, which cannot show a {kind} file: use -o FILE, > FILE or a pipe")
    samples = read_samples(urls, account, source.reading)
    check()
    if wanted is not None:
        samples = select.by_specs(samples, specs, wanted.exclude, account, verbatim=wanted.verbatim)
    writing = packed.writing_packed if kind in (TEXT, TFRECORD) else storage.writing
    with closing_upstream(samples), writing(output.url, output.force) as sink:
        write(distinct(samples), sink)
        account.check()


def distinct(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield *samples*. Raises: SampleError if two side by side have one key, which readers would take for one."""
    last: bytes | None = None
    for sample in samples:
        if sample.raw_key == last and sample.grouped:
            raise SampleError(
                f"two samples with the key {sample.key!r} side by side, which readers would take for one: "
                "--rekey of tarcat gives new keys, tarsort joins them",
                url=sample.shard,
            )
        last = sample.raw_key if sample.grouped else None
        yield sample


def write_readable(lines: Iterable[bytes], sink: Sink, output: ExportOutput) -> None:
    """Write *lines* to *sink*, which is *output*; a terminal gets no control characters."""
    from tartools.formats.textwrite import write_lines

    write_lines(map(process.printable_lines, lines) if output.is_terminal else lines, sink)
