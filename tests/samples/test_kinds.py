"""The table of kinds of payloads: commands look up in it who describes, checks and measures a payload."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tartools.samples import filetypes
from tartools.samples.kinds import PAYLOAD_KINDS, is_decoded, is_looked_at_whole, kind_of_field
from tartools.stages.checking.codes import CODES
from tests.conftest import make_tar, python

VIDEO = b"\0\0\0\x18ftypisom" + bytes(20)
WITH_VIDEO = """
import os
import sys
from tartools.samples import kinds
from tartools.samples.filetypes import VIDEO, VIDEOS, type_of_file
from tartools.samples.kinds.kind import Description, PayloadKind

def is_video(suffix, head):
    found = type_of_file(head)
    return suffix in VIDEOS or found is not None and found.kind == VIDEO

def check(member):
    if member.size < 20:
        raise ValueError("it ends early")

entry = PayloadKind(
    VIDEO, "broken-video", is_video, lambda member, head, decode: Description(f"video of {member.size} B", kind=VIDEO),
    dict.fromkeys(VIDEOS, check), facts=[("frames", "int64")], measure=lambda member, decode: [member.size])
kinds.PAYLOAD_KINDS = (entry, *kinds.PAYLOAD_KINDS)
kinds.KIND_BY_SUFFIX.update(dict.fromkeys(entry.checks, entry))
from importlib import import_module
for line in sys.stdin.read().splitlines():
    name, *arguments = line.split()
    getattr(import_module(f"tartools.commands.{name}"), name).main(arguments)
    sys.stdout.flush()
from tartools import Table
print(Table("a.parquet").column("mp4.frames").tolist(), flush=True)
os._exit(0)  # as commands end: Arrow's threads, at rest, may abort an interpreter that is taken apart meanwhile
"""


def test_a_suffix_has_one_kind_and_a_kind_has_a_code() -> None:
    counts = Counter(suffix for kind in PAYLOAD_KINDS for suffix in kind.checks)
    assert {suffix for suffix, count in counts.items() if count > 1} == set()
    assert filetypes.PICTURES | filetypes.ARRAYS | filetypes.NUMBER_SUFFIXES | {"json", "wav", "txt"} <= counts.keys()
    assert [kind.code for kind in PAYLOAD_KINDS if kind.code not in CODES] == []
    assert all((kind.measure is None) == (not kind.facts) for kind in PAYLOAD_KINDS)


def test_the_kind_of_a_field_follows_its_last_part() -> None:
    kinds = {
        field: kind and kind.name for field in ("seg.PNG", "cls", "x.json", "mp4") for kind in [kind_of_field(field)]
    }
    assert kinds == {"seg.PNG": "picture", "cls": "number", "x.json": "JSON", "mp4": None}
    assert is_decoded("json.gz") and not is_decoded("mp4") and not is_decoded("html")
    assert is_looked_at_whole("cls") and not is_looked_at_whole("cls.gz") and not is_looked_at_whole("txt")


def test_another_kind_is_one_entry(tmp_path: Path) -> None:
    """A kind of videos in the table is one for tarshow, tarcheck and tarindex; without it they know none."""
    members = [("1.mp4", VIDEO), ("1.cls", b"1"), ("2.mp4", VIDEO[:16]), ("2.cls", b"2")]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    lines = b"tarshow a.tar\ntarcheck --decode --json a.tar\ntarindex --pictures a.tar -o a.parquet\n"
    text = python(WITH_VIDEO, stdin=lines, folder=tmp_path).output().decode()
    assert text.startswith("1\n  mp4  32 B  video of 32 B\n  cls   1 B  number: 1\n")
    (finding,) = json.loads(text[text.index("{") : text.rindex("}") + 1])["findings"]
    assert (finding["code"], finding["weight"]) == ("broken-video", "error")
    assert finding["means"] == "the video can't be decoded"
    assert [(place["key"], place["what"]) for place in finding["places"]] == [("2", "mp4: it ends early")]
    assert text.endswith("\n[32, 16]\n")
