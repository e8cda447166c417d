"""The table of kinds of payloads: commands look up in it who describes, checks and measures a payload."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tartools.samples import filetypes
from tartools.samples.columnfields import ChosenColumns, with_key_column
from tartools.samples.filetypes import BRANDS, type_of_file
from tartools.samples.kinds import MEASURED_BY_SUFFIX, PAYLOAD_KINDS, is_decoded, is_number_field, kind_of_field
from tartools.stages.checking.codes import CODES
from tests.conftest import make_tar, python

PAGE = b"%PDF-1.7" + bytes(24)
WITH_PAGES = """
import os
import sys
from tartools.samples import kinds
from tartools.samples.kinds.kind import Description, PayloadKind

def is_page(suffix, head):
    return suffix == "pdf" or head.startswith(b"%PDF-")

def check(member):
    if member.size < 20:
        raise ValueError("it ends early")

entry = PayloadKind(
    "page", "broken-page", is_page, lambda member, head, decode: Description(f"page of {member.size} B", kind="page"),
    {"pdf": check}, facts=[("bytes", "int64")], measure=lambda member, decode: [member.size])
kinds.PAYLOAD_KINDS = (entry, *kinds.PAYLOAD_KINDS)
kinds.KIND_BY_SUFFIX.update(dict.fromkeys(entry.checks, entry))
kinds.MEASURED_BY_SUFFIX.update(dict.fromkeys(entry.checks, entry))
from importlib import import_module
for line in sys.stdin.read().splitlines():
    name, *arguments = line.split()
    getattr(import_module(f"tartools.commands.{name}"), name).main(arguments)
    sys.stdout.flush()
from tartools import Table
print(Table("a.parquet").column("pdf.bytes").tolist(), flush=True)
os._exit(0)  # as commands end: Arrow's threads, at rest, may abort an interpreter that is taken apart meanwhile
"""


def test_a_suffix_has_one_kind_and_a_kind_has_a_code() -> None:
    counts = Counter(suffix for kind in PAYLOAD_KINDS for suffix in kind.checks)
    assert {suffix for suffix, count in counts.items() if count > 1} == set()
    assert filetypes.PICTURES | filetypes.ARRAYS | filetypes.NUMBER_SUFFIXES | {"json", "wav", "txt"} <= counts.keys()
    assert [kind.code for kind in PAYLOAD_KINDS if kind.checks and kind.code not in CODES] == []
    assert all((kind.measure is None) == (not kind.facts) for kind in PAYLOAD_KINDS)
    assert all("broken" in dict(kind.facts) for kind in PAYLOAD_KINDS if kind.facts)
    suffixes = Counter(suffix for kind in PAYLOAD_KINDS for suffix in (*kind.checks, *kind.further_suffixes))
    assert {suffix for suffix, count in suffixes.items() if count > 1} == set()
    assert {*MEASURED_BY_SUFFIX} == filetypes.PICTURES | filetypes.SOUNDS | filetypes.VIDEOS
    facts = {name for kind in PAYLOAD_KINDS for name, _ in kind.facts}
    assert facts > filetypes.FACT_FUNCTIONS.keys()


def test_the_kind_of_a_field_follows_its_last_part() -> None:
    kinds = {
        field: kind and kind.name for field in ("seg.PNG", "cls", "x.json", "mp4") for kind in [kind_of_field(field)]
    }
    assert kinds == {"seg.PNG": "picture", "cls": "number", "x.json": "JSON", "mp4": None}
    assert is_decoded("json.gz") and not is_decoded("mp4") and not is_decoded("html")
    assert is_number_field("cls") and not is_number_field("cls.gz") and not is_number_field("txt")


def test_another_kind_is_one_entry(tmp_path: Path) -> None:
    """A kind of pages in the table is one for tarshow, tarcheck and tarindex; without it they know none."""
    members = [("1.pdf", PAGE), ("1.cls", b"1"), ("2.pdf", PAGE[:16]), ("2.cls", b"2")]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    lines = b"tarshow a.tar\ntarcheck --decode --json a.tar\ntarindex --facts a.tar -o a.parquet\n"
    text = python(WITH_PAGES, stdin=lines, folder=tmp_path).output().decode()
    assert text.startswith("1\n  pdf  32 B  page of 32 B\n  cls   1 B  number: 1\n")
    (finding,) = json.loads(text[text.index("{") : text.rindex("}") + 1])["findings"]
    assert (finding["code"], finding["weight"]) == ("broken-page", "error")
    assert finding["means"] == "the page can't be decoded"
    assert [(place["key"], place["what"]) for place in finding["places"]] == [("2", "pdf: it ends early")]
    assert text.endswith("\n[32, 16]\n")


@pytest.mark.parametrize("text", [b"The wide river", b"car free zone", b"One skip is fine", b"    free of charge"])
def test_text_with_the_name_of_a_box_is_no_video(text: bytes) -> None:
    assert type_of_file(text) is None
    for head in (b"\0\0\0\x08wide\0\0\1\0mdat", b"\0\0\0 ftypisom", b"\x7f\0\0\1mdat"):
        assert type_of_file(head.ljust(16, b"\0")) == BRANDS[b""]


def test_words_with_choices_among_columns() -> None:
    """A choice that is excluded is passed over, as in shards; `__key__` comes along unless a word yields it."""
    chosen = ChosenColumns([(("a", "b"), None)], ["a"], str.lower)
    assert chosen.choose({"a": 0, "b": 1}) == [(1, "b")]
    words = [(("id", "__key__"), None)]
    assert with_key_column(words, ["id", "__key__", "x"]) == [*words, (("__key__",), None)]
    assert with_key_column(words, ["__key__", "x"]) == words
