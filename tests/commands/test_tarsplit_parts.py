"""tarsplit --parts, --stratify and --by: who is in which part, that nothing is lost, and names that data may make."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tartools.stages import shares
from tartools.stages.parting import make_key_labeller
from tests.commands.conftest import Inside
from tests.conftest import Run, has_end, keys_in, make_samples, make_tar
from tests.properties.test_model import Members
from tests.tiers import also


def some(count: int) -> Members:
    """Return samples whose classes are of different sizes, and whose keys are in no order."""
    members: Members = []
    for number in range(count):
        key = f"{'x/' * (number % 2)}{number * 7 % count:04d}"
        members += [(f"{key}.cls", b"c%d\n" % (number % 7 * number % 5)), (f"{key}.txt", b"w" * (number % 700))]
    return members


def parts_in(folder: Path, pattern: str, run: Run | Inside) -> dict[str, list[str]]:
    """Return the keys in each part, in order; *pattern* has a star for the part and its number."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob(pattern)):
        name = re.sub(r"-?\d{6}$", "", path.stem) or path.parent.name
        content = path.read_bytes()
        if path.suffix == ".parquet":
            content = run("tarcat", str(path.relative_to(folder))).stdout
        assert has_end(content)
        found.setdefault(name.rpartition("-")[2], []).extend(keys_in(content))
    return found


def expected(members: Members, stratify: bool) -> dict[str, list[str]]:
    """Return the keys in the parts train, val and test of 0.7, 0.2 and 0.1, as the man page defines them."""
    keys = list(dict.fromkeys(name.partition(".")[0] for name, _ in members))
    values = {name.partition(".")[0]: value for name, value in members if name.endswith(".cls")}

    def fraction(key: str) -> int:
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") * 10

    part_of: dict[str, str] = {}
    names = ["train", "val", "test"]
    if not stratify:
        for key in keys:
            part_of[key] = names[(fraction(key) >= 7 << 64) + (fraction(key) >= 9 << 64)]
    else:
        for value in set(values.values()):
            ranked = sorted((key for key in keys if values[key] == value), key=fraction)
            tenths = [7, 2, 1]
            sizes = [len(ranked) * tenth // 10 for tenth in tenths]
            rests = [-(len(ranked) * tenth % 10) for tenth in tenths]
            for number in sorted(range(3), key=rests.__getitem__)[: len(ranked) - sum(sizes)]:
                sizes[number] += 1
            for name, size in zip(names, sizes, strict=True):
                part_of |= dict.fromkeys(ranked[:size], name)
                ranked = ranked[size:]
    return {name: [key for key in keys if part_of[key] == name] for name in names if name in part_of.values()}


PARTS = ["--parts", "train:0.7,val:0.2,test:0.1"]
INPUTS = {
    "shard": ["a.tar"],
    "shards": ["0.tar", "1.tar", "2.tar"],
    "table": ["a.parquet"],
    "table with columns": ["c.parquet"],
    "table and shard": ["01.parquet", "2.tar"],
}


@pytest.mark.parametrize("stratify", [False, True], ids=["plain", "stratified"])
@pytest.mark.parametrize("form", ["{shard:06d}.tar", "{shard:06d}.parquet", ".tar", ".parquet"])
def test_the_same_parts_from_shards_and_tables_in_the_order_of_the_input(
    form: str, stratify: bool, inside: Inside, tmp_path: Path
) -> None:
    members = some(200)
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    for number in range(3):
        (tmp_path / f"{number}.tar").write_bytes(make_tar(members[number * 140 : number * 140 + 140]))
    for line in (["a.tar", "-o", "a.parquet"], ["-f", "cls", "a.tar", "-o", "c.parquet"]):
        assert inside("tarindex", *line).status == 0
    assert inside("tarindex", "0.tar", "1.tar", "-o", "01.parquet").status == 0
    wanted = expected(members, stratify)
    line = [*PARTS, *(["--stratify", "cls"] if stratify else [])]
    for number, (inputs, urls) in enumerate(INPUTS.items()):
        output = f"o{number}-{{part}}{'-' * form.startswith('{')}{form}"
        done = inside("tarsplit", "-v", *line, *(["-n", "40"] if "shard" in form else []), *urls, "-o", output)
        assert done.status == 0, done.stderr
        assert parts_in(tmp_path, f"o{number}-*", inside) == wanted, inputs
        shards = {part: -(-len(keys) // 40) if "shard" in form else 1 for part, keys in wanted.items()}
        *lines, account = done.stderr.splitlines()
        assert lines == [
            f"tarsplit: {part}: {len(keys)} samples in {shards[part]} shard{'s' * (shards[part] > 1)}"
            for part, keys in wanted.items()
        ]
        assert account.startswith("tarsplit: 200 samples in, 200 out, ")
        assert len(done.stdout.split()) == sum(shards.values())


RECORDED = {  # keys 000000, 000001 ... in val of train:0.9,val:0.1: these of the first 100, and a digest of 300,000
    "first": "000009 000024 000025 000028 000039 000055 000063 000068 000079 000088 000092 000094",
    "digest": "6baae6799070905a2d02e2464601d780b4b0fe357a23efbb2ebcdc8ff82fba15",
}
STRATIFIED = ["02 08 11 37 44", "05 10 15 24"]  # val and test


def test_recorded_sets(run: Run) -> None:
    """They must never change."""
    archive = make_tar([(f"{number:06d}.txt", b"") for number in range(100)])
    assert run("tarsplit", "--parts", "train:0.9,val:0.1", "-o", "{part}.tar", stdin=archive).status == 0
    assert run("tarcat", "val.tar").stdout and keys_in(run("tarcat", "val.tar").stdout) == RECORDED["first"].split()
    keys = [b"%06d" % number for number in range(300_000)]
    parts = make_key_labeller(shares.parse_parts("train:0.9,val:0.1"))(keys)
    val = [key for key, part in zip(keys, parts, strict=True) if part == "val"]
    assert hashlib.sha256(b"\n".join(val)).hexdigest() == RECORDED["digest"]
    assert abs(len(val) - 30_000) <= 3 * (300_000 * 0.1 * 0.9) ** 0.5


def test_stratified_sets_that_were_recorded(run: Run) -> None:
    """They must never change either: 40 samples of one class, 5 of another, one of a third."""
    members = [(f"{number:02d}.cls", b"%d" % (number >= 40) + b"0" * (number == 45)) for number in range(46)]
    line = ["--parts", "train:0.8,val:0.1,test:0.1", "--stratify", "cls"]
    assert run("tarsplit", *line, "-o", "{part}.tar", stdin=make_tar(members)).status == 0
    assert [" ".join(keys_in(run("tarcat", f"{part}.tar").stdout)) for part in ("val", "test")] == STRATIFIED
    assert len(keys_in(run("tarcat", "train.tar").stdout)) == 32 + 4 + 1


@pytest.mark.parametrize("form", ["{shard:03d}.tar", "{shard:03d}.tar.zst", "{shard:03d}.parquet"])
@pytest.mark.parametrize("urls", [["a.tar"], ["c.parquet"]], ids=["shard", "table"])
def test_by_makes_a_set_of_each_value(form: str, urls: list[str], inside: Inside, tmp_path: Path) -> None:
    members = some(150)
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    assert inside("tarindex", "-f", "cls", "a.tar", "-o", "c.parquet").status == 0
    done = inside("tarsplit", "-v", "--by", "cls", "-n", "20", *urls, "-o", f"./{{cls}}/{form}")
    values = {name.partition(".")[0]: value.decode().strip() for name, value in members if name.endswith(".cls")}
    wanted: dict[str, list[str]] = {}
    for key, value in values.items():
        wanted.setdefault(value, []).append(key)
    assert done.status == 0, done.stderr
    assert sorted(done.stderr.splitlines()[:-1]) == sorted(
        f"tarsplit: {value}: {len(keys)} samples in {(n := -(-len(keys) // 20))} shard{'s' * (n > 1)}"
        for value, keys in wanted.items()
    )
    names = done.stdout.decode().split()
    found = {name: keys_in(inside("tarcat", name).stdout) for name in names}
    assert {
        value: [key for name in sorted(names) if name.startswith(f"./{value}/") for key in found[name]]
        for value in wanted
    } == wanted
    assert all(len(keys) <= 20 for keys in found.values()) and len(names) > len(wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a.tar", "c.parquet", *wanted])


BAD = {
    "../up": "'../up' would be another folder",
    "..": "'..' would be another folder",
    ".": "'.' would be another folder",
    "/etc": "'/etc' would be another folder",
    "": "'' is empty",
    "  ": "'  ' is empty",
    "a\tb": "'a\\tb' has control characters",
    "a\n\n": "'a\\n' has control characters",
    "é" * 100 + "x": "has 201 bytes, and a name may have 200",
    "pipe:touch x;": "'pipe:touch x;' has a colon, and OUTPUT begins with it: write ./ before",
    "-rf": "'-rf' begins with -, and so would the name: write ./ before",
    "B": "'B' is too much like 'b': some file systems can't distinguish the two",
    "b ": "'b ' is too much like 'b': some file systems can't distinguish the two",
    "\ufb01": "is too much like 'fi'",
}


@pytest.mark.parametrize("output", ["{cls}/{shard:06d}.tar", "{cls}-%06d.parquet"])
@pytest.mark.parametrize("value", BAD, ids=ascii)
def test_a_value_that_can_not_be_a_name_is_a_failure(value: str, output: str, inside: Inside, tmp_path: Path) -> None:
    """Nothing appears, not even a folder, and nothing outside."""
    (tmp_path / "in").mkdir()
    os.chdir(tmp_path / "in")
    members = [("s0.cls", b"b"), ("s1.cls", b"fi"), ("s2.cls", value.encode()), ("s3.cls", b"b")]
    (tmp_path / "in/a.tar").write_bytes(make_tar(members))
    said = inside("tarsplit", "--by", "cls", "-n", "1" if "B" in value else "9", "a.tar", "-o", output).failure(lines=1)
    assert said.startswith("tarsplit: a.tar: sample 's2': its cls can't name an output: ")
    assert BAD[value] in said
    assert (os.listdir(tmp_path), os.listdir(tmp_path / "in")) == (["in"], ["a.tar"])


def test_odd_values_that_are_names(run: Run, tmp_path: Path) -> None:
    values = ["{shard}", "%06d", "a b", "-1", ".x", "~", "*", "a:b", "$HOME", "'", '"', "\\", "日本", "x.tar", "#", "?"]
    (tmp_path / "o").mkdir()
    archive = make_tar([(f"{number}.cls", value.encode()) for number, value in enumerate(values)])
    out = run("tarsplit", "--by", "cls", "-o", "o/{cls}/{cls}-{shard}.tar", stdin=archive).output()
    assert out.decode().splitlines() == [f"o/{value}/{value}-0.tar" for value in values]
    assert [keys_in((tmp_path / name).read_bytes()) for name in out.decode().splitlines()] == [
        [str(number)] for number in range(len(values))
    ]


def test_a_sample_without_the_value_is_a_failure(run: Run, tmp_path: Path) -> None:
    archive = make_tar([("a.cls", b"1"), ("b.txt", b"")])
    for line in (["--by", "cls", "-o", "{cls}/%d.tar"], [*PARTS, "--stratify", "cls", "-o", "{part}.tar"]):
        done = run("tarsplit", *line, stdin=archive)
        assert (done.status, done.stdout, os.listdir(tmp_path)) == (1, b"", [])
        assert done.stderr == (
            "tarsplit: stdin: sample 'b' has no cls (its fields: txt); tarfilter --fields-present cls leaves out such "
            "samples\n"
        )


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_tables_that_lack_keys_or_values(form: str, inside: Inside, tmp_path: Path) -> None:
    """The shards have the keys; a value that a table lacks is a failure that names the sample."""
    (tmp_path / "a.tar").write_bytes(make_tar(some(20)))
    assert inside("tarindex", "-f", "cls", "a.tar", "-o", "t.parquet").status == 0
    table = pq.read_table(tmp_path / "t.parquet")
    pq.write_table(table.drop_columns(["__key__"]), tmp_path / "no.parquet")
    for column in ("__key__", "cls"):
        values = pa.array([None if row == 3 else value for row, value in enumerate(table.column(column).to_pylist())])
        changed = table.set_column(table.schema.get_field_index(column), column, values)
        pq.write_table(changed, tmp_path / f"{column}.parquet")
    for name in ("no", "__key__"):
        assert inside("tarsplit", *PARTS, f"{name}.parquet", "-o", f"o{name}-{{part}}.{form}").status == 0
        assert parts_in(tmp_path, f"o{name}-*", inside) == expected(some(20), stratify=False)
    for line in ([*PARTS, "--stratify", "cls", "-o", f"n-{{part}}.{form}"], ["--by", "cls", "-o", f"n-{{cls}}.{form}"]):
        said = inside("tarsplit", *line, "cls.parquet").failure()
        assert said == "tarsplit: cls.parquet: sample 'x/0001' has no value in cls\n"
    assert not [*tmp_path.glob("n-*")]


def test_either_of_two_fields_in_shards_and_columns(inside: Inside, tmp_path: Path) -> None:
    members = [(f"{n}.{'cls' if n % 3 else 'label'}", b"%d" % (n % 2)) for n in range(9)]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    assert inside("tarindex", "-f", "cls label", "a.tar", "-o", "t.parquet").status == 0
    for source in ("a.tar", "t.parquet"):
        assert inside("tarsplit", "--by", "x=label;cls", source, "--force", "-o", "o{x}.tar").status == 0
        assert [keys_in((tmp_path / f"o{x}.tar").read_bytes()) for x in (0, 1)] == [list("02468"), list("1357")]


@pytest.mark.parametrize("output", ["{n}/{shard:06d}.tar", *also("{n}.parquet")])
def test_a_thousand_values_and_no_more(output: str, run: Run, tmp_path: Path) -> None:
    """The limit of open files is raised for them."""
    members = [(f"{number:04d}.json", b'{"a": {"n": %d}}' % number) for number in range(1001)]
    (tmp_path / "a.tar").write_bytes(make_tar(members[:1000]))
    (tmp_path / "b.tar").write_bytes(make_tar(members[1000:]))
    assert run("tarsplit", "--by", "n=json:a.n", "a.tar", "b.tar", "-o", output).failure() == (
        "tarsplit: b.tar: sample '1000': its n can't name an output: '1000' is one more than 1000 values, the most "
        "there may be, because each has an output that is open\n"
    )
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "b.tar"]
    if "tar" in output:
        done = run("tarsplit", "-v", "--by", "n=json:a.n", "a.tar", "-o", output)
        assert (done.status, len(done.stdout.split())) == (0, 1000)
        assert done.stderr.startswith("tarsplit: 1,000 values of n: 1,000 samples in 1,000 shards\n")
        assert keys_in((tmp_path / "777/000000.tar").read_bytes()) == ["0777"]


@pytest.mark.parametrize("line", [[], ["--stratify", "cls"]], ids=["plain", "stratified"])
@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_shards_of_each_part_are_even(line: list[str], form: str, inside: Inside, tmp_path: Path) -> None:
    members = some(200)
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    output = f"{{part}}-%d.{form}"
    inside("tarsplit", *PARTS, *line, "--shards", "3", "--start", "5", "a.tar", "-o", output).output()
    for part, keys in expected(members, bool(line)).items():
        found = [keys_in(inside("tarcat", f"{part}-{number}.{form}").stdout) for number in (5, 6, 7)]
        assert [key for each in found for key in each] == keys
        assert max(map(len, found)) - min(map(len, found)) <= 1
    done = inside("tarsplit", *PARTS, *line, "--shards", "30", "a.tar", "-o", f"{{part}}%%-{output[7:]}")
    assert done.status == 1 and "samples of 'test' are too few for 30 shards" in done.stderr


def test_shards_of_each_value_are_even(run: Run, tmp_path: Path) -> None:
    run("tarsplit", "--by", "cls", "--shards", 2, "-o", "{cls}/%d.tar", stdin=make_tar(make_samples(65))).output()
    counts = {path.relative_to(tmp_path): len(keys_in(path.read_bytes())) for path in tmp_path.glob("*/*.tar")}
    assert counts == {Path(f"{n}/{k}.tar"): 4 if k == 0 and n < 5 else 3 for n in range(10) for k in (0, 1)}


@pytest.mark.parametrize("how", ["cat a.tar |", "< a.tar", "pipe", "cat a.tgz |"])
def test_what_can_be_read_once_is_copied(how: str, shell: Run, tmp_path: Path) -> None:
    members = some(100)
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    (tmp_path / "tmp").mkdir()
    command = f"tarsplit {' '.join(PARTS)} --stratify cls -o '{{part}}.tar' --tmpdir tmp"
    line = f"{command} 'pipe:cat a.tar'" if how == "pipe" else f"{command} {how}"
    shell(f"tarcat -z a.tar -o a.tgz && {how} {command}" if how.endswith("|") else line).output()
    assert parts_in(tmp_path, "[tv]*.tar", lambda *_: None) == expected(members, stratify=True)  # type: ignore[arg-type]
    assert os.listdir(tmp_path / "tmp") == []


CHANGES = {
    "other key": [("k0.cls", b"1"), ("k1.cls", b"2"), ("k9.cls", b"1")],
    "other value": [("k0.cls", b"1"), ("k1.cls", b"2"), ("k2.cls", b"2")],
    "fewer": [("k0.cls", b"1"), ("k1.cls", b"2")],
    "more": [("k0.cls", b"1"), ("k1.cls", b"2"), ("k2.cls", b"1"), ("k3.cls", b"1")],
    "other order": [("k1.cls", b"2"), ("k0.cls", b"1"), ("k2.cls", b"1")],
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_input_that_changes_between_its_two_reads(change: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "1.tar").write_bytes(make_tar([("k0.cls", b"1"), ("k1.cls", b"2"), ("k2.cls", b"1")]))
    (tmp_path / "2.tar").write_bytes(make_tar(CHANGES[change]))
    command = "if test -e flag; then cat 2.tar; else touch flag; cat 1.tar; fi; : {}"
    line = ["--parts", "a:0.5,b:0.5", "--stratify", "cls", "-o", "{part}.tar"]
    done = run("tarsplit", *line, "foo://x", env={"GOPEN_FOO": command})
    why = "the input has changed: keys or values differ from those counted before"
    assert (done.status, done.stdout, done.stderr) == (1, b"", f"tarsplit: {why}\n")
    assert sorted(os.listdir(tmp_path)) == ["1.tar", "2.tar", "flag"]


def test_older_shards(run: Run, tmp_path: Path) -> None:
    """Those of all parts stop it; with --force those of the parts, and of the values that there are, are removed."""
    old = [f"{part}-{number:06d}.tar" for part in ("train", "val", "test") for number in (0, 7)]
    for name in (*old, "other-000007.tar"):
        (tmp_path / name).write_bytes(b"old")
    archive = make_tar(some(200))
    line = ["tarsplit", *PARTS, "-o", "{part}-{shard:06d}.tar"]
    assert run(*line, stdin=archive).failure() == "tarsplit: train-000000.tar: already exists; --force replaces it\n"
    done = run(*line, "--force", stdin=archive)
    gone = "".join(
        f"tarsplit: {p}-000007.tar: removed, because this run did not write it\n" for p in ("train", "val", "test")
    )
    assert (done.status, done.stderr) == (0, gone)
    assert sorted(os.listdir(tmp_path)) == sorted([*old[::2], "other-000007.tar"])
    done = run("tarsplit", "--by", "cls", "-o", "{cls}-000007.tar", "--force", stdin=make_tar([("a.cls", b"other")]))
    assert (done.status, done.stderr) == (0, "") and keys_in((tmp_path / "other-000007.tar").read_bytes()) == ["a"]
    (tmp_path / "c2").mkdir()
    (tmp_path / "c2/9.tar").write_bytes(b"old")
    done = run("tarsplit", "--by", "cls", "-o", "{cls}/%d.tar", stdin=archive)
    assert (done.status, done.stdout, done.stderr) == (
        *(1, b""),
        "tarsplit: c2/9.tar: already exists; --force replaces it\n",
    )
    assert not (tmp_path / "c0").exists() and os.listdir(tmp_path / "c2") == ["9.tar"]


def test_classes_that_are_too_small_for_a_part_are_told(run: Run) -> None:
    """With every value in one part, the part gets nothing, and its line alone does not say why."""
    archive = make_tar([(f"{n}.who", b"%d" % (n // 4)) for n in range(20)])
    done = run("tarsplit", "--parts", "train:0.9,val:0.1", "--stratify", "who", "-o", "{part}.tar", stdin=archive)
    assert (done.status, done.stdout, done.stderr) == (
        *(0, b"train.tar\n"),
        "tarsplit: each value of who has too few samples for a share in each part; --group who, without --stratify, "
        "divides whole values among the parts\ntarsplit: val: no samples; no shards written\n",
    )
    grouped = run("tarsplit", "--parts", "train:0.5,val:0.5", "--group", "who", "-o", "g-{part}.tar", stdin=archive)
    assert sorted(grouped.stdout.split()) == [b"g-train.tar", b"g-val.tar"]
    even = run("tarsplit", "--parts", "a:0.5,b:0.5", "--stratify", "who", "-o", "e-{part}.tar", stdin=archive)
    assert (sorted(even.stdout.split()), even.stderr) == ([b"e-a.tar", b"e-b.tar"], "")


def test_a_part_without_samples_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "val.tar").write_bytes(b"old")
    line = ["tarsplit", "--parts", "train:0.9,val:0.1", "-o", "{part}.tar", "--force"]
    done = run(*line, stdin=make_tar(make_samples(1)))
    assert (done.status, done.stdout, done.stderr) == (
        *(0, b"train.tar\n"),
        "tarsplit: val: no samples; no shards written\ntarsplit: val.tar: removed, because this run did not write it\n",
    )
    assert run(*line, "-q", stdin=make_tar([])).stderr.startswith(
        "tarsplit: train.tar: is of an earlier run, and stays"
    )
    assert run("tarsplit", *PARTS, "-o", "{part}/", stdin=make_tar([])).stderr == (
        "tarsplit: no samples in the input; no shards written\n"
    )


def test_an_input_is_never_an_output(run: Run, tmp_path: Path) -> None:
    archive = make_tar(make_samples(20))
    (tmp_path / "3.tar").write_bytes(archive)
    for line in (
        ["--by", "cls", "-o", "{cls}.tar"],
        ["--parts", "2:0.5,3:0.5", "-o", "{part}.tar"],
        ["-n", 10, "--start", 2, "-o", "%d.tar"],
    ):
        assert "3.tar: this output is also the input 3.tar" in run("tarsplit", "--force", *line, "3.tar").failure()
        assert os.listdir(tmp_path) == ["3.tar"] and (tmp_path / "3.tar").read_bytes() == archive


def test_post_and_remove_are_for_each_shard(run: Run, tmp_path: Path) -> None:
    line = ["--parts", "a:0.5,b:0.5", "-n", 10, "-o", "{part}-%d.tar", "--post", "cat {} >> all", "--remove"]
    done = run("tarsplit", *line, stdin=make_tar(make_samples(60)))
    assert (done.status, done.stderr) == (0, "") and sorted(os.listdir(tmp_path)) == ["all"]
    whole = run("tarcat", "all").output()
    assert Counter(keys_in(whole)) == Counter(f"{n:06d}" for n in range(60)) and len(done.stdout.split()) >= 6
    done = run("tarsplit", *line[:-3], "--post", "test {} != b-0.tar", stdin=make_tar(make_samples(60)))
    assert done.status == 1 and b"b-0.tar" not in done.stdout
    assert sorted(os.listdir(tmp_path)) == sorted(["all", "b-0.tar", *done.stdout.decode().split()])


def test_full_shards_before_damage_stay_whole(run: Run, tmp_path: Path) -> None:
    archive = make_tar(make_samples(100))
    done = run("tarsplit", "--parts", "a:0.5,b:0.5", "-n", 9, "-o", "{part}-%d.tar", stdin=archive[:100_000])
    assert done.status == 1 and sorted(done.stdout.decode().split()) == sorted(os.listdir(tmp_path)) and done.stdout
    assert all(len(keys_in(path.read_bytes())) == 9 and has_end(path.read_bytes()) for path in tmp_path.iterdir())


def test_neighbours_in_a_part_with_one_key_are_a_failure(run: Run, tmp_path: Path) -> None:
    """Also after what a part holds in memory was written."""
    for size in (0, 70 << 20):
        members = [("a.bin", bytes(size)), ("a.cls", b"x"), ("b.cls", b"y"), ("a.txt", b""), ("a.cls", b"x")]
        (tmp_path / "a.tar").write_bytes(make_tar(members))
        done = run("tarsplit", "-q", "--by", "cls", "-o", "{cls}.tar", "a.tar")
        assert done.status == 1 and "two samples with the key 'a' side by side" in done.stderr
        assert os.listdir(tmp_path) == ["a.tar"]


def test_values_in_the_names_of_commands_and_urls(run: Run, tmp_path: Path) -> None:
    line = ["tarsplit", "--by", "cls", "-o", "pipe:cat > x-{cls}.tar"]
    assert run(*line, stdin=make_tar([("a.cls", b"1"), ("b.cls", b"b_2.c")])).status == 0
    assert sorted(os.listdir(tmp_path)) == ["x-1.tar", "x-b_2.c.tar"]
    for value in (b"$(touch y)", b"a b", b"a;b", b"%2e%2e", b"\xc3\xa9"):
        for output in (line[-1], f"file://{tmp_path}/{{cls}}/%d.tar", "http://127.0.0.1:9/{cls}/%06d.tar"):
            done = run(*line[:-1], output, stdin=make_tar([("a.cls", value)]))
            assert done.status == 1 and "has other characters than letters, digits" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["x-1.tar", "x-b_2.c.tar"]
