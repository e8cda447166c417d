"""The card of a data set on Hugging Face: YAML for the head of README.md, with splits, columns and their types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tartools.errors import printable
from tartools.stages.checking.datasetrules import DatasetCard
from tartools.stages.checking.readers import RESERVED_FIELDS
from tartools.stages.checking.valuetypes import StructType, ValueType

FENCE = "---"
PLAIN_SCALAR = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
YAML_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


def card_text(card: DatasetCard) -> str:
    r"""Return *card* as YAML between two fences, as README.md of a data set begins.

    Splits and features are left out if there are none; if a type is unknown, a comment stands in place of features.

    >>> print(card_text(DatasetCard({"train": ["train-*.tar"]}, [("cls", "int64")], [])), end="")
    ---
    configs:
    - config_name: default
      data_files:
      - split: train
        path: "train-*.tar"
    dataset_info:
      features:
      - name: cls
        dtype: int64
      - name: __key__
        dtype: string
      - name: __url__
        dtype: string
    ---
    """
    return "".join(f"{line}\n" for line in (FENCE, *_card_lines(card), FENCE))


def _card_lines(card: DatasetCard) -> Iterator[str]:
    """Yield the lines of *card* between the fences: its splits and its features, if it has any.

    If it has fields of unknown type, a comment that names them takes the place of the features.
    """
    if card.splits:
        files = [
            {"split": split, "path": patterns[0] if len(patterns) == 1 else patterns}
            for split, patterns in card.splits.items()
        ]
        yield from block_lines({"configs": [{"config_name": "default", "data_files": files}]})
    if card.unknown:
        yield f"# no features: the types of these fields are not known: {printable(' '.join(card.unknown))}"
    elif card.features:
        columns = [*card.features, *((name, "string") for name in sorted(RESERVED_FIELDS))]
        features = [{"name": name, **type_entry(kind)} for name, kind in columns]
        yield from block_lines({"dataset_info": {"features": features}})


def type_entry(kind: ValueType) -> dict[str, Any]:
    """Return the entry for the type *kind* in the list of features: {"dtype": NAME}, {"list": ...} or {"struct": ...}.

    A struct has the list of its members, each an entry with its name; a list has the name of the type of its items, the
    members of a struct, or the entry of an inner list.

    >>> from tartools.stages.checking.valuetypes import ListType
    >>> type_entry(ListType(StructType((("a", ListType(ListType("int8"))),))))
    {'list': [{'name': 'a', 'list': {'list': 'int8'}}]}
    """
    if isinstance(kind, str):
        return {"dtype": kind}
    if isinstance(kind, StructType):
        return {"struct": [{"name": name, **type_entry(member)} for name, member in kind.members]}
    entry = type_entry(kind.element)
    return {"list": entry if "list" in entry else entry.get("dtype", entry.get("struct"))}


def block_lines(value: Any) -> list[str]:
    """Return *value*, of dictionaries, lists and strings inside each other, as lines of YAML in block style.

    {"a": ["b", "c"], "d": []} gives "a:", "- b", "- c", "d: []". Keys are written as they are: they must be safe as
    plain scalars. An item of a list may not be empty; an empty dictionary below a key is written as [].
    """
    if isinstance(value, str):
        return [scalar(value)]
    lines: list[str] = []
    if isinstance(value, list):
        for item in value:
            first, *following = block_lines(item)
            lines += [f"- {first}", *(f"  {line}" for line in following)]
        return lines
    for name, item in value.items():
        inner = block_lines(item)
        if isinstance(item, str) or not inner:
            lines.append(f"{name}: {inner[0] if inner else '[]'}")
        else:
            lines += [f"{name}:", *(line if isinstance(item, list) else f"  {line}" for line in inner)]
    return lines


def scalar(text: str) -> str:
    r"""Return *text* as a scalar of YAML: plain if that is safe, else in double quotes.

    Safe are ASCII letters, digits and "_./-" after a first letter or "_", but not the words of YAML (YAML_WORDS).

    >>> print(scalar("seg.png"), scalar("null"), scalar('a: "b"'), scalar("1.txt"), scalar("a\x1b"))
    seg.png "null" "a: \"b\"" "1.txt" "a\u001b"
    """
    if PLAIN_SCALAR.fullmatch(text) and text.lower() not in YAML_WORDS:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in quoted)
