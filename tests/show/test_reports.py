"""What tarstat, tarcheck, tarbench and tarshow print, byte for byte, as the files in `reports` have it.

They are compared as JSON, as lines, as tables on a terminal, and as cards of the page. And which pictures are broken:
all find the same ones, wherever they were cut.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tartools import tar
from tartools.samples import decoding
from tartools.samples.kinds import decode_payload, sounds
from tartools.samples.kinds.pictures import describe_picture
from tartools.show import benchreport
from tartools.show.html import tile
from tartools.show.sections import draw_report
from tartools.show.terminal import Screen
from tests.archives import END, encoded, header, npy, photograph
from tests.conftest import BIN, Run, make_tar
from tests.processes import on_terminal

REPORTS = Path(__file__).with_name("reports")


def picture(width: int, height: int) -> bytes:
    """Return a picture whose bytes depend on no library."""
    return b"P6 %d %d 255\n" % (width, height) + bytes(3 * width * height)


def members(seed: int, count: int) -> list[tuple[str, bytes]]:
    """Return samples with pictures of several sizes, classes, text, JSON and arrays; some lack, hide or break one."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        key = f"{draw.choice(['cats', 'dogs/old', 'x'])}/{seed}{number:03d}"
        fields = {
            "ppm": picture(draw.choice([4, 5, 640]), 4),
            "cls": b"%d\n" % draw.randrange(4),
            "txt": b"a word " * draw.randrange(1, 200),
            "json": b'{"n": %d}' % number,
            "cls.kind": draw.choice([b"oak", b"elm", b"<b>&\x1b[31m"]),
        }
        if number % 7 == 3:
            del fields["cls"]
        if number % 11 == 4:
            fields["ppm"] = draw.choice([picture(9, 9)[:50], b"no picture", b""])
        if number % 13 == 5:
            fields |= {"Seg.ppm": picture(3, 3), "npy": npy([1, 2, 3]), "v2.txt": b"x"}
        if number % 17 == 6:
            fields |= {"json": b"{", "cls": b"oak", "txt": b"long " * 50_000}
        found += [(f"{key}.{field}", payload) for field, payload in fields.items()]
        if number % 19 == 7:
            found.append((f"{key[:-1]}-README", b"words"))
    return found


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Return a folder with sound shards, and shards that are not sound."""
    for name, content in archives().items():
        (tmp_path / f"{name}.tar").write_bytes(content)
    return tmp_path


@functools.cache
def archives() -> dict[str, bytes]:
    """Return the shards by name."""
    first = members(1, 120)
    torn = [first[0], *first[5:10], *first[1:5], *first[5:10]]
    sound = make_tar(members(3, 20))
    damaged = bytearray(sound)
    damaged[2048:2148] = b"~" * 100
    return {
        "a": make_tar(first),
        "b": make_tar(members(2, 30)),
        "digits": make_tar([(f"{n:04d}.cls", b"%d" % (n % 10)) for n in range(3000)]),
        "torn": make_tar([*torn, ("/etc/x.txt", b"x"), ("d/.DS_Store", b""), ("p.pkl", b"x")]),
        "cut": sound[: len(sound) // 3],
        "damaged": bytes(damaged),
        "link": header(b"l.jpg", kind=b"2", link=b"x") + sound[:-1024] + END + b"garbage" * 99,
        "none": b"no archive at all",
        "empty": b"",
    }


LINES = {
    "stat": "tarstat -q a.tar b.tar",
    "stat-json": "tarstat -q --json a.tar b.tar",
    "stat-decode": "tarstat -q --json --decode --classes txt b.tar",
    "stat-digits": "tarstat --json digits.tar",
    "stat-table": "tarstat -q --json t.parquet",
    "stat-unsound": "tarstat -q --json torn.tar digits.tar",
    "check": "tarcheck a.tar b.tar",
    "check-json": "tarcheck --json a.tar b.tar",
    "check-decode": "tarcheck --json --decode b.tar a.tar",
    "check-digits": "tarcheck --json digits.tar",
    "check-table": "tarcheck --json --expect cls.kind t.parquet b.tar torn.tar",
    "check-unsound": "tarcheck --json torn.tar cut.tar damaged.tar link.tar none.tar empty.tar lost.tar b.tar",
    "check-lines": "tarcheck torn.tar cut.tar damaged.tar",
    "check-fix": "tarcheck --fix --drop-duplicates torn.tar cut.tar damaged.tar t.parquet b.tar -o fixed.tar",
    "show": "tarshow -c 200 a.tar torn.tar",
}


@pytest.mark.parametrize("name", LINES)
def test_reports_stay_as_they_are(name: str, shards: Path, run: Run) -> None:
    command, *arguments = LINES[name].split()
    if "t.parquet" in arguments:
        assert run("tarindex", "-f", "cls cls.kind", "--pictures", "a.tar", "b.tar", "-o", "t.parquet").status == 0
    done = run(command, *arguments)
    shown = b"" if command == "tarshow" else done.stdout  # of samples other tests say how they are shown
    assert f"{shown.decode()}{done.stderr}status {done.status}\n" == (REPORTS / f"{name}.txt").read_text()


@pytest.mark.parametrize("columns", [50, 100])
@pytest.mark.parametrize("line", ["tarstat -q a.tar b.tar", "tarcheck torn.tar cut.tar a.tar"])
def test_tables_on_a_terminal_stay_as_they_are(line: str, columns: int, shards: Path) -> None:
    command, *arguments = line.split()
    done = on_terminal([BIN / command, *arguments], shards, columns=columns)
    shown = done.stdout.decode().replace("\r\n", "\n")
    assert shown == (REPORTS / f"{command}-{columns}.txt").read_text()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [(), ("--random", "5")])
def test_cards_of_the_page_stay_as_they_are(options: tuple[str, ...], shards: Path, run: Run) -> None:
    done = run("tarshow", *options, "a.tar", "b.tar", "torn.tar", "--html", "p.html")
    page = (shards / "p.html").read_text()
    cards = "\n".join(re.findall(r'<details class="card".*?</details>', page, re.DOTALL))
    expected = (REPORTS / f"cards{''.join(options)}.txt").read_text()
    assert f"{cards}\n{done.stderr}status {done.status}\n" == expected


# ---- what tarbench says of measurements ----

HOSTILE = "\x1b]0;a\x07.tar"


def row(name: str, form: str, times: list[float], *, far: bool = False) -> dict[str, Any]:
    """Return a row without workers, whose parts take these *times* in ms, of samples of 40 kB."""
    seconds = sum(times) / 1e3
    return {
        "name": name,
        "form": form,
        "order": "shuffled",
        "workers": 0,
        "cache": None if far else "warm",
        "samples": 960,
        "passes": 2,
        "run_seconds": 960 * seconds,
        "samples_per_second": 1 / seconds,
        "bytes_per_second": 4e4 / seconds,
        "cpu_seconds": seconds / 2,
        "parts": {part: time / 1e3 for part, time in zip(benchreport.TIME_PARTS, times, strict=True)},
    }


def with_workers(of: dict[str, Any], workers: int, times: float, cpu: float) -> dict[str, Any]:
    """Return the row *of* with workers, *times* as fast, with *cpu* seconds a sample."""
    changed = {"workers": workers, "parts": None, "cpu_seconds": cpu}
    rates = {name: times * of[name] for name in ("samples_per_second", "bytes_per_second")}
    return of | changed | rates


def facts_of(*rows: dict[str, Any]) -> dict[str, Any]:
    facts = {
        "source": [HOSTILE],
        "samples": 480,
        "bytes": 480 * 40000,
        "fields": ["jpg", "cls"],
        "batch": 32,
        "seconds": 0.5,
        "passes": None,
        "cores": 2,
        "others": None,
        "rows": list(rows),
        "advice": [],
    }
    benchreport.add_advice(facts)
    return facts


LOOSE = row("loose files", "loose", [0.02, 0.09, 3.0, 0.1])
TABLE = row("table, shuffled", "table", [0.01, 0.06, 3.0, 0.1])


def test_where_decoding_limits_packing_gains_little() -> None:
    facts = facts_of(LOOSE, TABLE, with_workers(TABLE, 2, 1.9, 3e-3), with_workers(LOOSE, 2, 1.2, 1e-3))
    assert [each["limit"] for each in facts["rows"]] == ["decode", "decode", "processors", "decode"]
    assert facts["advice"] == [
        "format: loose files (table, shuffled: as fast)",
        "workers: 2 (374 samples/s; without: 312)",
    ]


def test_where_reading_limits_shards_are_better() -> None:
    facts = facts_of(
        row("loose files", "loose", [0.1, 0.9, 0, 0.1], far=True),
        row("tar, in order", "tar", [0.01, 0.24, 0, 0.1], far=True),
    )
    assert [each["limit"] for each in facts["rows"]] == ["read", "read"]
    assert facts["advice"][0] == "format: tar, in order (3.1 times as fast as loose files)"


def test_what_is_slower_when_packed_stays_as_it_is() -> None:
    packed = row("zip", "zip", [0.1, 6, 0, 0], far=True)
    facts = facts_of(row("loose files", "loose", [0.1, 3, 0, 0], far=True), packed)
    assert facts["advice"][0] == "format: loose files (zip: 0.5 times as fast)"


def test_one_form_alone_is_described() -> None:
    facts = facts_of(row("zip", "zip", [0.1, 7.1, 1, 0.1], far=True))
    assert facts["advice"] == ["format: zip", "workers: 0 (120 samples/s)"]


def test_other_programs_are_told() -> None:
    facts = facts_of(LOOSE, with_workers(LOOSE, 2, 2, 3e-3), with_workers(LOOSE, 4, 2.1, 3e-3), TABLE)
    for share, said in (
        (0.1, []),
        (None, []),
        (0.5, ["figures are too low: other programs used 50 % of the processors"]),
    ):
        again = facts | {"others": share}
        benchreport.add_advice(again)
        assert again["advice"][2:] == said


def test_the_report_of_measurements_stays_as_it_is() -> None:
    facts = facts_of(LOOSE, with_workers(LOOSE, 2, 2, 3e-3), with_workers(LOOSE, 4, 2.1, 3e-3), TABLE)
    words = [json.dumps(facts, indent=2), *benchreport.plain_lines(facts)]
    words += [draw_report(benchreport.parts(facts), Screen(columns=columns, codes=True)) for columns in (50, 100)]
    assert "\n".join(words) == (REPORTS / "bench.txt").read_text()


# ---- which pictures are broken ----


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
    assert any(line.startswith(f"broken jpg: {broken}, first 001 (truncated: the data end") for line in lines)
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
    half = make_tar([("1.txt", b""), ("1.cls", b"1"), ("2.cls", b"2")])
    for options in ((), ("-f", "cls"), ("-c", "1", "-f", "cls")):
        assert run("tarshow", *options, stdin=half).stderr == ""


@pytest.mark.parametrize(
    "look",
    [
        decoding.picture_state,
        decoding.likeness_or_none,
        lambda member: describe_picture(member, b"", True),
        lambda member: sounds.describe_sound(member, b"", True),
        lambda member: [*decode_payload("jpg", member), *decode_payload("wav", member)],
        lambda member: tile.make_page_field(member, False, 64),
    ],
    ids=["facts", "hash", "text", "sound", "broken", "page"],
)
def test_too_little_memory_is_not_what_is_wrong_with_a_payload(
    look: Callable[[tar.Member], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised, and the command fails; taken for damage, it would be in a report, or leave a sample out."""

    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    for name in ("_open_member", "header_of"):
        monkeypatch.setattr(decoding, name, exhausted)
    monkeypatch.setattr(sounds, "read_sound", exhausted)
    with pytest.raises(MemoryError):
        look(tar.new_member(b"a.png", encoded(Image.new("RGB", (8, 8)), "PNG")))


def test_an_array_whose_header_exhausts_the_parser_is_broken(run: Run) -> None:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"-" * 9000 + b"1,)}"
    array = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    archive = make_tar([("a.npy", array)])
    done = run("tarcheck", "--decode", stdin=archive)
    assert done.status == 1 and b"broken-array" in done.stdout
    assert b"array whose header cannot be read: it is nested too deeply" in run("tarshow", stdin=archive).output()
