"""Checksums: lists that sha256sum reads, of all commands that write shards; what is read, compared with such lists."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import zlib
from pathlib import Path

import pytest

import tartools
from tartools.errors import StorageError
from tartools.storage.checksums import HASH_NAMES
from tests.conftest import Run, make_tar, members_of
from tests.tiers import also

SAMPLES = [
    member
    for n in range(9)
    for member in ((f"{n:06d}.cls", b"%d" % n), (f"{n:06d}.txt", b"%d word" % n * (n * 37 % 400 + 1)))
]
SHARD = make_tar(SAMPLES)
WRITING = {
    "tarcat": "tarcat a.tar -o out.tar",
    "tarcat -z": "tarcat -z a.tar -o out.tgz",
    "tarcat to a table": "tarcat a.tar -o out.parquet",
    "tarcat of a table": "tarcat t.parquet -o out.tar",
    "tarpcat": "tarpcat -p 2 a.tar -o out.tar.zst",
    "tarsort": "tarsort -S shuffle --seed 3 a.tar -o out.tar",
    "tarmix": "tarmix 1 a.tar -o out.tar",
    "tarfilter": "tarfilter --share 0:0.5 a.tar -o out.tar --rest rest.tar",
    "tarproc": "tarproc -c true a.tar -o out.tar",
    "tarcreate": "tarcreate --folder pictures -o out.tar",
    "tarjoin": "tarjoin --left --with labels.tsv a.tar -o out.tar",
    "tarjoin to a table": "tarjoin --left --with labels.tsv a.tar -o out.parquet",
    "tardedup": "tardedup a.tar -o out.tar",
    "tardiff": "tardiff other.tar a.tar -o out.tar",
    "tarcheck --fix": "tarcheck --fix a.tar -o out.tar",
    "tarsplit": "tarsplit -n 2 a.tar -o out-%d.tar",
    "tarsplit into parts": "tarsplit --parts one:0.5,two:0.5 a.tar -o {part}-%d.tgz",
    "tarsplit to tables": "tarsplit -n 4 a.tar -o out.parquet",
}


@pytest.fixture(autouse=True)
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write what the commands read, and work there."""
    monkeypatch.chdir(tmp_path)
    Path("a.tar").write_bytes(SHARD)
    Path("other.tar").write_bytes(make_tar(SAMPLES[:3]))
    Path("labels.tsv").write_text("__key__\tcaption\nx\t1\n")
    Path("pictures").mkdir()
    Path("pictures/n1.txt").write_text("one")


def verified(*arguments: object, folder: str = ".") -> list[str]:
    """Return what the real sha256sum says of a list: a line for each file."""
    line = ["sha256sum", "--strict", "-c", *map(str, arguments)]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def listing(*names: str) -> str:
    return "".join(f"{hashlib.sha256(Path(name).read_bytes()).hexdigest()}  {name}\n" for name in names)


@pytest.mark.parametrize("line", WRITING.values(), ids=[*WRITING])
def test_sha256sum_accepts_what_each_command_lists(line: str, run: Run) -> None:
    """The list has all new shards, and the shards are the same with and without it."""
    if "t.parquet" in line:
        run("tarindex", "a.tar", "-o", "t.parquet").output()
    before = {path.name for path in Path().iterdir()}
    words = line.replace("%d", "%06d").split()
    done = run(*words, "--sums", "SUMS")
    new = sorted({path.name for path in Path().iterdir()} - before - {"SUMS"})
    assert done.status == (1 if words[0] == "tardiff" else 0) and new
    assert Path("SUMS").read_text() == listing(*new)
    assert verified("SUMS") == [f"{name}: OK" for name in new]
    contents = {name: Path(name).read_bytes() for name in new}
    assert run(*words, "--force").status == done.status
    assert {name: Path(name).read_bytes() for name in new} == contents


def test_names_are_relative_to_the_folder_of_the_list(run: Run, tmp_path: Path) -> None:
    run("tarsplit", "-n", 5, "a.tar", "-o", "out/x", "--sums", "out/SUMS").output()
    assert verified("SUMS", folder="out") == ["x-000000.tar: OK", "x-000001.tar: OK"]
    run("tarcat", "a.tar", "-o", "b.tar", "--sums", "lists/SUMS").output()
    assert verified("SUMS", folder="lists") == ["../b.tar: OK"]
    run("tarcat", "a.tar", "-o", tmp_path / "c.tar", "--sums", "SUMS").output()
    assert verified("SUMS") == ["c.tar: OK"]


def test_a_list_with_two_names_of_one_file(run: Run, tmp_path: Path) -> None:
    content = make_tar([("a.txt", b"1")])
    (tmp_path / "a.tar").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (tmp_path / "SUMS").write_text(f"{digest}  a.tar\n{digest}  ./a.tar\n")
    assert run("tarcat", "--check-sums", "SUMS", "a.tar") == (0, content, "")
    (tmp_path / "SUMS").write_text(f"{digest}  a.tar\n{'0' * 64}  ./a.tar\n")
    assert "has no checksum of a.tar" in run("tarcat", "--check-sums", "SUMS", "a.tar", "-o", "b.tar").failure()


def test_names_that_need_an_escape(run: Run) -> None:
    names = ["a\nb.tar", "back\\slash.tar", " blank.tar", "é.tar"]
    for number, name in enumerate(names):
        run("tarcat", "a.tar", "-o", name, "--sums", f"SUMS{number}").output()
        assert len(verified(f"SUMS{number}")) == 1
        assert run("tarcheck", "-q", "--check-sums", f"SUMS{number}", name).status == 0
    assert Path("SUMS0").read_text()[0] == "\\"


def test_stdout_is_listed_as_sha256sum_lists_stdin(run: Run) -> None:
    out = run("tarcat", "a.tar", "--sums", "SUMS").output()
    assert out == SHARD and Path("SUMS").read_text() == f"{hashlib.sha256(out).hexdigest()}  -\n"
    assert run("tarcat", "--check-sums", "SUMS", "-", stdin=out).output() == out


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("tarcat a.tar -o b.tar --sums SUMS", "SUMS: already exists; --force replaces it"),
        ("tarsplit a.tar -o b --sums SUMS", "SUMS: already exists; --force replaces it"),
        ("tarcat a.tar -o b.tar --sums -", "--sums takes the name of a file, because stdout is for data"),
        (
            "tarcat a.tar -o b.tar --sums c.tar",
            "c.tar: .tar says tar, and this writes checksums: name it .sha256; tarcat writes tar",
        ),
        ("tarcat a.tar -o b --sums ./b", "b: --sums names an output"),
        (
            "tarcat a.tar -o pipe:cat --sums S",
            "pipe:cat: a command has no name that --sums could list; write to a file or an object",
        ),
        (
            "tarcheck a.tar --sums S",
            "--sums lists what --fix writes; --check-sums FILE compares the shards with a list",
        ),
        ("tardiff a.tar other.tar --sums S", "--sums goes with -o OUTPUT (see tardiff --help)"),
        (
            "tarcat -c 3 --check-sums SUMS a.tar",
            "-c may stop before the end of a shard, so --check-sums can't compare it",
        ),
        (
            "tarcat --check-sums SUMS a.tar -o b.parquet",
            "--check-sums reads all of a shard; it excludes an OUTPUT that ends in .parquet",
        ),
        ("tarcat --check-sums SUMS a.tar other.tar", "SUMS: this list has no checksum of other.tar"),
        (
            "tarcat --check-sums labels.tsv a.tar",
            "labels.tsv: line 1 is not a checksum and a name, as sha256sum writes them",
        ),
        ("tarcat --check-sums empty a.tar", "empty: this list has no checksums"),
        (
            "tarcat --check-sums crc a.tar",
            f"crc: CRC32C of a.tar can't be compared; possible are {', '.join(HASH_NAMES)}",
        ),
    ],
)
def test_what_is_refused_before_anything_is_written(line: str, reason: str, run: Run) -> None:
    status = 1 if re.match(r"SUMS:|labels|empty|crc", reason) else 2
    Path("SUMS").write_text(listing("a.tar"))
    Path("empty").write_text("# nothing\n\n")
    Path("crc").write_text("CRC32C (a.tar) = 12345678\n")
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    done = run(*line.split())
    assert (done.status, done.stdout, done.stderr) == (status, b"", f"{line.split(maxsplit=1)[0]}: {reason}\n")
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before


def test_there_is_no_list_after_a_failure_or_without_an_output(run: Run) -> None:
    Path("bad.tar").write_bytes(SHARD[:5000])
    assert run("tarsplit", "-n", 1, "-o", "s", "--sums", "SUMS", "bad.tar").status == 1
    assert Path("s-000000.tar").exists() and not Path("SUMS").exists()  # whole shards stay
    assert run("tarsplit", "-n", 1, "-o", "t", "--sums", "SUMS", stdin=make_tar([])).status == 0
    assert not Path("SUMS").exists()


FORMS = {
    "sha256sum": "{sha256}  a.tar",
    "binary": "{sha256} *a.tar",
    "BSD": "SHA256 (a.tar) = {sha256}",
    "openssl": "SHA2-256(a.tar)= {sha256}",
    "md5sum": "{md5}  a.tar",
    "MD5 in BSD form, CRLF": "MD5 (a.tar) = {md5}\r",
    "sha1sum": "{sha1}  a.tar",
    "sha512sum": "{sha512}  a.tar",
    "b2sum --tag": "BLAKE2b (a.tar) = {blake2b}",
    "CRC32": "CRC32 (a.tar) = {crc32}",
    "elsewhere": "{sha256}  /elsewhere/a.tar",
    "in a store": "{sha256}  s3://bucket/train/a.tar",
    "the better of two": "CRC32C (a.tar) = 00000000\n{sha256}  a.tar\nMD5 (a.tar) = 00000000000000000000000000000000",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=[*FORMS])
@pytest.mark.parametrize("command", ["tarcat", "tarcheck", *also("tarpcat -p2", "tarpcat -p2 --unordered")])
def test_what_is_read_is_compared(command: str, form: str, run: Run) -> None:
    """A byte of a payload is changed: the archive is sound, and only the checksum tells."""
    digests = {name: hashlib.new(name, SHARD).hexdigest() for name in ("sha256", "md5", "sha1", "sha512", "blake2b")}
    digests["crc32"] = f"{zlib.crc32(SHARD):08x}"
    Path("SUMS").write_bytes(form.format(**digests).encode() + b"\n")
    words = [*command.split(), "--check-sums", "SUMS", "a.tar", *(["-o", "b.tar"] if command != "tarcheck" else [])]
    done = run(*words)
    assert (done.status, done.stderr) == (0, "")
    place = SHARD.index(SAMPLES[11][1])
    changed = SHARD[:place] + bytes([SHARD[place] ^ 1]) + SHARD[place + 1 :]
    Path("a.tar").write_bytes(changed)
    done = run(*words, *(["--force"] if command != "tarcheck" else []))
    assert done.status == 1
    if command == "tarcheck":
        assert f"{hashlib.sha256(changed).hexdigest()}" in done.stdout.decode() or "sha256" not in form
        assert b"error checksum-differs: 1:" in done.stdout
    else:
        assert done.stderr.endswith(" as in SUMS: copy or download the shard again\n")
        assert Path("b.tar").read_bytes() == SHARD  # the one of before


def test_the_stored_bytes_count_of_compressed_shards_and_those_read_ahead(run: Run) -> None:
    for name in ("a.tgz", "b.tgz"):
        Path(name).write_bytes(gzip.compress(make_tar([(f"{name[0]}{n}.txt", bytes(9000)) for n in range(300)]), 1))
    Path("SUMS").write_text(listing("a.tgz", "b.tgz"))
    both = run("tarcat", "a.tgz", "b.tgz").output()
    for words in (["tarcat"], ["tarpcat", "-p", "2"], ["tarcat", "--shuffle", "1", "--seed", "1"]):
        assert len(run(*words, "--check-sums", "SUMS", "a.tgz", "b.tgz").output()) == len(both)
    Path("b.tgz").write_bytes(gzip.compress(gzip.decompress(Path("b.tgz").read_bytes()), 6))
    for words in (["tarcat"], ["tarpcat", "-p", "2"], ["tarpcat", "--unordered"]):
        done = run(*words, "--check-sums", "SUMS", "a.tgz", "b.tgz", "-o", "c.tar")
        assert (done.status, done.stderr.partition(" SHA256 is ")[0]) == (1, f"{words[0]}: b.tgz:")
        assert not Path("c.tar").exists()


def findings(run: Run, *words: object, stdin: bytes = b"") -> tuple[int, dict[str, list[str]], str]:
    done = run("tarcheck", "--json", *words, stdin=stdin)
    found = json.loads(done.stdout)["findings"]
    return done.status, {each["code"]: [place["shard"] for place in each["places"]] for each in found}, done.stderr


def test_tarcheck_has_codes_for_it(run: Run) -> None:
    """Sound, damaged, unlisted and absent shards, stdin, and ones that are listed only."""
    Path("cut.tar").write_bytes(SHARD[:-1500])
    Path("new.tar").write_bytes(make_tar([("n.txt", b"1")]))
    Path("SUMS").write_text(f"{listing('a.tar', 'other.tar')}{'0' * 64}  cut.tar\n{'0' * 64}  gone.tar\n")
    assert findings(run, "--check-sums", "SUMS", "a.tar") == (
        0,
        {},
        "tarcheck: SUMS lists 3 shards more than were read: other.tar, cut.tar, gone.tar\n",
    )
    status, codes, said = findings(run, "--check-sums", "SUMS", "cut.tar", "new.tar", "gone.tar", "other.tar")
    assert (status, said) == (1, "tarcheck: SUMS lists 1 shard more than were read: a.tar\n")
    assert codes["checksum-differs"] == ["cut.tar"] and codes["no-checksum"] == ["new.tar"]
    assert codes["missing-shard"] == ["gone.tar"]
    Path("STDIN").write_text(f"{hashlib.sha256(SHARD).hexdigest()}  -\n")
    assert findings(run, "--check-sums", "STDIN", "-", stdin=SHARD) == (0, {}, "")
    assert findings(run, "--check-sums", "STDIN", "-", stdin=SHARD + bytes(10240))[1] == {"checksum-differs": ["-"]}


def test_large_shards_are_compared_whole_in_workers(run: Run) -> None:
    """Of 70 MB and more, tarcheck reads parts of a shard in workers, but not if it has to add up all its bytes."""
    for name in ("x", "y"):
        Path(f"{name}.tar").write_bytes(make_tar([(f"{name}{n}.bin", bytes([n]) * (6 << 20)) for n in range(7)]))
    Path("SUMS").write_text(listing("x.tar", "y.tar"))
    words = "-p", 2, "--check-sums", "SUMS", "x.tar", "y.tar"
    assert findings(run, *words) == (0, {}, "")
    with Path("y.tar").open("r+b") as file:
        file.seek(20 << 20)
        file.write(b"?")
    assert findings(run, *words) == (1, {"checksum-differs": ["y.tar"]}, "")


def test_a_base_name_that_two_lines_have_is_not_taken(run: Run) -> None:
    """Names from the list's folder go before those from the current one, and both before base names."""
    for folder in ("one", "two", "lists"):
        Path(folder).mkdir()
    Path("one/a.tar").write_bytes(SHARD)
    Path("two/a.tar").write_bytes(make_tar(SAMPLES[:4]))
    Path("lists/SUMS").write_text(listing("one/a.tar", "two/a.tar"))
    assert findings(run, "--check-sums", "lists/SUMS", "one/a.tar")[1] == {}
    assert findings(run, "--check-sums", "lists/SUMS", "two/a.tar")[1] == {}
    assert findings(run, "--check-sums", "lists/SUMS", "a.tar")[1] == {"no-checksum": ["a.tar"]}


def test_tables_are_not_compared(run: Run) -> None:
    run("tarindex", "a.tar", "-o", "t.parquet").output()
    Path("SUMS").write_text(listing("t.parquet"))
    said = run("tarcat", "--check-sums", "SUMS", "t.parquet").failure()
    assert said == "tarcat: t.parquet: checksums of a table's shards are not compared; name the shards themselves\n"


def test_tarls_reads_local_files(run: Run) -> None:
    out = run("tarls", "--sums", "a.tar", "other.tar").output()
    assert out.decode() == listing("a.tar", "other.tar")
    assert run("tarls", "--sums", "-l", "a.tar").failure(2) == (
        "tarls: --long, --json, --brace and --sums exclude each other\n"
    )


def test_python_does_the_same(run: Run) -> None:
    tartools.write(tartools.read("a.tar"), "b.tar", sums="SUMS")
    assert verified("SUMS") == ["b.tar: OK"]
    with tartools.ShardWriter("s-%03d.tgz", max_count=4, sums=Path("MANY")) as writer:
        for sample in tartools.read("b.tar", check_sums="SUMS"):
            writer.write(sample)
    assert verified("MANY") == [f"{name}: OK" for name in writer.shards] and len(writer.shards) == 3
    assert [sample.key for sample in tartools.read(writer.shards, check_sums="MANY")] == [
        sample.key for sample in tartools.read("a.tar")
    ]
    with pytest.raises(StorageError, match="SUMS: already exists; force=True replaces it"):
        tartools.write([], "c.tar", sums="SUMS")
    assert not Path("c.tar").exists()
    Path("b.tar").write_bytes(SHARD + bytes(512))
    with pytest.raises(StorageError, match=r"b\.tar: SHA256 is [0-9a-f]{64}, not [0-9a-f]{64} as in SUMS"):
        list(tartools.read("b.tar", check_sums="SUMS"))
    with pytest.raises(StorageError, match=r"SUMS: this list has no checksum of other\.tar"):
        tartools.read(["b.tar", "other.tar"], check_sums="SUMS")
    assert members_of(Path("a.tar").read_bytes()) == SAMPLES
