"""What tarbench says of measurements: limits, advice, the report on a terminal, and the page in Debian's Chromium."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tartools.show.benchadvice import PARTS, advise
from tartools.show.benchreport import plain_lines, tables
from tartools.show.html.bench import page
from tartools.show.terminal import Screen
from tests.tiers import by_turns

HOSTILE = "<script>alert(1)</script>"


def row(name: str, form: str, times: list[float], *, requests: int | None = None, raw: bool = False) -> dict[str, Any]:
    """Return a row without workers, whose parts take these *times* in ms, of samples of 40 kB, raw 500 kB."""
    seconds = sum(times) / 1e3
    return {
        "name": name,
        "form": form,
        "stored": "raw" if raw else "encoded",
        "order": "shuffled",
        "workers": 0,
        "requests": requests,
        "cache": None if requests else "warm",
        "samples": 960,
        "passes": 2,
        "run_seconds": 960 * seconds,
        "samples_per_second": 1 / seconds,
        "bytes_per_second": (5e5 if raw else 4e4) / seconds,
        "cpu_seconds": seconds / 2,
        "parts": {part: time / 1e3 for part, time in zip(PARTS, times, strict=True)},
    }


def with_workers(of: dict[str, Any], workers: int, times: float, cpu: float) -> dict[str, Any]:
    """Return the row *of* with workers, *times* as fast, with *cpu* seconds a sample."""
    changed = {"workers": workers, "parts": None, "cpu_seconds": cpu}
    rates = {name: times * of[name] for name in ("samples_per_second", "bytes_per_second")}
    return of | changed | rates


def facts_of(*rows: dict[str, Any], delay: float | None = None) -> dict[str, Any]:
    facts = {
        "source": [f"{HOSTILE}.tar"],
        "samples": 480,
        "bytes": 480 * 40000,
        "fields": ["jpg", "cls"],
        "batch": 32,
        "seconds": 0.5,
        "passes": None,
        "delay": delay,
        "cores": 2,
        "left_out": [{"form": "zip", "why": HOSTILE}],
        "rows": list(rows),
        "answer": [],
        "says": [],
    }
    advise(facts)
    return facts


DECODING = [0.01, 0.02, 0.02, 0.02, 3.0, 0.1]
LOOSE = row("loose files", "loose", [0.02, 0.05, 0.02, 0.02, 3.0, 0.1])
TABLE = row("table, shuffled", "table", DECODING)
RAW = row("table, shuffled, raw", "table", [0.01, 0.02, 0.1, 0.1, 0.2, 0.1], raw=True)
FAR = {"requests": 64}


def test_where_decoding_limits_packing_gains_little_and_arrays_much() -> None:
    facts = facts_of(LOOSE, TABLE, with_workers(TABLE, 2, 1.9, 3e-3), with_workers(LOOSE, 2, 1.2, 1e-3), RAW)
    assert [(each["limit"], each["says"]) for each in facts["rows"]] == [
        ("decode", "decoding takes 93 % of the time"),
        ("decode", "decoding takes 95 % of the time"),
        ("processors", "all 2 processors are busy, most with: decode"),
        ("decode", "decoding takes 93 % of the time"),
        ("decode", "decoding takes 38 % of the time"),
    ]
    assert facts["answer"] == [
        "format: loose files (table, shuffled: 1.0 times as fast)",
        "workers: 2 (374 samples/s; without: 312)",
    ]
    assert facts["says"] == [
        "Packing gains little: table, shuffled brings a sample in 0.07 ms, loose files in 0.11 ms; with the decoding "
        "that is 1.0 times as fast. What limits it then: decoding takes 95 % of the time.",
        "Decoded arrays are worth a try: decoded arrays come 6.0 times as fast, and are 12 times as large.",
    ]


def test_where_requests_limit_they_are_made_side_by_side_and_shards_are_better() -> None:
    facts = facts_of(
        row("objects, one at a time", "loose", [0.1, 5.4, 0.4, 0.1, 0, 0.1], requests=1),
        row("objects, 64 at once", "loose", [0.1, 0.5, 0.3, 0.1, 0, 0.1], **FAR),
        row("tar, in order", "tar", [0.01, 0.01, 0.2, 0.03, 0, 0.1], requests=1),
        delay=0.005,
    )
    assert [each["limit"] for each in facts["rows"]] == ["first_byte", "first_byte", "transfer"]
    assert facts["answer"][0] == "format: tar, in order (3.1 times as fast as objects, 64 at once)"
    assert facts["says"] == [
        "64 requests at once bring the bytes 6.0 times as fast as one at a time, for objects of 40.0 kB.",
        "A shard (tar, in order) brings them 4.0 times as fast as these requests.",
        "Pack the files: tar, in order brings a sample in 0.25 ms, objects in 1 ms; with the decoding that is 3.1 "
        "times as fast. What limits it then: transferring the bytes takes 57 % of the time.",
    ]


def test_large_objects_gain_nothing() -> None:
    facts = facts_of(
        row("objects, one at a time", "loose", [0.1, 5.4, 400, 1, 0, 1], requests=1),
        row("objects, 64 at once", "loose", [0.1, 0.5, 399, 1, 0, 1], **FAR),
        row("tar, in order", "tar", [0.01, 0.1, 398, 2, 0, 1], requests=1),
    )
    assert facts["says"][2] == "Here the bytes take the time, not the requests, so packing gains nothing."
    assert facts["says"][3].startswith(
        "Packing gains little: tar, in order brings a sample in 400 ms, objects in 401 ms;"
    )


def test_what_is_slower_when_packed_stays_as_it_is() -> None:
    packed = row("zip", "zip", [0.1, 2, 2, 2, 0, 0], requests=32)
    facts = facts_of(row("objects, 64 at once", "loose", [0.1, 1, 2, 0, 0, 0], **FAR), packed)
    assert facts["says"] == [
        "Leave the files as they are: zip brings a sample in 6.1 ms, objects in 3.1 ms; with the decoding that is 0.5 "
        "times as fast. What limits it then: waiting for requests takes 33 % of the time."
    ]


def test_one_form_alone_is_described() -> None:
    assert facts_of(row("zip", "zip", [0.1, 6, 1, 0.1, 1, 0.1], **FAR))["says"] == [
        "A sample comes in 7.2 ms (zip); waiting for requests takes 72 % of the time."
    ]


def test_the_report() -> None:
    facts = facts_of(LOOSE, with_workers(LOOSE, 2, 2, 3e-3), TABLE)
    lines = [*plain_lines(facts)]
    assert f"source: {HOSTILE}.tar" in lines
    assert "row loose files: 311.5 samples/s, 12.5 MB/s, 1.605 ms of processor a sample, 960 samples, warm" in lines
    assert (
        "parts loose files: list 0.020 ms, first byte 0.050 ms, transfer 0.020 ms, tar 0.020 ms, decode 3.000 ms, "
        "collate 0.100 ms"
    ) in lines
    assert "limit loose files, 2 workers: all 2 processors are busy, most with: decode" in lines
    drawn = tables(facts, Screen(columns=120))
    assert re.search(r"^loose files +2 +623 +24\.9 +3\.00  █{16}  processors busy, decode", drawn, re.MULTILINE), drawn
    assert re.search(r"^table, shuffled +0\.01 +0\.02 +0\.02 +0\.02 +3\.00 +0\.10$", drawn, re.MULTILINE), drawn
    assert "\x1b" not in drawn
    narrow = tables(facts, Screen(columns=60))
    assert max(map(len, narrow.splitlines())) <= 60


def test_the_answer_comes_first() -> None:
    facts = facts_of(LOOSE, with_workers(LOOSE, 2, 2, 3e-3), with_workers(LOOSE, 4, 2.1, 3e-3), TABLE)
    answer = ["format: loose files (table, shuffled: 1.0 times as fast)", "workers: 2 (623 samples/s; without: 312)"]
    assert [*plain_lines(facts)][:2] == tables(facts, Screen(columns=80)).splitlines()[:2] == facts["answer"] == answer
    assert re.search(
        r"^loose files +4 +654 .*processors busy, decode$", tables(facts, Screen(columns=80)), re.MULTILINE
    )
    for share, said in (
        (0.1, []),
        (None, []),
        (0.5, ["figures are too low: other programs used 50 % of the processors"]),
    ):
        again = facts | {"others": share}
        advise(again)
        assert again["answer"][2:] == said
    alone = facts_of(row("zip", "zip", [0.1, 6, 1, 0.1, 1, 0.1], **FAR))
    assert alone["answer"] == ["format: zip", "workers: 0 (120 samples/s)"]


@by_turns("scheme")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page(width: int, scheme: str, chromium: Browser, tmp_path: Path) -> None:
    facts = facts_of(LOOSE, with_workers(LOOSE, 2, 2, 3e-3), TABLE, RAW)
    text = page(facts)
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)[0]
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'sha256-{allowed}'; base-uri 'none'" in text
    (tmp_path / "a.html").write_text(text)
    troubles: list[str] = []
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    seen = context.new_page()
    seen.on("console", lambda message: troubles.append(message.text))
    seen.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
    url = (tmp_path / "a.html").as_uri()
    seen.on("request", lambda asked: None if asked.url.startswith((url, "data:")) else troubles.append(asked.url))
    seen.goto(url)
    assert seen.evaluate("document.documentElement.scrollWidth") == width
    assert seen.locator("h1").inner_text() == f"tarbench {HOSTILE}.tar"
    widths = seen.evaluate("[...document.querySelectorAll('rect.bar')].map(bar => bar.getBoundingClientRect().width)")
    rates = [each["samples_per_second"] for each in facts["rows"]]
    assert [bar / max(widths) for bar in widths] == pytest.approx([rate / max(rates) for rate in rates], abs=0.01)
    parts = seen.evaluate(
        "[...document.querySelectorAll('.parts tbody tr')].map(row => row.querySelectorAll('rect').length)"
    )
    assert parts == [6, 6, 6]
    assert HOSTILE in seen.locator("main").inner_text()
    context.close()
    assert troubles == []
