"""`pack`: a dataset to shards and their table. Run again, it writes the missing shards."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from tartools import storage, tar
from tartools.errors import SampleError, StorageError, TarToolsError, UsageError, byte_size, shown
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.encoding import ENCODERS, encode, encode_picture, split_codec, text_payload, to_python
from tartools.samples.filetypes import suffix_of
from tartools.samples.sample import Sample, build, raw_bytes
from tartools.samples.sortkeys import make_shuffle_key
from tartools.shards.numbering import Numbering, existing_shards, parse_numbering
from tartools.shards.reading import Reading, ShardPolicy, read_batches
from tartools.shards.shardrows import write_rows
from tartools.shards.writing import Destination, SampleWriter, codec_for, shard_writer
from tartools.storage.checks import version_of
from tartools.storage.names import has_number, local_url
from tartools.storage.url import Name, name_of
from tartools.tables import schema
from tartools.tables.catalog import ShardCatalog
from tartools.tables.inputs import RowInputs
from tartools.tables.rows import RowBlock, RowSpool
from tartools.tables.table import Table

KEEP_ENCODING, PICTURE_ENCODINGS = "keep", ("jpg", "png", "webp")
ENCODING_OPTIONS = {"jpg": {"quality": 95}, "webp": {"quality": 95}}
# others become RGB; of png all that it can hold
MODES_BY_ENCODING = {"jpg": ("L", "RGB", "CMYK"), "webp": ("RGB", "RGBA")}
SAMPLES_IN_MESSAGE = 16  # samples that cross from a worker at once

log = logging.getLogger("tartools.train")


def pack(
    dataset: Any,
    output: Name,
    max_size: int | str = "1GB",
    max_count: int | None = None,
    workers: int = 0,
    seed: int | None = None,
    encode: str = KEEP_ENCODING,
) -> str:
    """Write the samples of *dataset* to shards, and a table of them; return the URL of the table.

        table = tartools.train.pack(ImageFolder("photos"), "s3://bucket/photos", max_size="256MB", workers=4, seed=1)
        data = tartools.train.TableDataset(table, fields=("jpg;png", "cls"), decode="pil")

    *dataset* has a length and items by number: dicts, or pairs of a picture and its label. Where it lists files, as
    torchvision's `ImageFolder` does in `samples`, and *encode* is "keep", the files are stored as they are, and
    transforms are not applied. Otherwise PIL images are stored as *encode* says, "jpg" or "webp" with quality 95, or
    "png", which is also the format of "keep". Arrays and tensors become npy, except that uint8 arrays [height, width]
    and [height, width, 3] become pictures if *encode* is a format. In a pair, text and fractions become txt, whole
    numbers cls, dicts and lists json, bytes bin; a label of the same suffix as the picture becomes label.SUFFIX. In a
    dict, the names are the fields, but for names that begin with two underscores, which are left out; the suffix of the
    format is added to the name of a picture, array, dict or list that has none, but not to the names of text, numbers
    and bytes. Fields that end in npz, mp, ten and pth take all values that `TarWriter` takes there. Item 41 has the key
    000000041.

    *output* is a prefix or pattern, as for tarsplit: "photos" gives `photos-000000.tar`, ... and the table
    `photos.parquet`, "photos-%03d.tar" gives `photos-000.tar`, ... and the same table. A shard has up to *max_size*
    bytes and *max_count* samples; one sample that is larger has a shard of its own.

    Order: that of the dataset, or with *seed* a permutation of it, which depends on seed and length only. The same
    items give the same bytes, with any number of *workers*, which are those of a DataLoader; 0: none.

    A shard appears under its name when it is complete, and the table at the end. Shards that exist are kept, after a
    check: their first and last samples must be those that would be written, and their ends where they would be. So a
    run that was killed is just started again. A table of as many samples as the dataset has is replaced.

    Holds: 32 samples a worker, 8 bytes an item, 60 bytes a sample; what the store's upload holds. It needs no temporary
    files, but for the rows of the table.
    Raises: SampleError for an item that can't be read or written; StorageError, also if other shards, or a table of
    another number of samples, are there; TarFormatError if a shard that is there is damaged; UsageError for an *output*
    of compressed shards (.tar.gz) or another format, or with two numbers; ValueError for an empty dataset, a text
    *max_size* that is no size, or a wrong *max_count* or *encode*; OSError for a local folder that can't be listed.
    """
    output = name_of(output)
    names = parse_numbering(output, gzip=False)
    if codec_for(names.name(0), False) is not None:
        raise UsageError("samples of compressed shards can't be read alone: name .tar", url=output)
    schema.check_pyarrow()
    packing = _Packing(EncodedItems(dataset, encode), names, max_size, max_count, workers, seed)
    table = table_url(output, names)
    if storage.exists(table) and (rows := len(Table(table))) != len(packing.order):
        message = f"is a table of {rows} samples, and the dataset has {len(packing.order)}: give another OUTPUT"
        raise StorageError(message, url=table)
    try:
        inputs = packing.run()
    finally:
        packing.end_workers()
    write_rows(inputs, table, force=True)
    return table


def table_url(output: str, names: Numbering) -> str:
    """Return the URL of the table of the shards that `pack` writes to *output*, whose numbering is *names*.

    It is the part of a shard's URL before the number, without "-", "_" and "." at its end, with .parquet:
    "d/a-%03d.tar" -> "d/a.parquet"; "samples.parquet" in the folder if nothing but those comes before the number.
    """
    base = (names.prefix if has_number(output) else names.prefix.removesuffix("-")).rstrip("-_.")
    return f"{base}samples.parquet" if not base or base.endswith("/") else f"{base}.parquet"


class _Packing:
    """One run of `pack`: call `run` once, and then `end_workers`, also after an error.

    `order`: the numbers of items in the order in which they are written
    *encoded*: the items as samples; *names*: the names of the shards, by number from 0 on
    *max_size*: bytes of a shard, or a text such as "1GB"; *max_count*: samples of a shard, None: no limit
    *workers*: of a DataLoader, 0 for none; *seed*: of the permutation, None for the order of the dataset
    Raises: ValueError for an empty dataset, a *max_count* below 1, or a text *max_size* that is no size.
    """

    def __init__(
        self,
        encoded: EncodedItems,
        names: Numbering,
        max_size: int | str,
        max_count: int | None,
        workers: int,
        seed: int | None,
    ) -> None:
        count = len(cast(Sized, encoded))
        if not count:
            raise ValueError("the dataset is empty")
        if max_count is not None and max_count < 1:
            raise ValueError(f"max_count is at least 1, not {max_count}")
        self.order: Sequence[int] = range(count) if seed is None else sorted(range(count), key=make_shuffle_key(seed))
        self._encoded = encoded
        self._names = names
        self._capacity = tar.capacity_of_archive(byte_size(max_size) if isinstance(max_size, str) else max_size)
        self._max_count = max_count
        self._workers = workers
        self._next: tuple[int, Sample] | None = None  # a position, and its sample, which no shard has had yet
        self._read: Iterator[Sample] = iter(())  # the samples behind it

    def run(self) -> RowInputs:
        """Write all missing shards, check the existing ones; return the rows of all, in the order of the shards.

        Raises: StorageError if an existing shard has other samples or is compressed, if one can't be read or written,
        and, after all are written, if there is one with a number after the last of this run; TarFormatError if one is
        damaged; SampleError for an item that can't be read or encoded; OSError for a folder that can't be listed.
        """
        catalog = ShardCatalog()
        spool = RowSpool((), {}, catalog)
        old = existing_shards(self._names)
        position = number = 0
        while position < len(self.order):
            url = self._names.name(number)
            exists = number in old or storage.exists(url)
            block = self._check_shard(url, position) if exists else self._write_shard(url, position)
            log.info("%s: %s, %d samples", shown(url), "is there" if exists else "written", len(block))
            spool.add_shard(url, version_of(url))
            spool.add(block.packed())
            position += len(block)
            number += 1
        if surplus := [name for n, name in sorted(old.items()) if n >= number]:
            raise StorageError(
                "exists, and is not one of these shards: remove it, or give another OUTPUT", url=surplus[0]
            )
        return RowInputs([spool], catalog)

    def end_workers(self) -> None:
        """End the workers, if any, by dropping the iterator over their samples; a traceback would keep it alive."""
        self._read = iter(())

    def _is_full(self, count: int, size: int, sample: Sample) -> bool:
        """True if a shard of *count* samples has no room for *sample*, which has to go to the next one.

        It has `max_count` samples, or *size* bytes of members, which with *sample* and the end of the archive would be
        more than `max_size`. An empty shard takes any sample.
        """
        return count > 0 and (count == self._max_count or size + sample.size > self._capacity)

    def _write_shard(self, url: str, position: int) -> RowBlock:
        """Write the shard *url* with the samples from *position* in `order` on, until it is full; return its rows.

        It ends, too, when no sample is left. The sample that did not fit is kept for the next shard. Raises:
        SampleError for an item that can't be read or encoded, StorageError if the shard can't be written; then it does
        not appear.
        """
        block = RowBlock(url)
        with shard_writer(Destination(url)) as sink:
            writer = cast(SampleWriter, sink)
            for sample in self._samples(position):
                if self._is_full(len(block), writer.size, sample):
                    self._next = position + len(block), sample
                    break
                block.add(Batch.from_sample(sample, writer.size))
                writer.write(sample)
        return block

    def _samples(self, position: int) -> Iterator[Sample]:
        """Return an iterator over the samples from *position* in `order` on, which workers, if any, read in advance.

        If the last shard was written up to *position*, these are the sample that did not fit into it, and the rest of
        its iterator: nothing is read twice. For another *position* reading starts anew.
        """
        if self._next is not None and self._next[0] == position:
            return chain([self._next[1]], self._read)
        self._read = self._start_reading(position)
        return self._read

    def _start_reading(self, position: int) -> Iterator[Sample]:
        """Return an iterator over the samples from *position* in `order` on; workers, if any, begin to read them now.

        While it is iterated over, it raises SampleError for an item that can't be read or encoded.
        """
        indexes = self.order[position:]
        if not self._workers:
            return (_raise_error(self._encoded[index]) for index in indexes)
        batches = DataLoader(
            self._encoded,
            SAMPLES_IN_MESSAGE,
            sampler=indexes,
            num_workers=self._workers,
            collate_fn=list,
            generator=torch.Generator(),  # or it would draw from the caller's
        )
        return (_raise_error(item) for batch in batches for item in batch)

    def _check_shard(self, url: str, position: int) -> RowBlock:
        """Return the rows of the shard *url*, which exists, after a check that it has the samples from *position* on.

        Compared are its first and last sample, byte by byte, and its end, which has to be where the shard is full or
        the dataset ends. Raises: StorageError if they differ, or if the shard is empty or compressed, or can't be read;
        TarFormatError if it is damaged; SampleError if one of the items compared, or the next one after them, can't be
        read or encoded.
        """
        block = RowBlock(url)
        ends: list[Sample] = []
        for batch in read_batches([url], Account(), Reading(policy=ShardPolicy(reject_compressed=True))):
            block.add(batch)
            ends = [ends[0] if ends else batch[0].own(), batch[len(batch) - 1].own()]
        mismatch = StorageError(
            "holds other samples than would be written now: remove it, or give another OUTPUT", url=url
        )
        count = len(block)
        if not count or position + count > len(self.order) or (self._max_count is not None and count > self._max_count):
            raise mismatch
        for sample, place in zip(ends, (position, position + count - 1), strict=True):
            if raw_bytes(sample.members) != raw_bytes(_raise_error(self._encoded[self.order[place]]).members):
                raise mismatch
        size = block.ends[-1]
        full = position + count == len(self.order) or self._is_full(
            count, size, _raise_error(self._encoded[self.order[position + count]])
        )
        if not full or (count > 1 and size > self._capacity):
            raise mismatch
        return block


def _raise_error(item: Sample | TarToolsError) -> Sample:
    """Return *item* if it is a sample; raise it if it is an error."""
    if isinstance(item, TarToolsError):
        raise item
    return item


class EncodedItems(Dataset[Any]):
    """The items of *dataset* as a dataset of `Sample`, whose keys are the numbers of the items, in 9 digits.

    *kind*: format in which pictures are stored, "jpg", "png" or "webp"; "keep" for files as they are if the dataset
    lists them (`find_item_file`), and other pictures as png. For an item that can't be read or encoded, `items[index]`
    returns a SampleError instead of raising it, because workers can't raise it unchanged. The fields of an item are
    described at `pack`. Raises: ValueError for another *kind*.
    """

    def __init__(self, dataset: Any, kind: str = KEEP_ENCODING) -> None:
        if kind not in (KEEP_ENCODING, *PICTURE_ENCODINGS):
            raise ValueError(f"encode is 'keep', {', '.join(map(repr, PICTURE_ENCODINGS))}; not {kind!r}")
        self.dataset = dataset
        self.kind = kind

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample | TarToolsError:
        try:
            fields = (self._stored_fields(index) if self.kind == KEEP_ENCODING else None) or self._fields(
                self.dataset[index]
            )
            return build({"__key__": f"{index:09d}", **fields})
        except Exception as error:
            text = str(error) if isinstance(error, TarToolsError) else f"{type(error).__name__}: {error}"
            return SampleError(f"item {index} of the dataset: {text}")

    def _stored_fields(self, index: int) -> dict[str, bytes] | None:
        """Return the payloads of item *index* by field, without decoding: the bytes of its file, and its label.

        The field of the file is its suffix in lower case; that of the label, such as cls, is the one that
        `_label_field` returns. None if the dataset names no file for it, or the file has no suffix. Raises:
        StorageError if the file can't be read; the errors of `_label_field` and `find_item_file`.
        """
        path_and_label = find_item_file(self.dataset, index)
        if path_and_label is None:
            return None
        path, label = path_and_label
        suffix = os.path.splitext(path)[1][1:].lower()
        if not suffix:
            return None
        name, value = self._label_field(label, {suffix})
        return {suffix: storage.read_content(local_url(os.fspath(path))), name: value}

    def _fields(self, item: Any) -> dict[str, bytes]:
        """Return the payloads by field of *item*: a dict, or a pair (picture, array, fraction, text or bytes; label).

        In a dict the names are the fields (`_named_field`), and names that begin with two underscores are left out; in
        a pair, a tuple or list of two, they are the suffixes of both: png, cls; for equal ones txt, label.txt. Raises:
        TypeError for another item or value, and for a whole number, dict or list as the first of a pair; the other
        errors of `_payload`.
        """
        if isinstance(item, Mapping):
            pairs = (self._named_field(name, value) for name, value in item.items() if not name.startswith("__"))
            return dict(pairs)
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise TypeError(f"an item is a dict, or a picture and its label; not {type(item).__name__}")
        kind = self._value_suffix(item[0])
        if kind in ("cls", "json"):
            raise TypeError(f"the first of two is a picture, an array or text; not {type(item[0]).__name__}")
        name, value = self._label_field(item[1], {kind})
        return {kind: self._payload(kind, item[0]), name: value}

    def _label_field(self, label: Any, used_names: set[str]) -> tuple[str, bytes]:
        """Return (field, payload) of *label*. The field is its suffix, as cls; label.cls if *used_names* have that.

        Raises: TypeError for a value that `_value_suffix` refuses; the errors of `_payload`.
        """
        kind = self._value_suffix(label)
        return f"label.{kind}" if kind in used_names else kind, self._payload(kind, label)

    def _named_field(self, name: str, value: Any) -> tuple[str, bytes]:
        """Return (field, payload) of *value*, which is called *name* in a dict.

        The field is *name*; for a picture, array, dict or list whose *name* has no suffix of such a format, the suffix
        is added: "left" -> "left.png". Text, numbers and bytes keep *name*. If *name* ends in a suffix of `ENCODERS`,
        such as json or npy, any *value* but bytes is encoded so, and a picture if it ends in a picture's (jpg, jpeg,
        png, webp, tif, tiff). All but bytes are compressed if a codec's suffix follows that, as json.gz, and text and
        numbers if *name* ends in one, as txt.gz. Bytes are stored unchanged.
        Raises: TypeError for a value that can't be encoded; the other errors of `_payload`.
        """
        last = suffix_of(split_codec(name)[0])
        if last in ENCODERS:
            return name, encode(name, value)
        kind = self._value_suffix(value)
        if kind == "bin":
            return name, self._payload(kind, value)
        is_picture = kind in PICTURE_ENCODINGS
        if kind in ("cls", "txt") or (is_picture and last in (*PICTURE_ENCODINGS, "jpeg", "tif", "tiff")):
            return name, text_payload(name, self._payload(last if is_picture else kind, value))
        return f"{name}.{kind}", self._payload(kind, value)

    def _value_suffix(self, value: Any) -> str:
        """Return the suffix for *value*: of a picture its format, else npy, cls, txt, json, or bin for bytes.

        Whole numbers and booleans are cls, fractions txt like text. A picture is a PIL image, of which "keep" makes
        png; a uint8 array [height, width] or [height, width, 3], unless `kind` is "keep". A tensor counts as an array,
        one without a dimension as a number. Raises: TypeError for a value of another class.
        """
        value = to_python(value)
        if type(value).__module__.startswith("PIL."):
            return "png" if self.kind == KEEP_ENCODING else self.kind
        if isinstance(value, np.ndarray):
            is_picture = value.dtype == np.uint8 and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 3))
            return self.kind if is_picture and self.kind != KEEP_ENCODING else "npy"
        if isinstance(value, int):
            return "cls"
        if isinstance(value, (str, float)):
            return "txt"
        if isinstance(value, (dict, list)):
            return "json"
        if isinstance(value, (bytes, bytearray)):
            return "bin"
        raise TypeError(f"cannot write values of type {type(value).__name__}")

    def _payload(self, kind: str, value: Any) -> bytes:
        """Return *value* encoded as a payload with the suffix *kind*: of `ENCODERS`, a picture's, or txt, cls or bin.

        For a picture *value* is a PIL image or a uint8 array; if jpg or webp lack its mode, it becomes RGB. Bytes stay
        as they are, whole numbers are decimal, True is 1. Raises: TypeError if it can't be encoded so;
        UnicodeEncodeError for a lone surrogate; ModuleNotFoundError without the package that writes the format.
        """
        value = to_python(value)
        if kind in ENCODERS:
            return encode(kind, value)
        if isinstance(value, np.ndarray):
            from PIL import Image

            value = Image.fromarray(value)
        if type(value).__module__.startswith("PIL."):
            name = "jpg" if kind == "jpeg" else kind
            if name in MODES_BY_ENCODING and value.mode not in MODES_BY_ENCODING[name]:
                value = value.convert("RGB")
            return encode_picture(kind, kind, value, **ENCODING_OPTIONS.get(name, {}))
        return encode(kind, int(value) if isinstance(value, bool) else value)


def find_item_file(dataset: Any, index: int) -> tuple[str, Any] | None:
    """Return (path, label) of item *index* if *dataset* lists files as torchvision's `ImageFolder` does, else None.

    It lists files if it has `loader`, and `samples` or `imgs`, pairs of a path and a label, one for each item. The
    label returned is the result of the dataset's `target_transform`, if it has one. For a torch `Subset` of such a
    dataset, the item is looked up in the dataset. Raises: IndexError if there is no item *index*; the errors of
    `target_transform`.
    """
    while isinstance(dataset, Subset):
        dataset, index = dataset.dataset, dataset.indices[index]
    listed = getattr(dataset, "samples", None) or getattr(dataset, "imgs", None)
    if not isinstance(listed, (list, tuple)) or not hasattr(dataset, "loader") or len(listed) != len(dataset):
        return None
    path, label = listed[index]
    transform = getattr(dataset, "target_transform", None)
    return os.fspath(path), label if transform is None else transform(label)
