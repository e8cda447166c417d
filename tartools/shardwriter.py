"""One shard that is being written: it appears under its name when it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tartools import compression, storage, tar
from tartools.errors import SampleError, StorageError, shown
from tartools.sample import Batch, Sample
from tartools.storage.interrupts import signals_wait


class ShardWriter:
    """Writes one shard to *url*: samples, then at `commit` the end of the archive; only then has it its name.

    Refuses two samples of one key side by side, which a reader would take for one.

    Raises: StorageError, UsageError.
    """

    def __init__(self, url: str, *, force: bool = False, gzip: bool = False) -> None:
        codec = compression.codec_for(url, gzip)
        self.url = url
        compressor = codec.compressor() if codec else None
        self._output = storage.open_write(url, force)
        self._compressed = compression.CompressedSink(self._output.sink, compressor) if compressor else None
        self._writer = tar.Writer(self._compressed or self._output.sink)
        self._last = Sample(b"")
        self._broken = False  # a write failed half way
        self.samples = 0

    @property
    def size(self) -> int:
        """Bytes of the tar so far, before compression and without its end."""
        return self._writer.size

    def write(self, sample: Sample) -> None:
        """Add *sample*. Raises: SampleError if its key is that of the sample before it."""
        self._follow(sample)
        self._last = sample
        self._broken = True
        sample.write_to(self._writer)
        self._broken = False
        self.samples += 1

    def write_batch(self, batch: Batch, first: int, last: int) -> None:
        """Add samples number *first* to *last*, without that, of *batch*, as `write` does."""
        self._follow(batch[first])  # those behind it have other keys: the reader would have joined them
        self._last = batch[last - 1]
        self._broken = True
        batch.write_to(self._writer, first, last)
        self._broken = False
        self.samples += last - first

    def _follow(self, sample: Sample) -> None:
        """Raise SampleError if the key of *sample* is that of the sample before it."""
        last = self._last
        if sample.raw_key == last.raw_key and self.samples and sample.grouped and last.grouped:
            where = " and ".join(dict.fromkeys(shown(s.shard) for s in (last, sample) if s.shard))
            help = f" (from {where}); tarcat --rekey gives new keys, tarsort joins them" if where else ""
            raise SampleError(
                f"two samples with the key {sample.key!r} side by side, which readers would take for one{help}"
            )

    def commit(self) -> None:
        """Write the end of the archive, and let the shard appear under its name.

        Raises: StorageError, also if a `write` failed before: what follows it is no archive any more.
        """
        if self._broken:
            raise StorageError("an earlier write failed, so this is no whole archive", url=self.url)
        self._writer.end()
        if self._compressed:
            self._compressed.finish()
        self._output.commit()

    def abort(self, *, flush: bool = True) -> None:
        """Give up: no end is written and no file appears. Whole samples that went to stdout stay there.

        Those that wait to go there still do if we are to *flush*; they may have to wait for a reader.
        """
        try:
            if flush and self._output.streaming and not self._broken:
                self._writer.flush()
        finally:
            self._output.abort()


@contextmanager
def shard_writer(url: str, *, force: bool = False, gzip: bool = False) -> Iterator[ShardWriter]:
    """Give a `ShardWriter` that commits when the block ends normally, and aborts when it doesn't."""
    writer: ShardWriter | None = None
    try:
        with signals_wait():
            writer = ShardWriter(url, force=force, gzip=gzip)
        yield writer
        writer.commit()
    except BaseException as error:
        try:
            if writer is not None:
                writer.abort(flush=isinstance(error, Exception))  # who is told by a signal to end waits for nobody
        except Exception as second:
            error.add_note(f"then, while giving up: {second}")
        raise
