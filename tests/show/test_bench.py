"""What tarbench says of measurements: limits and advice. How the report is printed: `test_reports`."""

from __future__ import annotations

from typing import Any

from tartools.show.benchreport import PARTS, advise

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
        "parts": {part: time / 1e3 for part, time in zip(PARTS, times, strict=True)},
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
        "left_out": [{"form": "zip", "why": "there is none"}],
        "rows": list(rows),
        "answer": [],
        "says": [],
    }
    advise(facts)
    return facts


LOOSE = row("loose files", "loose", [0.02, 0.09, 3.0, 0.1])
TABLE = row("table, shuffled", "table", [0.01, 0.06, 3.0, 0.1])


def test_where_decoding_limits_packing_gains_little() -> None:
    facts = facts_of(LOOSE, TABLE, with_workers(TABLE, 2, 1.9, 3e-3), with_workers(LOOSE, 2, 1.2, 1e-3))
    assert [(each["limit"], each["says"]) for each in facts["rows"]] == [
        ("decode", "decoding takes 93 % of the time"),
        ("decode", "decoding takes 95 % of the time"),
        ("processors", "all 2 processors are busy, most with decoding"),
        ("decode", "decoding takes 93 % of the time"),
    ]
    assert facts["answer"] == [
        "format: loose files (table, shuffled: as fast)",
        "workers: 2 (374 samples/s; without: 312)",
    ]
    assert facts["says"] == [
        "Packing gains little: a sample takes 0.07 ms (table, shuffled) or 0.11 ms (loose files); with "
        "decoding, packed is as fast. What limits it then: decoding takes 95 % of the time."
    ]


def test_where_reading_limits_shards_are_better() -> None:
    facts = facts_of(
        row("loose files", "loose", [0.1, 0.9, 0, 0.1], far=True),
        row("tar, in order", "tar", [0.01, 0.24, 0, 0.1], far=True),
    )
    assert [each["limit"] for each in facts["rows"]] == ["read", "read"]
    assert facts["answer"][0] == "format: tar, in order (3.1 times as fast as loose files)"
    assert facts["says"] == [
        "Pack the files: a sample takes 0.25 ms (tar, in order) or 1 ms (loose files); with decoding, packed is "
        "3.1 times as fast. What limits it then: reading takes 69 % of the time."
    ]


def test_what_is_slower_when_packed_stays_as_it_is() -> None:
    packed = row("zip", "zip", [0.1, 6, 0, 0], far=True)
    facts = facts_of(row("loose files", "loose", [0.1, 3, 0, 0], far=True), packed)
    assert facts["says"] == [
        "Leave the files as they are: a sample takes 6.1 ms (zip) or 3.1 ms (loose files); with decoding, "
        "packed is 0.5 times as fast. What limits it then: reading takes 98 % of the time."
    ]


def test_one_form_alone_is_described() -> None:
    facts = facts_of(row("zip", "zip", [0.1, 7.1, 1, 0.1], far=True))
    assert facts["answer"] == ["format: zip", "workers: 0 (120 samples/s)"]
    assert facts["says"] == ["A sample takes 7.2 ms (zip); reading takes 86 % of the time."]


def test_other_programs_are_told() -> None:
    facts = facts_of(LOOSE, with_workers(LOOSE, 2, 2, 3e-3), with_workers(LOOSE, 4, 2.1, 3e-3), TABLE)
    for share, said in (
        (0.1, []),
        (None, []),
        (0.5, ["figures are too low: other programs used 50 % of the processors"]),
    ):
        again = facts | {"others": share}
        advise(again)
        assert again["answer"][2:] == said
