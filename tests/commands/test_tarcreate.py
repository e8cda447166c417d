"""tarcreate, through the installed command."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import BIN, Run, has_end, make_tar, members_of, start

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
        out = run("tarcreate", "-C", "data", *arguments).output()
        assert members_of(out) == EXPECTED and has_end(out)
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
        (("--key-template", "d/{:03d}"), "a\n1\n2\n", ["d/000.a", "d/001.a"]),
        (("--key-template", "x{index}"), "a\n1\n\n", ["x0.a", "x1.a"]),  # of one column, an empty line is an empty cell
        ((), "a\tb\n\n1\t2\n\n", ["000000000.a", "000000000.b"]),
        ((), "a\tb\r\n1\t2\r\n", ["000000000.a", "000000000.b"]),
        ((), "\ufeffa\n1", ["000000000.a"]),
        ((), "__key__\t__index__\t__shard__\t__size__\ta.b\nk\t0\tx.tar\t9\t1\n", ["k.a.b"]),
        ((), "a\n", []),
        (("--format", "csv"), '\na,b\n"x\ny",2\n\n', ["000000000.a", "000000000.b"]),
    ],
)
def test_keys_and_columns(run: Run, options: tuple[str, ...], plan: str, names: list[str]) -> None:
    out = run("tarcreate", *options, stdin=plan.encode()).output()
    assert [name for name, _ in members_of(out)] == names and has_end(out)


@pytest.mark.parametrize(
    ("options", "plan", "message"),
    [
        ((), "", "stdin: the plan is empty"),
        ((), "\n\n", "stdin: the plan is empty"),
        (("--format", "recipe"), "", "stdin: the plan is empty"),
        ((), "a\tb\n1\n", "stdin: line 2: the header has 2 cells, this row has 1"),
        ((), "a\n\\d\n", "stdin: line 2, column 1: unknown escape '\\\\d'"),
        ((), "b\ta\n1\t1\\\n", "stdin: line 2, column 2: unknown escape"),
        (("--format", "csv"), 'a\n"x\n', "not CSV"),
        ((), "__key__  @a\nx  y\n", "stdin: line 1: in a TSV, tabs separate the columns; this header has blanks"),
        ((), "__key__,@a\nx,y\n", "this header has commas (--format csv reads those)"),
        (
            ("--format", "csv"),
            "__key__;a\nx;y,z\n",
            "line 1: in a CSV, commas separate the columns; this header has semic",
        ),
        (
            (),
            "__key__\ta\nx  y\n",
            "line 2: the header has 2 cells, this row has 1; tabs separate the columns, and this",
        ),
        (("--format", "recipe"), "a.txt text:x\nb.txt nope\n", "nope: No such file or directory (stdin: line 2; paths"),
        ((), "__key__\nx\n", "stdin: line 1: the header names no field"),
        ((), "a\t@a\n1\t2\n", "two columns of the header are for the field 'a'"),
        ((), "a\t\n1\t2\n", "a column of the header has no name"),
        ((), "a/b\n1\n", "would not read back"),
        ((), "__key__\ta\n/etc/x\t1\n", "stdin: line 2, column __key__: the key '/etc/x' is absolute or contains '..'"),
        ((), "__key__\ta\n..\t1\n", "stdin: line 2, column __key__: the key '..' is absolute"),
        ((), "__key__\ta\n\t1\n", "stdin: line 2, column __key__: the key is empty"),
        ((), "__key__\ta\nx.y\t1\n", "stdin: line 2, column __key__: the key 'x.y' would not read back"),
        ((), "__key__\t@a\nx\t\n", "stdin: line 2: the sample 'x' has no field"),
        ((), "@a\nmissing\n", "missing: No such file"),
        ((), "@a\n-\n", "line 2, column @a: a member cannot be read from stdin"),
        (
            (),
            "@a\npipe:curl https://h/a?sig=SECRET\n",
            "line 2, column @a: a table may not name a command: pipe:curl … (--allow-pipe allows it",
        ),
        (("--format", "csv"), "@a\npipe:echo hi\n", "--allow-pipe"),
        ((), "@a\nfile:pipe:touch gotcha\n", "pipe:touch gotcha: No such file"),
        ((), "@a\ndata/../missing\n", "missing: No such file"),
        # the first failure is told, though rows are read many at a time
        ((), "__key__\ta\n/x\t1\ny\n", "stdin: line 2, column __key__: the key '/x' is absolute"),
        ((), "__key__\ta\n/x\t1\ny\t\\d\n", "stdin: line 2, column __key__: the key '/x' is absolute"),
        (("--format", "csv"), '__key__,a\n/x,1\n"y\n', "stdin: line 2, column __key__: the key '/x' is absolute"),
        ((), "__key__\ta\nx\t1\nx\t2\n", "stdin: line 3, column __key__: the key 'x' is that of line 2 too"),
        (("--key-template", "x"), "a\n1\n2\n", "stdin: line 3: the key 'x' is that of line 2 too"),
        ((), "@a\ns3://b\n", "s3://b: write s3://BUCKET/KEY (stdin: line 2, column @a)"),
        ((), "@a\nfoo://b/x\n", "foo://b/x: cannot read foo: URLs"),
        (("--format", "recipe"), "a.txt\n", "stdin: line 1: a line of a recipe is NAME SOURCE"),
        (("--format", "recipe"), "../a.txt text:x\n", "stdin: line 1: the key '../a.txt' is absolute"),
        (("--format", "recipe"), "a/ text:x\n", "not a member name"),
        (("--format", "recipe"), "a.txt text:x\na.txt text:y\n", "the sample 'a' would have a field twice"),
        (("--format", "recipe"), "a.txt missing\n", "missing: No such file"),
    ],
)
def test_failures(run: Run, tmp_path: Path, options: tuple[str, ...], plan: str, message: str) -> None:
    assert message in run("tarcreate", *options, "-o", "out.tar", stdin=plan.encode()).failure(lines=1)
    assert list(tmp_path.iterdir()) == []


def test_a_password_in_a_plan_is_refused(run: Run) -> None:
    said = run("tarcreate", stdin=b"@a\ns3://me:pw@b/x\n").failure(2)
    assert said.startswith("tarcreate: stdin: line 2, column @a: a s3 URL with a password in it is refused")


def test_all_sources_are_looked_at_first(run: Run, data: Path, tmp_path: Path) -> None:
    plan = PLAN + "d/e\tmissing\t1\n"
    said = run("tarcreate", "-C", "data", stdin=plan.encode()).failure()
    assert said == "tarcreate: data/missing: No such file or directory (stdin: line 5, column @jpg)\n"
    (data / "missing").mkdir()
    assert run("tarcreate", "-C", "data", stdin=plan.encode()).stdout == b""


@pytest.mark.parametrize("name", ["plan.tsv", "plan.csv", "plan.recipe"])
def test_a_path_that_is_relative_to_the_plan_gets_advice(name: str, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    folder.mkdir()
    (folder / "one").write_bytes(b"1")
    lines = {"plan.tsv": "cls\t@jpg\n5\tone\n", "plan.csv": "cls,@jpg\n5,one\n", "plan.recipe": "\nx.jpg one\n"}
    (folder / name).write_text(lines[name])
    done = run("tarcreate", f"my data/{name}")
    where = "line 2" if name == "plan.recipe" else "line 2, column @jpg"
    said = f"my data/{name}: {where}; it exists in the folder of the plan: add -C 'my data'"
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr == f"tarcreate: one: No such file or directory ({said})\n"
    assert run("tarcreate", "-C", "my data", f"my data/{name}").status == 0
    (folder / "one").unlink()
    done = run("tarcreate", f"my data/{name}")
    said = f"my data/{name}: {where}; paths are relative to the current directory, or to that of -C"
    assert done.stderr == f"tarcreate: one: No such file or directory ({said})\n"
    done = run("tarcreate", "-C", "my data", f"my data/{name}")
    assert done.stderr == f"tarcreate: my data/one: No such file or directory (my data/{name}: {where})\n"
    (folder / "one").mkdir()
    done = run("tarcreate", "-C", "my data", f"my data/{name}")
    assert "one: is a directory" in done.stderr and done.stderr.endswith(f"(my data/{name}: {where})\n")


def test_commands(run: Run, tmp_path: Path) -> None:
    plan = b"@a\npipe:printf hi\n"
    assert members_of(run("tarcreate", "--allow-pipe", stdin=plan).stdout) == [("000000000.a", b"hi")]
    assert run("tarcreate", "--allow-pipe", "-o", "out.tar", stdin=b"@a\npipe:printf hi\npipe:exit 3\n").failure() == (
        "tarcreate: pipe:exit …: the command ended with status 3 (stdin: line 3, column @a)\n"
    )
    streamed = run("tarcreate", "--allow-pipe", stdin=b"@a\npipe:printf hi\npipe:exit 3\n")
    assert streamed.status == 1 and len(streamed.stdout) == 1024  # the first sample, and no end
    plan = b"@a\tb\npipe:head -c 20000000 /dev/zero\tx\n"
    large = run("tarcreate", "--allow-pipe", stdin=plan, env={"TMPDIR": str(tmp_path)})
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


TREE = ("n1/.hid", "n1/README", "n1/é.jpg", "n2/a.jpg", "n2/a.seg.png", "n2/a-b.jpg", "n2/a-b.txt", "top.txt")


def write_files(top: Path, *names: str) -> None:
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)


def test_folder(run: Run, shell: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "raw", *reversed(TREE))
    done = run("tarcreate", "-v", "--folder", "raw")
    assert members_of(done.stdout) == [(name, name.encode()) for name in TREE]
    assert done.stderr.startswith("tarcreate: 6 samples in, 6 out, ")
    assert run("tarcreate", "-C", "raw", "--folder", ".").stdout == done.stdout
    for field, suffix in (("cls", ".cls.txt"), ("label.txt", ".label.txt"), ("CLS", ".CLS.txt")):
        done = run("tarcreate", "--folder", "raw", "--class", field)
        top = "tarcreate: 'top.txt' in no class folder: the class is the name of the whole folder, 'raw'\n"
        assert done.stderr == top + f"tarcreate: {field}: 0 n1, 1 n2, 2 raw\n" * (suffix != ".label.txt")
        classes = dict(members_of(done.stdout))
        assert {name: value for name, value in classes.items() if name.endswith(suffix)} == {
            f"n1/é{suffix}": b"n1",
            f"n2/a{suffix}": b"n2",
            f"n2/a-b{suffix}": b"n2",
            f"top{suffix}": b"raw",
        }
        numbers = [value for name, value in classes.items() if name.endswith(f".{field}")]
        assert numbers == ([b"0", b"1", b"1", b"2"] if suffix != ".label.txt" else [b"n1", b"n2", b"n2", b"raw"])
    assert "would have a field twice" in run("tarcreate", "--folder", "raw", "--class", "jpg").failure()
    assert run("tarcreate", "--folder", "nope").stderr == "tarcreate: nope: No such file or directory\n"
    assert "this output is also the input" in shell("tarcreate --folder raw > raw/out.tar").failure()
    assert (tmp_path / "raw/out.tar").stat().st_size == 0


def test_folders_that_are_numbers_are_the_classes(run: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "raw", "10/a.jpg", "2/b.jpg")
    done = run("tarcreate", "--folder", "raw", "--class", "cls")
    assert [value for name, value in members_of(done.stdout) if "cls" in name] == [b"10", b"10", b"2", b"2"]
    assert (done.status, done.stderr) == (0, "")
    write_files(tmp_path / "raw", "010/a.jpg")
    assert run("tarcreate", "--folder", "raw", "--class", "cls").stderr == "tarcreate: cls: 0 010, 1 10, 2 2\n"


def test_twins_in_a_folder_or_zip_file_and_files_in_no_class_are_told(run: Run, tmp_path: Path) -> None:
    write_files(
        tmp_path / "raw", "c/Twin.JPG", "c/Twin.jpeg", "c/a.jpg", "c/a.seg.jpg", "c/a.txt", "c/b.tif", "c/b.TIFF"
    )
    done = run("tarcreate", "--folder", "raw", "--class", "label.txt")
    said = (
        "tarcreate: 'c/Twin.JPG' and 'c/Twin.jpeg' become one sample, since only their suffixes differ "
        "(1 more sample like it): rename one if they are two\n"
    )
    assert (done.status, done.stderr) == (0, said)
    assert run("tarcreate", "-q", "--folder", "raw", "--class", "label.txt") == (0, done.stdout, "")
    with zipfile.ZipFile(tmp_path / "raw.zip", "w") as archive:
        for path in sorted((tmp_path / "raw/c").iterdir()):
            archive.write(path, f"c/{path.name}")
    assert run("tarcreate", "--zip", "raw.zip").stderr == said
    write_files(tmp_path / "raw", "x.jpg", "w.jpg", "w.txt", "README")
    top = "tarcreate: 'w.jpg' and 2 more in no class folder: the class is the name of the whole folder, 'raw'\n"
    done = run("tarcreate", "--folder", "raw", "--class", "label.txt")
    assert (done.status, done.stderr) == (0, top + said)
    assert run("tarcreate", "--folder", "raw").stderr == said
    write_files(tmp_path / "views", "a.left.JPEG", "a.left.jpg", "a.right.jpg")
    both = "'a.left.JPEG' and 'a.left.jpg' become one sample, since only their suffixes differ"
    assert run("tarcreate", "--folder", "views").stderr.startswith(f"tarcreate: {both}: rename one if they are two\n")


def test_a_shard_is_no_plan(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1")]))
    said = "tarcreate: a.tar: this is a tar archive, not a plan: tarcat reads it\n"
    assert run("tarcreate", "a.tar") == (1, b"", said)


@pytest.mark.parametrize("file", ["/dev/zero", "file:/dev/zero", "fifo"])
@pytest.mark.parametrize(
    ("form", "plan", "place"),
    [
        ("jsonl", '{"@t": "FILE"}\n', "line 1, column @t"),
        ("jsonl", '{"\\u0040base64": "FILE"}\n', "line 1, column @base64"),
        ("tsv", "@t\nFILE\n", "line 2, column @t"),
        ("csv", "x,@t\n1,FILE\n", "line 2, column @t"),
    ],
)
def test_tables_name_regular_files_only(form: str, plan: str, place: str, file: str, run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    failure = run("tarcreate", "--format", form, stdin=plan.replace("FILE", file).encode()).failure()
    said = f"{place}: {file} is not a regular file, and is not read without --allow-pipe"
    assert failure == f"tarcreate: stdin: {said}\n"


def test_a_table_that_is_trusted_may_name_a_fifo(shell: Run) -> None:
    done = shell("mkfifo fifo; echo hello > fifo & printf '@t\\nfifo\\n' | tarcreate --allow-pipe")
    assert (done.status, members_of(done.stdout)) == (0, [("000000000.t", b"hello\n")])


def test_folder_with_links(run: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "raw", *TREE)
    plain = run("tarcreate", "--folder", "raw").stdout
    (tmp_path / "raw/a.link").symlink_to("top.txt")
    done = run("tarcreate", "--folder", "raw")
    assert (done.status, done.stdout) == (1, plain)
    assert done.stderr == (
        "tarcreate: raw/a.link: a symbolic link is not followed and not stored "
        "(--follow reads the files that links name, --skip-special accepts that)\n"
    )
    (tmp_path / "raw/n3").symlink_to("n1")
    os.mkfifo(tmp_path / "raw/z.fifo")
    assert "nor are 2 more such files" in run("tarcreate", "--folder", "raw", "-o", "out.tar").failure()
    (tmp_path / "links").mkdir()
    for name, target in (("a.fifo", "../raw/z.fifo"), ("b.none", "nowhere"), ("c.jpg", "../raw/n1")):
        (tmp_path / "links" / name).symlink_to(target)
    followed = run("tarcreate", "--folder", "links", "--follow")
    assert followed.status == 1 and followed.stderr.startswith("tarcreate: links/a.fifo: a fifo is not ")
    os.remove(tmp_path / "links/a.fifo")
    followed = run("tarcreate", "--folder", "links", "--follow")
    assert followed.stderr.startswith("tarcreate: links/b.none: a broken symbolic link is not ")
    assert (tmp_path / "out.tar").read_bytes() == plain
    assert run("tarcreate", "--folder", "raw", "--skip-special") == (0, plain, "")


def test_files_of_systems_are_left_out_and_counted(run: Run, tmp_path: Path) -> None:
    keep = ["a.jpg", "d/b.jpg", "d/x.DS_Store"]
    junk = [".DS_Store", "d/.DS_Store", "d/Thumbs.db", "d/thumbs.DB", "desktop.ini", "._a.jpg", "d/._b.jpg", "._"]
    write_files(tmp_path / "raw", *keep, *junk)
    done = run("tarcreate", "-v", "--folder", "raw")
    assert [name for name, _ in members_of(done.stdout)] == keep and done.status == 0
    said, account = done.stderr.splitlines()
    assert said == "tarcreate: raw: left out .DS_Store and 7 more" and account.startswith(
        "tarcreate: 3 samples in, 3 out, "
    )
    assert run("tarcreate", "-q", "--folder", "raw") == (0, done.stdout, "")


@pytest.mark.parametrize(
    ("globs", "kept", "said"),
    [
        (["*.tmp"], ["a.jpg", "c/x.jpg", "d/c/y.jpg", "d/e.jpg"], "left out a.tmp and 1 more"),
        (["*.tmp", "c"], ["a.jpg", "d/e.jpg"], "left out a.tmp and 3 more"),
        (["c/"], ["a.jpg", "a.tmp", "d/e.jpg", "d/z.tmp"], "left out c/ and 1 more"),
        (["d/c"], ["a.jpg", "a.tmp", "c/x.jpg", "d/e.jpg", "d/z.tmp"], "left out d/c/"),
        (["d/*"], ["a.jpg", "a.tmp", "c/x.jpg"], "left out d/c/ and 2 more"),
        (["[!a].jpg"], ["a.jpg", "a.tmp", "d/z.tmp"], "left out c/x.jpg and 2 more"),
        (["./c"], ["a.jpg", "a.tmp", "d/e.jpg", "d/z.tmp"], "left out c/ and 1 more"),
    ],
)
def test_exclude(globs: list[str], kept: list[str], said: str, run: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "raw", "a.jpg", "a.tmp", "c/x.jpg", "d/c/y.jpg", "d/e.jpg", "d/z.tmp")
    done = run("tarcreate", "--folder", "raw", *(word for glob in globs for word in ("--exclude-files", glob)))
    assert [name for name, _ in members_of(done.stdout)] == kept
    assert (done.status, done.stderr) == (0, f"tarcreate: raw: {said}\n")


def test_exclude_concerns_links_too_and_says_what_matches_nothing(run: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "raw", "a.jpg")
    (tmp_path / "raw/link").symlink_to("nowhere")
    done = run("tarcreate", "--folder", "raw", "--exclude-files", "link", "--exclude-files", "*.png")
    said = "tarcreate: raw: nothing matches --exclude-files '*.png'\ntarcreate: raw: left out link\n"
    assert (done.status, done.stderr) == (0, said)
    assert [name for name, _ in members_of(done.stdout)] == ["a.jpg"]


DATED = ("d.1/img.2023.01.05.jpg", "d.1/img.2024.01.05.jpg", "d.1/img.2024.01.05.txt", "README", ".hid.jpg", "v.1.")


def test_two_fields_of_one_kind_are_said_and_dots_chooses(run: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "raw", *DATED)
    done = run("tarcreate", "--folder", "raw")
    names = [".hid.jpg", "README", *DATED[:3], "v.1."]
    assert members_of(done.stdout) == [(name, name.encode()) for name in names]
    assert (done.status, done.stderr) == (
        0,
        "tarcreate: the sample 'd.1/img' gets two fields of one kind, '2023.01.05.jpg' and '2024.01.05.jpg': a key "
        "ends at the first dot of the file name (--dots last: at the last one; --dots first accepts this)\n",
    )
    assert run("tarcreate", "--folder", "raw", "--dots", "first") == (0, done.stdout, "")
    done = run("tarcreate", "-v", "--folder", "raw", "--dots", "last", "--class", "label.txt")
    assert members_of(done.stdout) == [
        (".hid.jpg", b".hid.jpg"),
        ("README", b"README"),
        ("d.1/img_2023_01_05.jpg", DATED[0].encode()),
        ("d.1/img_2023_01_05.label.txt", b"d.1"),
        ("d.1/img_2024_01_05.jpg", DATED[1].encode()),
        ("d.1/img_2024_01_05.label.txt", b"d.1"),
        ("d.1/img_2024_01_05.txt", DATED[2].encode()),
        ("v_1.", b"v.1."),
    ]
    assert done.stderr.startswith("tarcreate: 5 samples in, 5 out, ")


def test_more_samples_with_two_fields_of_one_kind_are_counted(run: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "raw", *(f"{key}.{field}" for key in "abc" for field in ("x.1.png", "y.PNG", "z.1.PNG")))
    write_files(tmp_path / "raw", "d.jpg", "d.seg.jpg", "d.json", "e.left.txt", "e.left.jpg")  # these are not
    done = run("tarcreate", "--folder", "raw")
    assert "'a' gets two fields of one kind, 'x.1.png' and 'y.PNG' (2 more samples like it): a key" in done.stderr
    assert done.status == 0 and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (["d/a.1.jpg", "d/a_1.jpg"], "d/a_1"),
        (["a.1.jpg", "a_1.txt"], "a_1"),
        (["a.b_c.jpg", "a_b.c.png"], "a_b_c"),
        (["a.b.", "a_b."], "a_b."),
    ],
)
def test_files_that_would_get_one_key_are_both_named(names: list[str], key: str, run: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "raw", *names)
    done = run("tarcreate", "--folder", "raw", "--dots", "last", "-o", "out.tar")
    both = f"{names[0]!r} and {names[1]!r} would both have the key {key!r}; rename one of them"
    assert (done.status, done.stderr) == (1, f"tarcreate: raw: with --dots last, {both}\n")
    assert not (tmp_path / "out.tar").exists()
    assert run("tarcreate", "--folder", "raw", "-o", "out.tar").status == 0


def test_outputs(run: Run, data: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.tsv").write_text(PLAN)
    assert run("tarcreate", "-C", "data", "plan.tsv", "-o", "a.tar").status == 0
    assert "--force" in run("tarcreate", "-C", "data", "plan.tsv", "-o", "a.tar").failure()
    plan = "pipe:touch was-read; cat plan.tsv"
    run("tarcreate", "-C", "data", "--format", "tsv", plan, "-o", "a.tar").failure()
    assert not (tmp_path / "was-read").exists()
    (tmp_path / "plan").write_text(PLAN)
    for output in ("plan", "data/one"):
        refused = run("tarcreate", "-C", "data", "--format", "tsv", "plan", "--force", "-o", output)
        assert refused.status == 1 and "this output is also the input" in refused.stderr
    assert (data / "one").read_bytes() == b"1"
    packed = run("tarcreate", "-C", "data", "plan.tsv", "-z").stdout
    assert packed[:2] == b"\x1f\x8b" and members_of(packed) == EXPECTED


def piped(archive: bytes, *options: str) -> list[tuple[str, bytes]]:
    """Return the members of *archive* after `tar2tsv | tarcreate`, in the same format."""
    form = ["--format", "csv"] if "--csv" in options else []
    table = start(BIN / "tar2tsv", "--verbatim", *options, stdin=archive).output()
    return members_of(start(BIN / "tarcreate", *form, stdin=table).output())


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
        assert piped(make_tar(members), "--no-key", "-f", "txt", *options) == members


@pytest.mark.parametrize("options", [(), ("--csv",)])
def test_a_field_that_looks_like_a_column_of_paths_is_not_read(options: tuple[str, ...], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of this machine")
    names = ("@txt", "\\@txt", "\\\\@x", "\\y", "@")
    members = [(f"a.{name}", str(secret).encode()) for name in names]
    assert piped(make_tar(members), "-f", " ".join(names), *options) == members


def test_an_escaped_column_is_a_field_and_others_read_files(run: Run, data: Path) -> None:
    done = run("tarcreate", "-C", "data", stdin=b"__key__\t@jpg\t\\\\@jpg\na\tone\tone\n")
    assert members_of(done.stdout) == [("a.jpg", b"1"), ("a.@jpg", b"one")]
    done = run("tarcreate", "-C", "data", "--format", "csv", stdin=b"__key__,@jpg,\\@jpg\na,one,one\n")
    assert members_of(done.stdout) == [("a.jpg", b"1"), ("a.@jpg", b"one")]
