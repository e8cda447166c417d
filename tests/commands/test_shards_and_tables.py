"""One law for every command that reads samples: they are the same from shards, from tables of these, and from streams.

What it writes has the same bytes, also as a table where that is possible; it counts alike, and ends alike.
"""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from tartools.commands.tarindex import tarindex
from tests.archives import photograph
from tests.commands.conftest import Inside
from tests.commands.test_tardedup import stored
from tests.conftest import make_tar, members_of
from tests.properties.test_model import Members
from tests.tiers import by_turns

WRITTEN = [  # lines that write samples as they are, so that a table can list them; IN is where the inputs stand
    "tarcat IN",
    "tarcat --skip 7 -c 30 IN",
    "tarcat --slice 3:50:4 IN",
    "tarcat --shuffle 20 --seed 3 IN",
    "tarcat --interleave 2 IN",
    "tarcat --interleave 2 --shuffle 5 --skip 2 -c 50 IN",
    "tarpcat -p 2 IN",
    "tarpcat -p 3 --shuffle 10 -c 40 IN",
    "tarsort IN",
    "tarsort -r IN",
    "tarsort -S shuffle --seed 7 IN",
    "tarsort -s cls -S int IN",
    "tarsort -s cls -S int -r -u first IN",
    "tarsort -s cls -u last IN",
    "tarsort -s json:w -S int IN",
    "tarsort -s json:half -S float -r IN",
    "tarsort -s __size__ IN",
    "tarsort -s __index__ -r IN",
    "tarsort -s __shard__ IN",
    "tarsort -s x;txt --missing first -M 64K IN",
    "tarfilter --share 0:0.3 IN --rest REST",
    "tarfilter --share 1/3:2/3 IN --rest REST",
    "tarfilter --share :0.5 IN --rest REST",
    "tarfilter --sample 0.2 --seed 3 IN --rest REST",
    "tarfilter --sample 0 IN --rest REST",
    "tarfilter --sample 1 IN --rest REST",
    "tarfilter --keys keys.txt IN --rest REST",
    "tarfilter --keys keys.txt --invert IN --rest REST",
    "tarfilter --fields-present txt IN --rest REST",
    "tarfilter --fields-present 'png;txt cls' IN --rest REST",
    "tarfilter --fields-present TXT --invert IN --rest REST",
    "tarfilter -S 'int(cls) == 3' IN --rest REST",
    "tarfilter -S \"cls == '3' or field('json:w') > 9\" IN --rest REST",
    "tarfilter -S \"has('txt') and not has('png')\" IN --rest REST",
    "tarfilter -S \"has('json:w') and has('png')\" IN --rest REST",
    "tarfilter -S \"size('json') > 22\" IN --rest REST",
    "tarfilter -S \"size('txt') > 3\" --ignore-errors IN --rest REST",
    "tarfilter -S \"txt > 'ww'\" --ignore-errors IN --rest REST",
    "tarfilter -S \"width('png') > 4 and height('png') == 5\" --ignore-errors IN --rest REST",
    "tarfilter -S \"match('0[1-3]$', key)\" IN --rest REST",
    "tarfilter -S \"__key__.startswith('x/x')\" IN --rest REST",
    "tarfilter -S '__index__ % 3 == 1' IN --rest REST",
    "tarfilter -S '__size__ > 4096' IN --rest REST",
    "tarfilter -S \"match('a.tar', __shard__)\" IN --rest REST",
    "tarfilter -S \"int(field('cls;txt')) > 5\" IN --rest REST",
    "tarfilter -S \"len(field('js' + 'on')) > 22\" IN --rest REST",
    "tarfilter -S 'int(cls) > 2' --share 0:0.7 --fields-present txt --sample 0.8 IN --rest REST",
    "tarfilter -S 'int(cls) > 2' --share 0:0.7 --fields-present txt --invert IN --rest REST",
    "tarfilter -S \"cls == '3'\" --verbatim --invert IN --rest REST",
    "tarfilter -S \"txt == ''\" --ignore-errors --invert IN --rest REST",
    "tardedup IN --rest REST",
    "tardedup --near jpg IN --rest REST --report report",
    "tardedup --near jpg --distance 0 IN --rest REST --report report",
    "tardedup --near jpg --keep largest IN --rest REST --report report",
    "tardedup --equal jpg IN --rest REST --report report",
    "tardedup --equal cls IN --rest REST --report report",
    "tardedup --equal 'cls jpg' --against v.parquet IN --rest REST --report report",
    "tardedup --equal cls --keep largest -M 1000 IN --rest REST --report report",
    "tardedup --near jpg --against v.tar IN --rest REST --report report",
    "tardedup --equal cls --against v-columns.parquet --keep largest IN --rest REST --report report",
    "tarmix --stop all 1 IN 2 v.tar",
    "tarmix --stop longest -q 1 v.parquet 1 IN",
    "tarmix --count 30 --seed 5 3 IN 1 v.tar",
    "tarjoin -f '' IN c.tar",
    "tarjoin --anti IN c.tar",
    "tardiff -q --list-keys c.tar IN",
]
PRINTED = [  # lines of which stdout is compared alone
    "tarcat -f 'cls jpg' IN",
    "tarcat --rekey 'new/{index:03d}' IN",
    "tarjoin --prefer b c.tar IN",
    "tardiff -q --json IN c.tar",
    "tardiff --digest IN",
    "tar2tsv -f '__index__ __shard__ __size__ cls txt' --verbatim --fill NA IN",
    "tar2jsonl -q IN",
    "tar2tfrecord -q IN",
    "tarfirst --index 0 IN",
    "tarfirst --index 5 -f json IN",
    "tarfirst --index 34 IN",
    "tarfirst --index 35 -f cls IN",
    "tarfirst -k 0003 -f json IN",
    "tarfirst -k 0003 -S '__index__ > 0' IN",
    "tarfirst --index 36 IN",
    "tarfirst -k again/x/0019 IN",
    "tarfirst -k 0003 --index 39 -f cls IN",
    "tarfirst -k x/0037 -f txt -S 'int(cls) > 0' IN",
    "tarshow -f cls IN",
    "tar2parquet -q IN",
    "tar2zip -q IN",
]
NOTHING = [  # lines that find nothing
    "tarfirst --index 99 IN",
    "tarfirst -k nothing IN",
    "tarfirst -k 0003 -f nothing IN",
    "tarfirst -k x/0001 -S 'int(cls) > 99' IN",
    "tarfirst -k 0003 --index 10 IN",
]
TABLES = {
    "tables": ["a.parquet", "b.parquet"],
    "tables with columns": ["a-columns.parquet", "b-columns.parquet"],
    "shard and table": ["a.tar", "b-columns.parquet"],
    "table and shard": ["a-columns.parquet", "b.tar"],
}
STREAMS = {
    "pipes": ["pipe:cat a.tar", "pipe:cat b.tar"],
    "gzip": ["a.tgz", "b.tgz"],
    "a shard on stdin": ["-"],
    "a table on stdin": ["-"],
    "a table from a pipe": ["pipe:cat ab.parquet"],
}


def samples(first: int, last: int) -> Members:
    """Return members of samples whose keys, classes and pictures are in no order, and come back in part."""
    members: Members = []
    for number in range(first, last):
        key = f"{'x/' * (number % 3)}{number * 37 % 60:04d}"
        members += [(f"{key}.cls", b"%d\n" % (number % 11))]
        members += [(f"{key}.json", b'{"w": %d, "half": %d.5}' % (number % 13, number))]
        if number % 4:
            members.append((f"{key}.txt", b"w" * (number % 7)))
        if number % 5 == 0:
            members.append((f"{key}.png", stored(Image.new("RGB", (1 + number % 9, 5)), "PNG")))
        scale = 1 + number // 25 / 2
        members.append((f"{key}.jpg", stored(photograph(number % 25, round(40 * scale), round(30 * scale)))))
    return members


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two shards, in all forms; samples like some of these; and a list of keys."""
    folder = tmp_path_factory.mktemp("data")
    shards = {"a": samples(0, 35), "b": samples(35, 60) + [(f"again/{name}", data) for name, data in samples(7, 9)]}
    shards["ab"] = shards["a"] + shards["b"]
    shards["c"] = [(name, data + b"!" * name.endswith("1.txt")) for name, data in samples(10, 45)]
    shards["v"] = [(f"v/{name}", data) for name, data in samples(2, 5)]
    columns = ["-f", "cls txt json:w json:half", "--pictures", "--hash", "jpg cls", "--dhash", "jpg"]
    for name, members in shards.items():
        shard = f"{folder}/{name}.tar"
        Path(shard).write_bytes(make_tar(members))
        Path(f"{folder}/{name}.tgz").write_bytes(gzip.compress(Path(shard).read_bytes()))
        assert tarindex.main([shard, "-o", f"{folder}/{name}.parquet"]) == 0
        assert tarindex.main([*columns, shard, "-o", f"{folder}/{name}-columns.parquet"]) == 0
    (folder / "keys.txt").write_text("0000\nx/0037\r\n\nx/x/0014\nx/0100\n")
    return folder


class Found(NamedTuple):
    """What came of a run, but for the names of its inputs and how long it took."""

    status: int
    stdout: bytes
    counts: list[str]
    outputs: list[bytes]


def found(inside: Inside, line: str, inputs: list[str], form: str = "", stdin: bytes = b"") -> Found:
    """Run *line* on *inputs*; with a *form*, its samples go to files: return what is in there."""
    name, *words = shlex.split(line)
    pattern = inputs[0] if len(inputs) == 1 else f"{{{','.join(inputs)}}}"
    words = [
        part
        for word in words
        for part in ([pattern] if word == "IN" and name in PAIRS else inputs if word == "IN" else [word])
    ]
    outputs = []
    if form:
        outputs = [f"o{form}", *[f"r{form}"] * ("REST" in words)]
        words = [f"r{form}" if word == "REST" else word for word in words] + ["-o", f"o{form}", "--force"]
    else:
        words = [word for word in words if word not in ("--rest", "REST")]
    report = Path("report")
    report.unlink(missing_ok=True)
    done = inside(name, "-v", *words, stdin=stdin)
    counts = re.findall(r"\d+ (?:samples in|out|left out|joined|dropped|duplicates)\b", done.stderr)
    if report.exists():
        rows = [line.split("\t") for line in report.read_text().splitlines()]
        counts += [f"{row[0]} {row[2]} {row[4]}" for row in rows]
    return Found(done.status, done.stdout, counts, [inside("tarcat", each).stdout for each in outputs])


PAIRS = ("tardiff", "tarjoin")  # which take each data set as one word
LINES = [*WRITTEN, *PRINTED, *NOTHING]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("inputs", TABLES)
@by_turns("inputs")
def test_from_tables(line: str, inputs: str, data_set: Path, inside: Inside, tmp_path: Path) -> None:
    """With `--rest`, both outputs have all samples, each in the order of the input."""
    link(data_set, tmp_path)
    expected = found(inside, line, ["a.tar", "b.tar"])
    assert expected.status == ends(line)
    assert found(inside, line, TABLES[inputs]) == expected
    if line in WRITTEN:
        files = found(inside, line, ["a.tar", "b.tar"], ".tar")
        assert files.outputs[0] == expected.stdout or line.startswith("tardiff")
        for form in (".parquet", ".tar"):
            assert found(inside, line, TABLES[inputs], form) == files
        assert found(inside, line, ["a.tar", "b.tar"], ".parquet") == files
        if "REST" in line:
            whole = members_of(inside("tarcat", "a.tar", "b.tar").stdout)
            parts = [members_of(output) for output in files.outputs]
            assert sorted(parts[0] + parts[1]) == sorted(whole)
            assert all([member for member in whole if member in part] == part for part in parts)
            assert all(parts) or "--sample" in line or "--verbatim" in line


@pytest.mark.parametrize("line", ["tarfilter --share 0:0.4", "tarfilter -S 'int(cls) > 4'", "tardedup --equal cls"])
@pytest.mark.parametrize(
    "inputs", [["a.tar", "b.tar"], ["a-columns.parquet", "b.tar"], ["ab-columns.parquet"]], ids=str
)
def test_a_shard_beside_a_table(line: str, inputs: list[str], data_set: Path, inside: Inside, tmp_path: Path) -> None:
    """One of two outputs is a table: the samples of the other are those of its rows."""
    link(data_set, tmp_path)
    command = [*shlex.split(line), "-q", *inputs, "--force"]
    assert inside(*command, "-o", "o.tar", "--rest", "r.tar").status == 0
    parts = [(tmp_path / name).read_bytes() for name in ("o.tar", "r.tar")]
    assert all(map(members_of, parts))
    for first, second in (("o.tar", "r.parquet"), ("o.parquet", "r.tar")):
        assert inside(*command, "-o", first, "--rest", second)[::2] == (0, "")
        assert [inside("tarcat", name).stdout for name in (first, second)] == parts


@pytest.mark.parametrize(
    "line", [line for line in LINES if not {"__shard__", "--count"} & {*re.findall("[-_a-z]+", line)}]
)
@pytest.mark.parametrize("source", STREAMS)
@by_turns("source")
def test_from_streams(line: str, source: str, data_set: Path, inside: Inside, tmp_path: Path) -> None:
    link(data_set, tmp_path)
    inputs, content = STREAMS[source], b""
    if inputs == ["-"] or line.startswith(PAIRS):
        suffix = "tgz" if source == "gzip" else "parquet" if "table" in source else "tar"
        inputs, content = ["-"], (data_set / f"ab.{suffix}").read_bytes()
    expected = found(inside, line, ["ab.tar"] if len(inputs) == 1 else ["a.tar", "b.tar"])
    assert expected.status == ends(line)
    assert found(inside, line, inputs, stdin=content) == expected


def ends(line: str) -> int:
    """Return the exit status of *line*: tardiff says by it that there are differences."""
    return int(line in NOTHING or (line.startswith("tardiff") and "--digest" not in line))


def link(folder: Path, to: Path) -> None:
    """Have the files in *folder* in *to*, too."""
    for file in folder.iterdir():
        (to / file.name).symlink_to(file)
