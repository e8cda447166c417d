"""Random command lines over random archives, against a model of a few lines that shares no code with the commands."""

from __future__ import annotations

import gzip
import hashlib
import random
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import Result, Run, has_end, make_tar, members_of
from tests.tiers import also

LINES = 8  # of each command and seed; the plain tier, which has one seed, tries half of them
FIELDS = ("cls", "jpg", "txt", "seg.png")
seeds = pytest.mark.parametrize("seed", [0, *also(*range(1, 14))])


class Found(NamedTuple):
    """A sample of the model: its *key*, and its *fields* in order."""

    key: str
    fields: tuple[tuple[str, bytes], ...]

    def __getitem__(self, name: str | int) -> bytes:  # type: ignore[override]
        return dict(self.fields)[str(name)]

    def has(self, name: str) -> bool:
        return name in dict(self.fields)


Members = list[tuple[str, bytes]]
Samples = list[Found]


def samples_of(members: Members) -> Samples:
    """Return the samples of *members*, by the key rule in other words than ours."""
    found: Samples = []
    for path, payload in members:
        folder, base = re.fullmatch(r"(.*/)?(.*)", path, re.DOTALL).groups(default="")  # type: ignore[union-attr]
        stem, _, field = base.partition(".")
        if found and found[-1].key == folder + stem:
            found[-1] = Found(folder + stem, (*found[-1].fields, (field, payload)))
        else:
            found.append(Found(folder + stem, ((field, payload),)))
    return found


def grouped(archive: bytes) -> Samples:
    """Return the samples of *archive*, as Python's tarfile reads it."""
    return samples_of(members_of(archive))


def written(samples: Samples) -> bytes:
    return make_tar([(f"{key}.{field}", payload) for key, fields in samples for field, payload in fields])


class World(NamedTuple):
    """Shards in a folder: their *names* on a command line, what is in *each*, and *all* of it."""

    dice: random.Random
    run: Run
    folder: Path
    names: list[str]
    each: list[Samples]

    @property
    def all(self) -> Samples:
        return [sample for shard in self.each for sample in shard]

    def done(self, name: str, *arguments: object) -> Result:
        """Run the command, which succeeds."""
        result = self.run(name, *arguments, env={"TARTOOLS_FORCE": "1"})
        assert (result.status, "Traceback" in result.stderr) == (0, False), (name, arguments, result.stderr)
        return result

    def output(self, name: str, *arguments: object) -> Samples:
        """Return the samples that the command writes: to stdout, to a file, or as a table that tarcat reads."""
        kind = self.dice.choice(["-", "out.tar", "out.tgz", "out.tar.zst", "out.parquet"])
        if kind == "out.parquet" and (any(".tgz" in name for name in self.names) or "--rekey" in arguments):
            kind = "out.tar"
        if kind in ("-", "out.tar"):
            archive = self.done(name, *arguments, *(["-o", kind] if kind != "-" else [])).stdout
            archive = archive or (self.folder / kind).read_bytes()
        else:
            self.done(name, *arguments, "-o", kind)
            archive = self.done("tarcat", kind).stdout
        assert has_end(archive)
        return grouped(archive)


def made(seed: int, name: str, run: Run, folder: Path) -> World:
    """Return shards of random samples; some are compressed, some are listed by a table in place of shards."""
    dice = random.Random(f"{name} {seed}")
    keys = [f"{'d/' * dice.randrange(2)}{n:04d}" for n in range(dice.randrange(1, 60))]
    dice.shuffle(keys)
    each: list[Samples] = []
    for begin in range(0, len(keys), step := dice.randrange(1, 30)):
        shard = []
        for key in keys[begin : begin + step]:
            fields = [field for field in FIELDS[1:] if dice.random() < 0.7]
            dice.shuffle(fields)
            payloads = [(field, dice.randbytes(dice.choice([0, 1, 700, 5000]))) for field in fields]
            shard.append(Found(key, (("cls", b"%d" % dice.randrange(12)), *payloads)))
        each.append(shard)
    names = []
    packed = dice.random() < 0.3
    for number, shard in enumerate(each):
        names.append(f"{number:02d}.tgz" if packed else f"{number:02d}.tar")
        archive = written(shard)
        (folder / names[-1]).write_bytes(gzip.compress(archive) if packed else archive)
    world = World(dice, run, folder, names, each)
    if not packed and dice.random() < 0.4:
        world.done("tarindex", *names, "-o", "in.parquet")
        names[:] = ["in.parquet"]
    return world


def cat(world: World) -> None:
    """-f or -x, --skip or --slice, -c and --rekey, in the order that the help says."""
    dice, line, samples = world.dice, [], world.all
    if dice.random() < 0.5:
        low, step = dice.randrange(9), dice.randrange(1, 4)
        high = low + dice.randrange(40)
        line += ["--slice", f"{low}:{high}:{step}"]
        samples = samples[low:high:step]
    elif dice.random() < 0.5:
        line += ["--skip", str(skipped := dice.randrange(20))]
        samples = samples[skipped:]
    changed = dice.random() < 0.5
    if changed:
        kept = dice.sample(FIELDS, dice.randrange(1, 4))
        kept = kept if "cls" in kept else [*kept, "cls"]
        left = [name for name in FIELDS if name not in kept]
        line += ["-f", " ".join(kept)] if dice.random() < 0.5 else ["-x", " ".join(left)]
        samples = [Found(s.key, tuple(each for each in s.fields if each[0] in kept)) for s in samples]
    if dice.random() < 0.5:
        line += ["-c", str(count := dice.randrange(1, 30))]
        samples = samples[:count]
    if changed or dice.random() < 0.3:  # what is changed can't be listed in a table
        line += ["--rekey", "{cls}-{index:03d}/{key}"]
        samples = [Found(f"{s['cls'].decode()}-{n:03d}/{s.key}", s.fields) for n, s in enumerate(samples)]
    lost = bool("-f" in line and not samples)  # then no sample has a field of -f, which is a failure
    if not lost and ("-f" not in line or all(any(s.has(name) for s in samples) for name in kept)):
        assert world.output("tarcat", *line, *world.names) == samples, line


def split(world: World) -> None:
    """Shards of -n samples, -s bytes or --shards of one size; by parts, each sample where its key belongs."""
    for old in world.folder.glob("part*"):
        old.unlink()
    samples, count, size = world.all, world.dice.randrange(1, 20), world.dice.choice([10240, 20480, 40960])
    shards = world.dice.randrange(1, 1 + min(5, len(samples)))
    line = world.dice.choice([["-n", count], ["-s", size], ["-n", count, "-s", size], ["--shards", shards]])
    names = world.done("tarsplit", *line, "-o", "part-{shard:03d}.tar", *world.names).stdout.decode().split()
    assert names == [f"part-{n:03d}.tar" for n in range(len(names))]
    found = [grouped((world.folder / name).read_bytes()) for name in names]
    assert [sample for shard in found for sample in shard] == samples
    if "-n" in line:
        assert all(len(shard) <= count for shard in found)
    if "-s" in line:
        sizes = [(world.folder / name).stat().st_size for name in names]
        assert all(each <= size or len(shard) == 1 for each, shard in zip(sizes, found, strict=True))
    if "--shards" in line:
        assert len(found) == shards and max(map(len, found)) - min(map(len, found)) <= 1
    world.done("tarsplit", "--parts", "a:0.6,b:0.4", "-o", "part-{part}.tar", *world.names)
    for part, low, high in (("a", Fraction(0), Fraction("0.6")), ("b", Fraction("0.6"), Fraction(1))):
        path = world.folder / f"part-{part}.tar"
        right = [sample for sample in samples if low <= fraction(sample.key) < high]
        assert (grouped(path.read_bytes()) if path.exists() else []) == right


def fraction(key: str) -> Fraction:
    """Return where in 0 to 1 the hash of *key* is, as tarfilter(1) says."""
    return Fraction(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big"), 1 << 64)


def choose(world: World) -> None:
    """All conditions together, --invert, and --rest with the others."""
    dice, samples = world.dice, world.all
    listed = set(dice.sample([s.key for s in samples], dice.randrange(1, len(samples) + 1)))
    (world.folder / "keys.txt").write_text("".join(f"{key}\n" for key in sorted(listed)))
    low, high = sorted(dice.sample(range(11), 2))
    number, length = dice.randrange(12), dice.choice([1, 701])
    conditions: list[tuple[list[str], Callable[[Found], bool]]] = [
        (["--keys", "keys.txt"], lambda s: s.key in listed),
        (["--share", f"{low}/10:{high}/10"], lambda s: Fraction(low, 10) <= fraction(s.key) < Fraction(high, 10)),
        (["--fields-present", "jpg;txt seg.png"], lambda s: (s.has("jpg") or s.has("txt")) and s.has("seg.png")),
        (["-S", f"int(cls) < {number} or key.startswith('d/')"], lambda s: int(s["cls"]) < number or s.key[:1] == "d"),
        (["-S", f"has('jpg') and size('jpg') < {length}"], lambda s: s.has("jpg") and len(s["jpg"]) < length),
    ]
    some = dice.sample(
        conditions[:4] if dice.random() < 0.5 else [*conditions[:3], conditions[4]], dice.randrange(1, 4)
    )
    line = [word for words, _ in some for word in words]
    right = [sample for sample in samples if all(test(sample) for _, test in some)]
    rest = [sample for sample in samples if sample not in right]
    if dice.random() < 0.3:
        line, right, rest = [*line, "--invert"], rest, right
    assert world.output("tarfilter", *line, "--rest", "rest.tar", *world.names) == right, line
    assert grouped((world.folder / "rest.tar").read_bytes()) == rest, line


def order(world: World) -> None:
    """By key, by a field as text or number, by size of key; stable, -r too; -u; and shuffled, which loses nothing."""
    dice, samples = world.dice, world.all
    last = [] if dice.random() < 0.5 else ["-r"]
    assert world.output("tarsort", *last, *world.names) == sorted(samples, key=lambda s: s.key, reverse=bool(last))
    kind = dice.choice([["-S", "int"], []])
    value: Callable[[Found], bytes | int] = (lambda s: int(s["cls"])) if kind else (lambda s: s["cls"])
    by_class = sorted(samples, key=value, reverse=bool(last))  # type: ignore[arg-type]
    assert world.output("tarsort", "-s", "cls", *kind, *last, *world.names) == by_class
    first = list({value(sample): sample for sample in reversed(by_class)}.values())[::-1]
    assert world.output("tarsort", "-s", "cls", *kind, *last, "-u", "first", *world.names) == first
    shuffled = world.output("tarsort", "-S", "shuffle", "--seed", dice.randrange(9), *world.names)
    assert sorted(shuffled) == sorted(samples)


def mix(world: World) -> None:
    """Each source keeps its order; all of it with all, some rounds with longest, a beginning with first."""
    dice, both = world.dice, [world.all, []]
    other = [Found(f"z/{n}", (("cls", b"%d" % n),)) for n in range(dice.randrange(1, 30))]
    both[1] = other
    (world.folder / "other.tar").write_bytes(written(other))
    stop = dice.choice(["first", "all", "longest"])
    line = ["--stop", stop, "--seed", dice.randrange(9), "--rekey", "{source}/{round}/{key}"]
    found = world.output("tarmix", *line, dice.randrange(1, 9), *world.names, dice.randrange(1, 9), "other.tar")
    rounds = []
    for number, source in enumerate(both):
        taken = [sample for sample in found if sample.key.startswith(f"{number}/")]
        whole, some = divmod(len(taken), len(source))
        times = [source] * whole + [source[:some]]
        keys = [f"{number}/{turn}/{s.key}" for turn, part in enumerate(times) for s in part]
        assert [sample.key for sample in taken] == keys and [s.fields for s in taken] == [
            s.fields for p in times for s in p
        ]
        rounds.append(len(taken) / len(source))
    right = {"first": max(rounds) == 1, "all": rounds == [1, 1], "longest": min(rounds) >= 1}
    assert right[stop], (stop, rounds)


@seeds
@pytest.mark.parametrize("check", [cat, split, choose, order, mix], ids=lambda check: check.__name__)
def test_random_lines(check: Callable[[World], None], seed: int, run: Run, tmp_path: Path) -> None:
    for number in range(LINES if seed else LINES // 2):
        check(made(LINES * seed + number, check.__name__, run, tmp_path))
