"""Tables of shards on servers: the bytes that were indexed, or a failure; as many bytes as are needed, and no more."""

from __future__ import annotations

import io
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import tartools
from tartools.errors import StorageError
from tartools.storage.objects import ranges
from tests.archives import encoded
from tests.conftest import Run, has_end, make_samples, make_tar, members_of
from tests.storage.objects.faults import SCHEMES, Fault
from tests.storage.objects.inside import OBJECT, Inside
from tests.storage.objects.sites import Site
from tests.tiers import by_turns

pytestmark = by_turns("site", "scheme")
COUNT, SIZE = 12, 2560  # samples, and bytes of each
WHOLE = make_tar([m for n in range(COUNT) for m in ((f"{n:02d}.txt", b"%02d" % n * 300), (f"{n:02d}.cls", b"1"))])
OTHER = make_tar(
    [m for n in range(COUNT) for m in ((f"{n:02d}.txt", b"#" * len(b"%02d" % n * 300)), (f"{n:02d}.cls", b"2"))]
)
each = pytest.mark.parametrize("scheme", SCHEMES)


@pytest.fixture
def inside(empty: Inside) -> Inside:
    """Return commands in this process, and a server that has `WHOLE`."""
    empty.server.objects[OBJECT] = WHOLE
    return empty


def index(inside: Inside, scheme: str) -> pa.Table:
    """Make `t.parquet`; return its rows."""
    inside.run("tarindex", "--force", inside.server.url(scheme, OBJECT), "-o", "t.parquet").output()
    return pq.read_table("t.parquet")


@each
def test_the_same_bytes(scheme: str, inside: Inside) -> None:
    rows = index(inside, scheme)
    assert inside.run("tarcat", "t.parquet").stdout == WHOLE
    order = [*range(COUNT)]
    random.Random(2).shuffle(order)
    pq.write_table(rows.take(order), "shuffled.parquet")
    expected = b"".join(WHOLE[n * SIZE : (n + 1) * SIZE] for n in order)
    done = inside.run("tarcat", "shuffled.parquet")
    assert (done.status, done.stdout[: len(expected)], done.stderr) == (0, expected, "")
    assert has_end(done.stdout)


@each
def test_a_table_on_the_server(scheme: str, inside: Inside) -> None:
    """It names its shards relative to itself, and may name none of this machine."""
    url = inside.server.url(scheme, "t.parquet")
    index(inside, scheme)
    rows = pq.read_table("t.parquet")
    for name, status in ((OBJECT, 0), ("/etc/a.tar", 1), ("../a.tar", 1), ("file:a.tar", 1), ("pipe:cat a.tar", 1)):
        pq.write_table(rows.set_column(0, "__shard__", pa.array([name] * COUNT)), "made.parquet")
        inside.server.objects["t.parquet"] = Path("made.parquet").read_bytes()
        done = inside.run("tarcat", url)
        assert (done.status, done.stdout) == (status, b"" if status else WHOLE)
        assert status == 0 or "row 0: a table on a server may not name a " in done.stderr


@each
def test_a_table_on_the_server_lists_no_local_shards(scheme: str, inside: Inside) -> None:
    """Whoever writes it: nobody could read it."""
    url = inside.server.url(scheme, "t.parquet")
    index(inside, scheme)
    Path("a.tar").write_bytes(WHOLE)
    inside.run("tarcat", "-c", "3", "t.parquet", "a.tar", "-o", url).output()  # these three are on the server
    said = f"a table on a server may not name a local file: {Path('a.tar').resolve()}\n"
    for line in (["tarindex"], ["tarsort", "-r"], ["tarcat", "t.parquet"]):
        assert inside.run(*line, "a.tar", "-o", url, "--force").failure().endswith(said)
    inside.run("tarindex", "t.parquet", "a.tar", "-o", "both.parquet").output()
    both = tartools.Table("both.parquet")
    with pytest.raises(StorageError, match=said[:-1]):
        both.write(url, force=True)
    both.take(range(COUNT)).write(url, force=True)
    assert inside.run("tarcat", url).stdout == WHOLE


@each
def test_only_what_is_needed_is_requested(scheme: str, inside: Inside) -> None:
    rows = index(inside, scheme).take([2, 9, 4, 7, 0])
    for table, first in ((rows, []), (rows.drop_columns(["__version__"]), ["bytes=0-3"])):  # asks for the version once
        pq.write_table(table, "some.parquet")
        inside.server.requests.clear()
        assert inside.run("tarcat", "some.parquet").status == 0
        ranges = [request.headers["range"] for request in inside.server.requests if "range" in request.headers]
        assert sorted(ranges) == sorted(first + [f"bytes={n * SIZE}-{(n + 1) * SIZE - 1}" for n in (2, 9, 4, 7, 0)])


@each
def test_columns_are_read_without_the_shard(scheme: str, inside: Inside) -> None:
    """The table is on the server too; the facts are those of the shard."""
    shard, table = inside.server.url(scheme, OBJECT), inside.server.url(scheme, "t.parquet")
    assert inside.run("tarindex", "-f", "cls", shard, "-o", "t.parquet").status == 0
    whole = inside.run("tarstat", shard).stdout.splitlines()
    rows = inside.run("tar2tsv", "-f", "cls __size__ __shard__", shard)
    inside.server.objects["t.parquet"] = Path("t.parquet").read_bytes()
    inside.server.requests.clear()
    found = inside.run("tarstat", table)
    differing = [line.split()[0] for line, other in zip(found.stdout.splitlines(), whole, strict=True) if line != other]
    assert (found.status, found.stderr) == (0, "")
    assert set(differing) == {b"archives:", b"payloads:", b"headers:", b"padding:", b"other:"}
    assert inside.run("tar2tsv", "-f", "cls __size__ __shard__", table) == rows
    assert inside.server.asked(name=OBJECT) == [] and inside.server.asked(name="t.parquet") != []
    inside.server.objects["named-otherwise"] = Path("t.parquet").read_bytes()
    checked = inside.run("tarcheck", inside.server.url(scheme, "named-otherwise"))
    assert checked == inside.run("tarcheck", table) and f"samples: {COUNT}".encode() in checked.stdout


@each
def test_another_object_under_the_name(scheme: str, inside: Inside) -> None:
    index(inside, scheme)
    url = inside.server.url(scheme, OBJECT)
    for content in (OTHER, WHOLE[:-512], b""):
        inside.server.objects[OBJECT] = content
        said = inside.run("tarcat", "t.parquet").failure(lines=1)
        assert said.startswith(f"tarcat: {url}: ")
        assert "(row 0 of t.parquet; tarindex --update makes the table again)" in said


@each
def test_a_new_table_is_advised_only_where_it_helps(scheme: str, inside: Inside) -> None:
    """Not for a server that is busy, refuses, or hangs up."""
    index(inside, scheme)
    troubles: list[tuple[dict[str, Any], str]] = [
        ({"status": 503, "code": "SlowDown"}, r"the server is busy \(503[^)]*\) \(3 tries\)"),
        ({"dropped": True}, r"the connection was dropped \(3 tries\)"),
        ({"status": 403, "code": "AccessDenied"}, "no permission to read .*"),
    ]
    for trouble, reason in troubles:
        inside.server.faults = [Fault(OBJECT, times=None, **trouble)]
        message = inside.run("tarcat", "t.parquet").failure(lines=1)
        assert re.fullmatch(rf"tarcat: [^ ]*{OBJECT}: at byte 0: {reason} \(row 0 of t.parquet\)\n", message), message


@each
def test_a_table_in_python(scheme: str, inside: Inside) -> None:
    """One request for a sample; several for several, each tried again; another object is a failure."""
    pq.write_table(index(inside, scheme).set_column(0, "__shard__", pa.array([OBJECT] * COUNT)), "named.parquet")
    inside.server.objects["t.parquet"] = Path("named.parquet").read_bytes()
    url = inside.server.url(scheme, "t.parquet")
    table = tartools.Table(url)
    assert len(table) == COUNT
    assert [table[n]["txt"] for n in (3, -1, 3)] == [b"03" * 300, b"11" * 300, b"03" * 300]
    asked = [request.headers.get("range") for request in inside.server.asked("GET", OBJECT)][-3:]
    assert asked == [f"bytes={n * SIZE}-{(n + 1) * SIZE - 1}" for n in (3, 11, 3)]
    inside.server.faults = [Fault(OBJECT, method="GET", cut=300), Fault(OBJECT, method="GET", cut=0)]
    assert [sample.key for sample in table[[7, 0, 5, 7]]] == ["07", "00", "05", "07"]
    assert table.find("09")["txt"] == b"09" * 300
    inside.server.objects[OBJECT] = OTHER
    with pytest.raises(StorageError, match=rf"{OBJECT}: at byte {4 * SIZE}: .*\(row 4 of "):
        table[4]
    inside.server.objects["t.parquet"] = inside.server.objects["t.parquet"][:-1] + b"2"
    with pytest.raises(StorageError, match="was replaced since it was opened"):
        table.column("__key__")


@each
def test_one_request_for_the_first(scheme: str, inside: Inside) -> None:
    """Of the shard `tarfirst` asks for the bytes of the sample, once."""
    index(inside, scheme)
    for choice in (("-k", "07"), ("--index", "7"), ("-k", "07", "-S", "int(cls) == 1")):
        inside.server.requests.clear()
        assert inside.run("tarfirst", *choice, "-f", "txt", "t.parquet") == (0, b"07" * 300, "")
        asked = [request.headers.get("range") for request in inside.server.asked("GET", OBJECT)]
        assert asked == [f"bytes={7 * SIZE}-{8 * SIZE - 1}"] and len(inside.server.requests) == 1


def faults(draw: random.Random, other: bytes) -> list[Fault]:
    """Return what goes wrong with some of the requests for the shard."""
    found = []
    for _ in range(draw.randrange(1, 4)):
        fault = Fault(OBJECT, method="GET", skip=draw.randrange(4), times=draw.choice([1, 2, None]))
        kind = draw.choice(
            ["cut", "reset", "replace", "delete", "no_range", "status", "dropped", "no_match", "chunked"]
        )
        if kind in ("cut", "reset"):
            fault.cut, fault.reset = draw.randrange(3000), kind == "reset"
        elif kind == "chunked":
            fault.cut, fault.framing = draw.randrange(3000), "chunked"
        elif kind == "replace":
            fault.replace, fault.cut = other, draw.choice([None, 700])
        elif kind == "no_match":
            fault.replace, fault.no_match = other, True
        elif kind == "status":
            fault.status = draw.choice([403, 404, 416, 500, 503])
        else:
            setattr(fault, kind, True)
        found.append(fault)
    return found


@each
@pytest.mark.parametrize("seed", range(3))
def test_whatever_goes_wrong(scheme: str, seed: int, inside: Inside) -> None:
    """The bytes that were indexed, or a failure with shard, byte and row, and no end of archive."""
    rows = index(inside, scheme)
    draw = random.Random(seed)
    changed = bytearray(WHOLE)
    for n in range(COUNT):
        changed[n * SIZE + 20] ^= 1  # of each header
    statuses = set()
    for run in range(25):
        order = draw.sample(range(COUNT), COUNT) if run % 2 else [*range(COUNT)]
        versions = run % 3 > 0
        pq.write_table(rows.take(order) if versions else rows.take(order).drop_columns(["__version__"]), "s.parquet")
        expected = b"".join(WHOLE[n * SIZE : (n + 1) * SIZE] for n in order)
        other = draw.choice([OTHER, bytes(changed), WHOLE[:-700], WHOLE[: 5 * SIZE], b""])
        inside.server.objects[OBJECT] = WHOLE
        inside.server.faults = faults(draw, other)
        done = inside.run("tarcat", "s.parquet")
        inside.server.faults = []
        statuses.add(done.status)
        if done.status == 0 and (versions or done.stdout.startswith(expected)):
            assert done.stdout.startswith(expected) and has_end(done.stdout)
        elif done.status == 0:  # replaced before the first byte, which a table without versions can't tell
            assert done.stdout.startswith(b"".join(OTHER[n * SIZE : (n + 1) * SIZE] for n in order))
        else:
            assert done.status == 1 and done.stderr.count("\n") == 1 and not has_end(done.stdout)
            assert f"{OBJECT}: " in done.stderr and "of s.parquet" in done.stderr
            of_server = re.search("is busy|was dropped|no permission|the server refuses", done.stderr)
            assert not of_server or "tarindex" not in done.stderr, done.stderr
            assert expected.startswith(done.stdout) or not versions
    assert statuses == {0, 1}


@each
def test_rows_that_are_wrong(scheme: str, inside: Inside) -> None:
    rows = index(inside, scheme).drop_columns(["__members__"])
    for name, value, what in (
        ("__end__", len(WHOLE) + 512, "of a shard of"),
        ("__end__", 1 << 62, "of a shard of"),
        ("__shard__", inside.server.url(scheme, "none.tar"), "none.tar"),
    ):
        values = rows.column(name).to_pylist()
        values[3] = value
        made = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values))
        pq.write_table(made, "w.parquet")
        done = inside.run("tarcat", "w.parquet")
        assert done.status == 1 and not has_end(done.stdout), (name, value)
        assert WHOLE[: 3 * SIZE].startswith(done.stdout)
        assert re.search(rf"({what}).*\(row 3 of w.parquet; ", done.stderr), done.stderr


@each
@pytest.mark.parametrize("size", [300_000, 5_000_000, 17 << 20])
def test_large_samples(scheme: str, size: int, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 8 << 20)
    members = [m for n in range(3) for m in ((f"{n}.bin", bytes([n + 1]) * (size - n)), (f"{n}.cls", b"%d" % n))]
    inside.server.objects[OBJECT] = make_tar(members)
    rows = index(inside, scheme)
    pq.write_table(rows.take([2, 0, 1]), "s.parquet")
    expected = [m for n in (2, 0, 1) for m in members[2 * n : 2 * n + 2]]
    inside.server.faults = [Fault(OBJECT, method="GET", cut=200_000)]
    inside.run("tarcat", "s.parquet", "-o", "out.tar").output()
    assert members_of(Path("out.tar").read_bytes()) == expected
    if size == 17 << 20:  # read as a stream: replaced midway
        inside.server.faults = [Fault(OBJECT, method="GET", skip=1, replace=make_tar(members[::-1]))]
        assert re.search(r"\(row [012] of s.parquet; ", inside.run("tarcat", "s.parquet", "-o", "bad.tar").failure())
        assert not Path("bad.tar").exists()


@each
def test_members_at_the_ends_of_buffers(scheme: str, inside: Inside) -> None:
    """Where the members of a sample are, also if they were received one after the other."""
    members = [(f"{n:02d}.{field}", b"%d %d" % (n, field) * 2000) for n in range(40) for field in range(9)]
    data = inside.server.objects[OBJECT] = make_tar(members)
    for row in index(inside, scheme).to_pylist():
        for field, place in row["__members__"].items():
            payload = data[place["offset"] : place["offset"] + place["size"]]
            assert payload == dict(members)[f"{row['__key__']}.{field}"]


# ---- `tarindex --update` of shards on servers ----


def numbered(number: int, size: int) -> bytes:
    return make_tar([(f"{number}{sample}.txt", b"x" * size) for sample in range(number)])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_on_a_server_only_changed_shards_are_read(scheme: str, empty: Inside, tmp_path: Path) -> None:
    for number in range(5):
        empty.server.objects[f"{number}.tar"] = numbered(number + 1, size=90_000)
    urls = [empty.server.url(scheme, f"{number}.tar") for number in range(5)]
    assert empty.run("tarindex", *urls, "-o", "t.parquet").status == 0
    empty.server.objects["3.tar"] = numbered(3, size=80_000)
    empty.server.requests.clear()
    done = empty.run("tarindex", "--update", "t.parquet", *urls, "-o", "new.parquet")
    assert (done.status, done.stderr) == (0, "tarindex: t.parquet: shards taken over: 4, read: 1, dropped: 0\n")
    asked: dict[str, int] = {}
    for request in empty.server.requests:
        if request.method != "GET" or "range" not in request.headers:
            continue
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        name = next(name for name in empty.server.objects if name in request.path)
        asked[name] = asked.get(name, 0) + int(last) - int(first) + 1
    assert all(asked[f"{number}.tar"] == 4 for number in (0, 1, 2, 4)) and asked["3.tar"] > 240_000
    assert len(pq.read_table(tmp_path / "new.parquet")) == 1 + 2 + 3 + 3 + 5


# ---- Tables on servers that commands write, of shards there: named relative to the table, as far as they can ----


FORTY = make_tar(
    [m for n in range(40) for m in ((f"{n:02d}.txt", b"%02d" % n * 300), (f"{n:02d}.cls", b"%d" % (n % 7)))]
)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_index_shuffle_split_and_copy(scheme: str, empty: Inside) -> None:
    empty.server.objects["set/a.tar"] = FORTY
    url = empty.server.url(scheme, "set/")

    def done(*line: str) -> bytes:
        return empty.run(*line).output()

    def shards(name: str) -> set[str]:
        return set(pq.read_table(io.BytesIO(empty.server.objects[name])).column("__shard__").to_pylist())

    done("tarindex", "-f", "cls", f"{url}a.tar", "-o", f"{url}t.parquet")
    assert shards("set/t.parquet") == {"a.tar"}
    empty.server.requests.clear()
    done("tarsort", "-S", "shuffle", f"{url}t.parquet", "-o", f"{url}epoch.parquet")
    done("tarsort", "-s", "cls", "-S", "int", f"{url}t.parquet", "-o", f"{url}parts/byclass.parquet")
    assert not any("a.tar" in request.path for request in empty.server.requests)  # no sample is looked at
    assert shards("set/epoch.parquet") == {"a.tar"} and shards("set/parts/byclass.parquet") == {f"{url}a.tar"}
    assert done("tarcat", f"{url}epoch.parquet") == done("tarsort", "-S", "shuffle", f"{url}a.tar")
    assert done("tarcat", f"{url}parts/byclass.parquet") == done("tarsort", "-s", "cls", "-S", "int", f"{url}a.tar")
    printed = done("tarsplit", "-n", "15", f"{url}epoch.parquet", "-o", f"{url}part-%02d.parquet").decode().split()
    assert printed == [f"{url}part-{number:02d}.parquet" for number in range(3)]
    assert done("tarcat", *printed) == done("tarcat", f"{url}epoch.parquet")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_shard_that_is_cut_leaves_no_table(scheme: str, empty: Inside) -> None:
    empty.server.objects["a.tar"] = FORTY[:50_000]
    for line in (["tarcat"], ["tarpcat"], ["tarsort"], ["tarsplit"], ["tarindex"]):
        found = empty.run(*line, empty.server.url(scheme, "a.tar"), "-o", empty.server.url(scheme, "t.parquet"))
        assert found.status == 1 and "a.tar: " in found.stderr and found.stderr.count("\n") == 1, found
    assert sorted(empty.server.objects) == ["a.tar"]


# ---- tarindex of shards on servers: digests of payloads, and indexes for other tools, written beside the shards ----


FIRST, LAST = make_samples(40), make_samples(30, 40)


@pytest.mark.parametrize("name", ["dali", "wids", "webshart", "energon"])
def test_indexes_beside_the_shards(name: str, site: Site, run: Run, tmp_path: Path) -> None:
    """The same bytes as those of the indexes of local files."""
    for folder in ("t", "t/d"):
        (tmp_path / folder).mkdir()
    for shard, members in (("d/a.tar", FIRST), ("d/b.tar", LAST)):
        (tmp_path / "t" / shard).write_bytes(make_tar(members))
        site.put(shard, make_tar(members))
    shards = [site.url("d/a.tar"), site.url("d/b.tar")]
    assert run("tarindex", "--for", name, *shards, env=site.env) == (0, b"", "")
    assert run("tarindex", "--for", name, "t/d/a.tar", "t/d/b.tar").status == 0
    found = [path for path in (tmp_path / "t").rglob("*") if path.is_file()]
    local = {str(path.relative_to(tmp_path / "t")): path.read_bytes() for path in found}
    assert len(local) == {"dali": 4, "wids": 3, "webshart": 4, "energon": 8}[name]
    for file, content in local.items():
        assert site.get(file) == content
    assert "--force" in run("tarindex", "--for", name, *shards, env=site.env).failure()
    assert run("tarindex", "--force", "--for", name, *shards, env=site.env).status == 0


@by_turns("skip")
@pytest.mark.parametrize("skip", [1, 2, 3])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["dali", "wids", "webshart", "energon"])
def test_a_shard_that_is_replaced(name: str, scheme: str, skip: int, empty: Inside) -> None:
    faulty = empty.server
    url = faulty.url(scheme, OBJECT)
    faulty.objects[OBJECT] = make_tar(FIRST)
    faulty.faults = [fault := Fault(OBJECT, method="GET", skip=skip, replace=make_tar(LAST))]
    line = ["tarindex", "--for", name, url]
    done = empty.run(*line)
    assert (done.status, done.stdout, fault.played) == (1, b"", 1)
    assert done.stderr.startswith(f"tarindex: {url}: ") and done.stderr.count("\n") == 1
    assert re.search("changed while it was read|was (replaced|deleted) while it was being read", done.stderr)
    assert ([*faulty.objects], faulty.pending) == ([OBJECT], 0)
    assert empty.run(*line).status == 0


def test_facts_of_remote_shards(site: Site, run: Run, tmp_path: Path) -> None:
    picture = encoded(Image.linear_gradient("L").resize((90, 60)))
    members = [(f"{n}.png", picture[: None if n else -30]) for n in range(3)]
    members += [("2.bin", bytes(range(256)) * 100_000), ("2.cls", b"7")]
    site.put("a.tar", make_tar(members))
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    found = []
    for shard in ("a.tar", site.url("a.tar")):
        facts = ("--decode", "--dhash", "png", "--hash", "png bin", "-f", "cls")
        run("tarindex", *facts, shard, "-o", "t.parquet", "--force", env=site.env).output()
        found.append(pq.read_table(tmp_path / "t.parquet").drop_columns(["__shard__", "__version__"]).to_pylist())
    assert found[0] == found[1]
    assert [row["png.broken"] is None for row in found[0]] == [False, True, True]
    assert [row["png.dhash"] is None for row in found[0]] == [True, False, False]
    assert [row["png.width"] for row in found[0]] == [90] * 3
