"""Batches of samples: torch's or webdataset's collation with errors that name the field, and `padded`.

A sample is a tuple, a dict or a value. A batch of tuples has the values of one field side by side, so all values of a
field must have one shape. Where they have not, torch and webdataset name neither the field nor a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, default_collate
from webdataset import filters

from tartools.errors import SampleError
from tartools.samples.filetypes import PICTURES, SOUNDS, VIDEOS, suffix_of
from tartools.train.sampler import datasets_in

DEFAULT_FUNCTIONS = (default_collate, filters.default_collation_fn)  # whose errors are explained
MAX_CHANNELS = 4  # of a picture
MAX_SEQUENCE_DIMENSIONS = 2  # tokens, and channels of a sound; what has more is a picture or a clip


class UnequalBatchError(SampleError, RuntimeError):
    """Samples don't fit into one batch: values of a field differ in shape or length, or one is None or absent."""


class Padded(NamedTuple):
    """Sequences of unequal length in one tensor.

    `values`: the sequences, filled up at their ends to the longest: [batch, length] or [batch, channels, length]
    `lengths`: their lengths before, int64 [batch]
    """

    values: torch.Tensor
    lengths: torch.Tensor


class FieldCollation:
    """A collate_fn: calls *function*, and explains its error if values of a field do not fit into one batch.

    Call it with the list of samples, at least one; it returns what *function* makes of them. *names*: the field of each
    value, if samples are tuples or lists of as many values; (): messages number the values. *argument*: name of the
    argument that takes another function, for messages.
    Raises: UnequalBatchError if *function* fails, and the samples do not fit into one batch: it has the field, or the
    number of the value, the reason (shapes, numbers of items, None, a missing field) and advice; other errors of
    *function* as they are.
    """

    def __init__(
        self, function: Callable[[list[Any]], Any], names: Sequence[str] = (), argument: str = "collate_fn"
    ) -> None:
        self.function, self.names, self.argument = function, tuple(names), argument

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch that the function makes of *samples*, at least one.

        Raises: UnequalBatchError, with the field and the reason, if the function fails and they do not fit into one
        batch; other errors of the function.
        """
        try:
            return self.function(samples)
        except Exception:  # torch, webdataset and numpy have many
            if problem := describe_mismatch(samples, self.names, self.argument):
                raise UnequalBatchError(problem) from None
            raise


def with_explanation(function: Any, names: Sequence[str], argument: str = "collate_fn") -> Any:
    """Return *function* as a `FieldCollation`, which explains errors, if it is torch's or webdataset's default.

    Any other function is returned unchanged; None stands for torch's default. *names*: fields of samples that are
    tuples of as many values; (): messages number the values.
    *argument*: name of the argument that takes another function, for messages.
    """
    if function is None or any(function is default for default in DEFAULT_FUNCTIONS):
        return FieldCollation(function or default_collate, names, argument)
    return function


def field_names(dataset: Any) -> Sequence[str]:
    """Return the names of the fields in the tuples of *dataset*, also through torch's Subset and ConcatDataset.

    They are the `names` of its `chooser`, a `FieldChooser`: in the order of the tuples, "jpg;png" for a choice. Empty
    if samples are dicts, there is no `chooser`, or parts of a ConcatDataset have different fields.
    """
    if isinstance(dataset, (Subset, ConcatDataset)):
        names = {tuple(field_names(part)) for part in datasets_in(dataset)}
        return names.pop() if len(names) == 1 else ()
    return getattr(getattr(dataset, "chooser", None), "names", ())


# ---- what is wrong with a batch ----


def describe_mismatch(samples: Sequence[Any], names: Sequence[str], argument: str) -> str:
    """Return the first reason why *samples*, at least one, do not fit into one batch, and advice; "" if none is found.

    Reasons: a value is None, fields are not in all samples, or shapes of tensors or arrays, or numbers of items of
    lists or tuples, differ. *names*: fields of samples that are tuples or lists of as many values; values of other
    samples are numbered, or named by the keys of dicts. *argument*: name of the argument that takes another function
    for batches.
    """
    is_named = all(isinstance(sample, (list, tuple)) and len(sample) == len(names) for sample in samples)
    if names and is_named:
        columns = zip(names, zip(*samples, strict=True), strict=True)
        reasons = (_describe_values(values, f"field {name!r}", name, argument) for name, values in columns)
        return next(filter(None, reasons), "")
    return _describe_values(samples, "", "", argument)


def _describe_values(values: Sequence[Any], place: str, field: str, argument: str) -> str:
    """Return why *values*, one of each sample, do not fit into one batch, and advice; "" if no reason is found.

    *values*: at least one. *place*: where they are, as "field 'jpg', item 0"; "": they are whole samples. *field*:
    their field, "" if it is not known. *argument*: name of the argument that takes another function for batches.
    """
    subject = place or "a sample"
    if any(value is None for value in values):
        number = next(number for number, value in enumerate(values) if value is None)
        return f"{subject} is None in sample {number} of the batch: leave such samples out, or write {argument}=list"
    if all(isinstance(value, Mapping) for value in values):
        for number, value in enumerate(values):
            if absent := sorted({*map(str, values[0])} ^ {*map(str, value)}):
                return (
                    f"samples 0 and {number} of the batch do not both have the field {absent[0]!r}: choose fields that "
                    f"all have, as in fields='jpg cls', or write {argument}=list"
                )
        parts = ((name, [value[name] for value in values]) for name in values[0])
        reasons = (_describe_values(part, f"field {name!r}", str(name), argument) for name, part in parts)
        return next(filter(None, reasons), "")
    if all(isinstance(value, (list, tuple)) for value in values):
        if len(lengths := dict.fromkeys(map(len, values))) > 1:
            return _unequal_message(subject, f"{' and '.join(map(str, [*lengths][:2]))} items", _pad_advice(argument))
        columns = enumerate(zip(*values, strict=True))
        prefix = f"{place}, " if place else ""
        reasons = (_describe_values(part, f"{prefix}item {number}", field, argument) for number, part in columns)
        return next(filter(None, reasons), "")
    if not all(isinstance(value, (torch.Tensor, np.ndarray)) for value in values):
        return ""
    shapes = [*dict.fromkeys(tuple(value.shape) for value in values)]
    if len(shapes) < 2:
        return ""
    return _unequal_message(
        subject, f"shapes {list(shapes[0])} and {list(shapes[1])}", _shape_advice(field, shapes, argument)
    )


def _unequal_message(subject: str, sizes: str, advice: str) -> str:
    """Return the message that *subject* ("field 'jpg'") has *sizes* ("shapes [3] and [4]") in a batch, and *advice*."""
    return f"{subject} has {sizes} in one batch, which needs equal ones: {advice}"


def _shape_advice(field: str, shapes: Sequence[tuple[int, ...]], argument: str) -> str:
    """Return the advice by which values of *field* with different *shapes* fit into one batch.

    *field*: "jpg;png", or "" if it is not known: then the shapes tell pictures. *argument*: name of the argument that
    takes another function for batches.
    """
    suffixes = {suffix_of(name) for name in field.split(";")}
    dimensions = {len(shape) for shape in shapes}
    if suffixes & PICTURES or (suffixes == {""} and all(map(_is_picture_shape, shapes))):
        if len(dimensions) > 1:
            return "write decode='torchrgb8', so that all pictures have three colours"
        return "write resize=(224, 224), or resize=tartools.train.Resize(256, crop=224)"
    if suffixes & VIDEOS:
        return f"write decode={{{field!r}: tartools.train.Video(frames=8, size=224)}}"
    if suffixes & SOUNDS:
        part = f"decode={{{field!r}: tartools.train.Sound(mono=True, rate=16000, seconds=2, pad=True)}}"
        if len({shape[:-1] for shape in shapes}) > 1:
            return f"write {part}, for one channel and one length"
        return f"write {argument}=tartools.train.padded for (values, lengths), or {part}"
    if max(dimensions) <= MAX_SEQUENCE_DIMENSIONS and len({shape[:-1] for shape in shapes}) == 1:
        return _pad_advice(argument)
    return f"make them equal by transform=, or write {argument}=list"


def _is_picture_shape(shape: tuple[int, ...]) -> bool:
    """True if *shape* may be the shape of a picture: it has three dimensions, and the first or last is at most 4."""
    return len(shape) == 3 and (shape[0] <= MAX_CHANNELS or shape[-1] <= MAX_CHANNELS)


def _pad_advice(argument: str) -> str:
    """Return the advice to fill sequences up. *argument*: name of the argument that takes a function for batches."""
    return f"write {argument}=tartools.train.padded for (values, lengths), or cut them to one length by transform="


# ---- padded ----


def padded(samples: Sequence[Any], value: float = 0) -> Any:
    """Return *samples*, at least one, as a batch with sequences of unequal length filled up: a collate_fn.

        batch = tartools.train.padded([(torch.tensor([5, 6, 7]), "a"), (torch.tensor([8]), "b")])
        (values, lengths), texts = batch  # [[5, 6, 7], [8, 0, 0]] and [3, 1], and ["a", "b"]

    A field of tensors or arrays with one or two dimensions (tokens, or channels by frames), or of lists of numbers,
    becomes (values, lengths): the last dimension is filled up to the longest with *value*, at the end. It does so in
    each batch, even if all lengths are equal there. All else is collated as torch does: pictures and clips, with three
    dimensions or more, have to be of one shape. Samples that are tuples give a tuple, dicts a dict, and sequences a
    `Padded`, of the common type of its tensors; lists give int64, or float32 if one has floats. For a WebDataset:
    `.batched(16, collation_fn=tartools.train.padded)`; another *value*: `functools.partial(padded, value=-100)`.

    Raises: UnequalBatchError if values do not fit even so: with field or item and shapes, but with shapes only for
    sequences of different channels or dimensions; other errors of torch's collation, such as for a type.
    """
    try:
        return _pad_values(samples, value)
    except UnequalBatchError:
        raise
    except Exception:  # torch and numpy have many
        if problem := describe_mismatch(samples, (), "collate_fn"):
            raise UnequalBatchError(problem) from None
        raise


def _pad_values(values: Sequence[Any], fill: float) -> Any:
    """Return *values*, one of each sample, at least one, as a batch: sequences as a `Padded`, filled up with *fill*.

    Dicts with equal keys become a dict, tuples of one length a tuple, of batches of their parts; other values are
    collated by torch's `default_collate`. Raises: UnequalBatchError, of `_pad_tensors`; errors of `default_collate`.
    """
    first = values[0]
    if all(isinstance(value, Mapping) and value.keys() == first.keys() for value in values):
        return {name: _pad_values([value[name] for value in values], fill) for name in first}
    if all(map(_is_sequence, values)):
        return _pad_tensors([*_make_tensors(values)], fill)
    if isinstance(first, tuple) and all(isinstance(value, tuple) and len(value) == len(first) for value in values):
        return tuple(_pad_values(part, fill) for part in zip(*values, strict=True))
    return default_collate([*values])


def _is_sequence(value: Any) -> bool:
    """True if *value* is a tensor or array of one or two dimensions, or a list of int and float alone; [] is."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return 1 <= value.ndim <= MAX_SEQUENCE_DIMENSIONS
    return isinstance(value, list) and all(type(item) in (int, float) for item in value)


def _make_tensors(values: Sequence[Any]) -> Iterable[torch.Tensor]:
    """Yield *values*, tensors, arrays or lists of numbers, as tensors: lists as int64, or float32 if one has floats."""
    is_whole = all(type(item) is int for value in values if isinstance(value, list) for item in value)
    for value in values:
        if isinstance(value, list):
            yield torch.tensor(value, dtype=torch.int64 if is_whole else torch.float32)
        else:
            yield torch.as_tensor(value)


def _pad_tensors(tensors: list[torch.Tensor], fill: float) -> Padded:
    """Return *tensors* of one or two dimensions in one tensor, of their common type, filled up at the end with *fill*.

    Raises: UnequalBatchError if they differ in another dimension than the last, or in the number of dimensions.
    """
    shapes = [*dict.fromkeys(tuple(tensor.shape) for tensor in tensors)]
    if len({shape[:-1] for shape in shapes}) > 1:
        mismatch = next(shape for shape in shapes if shape[:-1] != shapes[0][:-1])
        raise UnequalBatchError(
            f"shapes {list(shapes[0])} and {list(mismatch)} in one batch differ in more than their length: make the "
            "channels equal"
        )
    lengths = [tensor.shape[-1] for tensor in tensors]
    kind = reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
    values = torch.full((len(tensors), *shapes[0][:-1], max(lengths)), fill, dtype=kind)
    for row, tensor, length in zip(values, tensors, lengths, strict=True):
        row[..., :length] = tensor
    return Padded(values, torch.tensor(lengths))
