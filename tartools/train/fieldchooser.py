"""Samples for training: their fields as a dict or a tuple, decoded and transformed.

Decoders are those of webdataset. What would unpickle is refused, because whoever wrote the shards could run code.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import islice
from typing import Any

from tartools import storage
from tartools.errors import SampleError, TarToolsError
from tartools.samples.encoding import split_codec
from tartools.samples.payloads import unpack
from tartools.samples.sample import DICT_KEY, DICT_URL, Sample, field_name
from tartools.samples.values import field_list
from tartools.storage.url import Name, name_of
from tartools.tar import Member
from tartools.train.clips import Clip, decode_clip, fields_by_range, split_clips
from tartools.train.payloaddecoding import AS_FILE, Resize, make_decoder, picture_decoders
from tartools.train.sampleseeds import SampleSeeds, SharedSeeds, call_with_seed, seed_parameter
from tartools.train.sending import check_sent
from tartools.train.workererrors import note_result

RESERVED_PREFIX = "__"  # names of a dict that begin with it are no fields
MAX_CLASSES_IN_MESSAGE = 10  # classes in a message

Fields = str | Sequence[str] | None
Decoder = str | Callable[..., Any] | Clip
Decode = Decoder | Sequence[Decoder] | Mapping[str, Decoder] | None
PictureSize = int | tuple[int, int] | Resize | None
Size = PictureSize | Mapping[str, PictureSize]
Classes = Name | Iterable[str] | Mapping[str, Name | Iterable[str]] | None


class FieldChooser:
    """Chooses, decodes and transforms the fields of a sample. Call it with a `Sample`, or with a dict from `as_dict`.

        FieldChooser(("jpg;png", "cls"), "pil", (augment, None))

    *fields*: names for a tuple of these, "jpg;png" for the first of two that a sample has; None for a dict of all
    fields, with `__key__` and `__url__`.
    *decode*: a decoder, several, or a dict of these by field, also of `Sound` and `Video`; None for bytes. Nothing is
    unpickled by default.
    *transform*: a function of the result, or one for each field.
    *resize*: size of pictures: pixels of the shorter side, (height, width), or a `Resize`; or a dict of these by field.
    *exif*: True turns pictures as their EXIF data say.
    *classes*: names that become numbers, or the URL of a file with one on each line, for the field `cls`; or a dict of
    these by field.
    *missing*: None for the value None where a sample lacks a field. Else that is an error: "skip" is for datasets,
    which leave out such samples before they come here. All of them: docs/training/fields.md.

    `names`: the *fields*, as a list; [] for None.
    `needed`: names of all fields that are read, in lower case; None for all.
    `files`: fields whose payloads it takes as open files, where they are ranges of a file.
    `raw`: True without *decode*, *transform* and *classes*: payloads stay bytes.
    `decoder`: webdataset's Decoder, for fields without a `Clip`; None without *decode*.
    `clips`: field -> `Clip`. `classes`: field -> {class name: number}.
    `seeds`: gives the seeds of samples, if a transform or a clip asks for them; else None.

    Raises: ValueError and TypeError for arguments that don't fit; StorageError for a file of *classes* that can't be
    read. When it is called: SampleError, with shard, sample and field; StorageError if a payload can't be read; an
    exception of a transform gets a note with shard and sample, and is a RuntimeError for StopIteration.
    """

    def __init__(
        self,
        fields: Fields = None,
        decode: Decode = None,
        transform: Any = None,
        resize: Size = None,
        classes: Classes = None,
        *,
        missing: str | None = "error",
        exif: bool = False,
    ) -> None:
        if missing not in ("error", "skip", None):
            raise ValueError(f"missing is 'error', 'skip' or None, not {missing!r}")
        self.missing = missing
        self.fields = None if fields is None else [name.split(";") for name in names_in(fields)]
        self.names = [";".join(names) for names in self.fields or ()]
        self.transform = transform
        if transform is not None and not callable(transform):
            self.transform = list(transform) if isinstance(transform, (list, tuple)) else []
            if self.fields is None or len(self.fields) != len(self.transform):
                raise ValueError("transform is a function, or a list of them, one for each of the fields")
        functions = self.transform if isinstance(self.transform, list) else [self.transform]
        self._seed_parameters = [seed_parameter(function) for function in functions]
        self.clips, decoders = split_clips(decode)
        is_random = any(self._seed_parameters) or any(clip.is_random for clip in self.clips.values())
        self.seeds: SharedSeeds | SampleSeeds | None = SharedSeeds() if is_random else None
        self.decoder = make_decoder(decoders, resize, exif)
        decoders_by_field = decode.items() if isinstance(decode, Mapping) else ()
        self.files = frozenset(  # a compressed one is decompressed in memory
            field.lower() for field, how in decoders_by_field if how == AS_FILE and split_codec(field)[1] is None
        ) | frozenset(fields_by_range(self.clips))
        self.classes = class_numbers(classes)
        self.raw = decode is None and transform is None and not self.classes  # payloads are given as they are
        all_names = (name for choices in self.fields or () for name in choices)
        self.needed = None if self.fields is None else {name.lower() for name in all_names}
        if self.needed is not None:
            decodable = self.needed | {split_codec(name)[0] for name in self.needed}
            sizes = [name for names in resize for name in names.split(";")] if isinstance(resize, Mapping) else ()
            for argument, fields_named in (
                ("decode", dict(decoders_by_field)),
                ("resize", sizes),
                ("classes", self.classes),
            ):
                if absent := [name for name in fields_named if name.lower() not in decodable]:
                    names = ", ".join(sorted(self.needed))
                    raise ValueError(f"{argument} names the field {absent[0]!r}, and the fields are {names}")

    @property
    def by_pillow(self) -> int:
        """The number of JPEGs that simplejpeg refused and Pillow decoded, here and in workers."""
        return sum(
            decoder.by_pillow for decoder in picture_decoders(() if self.decoder is None else self.decoder.handlers)
        )

    def __getstate__(self) -> dict[str, Any]:
        check_sent("transform", self.transform if isinstance(self.transform, list) else [self.transform])
        handlers = () if self.decoder is None else self.decoder.handlers
        check_sent("decode", [getattr(handler, "function", handler) for handler in handlers])
        return self.__dict__

    def __call__(self, sample: Sample | Mapping[str, Any]) -> Any:
        """Return the chosen fields of *sample*, decoded: a tuple, without *fields* a dict; or the transform's result.

        *sample*: a `Sample`, or a dict as `as_dict` makes it, with `__key__` and `__url__`. Raises: see the class.
        """
        fields: Any = as_dict(sample, None, self.files) if isinstance(sample, Sample) else sample
        result = self._result(fields)
        note_result(result, fields, self.names)
        return result

    def _result(self, fields: Mapping[str, Any]) -> Any:
        """Return the chosen fields of a sample, given as the dict *fields*, decoded and transformed.

        Raises: see the class.
        """
        if self.fields is not None:
            values = [self._value(fields, names) for names in self.fields]
            return self._apply_transform(fields, tuple(values))
        if self.decoder is not None or self.classes:
            fields = {name: self._decode_value(fields, name, value) for name, value in fields.items()}
        return self._apply_transform(fields, fields)

    def _value(self, sample: Mapping[str, Any], names: list[str]) -> Any:
        """Return the decoded value of the first of *names* that *sample* has, as written or in lower case.

        None if it has none and `missing` is None. Raises: SampleError if it has none otherwise, or it can't be decoded.
        """
        for name in names:
            field = name if name in sample else name.lower()
            if field in sample:
                return self._decode_value(sample, field, sample[field])
        if self.missing is None:
            return None
        have = field_list(name for name in sample if not name.startswith(RESERVED_PREFIX))
        raise _failure(sample, f"has no field {' or '.join(map(repr, names))}; its fields are: {have}")

    def _decode_value(self, sample: Mapping[str, Any], name: str, value: Any) -> Any:
        """Return *value*, the payload of the field *name* of *sample*, decoded: of a field with classes its number.

        In other fields values that are no payload (of a column of a table, None, or an open file of a field without a
        clip), the key and the URL are returned unchanged; without *decode* all values are. A payload that no decoder
        takes stays bytes, decompressed if *name* says so (bin.gz). Raises: SampleError, naming shard, sample and field.
        """
        if name in self.classes:
            return self._class_number(sample, name, value)
        clip = self.clips.get(name)
        is_payload = isinstance(value, bytes) or (clip is not None and hasattr(value, "read"))  # not of a column
        if self.decoder is None or name[:2] == RESERVED_PREFIX or not is_payload:
            return value
        try:
            if clip is not None:
                return decode_clip(clip, name, value, self._seed_of(sample) if clip.is_random else None)
            return self.decoder.decode1(name, value)
        except Exception as error:
            raise decode_error(sample, name, error) from error

    def _class_number(self, sample: Mapping[str, Any], field: str, value: Any) -> int:
        """Return the number of the class whose name is *value*: bytes, text or a number, of *field* of *sample*.

        Bytes are decompressed if *field* says so (cls.gz); blanks and newlines around the name do not count. Raises:
        SampleError, naming shard and sample, for a name of no class, and bytes that can't be decompressed; StorageError
        if there is too little memory for that.
        """
        numbers = self.classes[field]
        if isinstance(value, bytes):
            try:
                value = unpack(field, value)
            except ValueError as error:
                raise decode_error(sample, field, error) from error
        name = (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()
        if name not in numbers:
            examples = ", ".join(islice(numbers, MAX_CLASSES_IN_MESSAGE)) + ", ..." * (
                len(numbers) > MAX_CLASSES_IN_MESSAGE
            )
            raise _failure(sample, f"field {field!r}: {name!r} is none of the {len(numbers)} classes: {examples}")
        return numbers[name]

    def _apply_transform(self, sample: Mapping[str, Any], value: Any) -> Any:
        """Return *value*, the decoded fields of *sample*, transformed.

        None in the list of transforms leaves its field as it is. If `missing` is None, a function for one field is not
        called for None. Raises: errors of transforms, with a note that names shard and sample; RuntimeError for
        StopIteration.
        """
        if self.transform is None:
            return value
        try:
            transform = self.transform if self.seeds is None else self._bind_seeds(sample)
            if not isinstance(transform, list):
                return transform(value)
            keeps_none, pairs = self.missing is None, zip(transform, value, strict=True)
            return tuple(
                [
                    part if function is None or (part is None and keeps_none) else function(part)
                    for function, part in pairs
                ]
            )
        except StopIteration as error:  # which would end an iteration as if there were no more samples
            raise RuntimeError(str(_failure(sample, "the transform raised StopIteration"))) from error
        except Exception as error:
            error.add_note(str(_failure(sample, "the transform failed")))
            raise

    def _seed_of(self, sample: Mapping[str, Any]) -> int | None:
        """Return the seed of *sample* in the epoch; None if no transform and no clip of this chooser asks for seeds."""
        return None if self.seeds is None else self.seeds.of(str(sample[DICT_URL]), str(sample[DICT_KEY]))

    def _bind_seeds(self, sample: Mapping[str, Any]) -> Any:
        """Return the transform, or the list of them, as functions of a value that pass on the seed of *sample*.

        Only functions that have asked for a seed get it. To be called only if `seeds` is not None.
        """
        seed: Any = self._seed_of(sample)
        if not isinstance(self.transform, list):
            return partial(call_with_seed, self.transform, self._seed_parameters[0], seed)
        pairs = zip(self.transform, self._seed_parameters, strict=True)
        return [
            None if function is None else partial(call_with_seed, function, parameter, seed)
            for function, parameter in pairs
        ]


def names_in(fields: Any, argument: str = "fields") -> list[str]:
    """Return *fields*, names or one text with names between spaces, as a list. *argument*: its name in errors.

    Raises: TypeError for a value that is no name, ValueError if there are none.
    """
    names = fields.split() if isinstance(fields, str) else [*fields] if isinstance(fields, Iterable) else [fields]
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"{argument} are names, as in 'jpg;png cls' or ('jpg;png', 'cls'), not {wrong[0]!r}")
    if not names:
        raise ValueError(f"{argument} names none; without fields= a sample is a dict of all")
    return names


def class_numbers(classes: Any) -> dict[str, dict[str, int]]:
    """Return {field in lower case: {class name: number}} for *classes*, numbered from 0 in their order; {} for None.

    *classes*: an iterable of names, without the blanks around them; a text or path: the URL of a UTF-8 file with one on
    each line; or a dict of these by field, where None is left out. Not in a dict, they are for the field `cls`. Raises:
    ValueError if there are no names, for repeated or empty ones, and for a file that is not UTF-8; StorageError for one
    that can't be read; UsageError for an invalid URL; TypeError for another object.
    """
    numbers_by_field = {}
    for field, field_classes in (classes if isinstance(classes, Mapping) else {"cls": classes}).items():
        if field_classes is not None:
            is_file = isinstance(field_classes, (str, os.PathLike))
            names = storage.read_content(name_of(field_classes)).decode().splitlines() if is_file else field_classes
            names = [str(name).strip() for name in names]
            numbers = numbers_by_field[field.lower()] = {name: number for number, name in enumerate(names)}
            if not numbers or len(numbers) < len(names) or "" in numbers:
                raise ValueError(
                    f"classes are different names, one on each line of a file, not {names[:MAX_CLASSES_IN_MESSAGE]}"
                )
    return numbers_by_field


def as_dict(sample: Sample, needed: Set[str] | None = None, files: Set[str] = frozenset()) -> dict[str, Any]:
    """Return *sample* as a dict of webdataset: `__key__`, `__url__`, and payloads by field, in lower case.

    *needed*: fields to read, in lower case, None for all; others have the value None. Fields in *files*, in lower case,
    are open files instead of bytes, if their payloads are ranges of a file. Raises: SampleError if two fields to be
    read are equal but for case, or if any field begins with two underscores; StorageError if a payload can't be read.
    """
    fields = [(field_name(member), _reader(member, files)) for member in sample.members]
    return make_dict(sample.key, sample.shard, fields, needed)


def _reader(member: Member, files: Set[str]) -> Callable[[], Any]:
    """Return the function that returns the payload of *member*: as bytes, or as an open file for fields in *files*.

    A payload that is not a range of a plain file is always bytes.
    """
    if files and isinstance(member.source, io.FileIO) and field_name(member).lower() in files:
        return member.open
    return member.read


def make_dict(
    key: str, url: str, fields: Sequence[tuple[str, Callable[[], Any]]], needed: Set[str] | None
) -> dict[str, Any]:
    """Return the sample *key* of the shard *url* as a dict of webdataset: `__key__`, `__url__`, payloads by field.

    *fields*: pairs (name, function that returns the payload); names become lower case. *needed*: names, in lower case,
    whose payloads are read, None for all; others have the value None.
    Raises: SampleError if two fields to be read are equal but for case, or if any field begins with two underscores;
    the errors of these functions.
    """
    sample: dict[str, Any] = {DICT_KEY: key, DICT_URL: url}
    for field, payload in fields:
        name = field.lower()
        if name.startswith(RESERVED_PREFIX):
            problem = (
                f"has a field {field!r}, and names that begin with {RESERVED_PREFIX} are those of the key and the URL"
            )
            raise _failure(sample, f"{problem} (tarcat -x {field} leaves it out)")
        if needed is not None and name not in needed:
            sample[name] = None
        elif name in sample:
            raise _failure(sample, f"has two fields {name!r}")
        else:
            sample[name] = payload()
    return sample


def _failure(sample: Mapping[str, Any], problem: str) -> SampleError:
    """Return the SampleError "sample KEY: PROBLEM", with the URL of *sample*, a dict."""
    return SampleError(f"sample {sample.get(DICT_KEY)!r}: {problem}", url=str(sample.get(DICT_URL) or ""))


def decode_error(sample: Mapping[str, Any], field: str, error: BaseException | None) -> SampleError:
    """Return the SampleError for *field* of *sample*, which can't be decoded because of *error*.

    It names sample and field, and has the message of *error* if that is a TarToolsError, else its class and text
    ("NoneType: None" for None).
    """
    text = f"{type(error).__name__}: {error} (tarcheck --decode lists all fields that can't be decoded)"
    return _failure(sample, f"field {field!r}: {error.message if isinstance(error, TarToolsError) else text}")
