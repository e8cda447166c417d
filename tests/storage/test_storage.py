"""URLs to streams: what names stand for, outputs that appear whole or not at all, commands at either end."""

from __future__ import annotations

import os
import pickle
import re
import stat
import subprocess
from pathlib import Path

import pytest

from tartools import storage
from tartools.errors import StorageError, UsageError, shown
from tartools.schemes import QUERY, SCHEMES
from tartools.storage import objects
from tartools.storage.expand import expand
from tartools.storage.local import path_of
from tartools.storage.pipe import fill_template
from tartools.storage.url import Url, load_module
from tests.conftest import Run, make_samples, make_tar, members_of, open_descriptors
from tests.tiers import by_turns

TAR = make_tar(make_samples(3))
DOLLAR = ('$"{}"', "$'{}'", "${}", 'echo $$"{}"')
HOSTILE = "a b'\"; touch pwned; \\' $(touch pwned) `touch pwned` #"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith(("GOPEN_", "TARTOOLS_"))]:
        monkeypatch.delenv(name)
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"x")


EXPANSIONS = {
    "nothing is stdin": ([], ["-"]),
    "stdin": (["-"], ["-"]),
    "plain": (["a.tar", "b.tar", "a.tar"], ["a.tar", "b.tar", "a.tar"]),
    "range": (["a-{08..11}.tar"], ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
    "alternatives": (["{x,y}.tar"], ["x.tar", "y.tar"]),
    "in pipe:": (["pipe:cat {0..1}.tar"], ["pipe:cat 0.tar", "pipe:cat 1.tar"]),
    "in s3:": (["s3://b/{0..1}.tar"], ["s3://b/0.tar", "s3://b/1.tar"]),
    "unbalanced": (["a{b.tar"], ["a{b.tar"]),
    "a word in braces": (["a{b}.tar"], ["a{b}.tar"]),
    "star, sorted by bytes": (["g/*.tar"], ["g/B.tar", "g/a.tar", "g/b.tar", "g/é.tar"]),
    "question mark": (["g/?.tar"], ["g/B.tar", "g/a.tar", "g/b.tar", "g/é.tar"]),
    "set": (["g/[ab].tar"], ["g/a.tar", "g/b.tar"]),
    "braces, then wildcards": (["g/{b,a}*.tar"], ["g/b.tar", "g/a.tar"]),
    "literal name with wildcards": (["w/[1]*.tar"], ["w/[1]*.tar"]),
    "literal name with braces": (["w/{0..9}.tar"], ["w/{0..9}.tar"]),
    "no wildcards in pipe:": (["pipe:cat g/*.tar"], ["pipe:cat g/*.tar"]),
    "no wildcards in http:": (["http://h/a*.tar?x=[1]"], ["http://h/a*.tar?x=[1]"]),
    "file: with wildcards": (["file:g/[ab].tar"], ["g/a.tar", "g/b.tar"]),
    "recursive": (["g/**/deep.tar"], ["g/x/y/deep.tar"]),
}


@pytest.mark.parametrize(("patterns", "urls"), EXPANSIONS.values(), ids=EXPANSIONS)
def test_what_names_stand_for(patterns: list[str], urls: list[str]) -> None:
    touch("g/a.tar", "g/b.tar", "g/B.tar", "g/é.tar", "g/x/y/deep.tar", "w/[1]*.tar", "w/1x.tar", "w/{0..9}.tar")
    assert expand(patterns) == urls


@pytest.mark.parametrize(
    ("patterns", "lists", "error", "what"),
    [
        (["nope-*.tar"], [], StorageError, "no file matches"),
        (["a.tar"], ["empty"], StorageError, "list of files is empty"),
        (["a.tar"], ["blank"], StorageError, "list of files is empty"),
        ([], ["nope"], StorageError, "No such file"),
        ([], ["."], StorageError, "directory"),
        (["-", "-"], [], UsageError, "once"),
        (["-"], ["-"], UsageError, "once"),
        ([], ["-", "-"], UsageError, "once"),
    ],
)
def test_what_names_nothing(patterns: list[str], lists: list[str], error: type[Exception], what: str) -> None:
    Path("empty").touch()
    Path("blank").write_text("\n\n")
    with pytest.raises(error, match=what):
        expand(patterns, lists)


def test_what_a_wildcard_finds_is_a_file_whatever_it_is_called() -> None:
    touch("-", "pipe:echo evil", "{0..3}", "*", "plain")
    found = expand(["?*"])
    assert sorted(found) == sorted(["./-", "./pipe:echo evil", "{0..3}", "*", "plain"])
    assert [storage.read_content(url) for url in found] == [b"x"] * 5


def test_lists_come_after_arguments_and_are_expanded() -> None:
    Path("l1").write_text("a.tar\n\n{0..1}.tar\n")
    Path("l2").write_bytes(b"new\nline.tar\0b.tar\0\0")
    touch("l*")
    assert expand(["z.tar"], ["l1"]) == ["z.tar", "a.tar", "0.tar", "1.tar"]
    assert expand([], ["l2"], "\0") == ["new\nline.tar", "b.tar"]
    assert expand([], ["l1", "l1"]) == ["a.tar", "0.tar", "1.tar"] * 2


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("a b.tar", "a b.tar"),
        ("file:a%20b.tar", "a%20b.tar"),
        ("file:/x/a.tar", "/x/a.tar"),
        ("file:///x/a%20b.tar", "/x/a b.tar"),
        ("file://localhost/x", "/x"),
    ],
)
def test_file_urls(url: str, path: str) -> None:
    assert path_of(url) == path


def test_file_urls_are_read_and_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a b.tar").write_bytes(TAR)
    done = run("tarcat", f"file://{tmp_path}/a%20b.tar", "-o", f"file://{tmp_path}/c%20d.tar")
    assert (done.status, (tmp_path / "c d.tar").read_bytes()) == (0, TAR)
    with pytest.raises(UsageError, match="another host"):
        path_of("file://there/a.tar")


@pytest.mark.parametrize(
    ("url", "scheme"),
    [("a", ""), ("-", "-"), ("s3://b/k", "s3"), ("pipe:x://y", "pipe"), ("a:b", ""), ("file:a", "file"), ("./-", "")],
)
def test_schemes(url: str, scheme: str) -> None:
    assert Url(url).scheme == scheme


def test_a_url_is_parsed_once() -> None:
    url = Url("s3://bucket/a.tar")
    assert Url(url) is url and expand([url])[0] is url
    assert url == "s3://bucket/a.tar" and {url: 1}["s3://bucket/a.tar"] == 1
    again = pickle.loads(pickle.dumps(url))
    assert (type(again), again, again.scheme) == (Url, url, "s3")


@pytest.mark.parametrize("scheme", ["s3", "gs", "ais", "http"])
def test_the_object_that_was_checked_is_the_one_that_is_read(scheme: str) -> None:
    url = Url(f"{scheme}://bucket/a.tar")
    storage.check_inputs([url])
    checked = url.store_object
    assert checked is not None and objects.object_at(url) is checked
    assert pickle.loads(pickle.dumps(url)).store_object is None  # another process has connections of its own


@pytest.mark.parametrize("module", sorted({record.module for record in SCHEMES.values()}))
def test_the_table_of_schemes_names_modules(module: str) -> None:
    wanted = {"object_at", "page"} if module.startswith("objects.") else {"open_read", "open_write"}
    assert wanted <= {*dir(load_module(module))}


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://h/a.tar?sig=abc", "https://h/a.tar?…"),
        ("s3://b/a.tar", "s3://b/a.tar"),
        ("what?.tar", "what?.tar"),
        ("-", "stdin"),
        ("a\n.tar", "a\\n.tar"),
        ("\udce9.tar", "\\udce9.tar"),
        ("pipe:cat", "pipe:cat"),
        ("pipe:cat what?.tar", "pipe:cat …"),
        ("pipe:gsutil cat gs://b/a.tar", "pipe:gsutil … a.tar"),
        ("pipe:curl -s 'https://me:secret@h/train-7.tar?signature=secret' | pv", "pipe:curl … train-7.tar"),
        ("pipe: gsutil cat 'gs://b/train-007.tar' | pv", "pipe:gsutil … train-007.tar"),
        ("pipe:curl -u me:secret https://h/a?sig=abc", "pipe:curl …"),
        (
            "pipe:curl -u me:secret.tar -H 'X: secret' https://me:secret.tar@h/train.tar.gz?sig=abc",
            "pipe:curl … train.tar.gz",
        ),
        ("sftp://me@h/a.tar", "sftp://…@h/a.tar"),
        ("foo://secret@h:1/a@b?c.tar", "foo://…@h:1/a@b?…"),
        ("hf://datasets/org/set@main/a.tar", "hf://datasets/org/set@main/a.tar"),
        ("pipe:TOKEN=secret curl https://h/a", "pipe:…"),
        ("pipe:'my program' secret", "pipe:…"),
        ("pipe:", "pipe:…"),
    ],
)
def test_how_messages_show_urls(url: str, text: str) -> None:
    assert shown(url) == text


@pytest.mark.parametrize("scheme", [*(scheme for scheme in SCHEMES if scheme not in ("", "-", "pipe")), "foo"])
def test_messages_hide_what_is_no_part_of_the_name(scheme: str) -> None:
    url = Url(f"{scheme}://b/d/a?b.tar")
    assert shown(url) == (url.name + "?…" if url.query else url.name)
    assert bool(url.query) == (scheme not in SCHEMES or SCHEMES[scheme].question == QUERY)
    assert "secret" not in shown(f"{scheme}://b/a.tar?sv=2&sig=secret")


def test_a_message_has_one_line_unless_it_quotes_a_traceback() -> None:
    traceback = 'Original Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: \x1b[0m'
    said = str(StorageError(f"Caught KeyError in a worker.\n{traceback}", url="a.tar"))
    assert said == f"a.tar: Caught KeyError in a worker.\n{traceback}".replace("\x1b", "\\x1b")
    assert "\n" not in str(StorageError("two\nlines")) + str(StorageError("Caught two\nlines"))


def test_a_query_is_used_and_not_shown(run: Run) -> None:
    done = run("tarcat", "https://h/a.tar?sig=abc", env={"GOPEN_HTTPS": "printf %s {} | grep -q sig=abc && exit 3"})
    assert done.status == 1
    assert "status 3" in done.stderr
    assert "abc" not in done.stderr


def test_a_query_is_no_part_of_new_keys(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    done = run(
        "tarcat", "--rekey", "{shard}{index}", "https://h/b/s.tar?sig=abc", env={"GOPEN_HTTPS": "cat a.tar; : {}"}
    )
    assert (done.status, members_of(done.stdout)[0][0]) == (0, "s0.cls")


@pytest.mark.parametrize("template", ["cat {}", "cat '{}'", 'cat "{}"'])
@pytest.mark.parametrize("name", ["a.tar", 'it\'s a "name" $x.tar'])
def test_gopen(template: str, name: str, run: Run, tmp_path: Path) -> None:
    quoted = fill_template(template, f"foo://{name}")
    assert subprocess.check_output(["sh", "-c", quoted.replace("cat", "printf %s")]).decode() == f"foo://{name}"
    (tmp_path / "foo:").mkdir()
    (tmp_path / "foo:" / name).write_bytes(TAR)
    assert run("tarcat", f"foo://{name}", env={"GOPEN_FOO": template}) == (0, TAR, "")


@pytest.mark.parametrize("name", ["a.tar", HOSTILE])
def test_the_name_is_in_the_environment_of_templates(name: str, run: Run, tmp_path: Path) -> None:
    """Where no other word could stand for it: in quotes, and in code of a second shell."""
    (tmp_path / "a.tar").write_bytes(TAR)
    read = """printf %s "<$TAR_SHARD>" > named; sh -c 'cat a.tar'"""
    done = run("tarcat", f"foo://{name}", env={"GOPEN_FOO": read})
    assert (done.status, done.stdout, (tmp_path / "named").read_text()) == (0, TAR, f"<foo://{name}>")
    done = run(
        "tarsplit", "-o", "made", "--post", """sh -c 'cat "$TAR_SHARD"' > copy""", "a.tar", env={"TAR_SHARD": "x"}
    )
    assert (done.status, done.stdout, (tmp_path / "copy").read_bytes()) == (0, b"made-000000.tar\n", TAR)


@by_turns("name")
@pytest.mark.parametrize(
    "name", [HOSTILE, "$(touch pwned)", "x[$(touch pwned)]", "a\ntouch pwned\nE\ntouch pwned"], ids=range(4)
)
@pytest.mark.parametrize(
    "template",
    [
        *DOLLAR,
        *('"x/{}"', "'x/{}'", '"$(echo "{}")"', '"$(echo " {}")"', "# don't\n {}", "$'\\'' {}"),
        *("${x:-{}}", '"${x:-{}}"', "${x:-'{}'}", "${x:+a}${x:-{}}", "${x#{}}"),
        *(
            "cat <<E\n{}\nE",
            "cat <<-'E'\n{}\nE",
            "cat <<< {}",
            '"$(cat {})"',
            "`cat {}`",
            '"`cat {}`"',
            '"$(cat "{}")"',
        ),
        *("# {}\ncat", "cat a # {}", "cat a;# {}", "(cat a)# {}", "$(( {} ))", "$[ {} ]", "let x={}", "((x = {}))"),
        *(
            "x[{}]=1",
            "[[ 1 -eq {} ]]",
            "declare -i x={}",
            "printf -v {} x",
            "read {} < a",
            "trap {} EXIT",
            "eval cat {}",
        ),
        *("ssh host cat {}", "/usr/bin/ssh host cat '{}'", "sh -c 'cat {}'", 'sh -c "cat {}"', "\"'{}'\"", "'\"{}\"'"),
    ],
)
def test_templates_that_would_run_a_name_are_refused(template: str, name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    if template not in DOLLAR:  # a harmless name may stand anywhere else
        assert fill_template(template, "gs://b/a-1.tar") == re.sub("""'{}'|"{}"|{}""", "gs://b/a-1.tar", template)
    said = run("tarcat", f"foo://{name}", env={"GOPEN_FOO": template}).failure(2)
    assert 'write "$TAR_SHARD" instead of {}, or have {} stand alone, or alone in quotes: ' in said
    assert said.count("\n") == 1
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "template",
    [
        "cat a.tar; : {}",
        "cat a.tar; : '{}' \"$x\" ${y}",
        'x=$(: {}) cat a.tar; f() { : x"{}"; }; f',
        "cat a.tar && : a#b{}",
        'cat a.tar; : \\\' {} "a"{}"b"',
    ],
)
def test_templates_where_a_name_is_one_word(template: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    for name in HOSTILE, "$(touch pwned)", "a\ntouch pwned\nE\ntouch pwned":
        assert run("tarcat", f"foo://{name}", env={"GOPEN_FOO": template}) == (0, TAR, "")
        assert not (tmp_path / "pwned").exists()


def test_a_command_of_which_only_the_first_word_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR[:700])
    command = "pipe:cat a.tar; : --token secret; exit"
    for arguments in (command + " 3",), ("-o", "pipe:cat > out; : --token secret; exit 3"), ("-v", command):
        done = run("tarcat", *arguments, stdin=TAR)
        assert done.status == 1
        assert done.stderr.startswith("tarcat: pipe:cat …") and "secret" not in done.stderr
    plan = b"__key__\t@txt\na\tpipe:cat a.tar; : --token secret\n"
    said = run("tarcreate", stdin=plan).failure()
    assert "pipe:cat … a.tar" in said and "secret" not in said


def test_gopen_that_fails_is_a_failure(run: Run) -> None:
    done = run("tarcat", "gs://b/a.tar", env={"GOPEN_GS": "exit 4"})
    assert (done.status, done.stderr) == (1, "tarcat: gs://b/a.tar: the command ended with status 4\n")


def test_a_pipe_that_we_stop_reading_may_end_as_it_likes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    assert len(members_of(run("tarcat", "-c", "2", "pipe:while cat a.tar; do :; done; exit 9").output())) == 4


def left_running(mark: str) -> list[str]:
    """Return the processes whose command line holds *mark*."""
    found = subprocess.run(["pgrep", "-f", mark], capture_output=True, check=False, text=True).stdout.split()
    return [pid for pid in found if pid != str(os.getpid())]


def test_a_pipe_that_ignores_its_reader_is_ended(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    mark = f"7{os.getpid()}.25"
    run("tarcat", "-c", "1", f"pipe:trap '' PIPE; cat a.tar; exec sleep {mark}").output()
    assert left_running(f"sleep {mark}") == []


@pytest.mark.parametrize("command", ["exit 3", "cat > /dev/null; exit 3", "head -c 1 > /dev/null"])
def test_pipes_out_that_fail_are_failures(command: str, run: Run, tmp_path: Path) -> None:
    big = make_tar([("a.x", bytes(3 << 20)), ("b.x", b"1")])
    (tmp_path / "a.tar").write_bytes(big)
    assert run("tarcat", "a.tar", "-o", f"pipe:{command}").failure().count("\n") == 1


def test_outputs_by_command_leave_the_descriptors_of_others_alone() -> None:
    """Each has one owner: a second close would hit whoever got the number next."""
    for _ in range(3):
        output = storage.open_write("pipe:cat > /dev/null")
        output.sink.write(b"x")
        output.commit()
        with open("other", "wb", buffering=0) as other:
            del output
            assert other.write(b"x") == 1


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_descriptors_and_processes_are_given_back() -> None:
    Path("a.tar").write_bytes(TAR)
    before = open_descriptors()
    for n in range(3):
        storage.read_content("pipe:cat a.tar")
        storage.read_content("a.tar")
        for url in ("pipe:cat > /dev/null", f"out{n}", f"abort{n}"):
            output = storage.open_write(url)
            output.sink.write(TAR)
            if "abort" in url:
                output.abort()
            else:
                output.commit()
            del output
    assert open_descriptors() == before


def test_outputs_appear_when_they_are_complete() -> None:
    output = storage.open_write("out.tar")
    output.sink.write(b"whole")
    assert not Path("out.tar").exists()
    assert len(os.listdir()) == 1  # the temporary file is beside it
    output.commit()
    assert (os.listdir(), Path("out.tar").read_bytes()) == (["out.tar"], b"whole")
    output.abort()  # too late, and does nothing
    assert os.listdir() == ["out.tar"]


def test_modes(here: Path) -> None:
    old = os.umask(0o027)
    try:
        for name, force in (("new", False), ("old", True)):
            if force:
                touch(name)
                os.chmod(name, 0o604)
            output = storage.open_write(name, force)
            output.commit()
    finally:
        os.umask(old)
    assert [stat.S_IMODE(os.stat(name).st_mode) for name in ("new", "old")] == [0o640, 0o604]


def test_links_stay_links() -> None:
    touch("target")
    os.symlink("target", "link")
    os.symlink("nothing", "dangling")
    for name in ("link", "dangling"):
        output = storage.open_write(name, True)
        output.sink.write(b"new")
        output.commit()
        assert Path(name).is_symlink()
    assert (Path("target").read_bytes(), Path("nothing").read_bytes()) == (b"new", b"new")


def test_names_as_long_as_the_system_allows() -> None:
    name = "€" * 83 + "nn.tar"  # 255 bytes
    output = storage.open_write(name)
    output.commit()
    assert os.listdir() == [name]


def refused(run: Run, *arguments: str) -> str:
    done = run("tarcat", *arguments, env={"GOPEN_FOO": "touch was-read; : {}"})
    assert (done.status, done.stdout, Path("was-read").exists()) == (1, b"", False)
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_an_output_that_exists_is_refused_before_anything_is_read(run: Run) -> None:
    touch("out.tar")
    os.symlink("out.tar", "link.tar")
    for name in ("out.tar", "link.tar", "file:out.tar"):
        assert refused(run, "foo://x", "-o", name) == f"tarcat: {name}: already exists; --force replaces it\n"
    assert Path("out.tar").read_bytes() == b"x"


def test_an_output_that_is_an_input_is_always_refused(run: Run, shell: Run) -> None:
    Path("a.tar").write_bytes(TAR)
    os.link("a.tar", "hard.tar")
    os.symlink("a.tar", "soft.tar")
    for name in ("a.tar", "hard.tar", "soft.tar", "./a.tar"):
        assert "this output is also the input a.tar" in refused(run, "a.tar", "--force", "-o", name)
    for line in ("tarcat --force -o a.tar < a.tar", "tarcat a.tar >> a.tar", "tarcat < a.tar 1<> a.tar"):
        assert "this output is also the input" in shell(line).failure()
    assert Path("a.tar").read_bytes() == TAR


@pytest.mark.parametrize(
    ("name", "what"), [("d", "directory"), ("a.tar/x", "Not a directory"), ("a.tar/x/y", "Not a directory")]
)
def test_outputs_that_cannot_be(name: str, what: str, run: Run) -> None:
    Path("d").mkdir()
    Path("a.tar").write_bytes(TAR)
    assert what in refused(run, "a.tar", "-o", name)
    assert sorted(os.listdir()) == ["a.tar", "d"]


@pytest.mark.parametrize("line", ["tarcat a.tar -o", "tarsplit a.tar -o", "tar2tsv -f cls a.tar -o"])
def test_a_folder_of_an_output_is_made(shell: Run, line: str) -> None:
    Path("a.tar").write_bytes(TAR)
    Path("cut.tar").write_bytes(TAR[:700])
    Path("d").mkdir()
    out = "d/e/f/out.tsv" if line.startswith("tar2tsv") else "d/e/f/out.tar"
    assert shell(f"{line.replace('a.tar', 'cut.tar')} {out}").status == 1
    assert os.listdir("d") == []
    assert shell(f"{line} {out}")[::2] == (0, "")
    (name,) = os.listdir("d/e/f")
    assert name in ("out.tar", "out.tsv", "out-000000.tar")


@pytest.mark.parametrize("pattern", ["x-%06d.tar", "{shard}.tar", "d%d/x.tar", "s3://b/x-{shard:06d}.tar"])
def test_a_pattern_where_one_file_is_written(run: Run, pattern: str) -> None:
    number = pattern[
        pattern.index("%" if "%" in pattern else "{") : pattern.index("d" if "%" in pattern else "}", 1) + 1
    ]
    done = run("tarcat", "-o", pattern, stdin=TAR)
    what = f"tarcat: {pattern}: one file is written here, and {number} is for many: tarsplit writes those\n"
    assert done == (2, b"", what)
    assert os.listdir() == []
    assert run("tarcat", "-o", "pipe:cat > $(echo %06d)", stdin=TAR).status == 0
    assert os.listdir() == ["%06d"]


def test_inputs_are_all_looked_at_before_anything_is_written(run: Run) -> None:
    Path("a.tar").write_bytes(TAR)
    Path("d").mkdir()
    for names, what in ((["nope.tar"], "No such file"), (["d"], "directory"), (["foo://x", "nope.tar"], "No such")):
        assert what in refused(run, "a.tar", *names, "-o", "out.tar")
    assert sorted(os.listdir()) == ["a.tar", "d"]
