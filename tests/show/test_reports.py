"""What tarstat, tarcheck, tarbench and tarshow print, byte for byte, as the files in `reports` have it.

They are compared as JSON, as lines, as tables on a terminal, and as cards of the page.
"""

from __future__ import annotations

import functools
import json
import random
import re
from pathlib import Path

import pytest

from tartools.show import benchreport
from tartools.show.sections import drawn
from tartools.show.terminal import Screen
from tests.archives import END, header, npy
from tests.conftest import BIN, Run, make_tar
from tests.processes import on_terminal
from tests.show.test_bench import LOOSE, TABLE, facts_of, with_workers

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
    "check-decode": "tarcheck --json --decode b.tar a.tar --profile webdataset",
    "check-digits": "tarcheck --json digits.tar",
    "check-table": "tarcheck --json --expect cls.kind t.parquet b.tar torn.tar",
    "check-unsound": "tarcheck --json torn.tar cut.tar damaged.tar link.tar none.tar empty.tar lost.tar b.tar",
    "check-lines": "tarcheck --profile hf torn.tar cut.tar damaged.tar",
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
@pytest.mark.parametrize("line", ["tarstat -q a.tar b.tar", "tarcheck --profile hf torn.tar cut.tar a.tar"])
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


def test_the_report_of_measurements_stays_as_it_is() -> None:
    facts = facts_of(LOOSE, with_workers(LOOSE, 2, 2, 3e-3), with_workers(LOOSE, 4, 2.1, 3e-3), TABLE)
    parts = [json.dumps(facts, indent=2), *benchreport.plain_lines(facts)]
    parts += [drawn(benchreport.parts(facts), Screen(columns=columns, codes=True)) for columns in (50, 100)]
    assert "\n".join(parts) == (REPORTS / "bench.txt").read_text()
