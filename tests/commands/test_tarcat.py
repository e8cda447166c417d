"""tarcat: every option, their order, what it refuses, and where it stops."""

from __future__ import annotations

import io
import random
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.archives import END, entry, header, pax
from tests.commands.conftest import Inside
from tests.conftest import Run, has_end, make_tar, members_of


class Outcome(NamedTuple):
    """What came of a run in this process."""

    status: int
    output: bytes | None
    stderr: str

    def refused(self) -> str:
        """Return the one line that was said of a failure, of which nothing came."""
        assert (self.status, self.output, self.stderr.count("\n")) == (1, None, 1)
        return self.stderr

    @property
    def names(self) -> list[str]:
        assert self.output is not None, self.stderr
        assert has_end(self.output)
        return [name for name, _ in members_of(self.output)]

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(name.partition(".")[0] for name in self.names))


Cat = Callable[..., Outcome]


@pytest.fixture
def cat(inside: Inside) -> Cat:
    """Return a function that runs tarcat in this process, in `tmp_path`, with -o."""
    runs = iter(range(1000))

    def cat(*arguments: object) -> Outcome:
        out = Path(f"out{next(runs)}.tar")
        done = inside("tarcat", *map(str, arguments), "-o", str(out))
        return Outcome(done.status, out.read_bytes() if out.exists() else None, done.stderr)

    return cat


def shard(name: str, *keys: str, fields: tuple[str, ...] = ("x", "y")) -> Path:
    """Make a shard of samples with these *keys*."""
    path = Path(name)
    path.write_bytes(make_tar([(f"{key}.{field}", f"{key}{field}".encode()) for key in keys for field in fields]))
    return path


@pytest.fixture(autouse=True)
def shards(cat: Cat) -> None:
    """Make a.tar (a0 to a5), b.tar (b0 to b2) and c.tar (c0)."""
    shard("a.tar", *(f"a{n}" for n in range(6)))
    shard("b.tar", *(f"b{n}" for n in range(3)))
    shard("c.tar", "c0")


A, B, C = [f"a{n}" for n in range(6)], [f"b{n}" for n in range(3)], ["c0"]
ABC = ["a.tar", "b.tar", "c.tar"]

CHOICES = {  # and any numbers: tests.properties.test_model
    "all": ([], A + B + C),
    "-c 0": (["-c", 0], []),
    "--skip all": (["--skip", 10], []),
    "--slice to": (["--slice", ":2"], ["a0", "a1"]),
    "--slice from": (["--slice", "8:"], ["b2", "c0"]),
    "--slice step": (["--slice", "::4"], ["a0", "a4", "b2"]),
    "--slice empty": (["--slice", "3:3"], []),
    "--slice backwards": (["--slice", "5:2"], []),
    "--interleave 2": (["--interleave", 2], ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "c0", "a4", "a5"]),
    "--interleave 9": (["--interleave", 9], ["a0", "b0", "c0", "a1", "b1", "a2", "b2", "a3", "a4", "a5"]),
    "--interleave 1": (["--interleave", 1], A + B + C),
    "--interleave before --skip": (["--skip", 1, "--interleave", 2, "-c", 3], ["b0", "a1", "b1"]),
    "--skip counts samples that -x empties": (["--skip", 1, "-c", 1, "-x", "y"], ["a1"]),
}


@pytest.mark.parametrize(("options", "keys"), CHOICES.values(), ids=CHOICES)
def test_which_samples(options: list[object], keys: list[str], cat: Cat) -> None:
    done = cat(*options, *ABC)
    empty = "tarcat: no samples selected (of 10)\n" if options == ["--skip", 10] else ""  # the others read none
    assert (done.status, done.keys, done.stderr) == (0, keys, empty)
    done = cat(*ABC, *options)
    assert done.keys == keys


FIELDS = {
    "one": (["-f", "x"], ["s.x"]),
    "order is the archive's": (["-f", "z x"], ["s.x", "s.z"]),
    "the first there is": (["-f", "no;z;x"], ["s.z"]),
    "two options add up": (["-f", "x", "-f", "z"], ["s.x", "s.z"]),
    "without case": (["-f", "big X"], ["s.x", "s.BIG"]),
    "rename": (["-f", "new=x z"], ["s.new", "s.z"]),
    "rename the first there is": (["-f", "new=no;z"], ["s.new"]),
    "a copy under a new name": (["-f", "x new=x"], ["s.x", "s.new"]),
    "a new name first": (["-f", "new=x x"], ["s.new", "s.x"]),
    "swap": (["-f", "x=z z=x"], ["s.z", "s.x"]),
    "dotted": (["-f", "a.b"], ["s.a.b"]),
    "exclude": (["-x", "x z"], ["s.BIG", "s.a.b"]),
    "exclude adds up": (["-x", "x", "-x", "z big"], ["s.a.b"]),
    "exclude verbatim": (["-x", "X big", "--verbatim"], ["s.x", "s.z", "s.BIG", "s.a.b"]),
    "both": (["-f", "x z", "-x", "z"], ["s.x"]),
    "exclude what is not there": (["-x", "nope"], ["s.x", "s.z", "s.BIG", "s.a.b"]),
}


@pytest.mark.parametrize(("options", "names"), FIELDS.values(), ids=FIELDS)
def test_which_fields(options: list[str], names: list[str], cat: Cat) -> None:
    shard("s.tar", "s", fields=("x", "z", "BIG", "a.b"))
    if options == ["-f", "x z", "-x", "z"]:  # a word for an excluded field finds nothing
        assert cat(*options, "s.tar").status == 1
        return
    done = cat(*options, "s.tar")
    assert (done.status, done.names) == (0, names)


def test_a_word_takes_every_member_of_its_field(cat: Cat) -> None:
    Path("twice.tar").write_bytes(make_tar([("s.x", b"1"), ("s.X", b"2"), ("s.x", b"3"), ("s.y", b"4")]))
    done = cat("-f", "x", "twice.tar")
    assert done.output is not None
    assert members_of(done.output) == [("s.x", b"1"), ("s.X", b"2"), ("s.x", b"3")]
    assert cat("-f", "x", "--verbatim", "twice.tar").names == ["s.x", "s.x"]


def test_renamed_members_keep_all_but_their_name(cat: Cat) -> None:
    Path("s.tar").write_bytes(pax((b"mtime", b"1.5")) + entry(b"s.x", b"payload") + END)
    output = cat("-f", "new=x", "s.tar").output
    assert output is not None
    with tarfile.open(fileobj=io.BytesIO(output)) as opened:
        (info,) = opened.getmembers()
    assert (info.name, info.mtime, info.mode, info.uid, info.size) == ("s.new", 1.5, 0o640, 0o2322, 7)


def test_a_word_that_no_sample_had_lists_those_there_were(cat: Cat) -> None:
    assert cat("-f", "x nope", *ABC).refused() == "tarcat: no sample had the field nope; the fields were: x y\n"
    done = cat("-f", "x,y", *ABC)
    assert done.stderr == "tarcat: no sample had the field x,y (blanks separate fields: 'x y'); the fields were: x y\n"


def test_a_new_name_that_is_there_already_is_a_failure(cat: Cat) -> None:
    assert "'a0.y'" in cat("-f", "x y=x y", "a.tar").refused()


def test_the_name_of_the_shard_has_no_suffix(cat: Cat) -> None:
    Path("d.1").mkdir()
    for name in ("d.1/t.tar.gz", "d.1/t.tgz"):
        Path(name).write_bytes(Path("a.tar").read_bytes())
        assert cat("--rekey", "{shard}/{index}", "-c", 1, name).keys == ["t/0"]


def test_members_without_a_field_get_the_key_as_name(cat: Cat) -> None:
    Path("s.tar").write_bytes(make_tar([("README", b"1"), ("a.x", b"2"), (".hid.x", b"3")]))
    assert cat("--rekey", "{index}", "s.tar").names == ["0", "1.x", "2"]


def test_new_keys_take_text_fields(cat: Cat) -> None:
    members = [("d/a.cls", b"cat\n"), ("d/a.meta.txt", b"x y"), ("b.CLS", b"birds/emu"), ("b.meta.txt", b"\xc3\xa9")]
    Path("s.tar").write_bytes(make_tar(members))
    assert cat("--rekey", "{key}_{cls}", "s.tar").keys == ["d/a_cat", "b_birds/emu"]
    assert cat("--rekey", "{cls:>5}/{meta.txt!r}{index:02d}{{}}", "s.tar").keys == [
        "  cat/'x y'00{}",
        "birds/emu/'é'01{}",
    ]
    said = cat("--verbatim", "--rekey", "{key}_{cls}", "s.tar").refused()
    assert "s.tar: sample 'b' has no field 'cls', which --rekey names; its fields are: CLS meta.txt" in said
    assert "sample 'd/a' has no field 'key.upper', which" in cat("--rekey", "{key.upper}", "s.tar").refused()


@pytest.mark.parametrize("template", ["a.b", "{key}.{index}", "", "d/", "d/.{index}", "{shard}"])
def test_keys_that_would_not_read_back_are_refused(template: str, cat: Cat) -> None:
    shard("s.v1.tar", "a")
    assert "would not read back" in cat("--rekey", template, "s.v1.tar").refused()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"1.5", "sample 'a' cannot have the key '1.5': it would not read back; its last part may have no dot"),
        (b"../x", "sample 'a': the key '../x' is absolute or contains '..'"),
        (b"/etc/x", "sample 'a': the key '/etc/x' is absolute or contains '..'"),
        (b"x/../../y", "sample 'a': the key 'x/../../y' is absolute or contains '..'"),
        (b"", "sample 'a': the key is empty"),
        (b"x\0y", "sample 'a' cannot have the key"),
        (b"\xff\xfe", "sample 'a', field 'cls': not UTF-8 text"),
    ],
)
def test_values_that_make_no_key_are_refused(value: bytes, message: str, cat: Cat) -> None:
    Path("s.tar").write_bytes(make_tar([("a.cls", value)]))
    assert f"s.tar: {message}" in cat("--rekey", "{cls}", "s.tar").refused()


def test_a_directory_may_have_a_dot_in_a_new_key(cat: Cat) -> None:
    Path("s.tar").write_bytes(make_tar([("a.cls", b"v1.5/dog")]))
    assert cat("--rekey", "{cls}", "s.tar").names == ["v1.5/dog.cls"]


def test_two_samples_of_one_key_side_by_side_are_refused(cat: Cat) -> None:
    shard("d.tar", "b2", "b3")
    said = cat("b.tar", "d.tar").refused()
    assert all(word in said for word in ("'b2'", "b.tar", "d.tar", "--rekey", "tarsort"))
    assert cat("--rekey", "{index}", "b.tar", "d.tar").keys == ["0", "1", "2", "3", "4"]
    assert cat("-c", 2, "c.tar", "d.tar").status == 0


def test_neighbours_of_concatenated_archives_are_refused_too(cat: Cat) -> None:
    Path("cc.tar").write_bytes(Path("c.tar").read_bytes() * 2)
    assert "'c0'" in cat("cc.tar").refused()


def test_equal_names_without_a_field_are_no_neighbours(cat: Cat) -> None:
    Path("s.tar").write_bytes(make_tar([("README", b"1"), ("README", b"2"), ("README.md", b"3")]))
    done = cat("s.tar", "s.tar")
    assert (done.status, done.names) == (0, ["README", "README", "README.md"] * 2)


@pytest.mark.parametrize("held", [1, 2, 5, 10, 100])
def test_shuffling_is_a_permutation_that_the_seed_decides(held: int, cat: Cat) -> None:
    runs = [cat("--shuffle", held, *options, *ABC) for options in ([], ["--seed", 0], ["--seed", 7], ["--seed", 7])]
    assert all(done.status == 0 for done in runs)
    assert all(sorted(done.names) == sorted(f"{key}.{f}" for key in A + B + C for f in "xy") for done in runs)
    assert runs[0].output == runs[1].output
    assert runs[2].output == runs[3].output
    assert held == 1 or runs[0].output != runs[2].output


def test_shuffling_works_on_shards_first_and_its_buffer_is_behind_the_fields(cat: Cat) -> None:
    many = [f"{letter}.tar" for letter in "defghij"]
    for name in many:
        shard(name, *(f"{name[0]}{n}" for n in range(3)))
    keys = cat("--shuffle", 1, *many).keys
    order = list(dict.fromkeys(key[0] for key in keys))
    expected = [name[0] for name in many]
    random.Random(0).shuffle(many)
    assert order == [name[0] for name in many] != expected
    done = cat("--shuffle", 4, "-c", 5, "--skip", 2, "-f", "x", "-v", *many)
    assert len(done.keys) == 5
    assert "samples in, 5 out" in done.stderr  # what the buffer still held is left out: the account adds up


def test_early_stop_does_not_look_at_later_shards(cat: Cat) -> None:
    Path("bad.tar").write_bytes(b"garbage" * 1000)
    assert cat("-c", 5, "a.tar", "bad.tar").keys == A[:5]
    assert cat("-c", 7, "a.tar", "bad.tar").status == 1


def test_the_account(cat: Cat) -> None:
    Path("d.tar").write_bytes(header(b"dir/", kind=b"5") + entry(b"dir/d.x") + END)
    done = cat("-v", "--skip", 2, "-x", "y", *ABC, "d.tar")
    lines = done.stderr.splitlines()
    assert lines[0] == "tarcat: 1 directory entries are not samples"
    assert lines[1].startswith("tarcat: 11 samples in, 9 out, 2 left out, ")
    assert len(lines) == 2


def test_lax_warns_once_a_shard(cat: Cat) -> None:
    for name in "ab":
        Path(f"{name}-lax.tar").write_bytes(entry(name.encode() + b".x", b"1"))
    assert "--lax" in cat("a-lax.tar").stderr
    done = cat("--lax", "a-lax.tar", "b-lax.tar")
    assert (done.status, done.names) == (0, ["a.x", "b.x"])
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == [" a-lax.tar", " b-lax.tar"]
    assert cat("--lax", "-q", "a-lax.tar").stderr == ""


@pytest.mark.parametrize("options", [[], ["-p", "2", "--unordered"]])
def test_damage_is_reported_before_a_field_that_is_missing(options: list[str], run: Run, tmp_path: Path) -> None:
    archive = make_tar([(f"{n}.cls", bytes(2000)) for n in range(9)])
    (tmp_path / "a.tar").write_bytes(archive[:5000])
    name = "tarpcat" if options else "tarcat"
    assert "a.tar: at byte 5000: " in run(name, *options, "-f", "jpg", "a.tar").stderr


@pytest.mark.parametrize("line", [["tarcat"], ["tarcheck", "--fix"]])  # before it reads
def test_a_directory_is_no_output(line: list[str], run: Run, tmp_path: Path) -> None:
    said = run(*line, "-o", "out/", "a.tar").failure()
    assert said == f"{line[0]}: out/: is the name of a directory; name a file in it\n"
    assert not (tmp_path / "out").exists()


def test_descriptors_that_somebody_left_non_blocking_are_waited_for(shell: Run, tmp_path: Path) -> None:
    archive = make_tar([("a.jpg", bytes(20 << 20)), ("b.jpg", b"1")])
    (tmp_path / "a.tar").write_bytes(archive)
    left = "import os, sys; os.set_blocking(0, False); os.set_blocking(1, False); os.execvp(sys.argv[1], sys.argv[1:])"
    done = shell(f"cat a.tar | {sys.executable} -c '{left}' tarcat | cat > b.tar")
    assert (done.status, done.stderr) == (0, "") and (tmp_path / "b.tar").read_bytes() == archive


def test_a_command_that_wants_the_terminal_fails_at_once(run: Run) -> None:
    assert "the command ended with status" in run("tarcat", "pipe:read password < /dev/tty && cat a.tar").failure()
