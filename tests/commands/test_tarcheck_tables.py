"""tarcheck of tables: the samples of the rows, in their order, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from tartools.shards import workers
from tests.archives import BLOCK, END, entry, pax
from tests.commands.conftest import Inside
from tests.commands.test_tarcheck import KEYS, OTHERS, SAMPLES, SIZE, SOUND, changed, sample, with_one, written
from tests.conftest import Result
from tests.properties.test_model import grouped

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Check = Callable[..., dict[str, tuple[int, list[Any]]]]


@pytest.fixture
def check(inside: Inside) -> Check:
    """Return a function that runs tarcheck --json; it returns count and places of each code."""

    def check(*arguments: str) -> dict[str, tuple[int, list[Any]]]:
        done = inside("tarcheck", "--json", *arguments)
        found = json.loads(done.stdout)
        assert (done.status, done.stderr) == (int(found["errors"] + found["warnings"] > 0), "")
        findings = {each["code"]: (each["count"], each["places"]) for each in found["findings"]}
        return {"": (found["samples"], [found["shards"]]), **findings}

    return check


def index(inside: Inside, *shards: str, to: str = "t.parquet") -> None:
    assert inside("tarindex", "-f", "cls", *shards, "-o", to)[::2] == (0, "")


def test_rows_are_compared_with_their_shards(check: Check, inside: Inside, tmp_path: Path) -> None:
    written(tmp_path, [SOUND, OTHERS])
    index(inside, "s0.tar", "s1.tar")
    assert check("t.parquet") == {"": (15, [2])}
    assert check("t.parquet", "s0.tar", "s1.tar") == {"": (15, [2])}  # each sample is read once
    rows = pq.read_table(tmp_path / "t.parquet")
    begins = rows.column("__begin__").to_pylist()
    begins[3] += BLOCK
    lie = rows.set_column(rows.schema.get_field_index("__begin__"), "__begin__", pa.array(begins, pa.uint64()))
    pq.write_table(lie, tmp_path / "lie.parquet")
    found = check("lie.parquet")
    assert found[""] == (14, [2]) and found["table-row"][0] == 1
    assert "(row 3 of lie.parquet" in found["table-row"][1][0]["what"]
    (tmp_path / "s1.tar").unlink()
    place = {"shard": "t.parquet", "byte": None, "key": "", "what": "missing-shard: s1.tar"}
    assert check("t.parquet")["missing-shard"] == (1, [place])
    (tmp_path / "s1.tar").write_bytes(OTHERS + bytes(512))
    found = check("t.parquet")
    assert found[""] == (12, [2]) and found["table-stale"][0] == 1
    table = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(changed(100, b"~~~~~~~~", table)[:-8])
    found = check("s0.tar", "t.parquet")
    assert found["table-damaged"][0] == 1 and found["table-damaged"][1][0]["shard"] == "t.parquet"


def exchanged(places: list[dict[str, Any]], _: int) -> None:
    for row in places:
        row["cls"], row["txt"] = row["txt"], row["cls"]


def larger(places: list[dict[str, Any]], row: int) -> None:
    places[row]["cls"]["size"] += 1


def lacking(places: list[dict[str, Any]], row: int) -> None:
    places[row]["cls"] = None


def of_a_field_that_is_not_there(places: list[dict[str, Any]], _: int) -> None:
    places[2]["jpg"] = places[2]["txt"]


@pytest.mark.parametrize(
    ("change", "rows", "field"),
    [(exchanged, 12, "txt"), (larger, 1, "cls"), (lacking, 1, "cls"), (of_a_field_that_is_not_there, 1, "jpg")],
)
def test_places_of_members_are_compared(
    change: Callable[[list[dict[str, Any]], int], None],
    rows: int,
    field: str,
    check: Check,
    inside: Inside,
    tmp_path: Path,
) -> None:
    """Conditions on fields and sizes are answered from them."""
    written(tmp_path, [b"".join(sample(key, txt=b"22", cls=b"1") for key in KEYS[:12]) + END])
    index(inside, "s0.tar")
    table = pq.read_table(tmp_path / "t.parquet")
    places = table.column("__members__").to_pylist()
    change(places, 2)
    at = table.schema.get_field_index("__members__")
    one = table.schema.field(at).type.field(0).type
    kind = pa.struct([(name, one) for name in ("txt", "cls", "jpg")][: 2 + (field == "jpg")])
    pq.write_table(table.set_column(at, "__members__", pa.array(places, kind)), tmp_path / "lie.parquet")
    found = check("lie.parquet")
    assert (found[""][0], {*found}, found["table-row"][0]) == (12 - rows, {"", "table-row"}, rows)
    what = found["table-row"][1][-1]["what"]
    assert what.startswith(f"__members__ of this row and the shard differ in the field {field!r} (row "), what
    assert "of lie.parquet; tarindex --update" in what
    assert inside("tarcheck", "--fix", "-o", "good.tar", "lie.parquet").status == 1
    assert len(grouped((tmp_path / "good.tar").read_bytes())) == 12 - rows


def test_only_what_the_rows_list_is_checked(check: Check, inside: Inside, tmp_path: Path) -> None:
    written(tmp_path, [with_one(sample("z", txt=b"1")), OTHERS[: -len(END)] + SAMPLES[3] + END])
    index(inside, "s0.tar", "s1.tar")
    assert inside("tarfilter", "--fields-present", "cls", "t.parquet", "-o", "good.parquet").status == 0
    assert {*check("t.parquet")} == {"", "missing-field", "key-in-two-shards"}
    found = check("good.parquet")
    place = {"shard": "s1.tar", "byte": 3 * SIZE, "key": "0003", "what": f"also at byte {3 * SIZE} of s0.tar"}
    assert found == {"": (16, [2]), "key-in-two-shards": (1, [place])}
    assert f"key 0003, also at byte {3 * SIZE} of s0.tar" in inside("tarcheck", "good.parquet").stdout.decode()
    rows = pq.read_table(tmp_path / "good.parquet")
    pq.write_table(rows.take([5, 4, 5]), tmp_path / "twice.parquet")
    assert check("twice.parquet")["key-twice"][1][0]["what"] == "also in another row of a table"


def in_out(done: Result) -> tuple[int, int]:
    """Return samples in and out, as -v says them; all others are accounted for."""
    last = done.stderr.splitlines()[-1]
    numbers = {what: int(n) for n, what in re.findall(r"(\d+) (samples in|out|joined|left out|dropped)\b", last)}
    assert numbers["samples in"] == sum(n for what, n in numbers.items() if what != "samples in"), last
    return numbers["samples in"], numbers["out"]


def test_what_is_sound_in_tables(check: Check, inside: Inside, tmp_path: Path) -> None:
    """Also behind damage, and in the order of the rows."""
    lone = pax((b"mtime", b"1.5")) + entry(b"p.txt", b"1") + entry(b"p.cls", b"1")
    cut = changed(5 * SIZE + 3, b"~", b"".join(sample(f"d{key}") for key in KEYS))[: 10 * SIZE - 700]
    few = OTHERS[: -len(END)] + sample("z", txt=b"1") + lone + SAMPLES[3] + END
    names = written(tmp_path, [SOUND, cut, few])
    index(inside, "s0.tar")
    assert inside("tarsort", "-S", "shuffle", "t.parquet", "-o", "shuffled.parquet").status == 0
    for inputs in (names, ["shuffled.parquet", *names[1:]]):
        done = inside("tarcheck", "--fix", "--force", "-v", "-o", "o.tar", *inputs)
        assert done.status == 1 and in_out(done) == (28, 24)
        assert inside("tarcat", inputs[0]).stdout[: 12 * SIZE] == (tmp_path / "o.tar").read_bytes()[: 12 * SIZE]
        assert check("o.tar") == {"": (24, [1])}


def test_no_table_of_what_is_sound(inside: Inside, tmp_path: Path) -> None:
    """Members are brought together, and left out: no table can list that."""
    written(tmp_path, [SOUND])
    for output in ("o.parquet", "o-{shard:03d}.parquet"):
        assert "name a shard" in inside("tarcheck", "--fix", "-o", output, "s0.tar").failure(2)
    index(inside, "s0.tar")
    done = inside("tarcheck", "--fix", "--force", "-o", "s0.tar", "t.parquet")
    assert done.status == 1 and "s0.tar" in done.stderr
    assert (tmp_path / "s0.tar").read_bytes() == SOUND
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s0.tar", "t.parquet"]
    table = (tmp_path / "t.parquet").read_bytes()  # on stdin, nothing tells its name from those of the shards
    assert "compared only if it is named as a file" in inside("tarcheck", stdin=table).failure()


@given(random=strategies.randoms(use_true_random=False))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_row_is_written_or_reported(
    random: Random, inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples in = out + reported, at -p 1 and 2, from a table of random shards that was filtered and shuffled."""
    cut = b"".join(sample(f"c{n}", txt=b"c" * 90, cls=b"1") for n in range(9))
    (tmp_path / "c.tar").write_bytes(cut[: random.randrange(6, 36) * BLOCK])
    shards = []
    for shard in range(3):
        made = []
        for n in random.sample(range(20), 8):
            key = f"k{n}" if random.random() < 0.3 else f"k{shard}-{n}"
            fields = {"txt": b"%d" % n * random.randrange(1, 600), "cls": b"1"}
            made.append(sample(key, **dict(list(fields.items())[: random.choice([1, 2, 2, 2, 2])])))
        shards.append(b"".join(made) + END)
    names = written(tmp_path, shards)
    assert inside("tarindex", "--force", *names, "-o", "all.parquet").status == 0
    rows = pq.read_table(tmp_path / "all.parquet")
    taken = random.sample(range(24), random.randrange(5, 24))
    pq.write_table(rows.take([*taken, taken[0]]), tmp_path / "t.parquet")
    gone = random.randrange(3)
    if random.random() < 0.5:
        (tmp_path / names[gone]).unlink()
    else:
        gone = 3
    results, counts = set(), set()
    monkeypatch.setattr(workers, "PART_BYTES", 1)  # workers for small shards too
    for parallel in ("1", "2"):
        done = inside("tarcheck", "-p", parallel, "--fix", "--force", "-v", "-o", "o.tar", "t.parquet", "c.tar")
        read, out = in_out(done)
        reported = len(re.findall(r": sample '[^']*' is not written: ", done.stderr))
        rows_lost = sum(int(n) for n in re.findall(r": (\d+) rows? not written", done.stderr))
        assert read == out + reported + rows_lost and done.status == 1
        counts.add(read)
        results.add((out, done.stdout, *sorted(done.stderr.splitlines()[:-1])))
    assert (len(results), len(counts)) == (1, 1) and counts.pop() - len(taken) - 1 in range(2, 10)
    by_key = {each.key: each for content in [*shards, cut] for each in grouped(content)}
    for each in grouped((tmp_path / "o.tar").read_bytes()):
        assert each == by_key[each.key] or "-" not in each.key  # a key of several shards
    assert inside("tarcheck", "--expect", "txt", "o.tar").status == 0
