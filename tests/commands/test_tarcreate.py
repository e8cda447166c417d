"""tarcreate, through the installed command."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import BIN, Run, clean_environment, has_end, make_tar, members_of

PLAN = "__key__\t@jpg\tcls\nd/a\tone\t5\nd/b\t\t\nd/c\ttwo\t\\t\\\\\n"
EXPECTED = [("d/a.jpg", b"1"), ("d/a.cls", b"5"), ("d/b.cls", b""), ("d/c.jpg", b"2" * 3000), ("d/c.cls", b"\t\\")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a directory with the files that `PLAN` names."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "one").write_bytes(b"1")
    (folder / "two").write_bytes(b"2" * 3000)
    return folder


def test_tables(run: Run, data: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.tsv").write_text(PLAN)
    (tmp_path / "plan.csv").write_text('__key__,@jpg,cls\r\nd/a,one,5\r\nd/b,,\r\nd/c,two,"\t\\"\r\n')
    (tmp_path / "plan").write_text(PLAN)
    for arguments in (("plan.tsv",), ("plan.csv",), ("--format", "tsv", "plan")):
        done = run("tarcreate", "-C", "data", *arguments)
        assert (done.status, done.stderr) == (0, "")
        assert members_of(done.stdout) == EXPECTED and has_end(done.stdout)
    for arguments in ((), ("-",), ("--format", "tsv")):
        done = run("tarcreate", "-v", "-C", "data", *arguments, stdin=PLAN.encode())
        assert members_of(done.stdout) == EXPECTED
        assert done.stderr.startswith("tarcreate: 3 samples in, 3 out, ")


def test_headers_are_the_same_everywhere(run: Run, data: Path) -> None:
    done = run("tarcreate", "-C", "data", stdin=PLAN.encode())
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as opened:
        infos = opened.getmembers()
    for info in infos:
        assert (info.mode, info.mtime, info.uid, info.gid, info.uname) == (0o644, 0, 0, 0, "")
    os.utime(data / "one", (1, 1))
    os.chmod(data / "one", 0o600)
    assert run("tarcreate", "-C", "data", stdin=PLAN.encode()).stdout == done.stdout


def test_a_plan_may_be_where_its_files_are(run: Run, data: Path) -> None:
    (data / "plan.tsv").write_text(PLAN)
    assert members_of(run("tarcreate", "-C", "data", "plan.tsv").stdout) == EXPECTED


@pytest.mark.parametrize(
    ("options", "plan", "names"),
    [
        ((), "a\n1\n2\n", ["000000000.a", "000000001.a"]),
        (("--key", "d/{:03d}"), "a\n1\n2\n", ["d/000.a", "d/001.a"]),
        (("--key", "x{index}"), "a\n1\n\n", ["x0.a", "x1.a"]),  # of one column, an empty line is an empty cell
        ((), "a\tb\n\n1\t2\n\n", ["000000000.a", "000000000.b"]),
        ((), "a\tb\r\n1\t2\r\n", ["000000000.a", "000000000.b"]),
        ((), "\ufeffa\n1", ["000000000.a"]),
        ((), "__key__\t__index__\t__shard__\t__size__\ta.b\nk\t0\tx.tar\t9\t1\n", ["k.a.b"]),
        ((), "a\n", []),
        (("--format", "csv"), 'a,b\n"x\ny",2\n\n', ["000000000.a", "000000000.b"]),
    ],
)
def test_keys_and_columns(run: Run, options: tuple[str, ...], plan: str, names: list[str]) -> None:
    done = run("tarcreate", *options, stdin=plan.encode())
    assert (done.status, done.stderr) == (0, "")
    assert [name for name, _ in members_of(done.stdout)] == names and has_end(done.stdout)


@pytest.mark.parametrize(
    ("options", "plan", "message"),
    [
        ((), "", "stdin: the plan is empty"),
        ((), "\n\n", "stdin: the plan is empty"),
        (("--format", "recipe"), "", "stdin: the plan is empty"),
        ((), "a\tb\n1\n", "stdin: line 2: the header has 2 cells, this row has 1"),
        ((), "a\n\\d\n", "stdin: line 2: unknown escape '\\\\d'"),
        ((), "a\n1\\\n", "stdin: line 2: unknown escape"),
        (("--format", "csv"), 'a\n"x\n', "not CSV"),
        ((), "__key__\nx\n", "stdin: line 1: the header names no field"),
        ((), "a\t@a\n1\t2\n", "two columns of the header are for the field 'a'"),
        ((), "a\t\n1\t2\n", "a column of the header has no name"),
        ((), "a/b\n1\n", "would not read back"),
        ((), "__key__\ta\n/etc/x\t1\n", "stdin: line 2: the key '/etc/x' is absolute or contains '..'"),
        ((), "__key__\ta\nx/../y\t1\n", "stdin: line 2: the key 'x/../y' is absolute or contains '..'"),
        ((), "__key__\ta\n..\t1\n", "stdin: line 2: the key '..' is absolute"),
        ((), "__key__\ta\n\t1\n", "stdin: line 2: the key is empty"),
        ((), "__key__\ta\nx.y\t1\n", "stdin: line 2: key 'x.y' with field 'a' would not read back"),
        ((), "__key__\t@a\nx\t\n", "stdin: line 2: the sample 'x' has no field"),
        ((), "@a\nmissing\n", "missing: No such file"),
        ((), "@a\n-\n", "line 2: a member cannot be read from stdin"),
        ((), "@a\npipe:echo hi\n", "line 2: a command in a table is not run without --allow-pipe: pipe:echo …"),
        (("--format", "csv"), "@a\npipe:echo hi\n", "--allow-pipe"),
        ((), "@a\nfile:pipe:touch gotcha\n", "pipe:touch gotcha: No such file"),
        ((), "@a\ndata/../missing\n", "missing: No such file"),
        ((), "__key__\ta\nx\t1\nx\t2\n", "two samples with the key 'x' side by side"),
        (("--format", "recipe"), "a.txt\n", "stdin: line 1: a line of a recipe is NAME SOURCE"),
        (("--format", "recipe"), "../a.txt text:x\n", "stdin: line 1: the key '../a.txt' is absolute"),
        (("--format", "recipe"), "a/ text:x\n", "not a member name"),
        (("--format", "recipe"), "a.txt text:x\na.txt text:y\n", "the sample 'a' would have a field twice"),
        (("--format", "recipe"), "a.txt missing\n", "missing: No such file"),
    ],
)
def test_failures(run: Run, tmp_path: Path, options: tuple[str, ...], plan: str, message: str) -> None:
    done = run("tarcreate", *options, "-o", "out.tar", stdin=plan.encode())
    assert done.status == 1 and message in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--key", "{nope}"), "not a template for keys"),
        (("--key", "{:z}"), "not a template for keys"),
        (("--format", "xls"), "not a format"),
        (("--class", "cls"), "--class needs --folder"),
        (("--folder", ".", "plan.tsv"), "with --folder there is no PLAN"),
        (("--folder", ".", "--key", "x"), "with --folder there is no PLAN"),
        (("--folder", ".", "--class", "a/b"), "not a name for a field"),
        (("--format", "recipe", "--key", "x"), "--key is for tables"),
        (("-z", "-o", "a.tar.xz"), "-z writes gzip"),
    ],
)
def test_usage(run: Run, options: tuple[str, ...], message: str) -> None:
    done = run("tarcreate", *options, stdin=b"a\n1\n")
    assert done.status == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_all_sources_are_looked_at_first(run: Run, data: Path, tmp_path: Path) -> None:
    plan = PLAN + "d/e\tmissing\t1\n"
    done = run("tarcreate", "-C", "data", stdin=plan.encode())
    assert (done.status, done.stdout, done.stderr) == (1, b"", "tarcreate: data/missing: No such file or directory\n")
    (data / "missing").mkdir()
    assert run("tarcreate", "-C", "data", stdin=plan.encode()).stdout == b""


def test_commands(run: Run, tmp_path: Path) -> None:
    plan = b"@a\npipe:printf hi\n"
    assert members_of(run("tarcreate", "--allow-pipe", stdin=plan).stdout) == [("000000000.a", b"hi")]
    failed = run("tarcreate", "--allow-pipe", "-o", "out.tar", stdin=b"@a\npipe:printf hi\npipe:exit 3\n")
    assert failed.status == 1 and failed.stderr == "tarcreate: pipe:exit …: the command ended with status 3\n"
    streamed = run("tarcreate", "--allow-pipe", stdin=b"@a\npipe:printf hi\npipe:exit 3\n")
    assert streamed.status == 1 and len(streamed.stdout) == 1024  # the first sample, and no end
    large = run("tarcreate", "--allow-pipe", stdin=b"@a\tb\npipe:head -c 20000000 /dev/zero\tx\n")
    assert members_of(large.stdout) == [("000000000.a", bytes(20_000_000)), ("000000000.b", b"x")]
    assert list(tmp_path.iterdir()) == []


def test_recipe(run: Run, data: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe").write_text(
        "d/a.txt text:hello  world\\n \n\nd/a.jpg\tone\r\n"
        "d/b.jpg   file:two\nREADME text:\nd/b.txt pipe:echo 'x y'\nd/b.url file://" + str(data / "one") + "\n"
    )
    done = run("tarcreate", "-v", "-C", "data", "recipe")
    assert members_of(done.stdout) == [
        ("d/a.txt", b"hello  world\\n "),
        ("d/a.jpg", b"1"),
        ("d/b.jpg", b"2" * 3000),
        ("README", b""),
        ("d/b.txt", b"x y\n"),
        ("d/b.url", b"1"),
    ]
    assert done.stderr.startswith("tarcreate: 4 samples in, 4 out, ")


def test_large_files_and_odd_names(run: Run, data: Path) -> None:
    large = bytes(range(256)) * (12 << 10)
    (data / "large").write_bytes(large)
    (data / os.fsdecode(b"b\xff c")).write_bytes(b"odd")
    (data / "pipe:x").write_bytes(b"name")
    done = run("tarcreate", "-C", "data", stdin=b"@a\t@b\t@c\nlarge\tb\xff c\tfile:pipe:x\n")
    assert [payload for _, payload in members_of(done.stdout)] == [large, b"odd", b"name"]


def make_tree(top: Path) -> None:
    for name in ("n2/a.jpg", "n2/a-b.jpg", "n2/a-b.txt", "n2/a.seg.png", "n1/é.jpg", "top.txt", "n1/README", "n1/.hid"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)


def test_folder(run: Run, shell: Run, tmp_path: Path) -> None:
    make_tree(tmp_path / "raw")
    done = run("tarcreate", "-v", "--folder", "raw")
    names = ["n1/.hid", "n1/README", "n1/é.jpg", "n2/a.jpg", "n2/a.seg.png", "n2/a-b.jpg", "n2/a-b.txt", "top.txt"]
    assert members_of(done.stdout) == [(name, name.encode()) for name in names]
    assert done.stderr.startswith("tarcreate: 6 samples in, 6 out, ")
    assert run("tarcreate", "-C", "raw", "--folder", ".").stdout == done.stdout
    classes = dict(members_of(run("tarcreate", "--folder", "raw", "--class", "cls").stdout))
    assert {name: value for name, value in classes.items() if name.endswith(".cls")} == {
        "n1/é.cls": b"n1",
        "n2/a.cls": b"n2",
        "n2/a-b.cls": b"n2",
        "top.cls": b"raw",
    }
    twice = run("tarcreate", "--folder", "raw", "--class", "jpg")
    assert twice.status == 1 and "would have a field twice" in twice.stderr
    assert run("tarcreate", "--folder", "nope").stderr == "tarcreate: nope: No such file or directory\n"
    itself = shell("tarcreate --folder raw > raw/out.tar")
    assert itself.status == 1 and "this output is also the input" in itself.stderr
    assert (tmp_path / "raw/out.tar").stat().st_size == 0


def test_folder_with_links(run: Run, tmp_path: Path) -> None:
    make_tree(tmp_path / "raw")
    plain = run("tarcreate", "--folder", "raw").stdout
    (tmp_path / "raw/a.link").symlink_to("top.txt")
    done = run("tarcreate", "--folder", "raw")
    assert (done.status, done.stdout) == (1, plain)
    assert done.stderr == (
        "tarcreate: raw/a.link: a symbolic link is not followed and not stored (--skip-special accepts that)\n"
    )
    (tmp_path / "raw/n3").symlink_to("n1")
    os.mkfifo(tmp_path / "raw/z.fifo")
    done = run("tarcreate", "--folder", "raw", "-o", "out.tar")
    assert done.status == 1 and "nor are 2 more such files" in done.stderr
    assert (tmp_path / "out.tar").read_bytes() == plain
    assert run("tarcreate", "--folder", "raw", "--skip-special") == (0, plain, "")


def test_outputs(run: Run, shell: Run, data: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.tsv").write_text(PLAN)
    assert run("tarcreate", "-C", "data", "plan.tsv", "-o", "a.tar").status == 0
    again = run("tarcreate", "-C", "data", "plan.tsv", "-o", "a.tar")
    assert again.status == 1 and "--force" in again.stderr
    for output in ("plan.tsv", "data/one"):
        refused = run("tarcreate", "-C", "data", "plan.tsv", "--force", "-o", output)
        assert refused.status == 1 and "this output is also the input" in refused.stderr
    assert (data / "one").read_bytes() == b"1"
    packed = run("tarcreate", "-C", "data", "plan.tsv", "-z").stdout
    assert packed[:2] == b"\x1f\x8b" and members_of(packed) == EXPECTED
    full = shell("tarcreate -C data plan.tsv > /dev/full")
    assert full.status == 1 and full.stderr == "tarcreate: stdout: No space left on device\n"
    (data / "one").write_bytes(bytes(4 << 20))
    closed = shell("tarcreate -C data plan.tsv | head -c 10 > /dev/null; echo ${PIPESTATUS[0]}")
    assert closed == (0, b"141\n", "")


def piped(archive: bytes, *options: str) -> list[tuple[str, bytes]]:
    """Return the members of *archive* after `tar2tsv | tarcreate`, in the same format."""
    form = ["--format", "csv"] if "--csv" in options else []
    environment = clean_environment()
    table = subprocess.run(
        [BIN / "tar2tsv", "--verbatim", *options], input=archive, env=environment, capture_output=True, check=True
    )
    made = subprocess.run(
        [BIN / "tarcreate", *form], input=table.stdout, env=environment, capture_output=True, check=True
    )
    return members_of(made.stdout)


TEXTS = st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from("\t\n\r\\\"',\0\ufeff"), max_size=12)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=8), st.sampled_from([(), ("--csv",)]))
def test_tar2tsv_and_back_is_the_identity(values: list[tuple[str, str]], options: tuple[str, ...]) -> None:
    members = [
        (f"d/{n} ü\t.{field}", value.encode())
        for n, pair in enumerate(values)
        for field, value in zip(("txt", "a.b"), pair, strict=True)
    ]
    assert piped(make_tar(members, tarfile.PAX_FORMAT), "-f", "txt a.b", *options) == members


def test_one_column_and_back(tmp_path: Path) -> None:
    members = [(f"{n:09d}.txt", text) for n, text in enumerate((b"", b"\n", b"x", b"", b"\r"))]
    for options in ((), ("--csv",)):
        assert piped(make_tar(members), "--nokey", "-f", "txt", *options) == members


def test_without_temporary_files(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    done = run("tarcreate", "--allow-pipe", stdin=b"@a\npipe:head -c 20000000 /dev/zero\n", env={"TMPDIR": str(folder)})
    assert done.status == 0 and list(folder.iterdir()) == []


def test_a_refused_command_is_shown_without_its_secrets(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text("__key__\t@jpg\na\tpipe:curl https://h/a?sig=SECRET\n")
    done = run("tarcreate", "p.tsv")
    assert done.status == 1 and "--allow-pipe" in done.stderr and "SECRET" not in done.stderr
