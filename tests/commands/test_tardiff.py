"""tardiff: compared with a naive model, of shards and of tables, sound and damaged."""

from __future__ import annotations

import gzip
import json
import os
import random
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from tests.archives import END, entry, pax
from tests.commands.conftest import Inside
from tests.commands.test_tarstat import cut_up
from tests.conftest import Run, has_end, make_samples, make_tar, members_of
from tests.tiers import also

Sample = tuple[str, list[tuple[str, bytes]]]  # key, fields with payloads in the order of the archive


def archive(samples: Iterable[Sample], format: int = tarfile.USTAR_FORMAT) -> bytes:
    return make_tar([(f"{key}.{field}", payload) for key, fields in samples for field, payload in fields], format)


def put(folder: Path, name: str, samples: Sequence[Sample], shards: int, dice: random.Random) -> str:
    """Write *samples* to so many shards, some of them compressed or by another tar; return a pattern for them."""
    cuts = sorted(dice.choices(range(len(samples) + 1), k=shards - 1))
    for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(samples)], strict=True)):
        data = archive(samples[begin:end], dice.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
        if dice.random() < 0.3:
            data = gzip.compress(data)
        (folder / f"{name}-{number:02d}.tar").write_bytes(data)
    return f"{name}-{{00..{shards - 1:02d}}}.tar"


def random_samples(dice: random.Random) -> list[Sample]:
    keys = dice.sample([f"{folder}{n}" for folder in ("", "d/", "é/") for n in range(60)], dice.randrange(1, 60))
    return [(key, random_fields(dice)) for key in keys]


def random_fields(dice: random.Random) -> list[tuple[str, bytes]]:
    names = dice.sample(["txt", "cls", "seg.png", "json"], dice.randrange(1, 5))
    return [(name, dice.randbytes(dice.choice([0, 1, 5, 600, 1500]))) for name in names]


def edited(samples: Sequence[Sample], dice: random.Random) -> list[Sample]:
    """Return *samples* with some of them added, removed, changed, moved, and others with their fields turned round."""
    found = list(samples)
    for n in range(dice.choice([0, 1, 6])):
        what = dice.randrange(8)
        at = dice.randrange(len(found)) if found else 0
        if what == 0 or not found:
            found.insert(at, (f"new{n}", random_fields(dice)))
        elif what == 1:
            del found[at]
        elif what == 2:  # one byte of a payload
            key, fields = found[at]
            place = dice.randrange(len(fields))
            payload = fields[place][1]
            changed = bytes([payload[0] ^ 1]) + payload[1:] if payload else b"x"
            found[at] = (key, [*fields[:place], (fields[place][0], changed), *fields[place + 1 :]])
        elif what == 3:  # a field has another name
            key, fields = found[at]
            found[at] = (key, [(f"{fields[0][0]}.old", fields[0][1]), *fields[1:]])
        elif what == 4:
            found.insert(dice.randrange(len(found)), found.pop(at))
        elif what == 5:
            found[at] = (found[at][0], found[at][1][::-1])
        elif what == 6:
            dice.shuffle(found)
        elif at + 1 < len(found):  # a key that comes back elsewhere
            found.append((found[at][0], random_fields(dice)))
    # without those that have the key of the one before, which readers would take for one sample
    return [each for n, each in enumerate(found) if not n or found[n - 1][0] != each[0]]


def model(a: Sequence[Sample], b: Sequence[Sample]) -> tuple[dict[str, Any], list[str], list[Sample]]:
    """Return what tardiff should say by --json, by --list-keys, and which samples it should write."""
    places: list[dict[str, list[int]]] = []
    for side in (a, b):
        found = defaultdict(list)
        for n, (key, _) in enumerate(side):
            found[key].append(n)
        places.append(found)
    lines, new, equal, pairs, by_field = [], list[int](), 0, [], defaultdict[str, int](int)
    for key in sorted({*places[0], *places[1]}, key=lambda key: key.encode()):
        mine, others = places[0].get(key, []), places[1].get(key, [])
        for i, j in zip(mine, others, strict=False):
            pairs.append((i, j))
            old, now = dict(a[i][1]), dict(b[j][1])
            unlike = [
                ("-" if name not in now else "+" if name not in old else "") + name
                for name in sorted({*old, *now})
                if old.get(name) != now.get(name)
            ]
            equal += not unlike
            if unlike:
                lines.append(f"~ {key}\t{' '.join(unlike)}")
                new.append(j)
            for name in unlike:
                by_field[name] += 1
        lines += [f"- {key}"] * len(mine[len(others) :])
        lines += [f"+ {key}"] * len(others[len(mine) :])
        new += others[len(mine) :]
    by_a, by_b = ([pair[1] for pair in sorted(pairs, key=lambda pair: pair[side])] for side in (0, 1))
    before = [dict(zip(order, [None, *order], strict=False)) for order in (by_a, by_b)]
    moved = [f"> {b[j][0]}" for j in by_b if before[0][j] != before[1][j]]
    kinds = "".join(line[0] for line in lines)
    facts = {
        "a": len(a),
        "b": len(b),
        "equal": equal,
        "added": kinds.count("+"),
        "removed": kinds.count("-"),
        "changed": kinds.count("~"),
        "fields": dict(by_field),
        "reordered": len(moved),
        "repeated_a": len(a) - len(places[0]),
        "repeated_b": len(b) - len(places[1]),
    }
    return facts, lines + moved, [b[j] for j in sorted(new)]


def digest_model(samples: Iterable[Sample]) -> str:
    """Return the digest as the man page defines it."""

    def counted(raw: bytes) -> bytes:
        return len(raw).to_bytes(8, "big") + raw

    total = 0
    for key, fields in samples:
        parts = sorted((name.encode(), blake2b(payload, digest_size=32).digest()) for name, payload in fields)
        text = counted(key.encode()) + b"".join(counted(name) + digest for name, digest in parts)
        total += int.from_bytes(blake2b(text, digest_size=32).digest(), "big")
    return f"{total % 2**256:064x}\n"


@pytest.mark.parametrize("seed", [*range(8), *also(*range(8, 40))])
def test_random_edits_against_a_model(seed: int, inside: Inside, tmp_path: Path) -> None:
    """In a quarter of the runs, one of the data sets or both are tables."""
    dice = random.Random(seed)
    a = random_samples(dice)
    b = edited(a, dice)
    run, names = inside, []
    for name, side in (("a", a), ("b", b)):
        if seed % 4 == 3 and name in ("a", "b", "ab")[seed // 4 % 3]:
            (tmp_path / f"{name}.tar").write_bytes(archive(side))
            assert run("tarindex", f"{name}.tar", "-o", f"{name}.parquet").status == 0
            names.append(f"{name}.parquet")
        else:
            names.append(put(tmp_path, name, side, dice.randrange(1, 5), dice))
    facts, lines, new = model(a, b)
    differ = int(bool(lines))
    small = ["-M", "64K"] if seed % 2 else []  # what waits is in files
    told = run("tardiff", "-q", "--json", *small, *names, "-o", "new.tar")
    assert (told.status, told.stderr) == (differ, "")
    assert json.loads(told.stdout) == facts
    listed = run("tardiff", "-q", "--list-keys", *small, *names)
    assert (listed.status, listed.stderr, listed.stdout.decode().splitlines()) == (differ, "", lines)
    written = (tmp_path / "new.tar").read_bytes()
    assert has_end(written)
    assert members_of(written) == members_of(archive(new))
    unordered = run("tardiff", "-q", "--json", "--unordered", *names)
    assert unordered.status == int(bool([line for line in lines if line[0] != ">"]))
    assert json.loads(unordered.stdout) == facts | {"reordered": None}
    for name, side in zip(names, (a, b), strict=True):
        assert run("tardiff", "-q", "--digest", name).output().decode() == digest_model(side)


def test_what_it_prints(run: Run, tmp_path: Path) -> None:
    a = [(key, [("txt", b"1"), ("cls", b"2")]) for key in "abcdef"]
    b = [("x", [("txt", b"")]), *a[1:3], a[4], a[3], ("f", [("cls", b"3"), ("jpg", b"")])]
    (tmp_path / "a.tar").write_bytes(archive(a))
    (tmp_path / "b.tar").write_bytes(archive(b))
    done = run("tardiff", "a.tar", "b.tar")
    assert (done.status, done.stderr) == (1, "")
    assert done.stdout.decode() == (
        "a: 6\nb: 6\nequal: 4\nadded: 1\nremoved: 1\nchanged: 1\n"
        "changed +jpg: 1\nchanged -txt: 1\nchanged cls: 1\nreordered: 3\n"
    )
    keys = run("tardiff", "--list-keys", "a.tar", "b.tar")
    assert keys.stdout == b"- a\n~ f\tcls +jpg -txt\n+ x\n> e\n> d\n> f\n"
    assert keys.status == 1
    new = run("tardiff", "a.tar", "b.tar", "-o", "-")
    assert (new.status, members_of(new.stdout)) == (1, [("x.txt", b""), ("f.cls", b"3"), ("f.jpg", b"")])
    assert run("tardiff", "a.tar", "-", stdin=archive(b)) == done
    assert run("tardiff", "--json", "a.tar", "a.tar").status == 0


def test_samples_of_several_shards(run: Run, tmp_path: Path) -> None:
    """Also if the first shards are the same, and keys come back behind them."""
    same = [("k", [("txt", b"1")]), ("l", [("txt", b"1")]), ("k", [("txt", b"2")])]
    for name, samples in (
        ("a-0", same),
        ("b-0", same),
        ("a-1", [("m", [("txt", b"1")]), ("k", [("txt", b"3")])]),
        ("b-1", [("k", [("txt", b"4")]), ("m", [("txt", b"1")]), ("n", [("txt", b"1")]), ("l", [("txt", b"9")])]),
    ):
        (tmp_path / f"{name}.tar").write_bytes(archive(samples))
    done = run("tardiff", "-q", "--json", "a-*.tar", "b-*.tar", "-o", "new.tar")
    facts = {"a": 5, "b": 7, "equal": 4, "added": 2, "removed": 0, "changed": 1, "fields": {"txt": 1}}
    assert json.loads(done.stdout) == facts | {"reordered": 2, "repeated_a": 2, "repeated_b": 3}
    assert members_of((tmp_path / "new.tar").read_bytes()) == [("k.txt", b"4"), ("n.txt", b"1"), ("l.txt", b"9")]
    assert json.loads(run("tardiff", "-q", "--json", "a-0.tar", "b-0.tar").output()) == {
        **{"a": 3, "b": 3, "equal": 3, "added": 0, "removed": 0, "changed": 0, "fields": {}},
        **{"reordered": 0, "repeated_a": 1, "repeated_b": 1},
    }


def test_equal_tables_of_other_folders_list_other_shards(run: Run, tmp_path: Path) -> None:
    """Even if the shards have the same size and time."""
    for name, payload in (("x", b"1"), ("y", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.tar").write_bytes(make_tar([("k.txt", payload)]))
        assert run("tarindex", f"{name}/a.tar", "-o", f"{name}/t.parquet").status == 0
    about = (tmp_path / "x/a.tar").stat()
    os.utime(tmp_path / "y/a.tar", ns=(about.st_atime_ns, about.st_mtime_ns))
    (tmp_path / "y/t.parquet").write_bytes((tmp_path / "x/t.parquet").read_bytes())
    assert run("tardiff", "--list-keys", "x/t.parquet", "y/t.parquet") == (1, b"~ k\ttxt\n", "")


def test_odd_samples(run: Run, tmp_path: Path) -> None:
    """Members without a field, a field twice, names that escape, large payloads, keys with NUL."""
    lone, twice = entry(b"README", b"1"), entry(b"k.a", b"1") + entry(b"k.a", b"2")
    odd = pax((b"path", "n\nö.txt".encode())) + entry(b"x", b"1")
    (tmp_path / "a.tar").write_bytes(lone + twice + odd + entry(b"big.bin", bytes(20 << 20)) + END)
    turned = entry(b"k.a", b"2") + entry(b"k.a", b"1")
    (tmp_path / "b.tar").write_bytes(lone + turned + odd + entry(b"big.bin", bytes(20 << 20)) + END)
    assert run("tardiff", "a.tar", "b.tar").status == 0
    digests = [run("tardiff", "--digest", name).stdout.decode() for name in ("a.tar", "b.tar")]
    same = [("README", [("", b"1")]), ("k", [("a", b"1"), ("a", b"2")]), ("n\nö", [("txt", b"1")])]
    assert digests == [digest_model([*same, ("big", [("bin", bytes(20 << 20))])])] * 2
    changed = odd.replace(b"1" + bytes(511), b"2" + bytes(511))
    big = bytes((20 << 20) - 1) + b"\1"
    (tmp_path / "c.tar").write_bytes(
        entry(b"README", b"2") + twice + entry(b"sep") + changed + entry(b"big.bin", big) + END
    )
    done = run("tardiff", "--list-keys", "a.tar", "c.tar")
    assert done.stdout.decode() == "~ README\t\n~ big\tbin\n~ n\\nö\ttxt\n+ sep\n"


RECORDED = "15e1857134df0b61383d40fbd64e9a20ba0df88952916ede147e567e782ba273"


def test_a_recorded_digest(run: Run, tmp_path: Path) -> None:
    """It is the same in every release, on every machine."""
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(1000)))
    assert run("tardiff", "--digest", "a.tar").stdout.decode() == f"{RECORDED}\n"


def test_several_processes_say_the_same(run: Run, tmp_path: Path) -> None:
    dice = random.Random(5)
    a = [(f"{n:05d}", random_fields(dice)) for n in range(400)]
    b = a[:100] + a[120:] + a[105:110]
    b[200] = (b[200][0], [("other", b"1")])
    facts, lines, new = model(a, b)
    for name, side in (("a", a), ("b", b)):
        (tmp_path / f"{name}-0.tar").write_bytes(archive(side[:250]))
        (tmp_path / f"{name}-1.tar").write_bytes(archive(side[250:]))
    for arguments in (["--json", "-o", "new.tar"], ["--list-keys"], ["--digest"]):
        names = ["b-{0,1}.tar"] if arguments == ["--digest"] else ["a-*.tar", "b-*.tar"]
        _, told, said, forks = cut_up(tmp_path, 20_000, *arguments, *names, command="tardiff")
        assert forks > 5 and not said
        assert told == run("tardiff", arguments[0], *names).stdout
    assert json.loads(run("tardiff", "--json", "a-*.tar", "b-*.tar").stdout) == facts
    assert run("tardiff", "--list-keys", "a-*.tar", "b-*.tar").stdout.decode().splitlines() == lines
    assert members_of((tmp_path / "new.tar").read_bytes()) == members_of(archive(new))
