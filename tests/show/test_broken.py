"""Broken pictures: tarshow, its page and tarstat --decode find the same ones, wherever they were cut."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tartools import tar
from tartools.samples import decoding
from tartools.show import broken, sound, text
from tartools.show.html import tile
from tests.archives import encoded, photograph
from tests.conftest import Run, make_tar

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpg": ("JPEG", {"quality": 90}),
    "progressive.jpg": ("JPEG", {"progressive": True}),
    "grey.jpeg": ("JPEG", {"quality": 40}),
    "png": ("PNG", {}),
    "gif": ("GIF", {}),
    "webp": ("WEBP", {"quality": 80}),
    "lossless.webp": ("WEBP", {"lossless": True}),
    "bmp": ("BMP", {}),
}
KEPT = {"png": 20, "gif": 2}  # bytes at the end without pixels


def pictures() -> tuple[dict[str, bytes], set[str]]:
    """Return members, each a sample of its own: whole pictures and cut ones; and the keys of those that are broken."""
    members, broken = {}, set()
    for name, (form, options) in FORMS.items():
        whole = encoded(photograph(3, 240, 160).convert("L" if "grey" in name else "RGB"), form, **options)
        kind = name.rpartition(".")[2]
        members[f"{name.replace('.', '-')}-whole.{kind}"] = whole
        for cut in (1, 3, 10, 30, 100, 1000, len(whole) // 2, len(whole) - 200):
            key = f"{name.replace('.', '-')}-{cut}"
            members[f"{key}.{kind}"] = whole[:-cut]
            if cut > KEPT.get(name, 0):
                broken.add(key)
    return members | {"none.jpg": b"no picture", "empty.png": b""}, broken | {"none", "empty"}


def test_all_find_the_same_ones(run: Run, tmp_path: Path) -> None:
    members, broken = pictures()
    (tmp_path / "a.tar").write_bytes(make_tar(list(members.items())))

    told = json.loads(run("tarstat", "--decode", "--json", "a.tar").stdout)
    by_field = {field["field"]: field["pictures"] for field in told["fields"]}
    assert {key for found in by_field.values() for key in found["broken_keys"]} == broken
    assert sum(found["broken"] for found in by_field.values()) == len(broken)

    done = run("tarshow", "a.tar")
    first = ", ".join([name.rpartition(".")[0] for name in members if name.rpartition(".")[0] in broken][:20])
    count = f"{len(broken)} of {len(members)} samples"
    assert done.stderr == f"tarshow: broken: {count}: {first}, and {len(broken) - 20} more\n"
    drawn = run("tarshow", "--graphics", "kitty", "a.tar")  # decoded as it is drawn
    assert (done.status, drawn.status, drawn.stderr) == (0, 0, done.stderr)
    blocks = done.stdout.decode().split("\n\n")[:-1]
    assert len(blocks) == len(members)
    assert {block.split("\n")[0] for block in blocks if "a broken picture" in block or "empty" in block[-6:]} == broken

    assert run("tarshow", "--html", "a.html", "-c", "999", "a.tar").status == 0
    page = (tmp_path / "a.html").read_text()
    tiles = re.findall(
        r'<li class="tile" data-values="([^"]*)">.*?<span class="key">([^<]*<[^>]*><[^>]*>)?([^<]*)', page
    )
    assert len(tiles) == len(members)
    assert {key for values, _, key in tiles if "is=broken" in values} == broken


def test_without_decode_only_headers_are_read(run: Run, tmp_path: Path) -> None:
    members, _ = pictures()
    (tmp_path / "a.tar").write_bytes(make_tar(list(members.items())))
    found = json.loads(run("tarstat", "--json", "a.tar").stdout)
    keys = {key for field in found["fields"] for key in field["pictures"]["broken_keys"]}
    assert {"none", "empty"} <= keys
    assert not keys & {"jpg-10", "jpg-1000", "png-1000"}


def test_a_picture_that_is_too_large_to_decode_is_not_called_broken(run: Run) -> None:
    archive = make_tar([("large.png", encoded(Image.new("1", (10_000, 9_000)), "PNG"))])
    assert "PNG 10000x9000 1" in run("tarshow", stdin=archive).stdout.decode()
    found = json.loads(run("tarstat", "--decode", "--json", stdin=archive).stdout)["fields"][0]["pictures"]
    assert (found["broken"], found["sizes"]) == (0, {"10000x9000": 1})


@pytest.mark.parametrize("broken", [3, 30])
def test_up_to_twenty_keys_are_listed(run: Run, broken: int) -> None:
    whole = encoded(photograph(3, 240, 160), "JPEG")
    members = []
    for n in range(100):  # every other one has two fields before the picture; so batches have two kinds of samples
        payload = whole[:-500] if n % 3 == 1 and n < 3 * broken else whole
        extra = [] if n % 3 == 1 and n < 3 * broken and n % 2 else [(f"{n:03d}.cls", b"1")]
        members += [*extra, (f"{n:03d}.jpg", payload)]
    keys = [f"{n:03d}" for n in range(1, 3 * broken, 3)]
    lacking = [key for key in keys if int(key) % 2]
    archive = make_tar(members)
    lines = run("tarstat", "--decode", stdin=archive).stdout.decode().splitlines()
    assert [line for line in lines if line.startswith("broken jpg in: ")] == [
        f"broken jpg in: {key}" for key in keys[:20]
    ]
    assert [line for line in lines if line.startswith("missing cls in: ")] == [
        f"missing cls in: {key}" for key in lacking
    ]
    assert any(line.startswith(f"broken jpg: {broken}, first 001 (it is cut: the data end") for line in lines)
    found = {
        field["field"]: field
        for field in json.loads(run("tarstat", "--decode", "--json", stdin=archive).stdout)["fields"]
    }
    assert found["jpg"]["pictures"]["broken_keys"] == keys
    assert found["cls"]["missing_keys"] == lacking and found["jpg"]["missing_keys"] == []


def test_tarshow_lists_samples_without_a_field_that_most_have(run: Run) -> None:
    members = [
        (f"{n:02d}.{kind}", b"1")
        for n in range(60)
        for kind in ("cls", "txt", "x\x1b")
        if kind < "d" or n % 2 - 1 or n < 9
    ]
    done = run("tarshow", stdin=make_tar(members))
    lacking = [f"{n:02d}" for n in range(9, 60, 2)]
    listed = f"26 of 60 samples: {', '.join(lacking[:20])}, and 6 more"
    assert done.status == 0
    assert done.stderr == f"tarshow: without txt: {listed}\ntarshow: without x\\x1b: {listed}\n"
    assert run("tarshow", "-q", stdin=make_tar(members)).stderr == ""
    few = [("1.jpg", b""), ("1.cls", b"1"), ("2.cls", b"2")]
    assert run("tarshow", "-f", "cls", stdin=make_tar(few)).stderr == ""
    assert run("tarshow", "-c", "1", "-f", "cls", stdin=make_tar(few)).stderr == ""


@pytest.mark.parametrize(
    "look",
    [
        decoding.described,
        decoding.hash_and_colours,
        lambda member: text.picture(member, decode=True),
        lambda member: text.heard(member, "wav"),
        lambda member: broken.why_broken("jpg", member) or broken.why_broken("wav", member),
        lambda member: tile.field(member, False, 64),
    ],
    ids=["facts", "hash", "text", "sound", "broken", "page"],
)
def test_too_little_memory_is_not_what_is_wrong_with_a_payload(
    look: Callable[[tar.Member], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised, and the command fails; taken for damage, it would be in a report, or leave a sample out."""

    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    for name in ("_opened", "header_of"):
        monkeypatch.setattr(decoding, name, exhausted)
    monkeypatch.setattr(sound, "read", exhausted)
    with pytest.raises(MemoryError):
        look(tar.new_member(b"a.png", encoded(Image.new("RGB", (8, 8)), "PNG")))


def test_an_array_whose_header_exhausts_the_parser_is_broken(run: Run) -> None:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"-" * 9000 + b"1,)}"
    array = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    archive = make_tar([("a.npy", array)])
    done = run("tarcheck", "--decode", stdin=archive)
    assert done.status == 1 and b"broken-array" in done.stdout
    assert b"array whose header cannot be read: it is nested too deeply" in run("tarshow", stdin=archive).output()
