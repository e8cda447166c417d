"""tarproc, through the installed command."""

from __future__ import annotations

import gzip
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tartools.run.directories import DirectoryOptions, SampleDirectories
from tartools.run.shells import Shells
from tartools.samples.sample import Sample
from tests.commands.test_conservation import FEED, peak_memory
from tests.commands.test_contract import waiting_in
from tests.conftest import BIN, Run, clean_environment, has_end, keys_in, make_samples, make_tar, members_of, running
from tests.processes import PATIENCE, alive, until
from tests.tiers import by_turns


@pytest.fixture
def ten() -> bytes:
    """Return an archive of ten samples with the fields cls and jpg."""
    return make_tar(make_samples(10))


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """Return a directory for temporary files, and check that nothing is left in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    yield folder
    assert os.listdir(folder) == []


# what goes in and what comes out


@pytest.mark.parametrize("parallel", [0, 1, 8])
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@by_turns("format")
def test_true_gives_what_it_got(run: Run, work: Path, parallel: int, format: int) -> None:
    long = 60 * "d" + "/" + 80 * "n"
    names = [(f"{long}.png", b"1"), (f"{long}.cls", b""), ("README", b"read"), (".hidden", b"h"), ("e.", b"e")]
    data = make_tar([*make_samples(40), *names, ("a.txt", b"x" * 3000000)], format)
    done = run("tarproc", "-v", "-p", parallel, "--tmpdir", work, "-c", "true", stdin=data)
    assert (done.status, done.stdout) == (0, data)
    assert done.stderr.startswith("tarproc: 45 samples in, 45 out, ")


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])  # others have to be installed
def test_names_that_end_within_a_character(run: Run, tmp_path: Path, locale: str) -> None:
    """Latin-1, and whatever byte begins a character of UTF-8."""
    data = make_tar([(os.fsdecode(b"caf%c.txt" % byte), b"x") for byte in range(0xC0, 0x100)])
    shards = [b"s\xe9", b"b.tar", b"s\xe9"]
    for shard in shards:
        (tmp_path / os.fsdecode(shard)).write_bytes(data)
    command = 'printf \'%s %s %s\' "$TAR_KEY" "$TAR_SHARD" "$LC_ALL" > sample.said'
    done = run("tarproc", "-p", 2, "-c", command, *map(os.fsdecode, shards), env={"LC_ALL": locale}, timeout=60)
    said = [payload for name, payload in members_of(done.stdout) if name.endswith(".said")]
    assert said == [b"caf%c %s %s" % (byte, shard, locale.encode()) for shard in shards for byte in range(0xC0, 0x100)]
    assert (done.status, done.stderr) == (0, "")
    some = run("tarproc", "-c", 'printf "$TAR_INDEX $TAR_SHARD" > sample.txt', stdin=data, env={"LC_ALL": locale})
    assert [payload for _, payload in members_of(some.stdout)] == [b"%d -" % n for n in range(64)]
    assert run("tarproc", "-c", "true", stdin=data, env={"LC_ALL": locale}).stdout == data


def test_order_and_payloads_of_new_and_changed_members(run: Run, ten: bytes) -> None:
    command = (
        "for n in e c d a b; do echo $n > sample.$n; done; echo longer > sample.cls; echo s > scratch; echo > sample"
    )
    out = run("tarproc", "-p", 3, "-c", command, stdin=ten).output()
    found = [(n.split(".")[1], p) for n, p in members_of(out)[:7]]
    assert found == [("cls", b"longer\n"), ("jpg", b""), *((n, f"{n}\n".encode()) for n in "abcde")]
    assert keys_in(out) == keys_in(ten)
    with tarfile.open(fileobj=io.BytesIO(out)) as archive:
        changed, _, new, _ = archive.getmembers()[:4]
    assert (changed.mtime, changed.mode, changed.uid) == (1577836800, 0o640, 1234)
    assert (new.mtime, new.mode, new.uid) == (0, 0o644, 0)


def test_a_new_key(run: Run, ten: bytes) -> None:
    out = run("tarproc", "-c", 'echo "new/$(cat sample.__key__)" > sample.__key__', stdin=ten).output()
    assert keys_in(out) == [f"new/{n:06d}" for n in range(10)]
    assert [p for _, p in members_of(out)] == [p for _, p in members_of(ten)]


@pytest.mark.parametrize("key", ["", "a.b", "../a", "a/../b", "/a", "a/", "a/.b", r"a\0b", None])
def test_a_key_that_cannot_be(run: Run, ten: bytes, key: str | None) -> None:
    command = "rm sample.__key__; mkdir sample.__key__" if key is None else f"printf '{key}\\n' > sample.__key__"
    done = run("tarproc", "-e", "skip", "--count", 1, "-c", command, stdin=ten)
    assert (done.status, members_of(done.stdout)) == (1, [])
    said = "'sample.__key__' is not a file" if key is None else "it cannot have the new key"
    assert f"sample '000000': {said}" in done.stderr


def test_removing_all_filters(run: Run, ten: bytes) -> None:
    done = run("tarproc", "-v", "-p", 3, "-c", "grep -q '[0-4]' sample.cls || rm sample.*", stdin=ten)
    assert done.status == 0
    assert keys_in(done.stdout) == [f"{n:06d}" for n in range(5)]
    assert "10 samples in, 5 out, 5 left out, " in done.stderr
    assert has_end(done.stdout)


def test_names_are_contained(run: Run, work: Path, tmp_path: Path) -> None:
    odd = ["../up", "/abs/a", "d/e f", "q'\"q", "new\nline", "-rf", "$(touch x)", "é", "..d/a"]
    fields = ["jpg", "a b", "x\ny", "q'\"", "..", "-rf", "*"]
    members = [(f"{key}.{field}", f"{key}{field}".encode()) for key in odd for field in fields]
    data = make_tar(members, tarfile.PAX_FORMAT)
    before = sorted(os.listdir(tmp_path))
    done = run("tarproc", "-p", 2, "--tmpdir", work, "-c", "rm -f -- *.jpg; ls -A", stdin=data)
    assert done.status == 0, done.stderr
    assert members_of(done.stdout) == [(name, payload) for name, payload in members if not name.endswith(".jpg")]
    assert sorted(os.listdir(tmp_path)) == before


def test_two_members_of_one_field_fail(run: Run) -> None:
    data = make_tar([("a.txt", b"1"), ("a.txt", b"2"), ("b.txt", b"3")])
    done = run("tarproc", "-e", "skip", "-v", "-c", "true", stdin=data)
    assert (done.status, members_of(done.stdout)) == (1, [("b.txt", b"3")])
    assert "sample 'a': two of its members need the one file name 'sample.txt'" in done.stderr
    assert "2 samples in, 1 out, 1 left out and reported" in done.stderr
    kept = run("tarproc", "-e", "ignore", "-c", "true", stdin=data)
    assert (kept.status, kept.stdout) == (1, data)


@pytest.mark.parametrize("field", ["__key__", 250 * "n"])
def test_a_field_that_cannot_be_a_file_fails(run: Run, field: str) -> None:
    done = run("tarproc", "-c", "true", stdin=make_tar([("a.txt", b"1"), ("b." + field, b"2")], tarfile.PAX_FORMAT))
    assert done.status == 1
    assert "sample 'b': " in done.stderr
    assert not has_end(done.stdout)


def test_a_member_without_a_field(run: Run) -> None:
    data = make_tar([("README", b"text"), ("a.txt", b"1")])
    done = run("tarproc", "-c", "test ! -e sample || echo more >> sample", stdin=data)
    assert members_of(done.stdout) == [("README", b"textmore\n"), ("a.txt", b"1")]
    moved = run("tarproc", "-c", "test ! -e sample || mv sample sample.md", stdin=data)
    assert members_of(moved.stdout) == [("README.md", b"text"), ("a.txt", b"1")]
    assert "would not read back as one sample" in run("tarproc", "-c", "touch sample.new", stdin=data).failure()


def test_only_links_inside_are_followed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    data = make_tar([("a.txt", b"1")])
    command = (
        f"echo 2 > other; ln -s other sample.in; ln -s {tmp_path}/secret sample.out; mkfifo sample.p; mkdir sample.d"
    )
    done = run("tarproc", "-c", command, stdin=data)
    assert (done.status, members_of(done.stdout)) == (0, [("a.txt", b"1"), ("a.in", b"2\n")])
    assert done.stderr.count("'sample.out' is a link") == 1
    run("tarproc", "-c", f"ln -sf {tmp_path}/secret sample.__key__", stdin=data).failure()


def test_many_and_large_results(run: Run, work: Path) -> None:
    command = (
        "for n in {100..169}; do head -c 1100000 /dev/zero > sample.$n; head -c 400000 /dev/zero > sample.s$n; done"
    )
    out = run("tarproc", "--tmpdir", work, "-c", command, stdin=make_tar([("a.txt", b"1")])).output()
    found = members_of(out)
    assert [len(payload) for _, payload in found] == [1, *70 * [1100000], *70 * [400000]]
    assert not any(payload.strip(b"\0") for _, payload in found[1:])
    line = ["tarproc", "-c", "for n in {100..169}; do head -c 900000 /dev/zero > sample.$n; done"]
    assert peak_memory(line, FEED.format(sizes="[5]"), work) < 60_000_000


def test_base_and_script(run: Run, shell: Run, tmp_path: Path, ten: bytes) -> None:
    (tmp_path / "do it.sh").write_text('cp x.cls x.new; echo "$(basename "$0")" >> x.new\n')
    out = run("tarproc", "--base", "x", "-s", "do it.sh", stdin=ten).output()
    assert members_of(out)[5] == ("000001.new", b"1do it.sh\n")
    (tmp_path / "ten.tar").write_bytes(ten)
    assert len(members_of(shell("tarproc -s <(echo 'rm sample.jpg') ten.tar").output())) == 10


@pytest.mark.parametrize("options, place", [("", ""), ("-q", None), ("-S", "a subdirectory with ")])
def test_if_no_command_leaves_a_field_that_is_said(options: str, place: str | None, shell: Run, ten: bytes) -> None:
    done = shell(f"tarproc {options} -c 'mv sample.jpg out.jpg; rm sample.cls'", stdin=ten)
    said = "" if place is None else f"tarproc: 10 samples, all left out: no command left {place}a file sample.FIELD\n"
    assert (done.status, members_of(done.stdout), done.stderr) == (0, [], said)
    some = shell(
        f"tarproc {options} -c 'test $TAR_INDEX = 3 || rm sample.*; mkdir a; cp sample.jpg a || true'", stdin=ten
    )
    assert keys_in(some.stdout) and "left out" not in some.stderr


def test_a_result_under_another_name_is_told(shell: Run, ten: bytes) -> None:
    """Files of unknown types are scratch; once a sample has changed, all of them are."""
    said = (
        "tarproc: no field is new or of another size: a command left 'small.jpg', which is not named sample.FIELD; "
        "sample.small.jpg would become a field\n"
    )
    for command, messages in (
        ("cp sample.jpg small.jpg", said),
        ("cp sample.jpg small.jpg; cp sample.jpg notes.tmp; test $TAR_INDEX = 3 || rm small.jpg", said),
        ("cp sample.jpg notes.tmp", ""),
        ("cp sample.jpg small.jpg; test $TAR_INDEX != 3 || echo longer >> sample.cls", ""),
        ("cp sample.jpg small.jpg; test $TAR_INDEX != 3 || rm sample.cls", ""),
    ):
        assert shell(f"tarproc -p 2 -c '{command}' > out.tar", stdin=ten).stderr == messages
    assert shell("tarproc --base x -c 'cp x.jpg sample.jpg' > out.tar", stdin=ten).stderr.startswith(
        "tarproc: no field is new or of another size: a command left 'sample.jpg', which is not named x.FIELD"
    )


def test_a_file_beside_the_shard_has_its_whole_path_in_the_message(run: Run, tmp_path: Path, ten: bytes) -> None:
    (tmp_path / "do it.py").write_text("")
    said = f"passes them on); each sample has a directory of its own: write '{tmp_path}/do it.py' for do it.py\n"
    assert run("tarproc", "-c", "python3 'do it.py'; exit 3", stdin=ten).stderr.endswith(said)
    assert run("tarproc", "--", "bash", "-c", "exit 3", "do it.py", stdin=ten).stderr.endswith(said)
    for command in ("exit 3", f"'{tmp_path}/do it.py'", 'exit 3 "', "exit 3 # sample.cls"):
        assert "write" not in run("tarproc", "-c", command, stdin=ten).stderr


def test_count(run: Run, ten: bytes) -> None:
    cut = ten[: len(make_tar(make_samples(4))) // 10240 * 10240 + 5000]
    done = run("tarproc", "-v", "-p", 4, "--count", 3, "-c", "true", stdin=cut)
    assert (done.status, keys_in(done.stdout)) == (0, ["000000", "000001", "000002"])
    assert "3 samples in, 3 out" in done.stderr
    assert members_of(run("tarproc", "--count", 0, "-c", "true", stdin=ten).stdout) == []


def test_unordered_does_not_wait_for_the_first(run: Run, ten: bytes, tmp_path: Path) -> None:
    line = f"until [ $TAR_INDEX != 0 -o -e {tmp_path}/9 ]; do sleep 0.02; done; touch {tmp_path}/$TAR_INDEX"
    out = run("tarproc", "--unordered", "-p", 2, "-c", line, stdin=ten).output()
    assert keys_in(out)[:8] == [f"{n:06d}" for n in range(1, 9)]  # the first ends when the last has begun
    assert sorted(members_of(out)) == sorted(members_of(ten))


def test_add_log(run: Run, ten: bytes) -> None:
    out = run("tarproc", "-p", 2, "--add-log", "log", "-c", "echo $TAR_INDEX; echo b >&2", stdin=ten).output()
    assert members_of(out)[2::3] == [(f"{n:06d}.log", b"%d\nb\n" % n) for n in range(10)]
    assert run("tarproc", "--add-log", "jpg", "-c", "true", stdin=ten).status == 1
    gone = run("tarproc", "--add-log", "log", "-c", "echo a; rm sample.*", stdin=ten)
    assert (gone.status, members_of(gone.stdout)) == (0, [])
    failed = run("tarproc", "--add-log", "log", "-c", "echo why; exit 1", stdin=ten)
    assert failed.stderr.startswith("000000: why\ntarproc: stdin: sample '000000'")
    skipped = run("tarproc", "-e", "skip", "--add-log", "log", "-c", "echo why; test $TAR_INDEX != 4", stdin=ten)
    assert skipped.stderr.splitlines()[0] == "000004: why"
    assert run("tarproc", "-c", "echo why", stdin=ten).stderr == 10 * "why\n"  # without --add-log, as it is


def test_keepdir(run: Run, ten: bytes, tmp_path: Path) -> None:
    done = run("tarproc", "--keep-dir", "--tmpdir", ".", "--count", 2, "-e", "ignore", "-c", "touch x", stdin=ten)
    assert done.status == 0
    folder = Path(done.stderr.removeprefix("tarproc: the directories are kept in ").removesuffix("\n"))
    assert folder.parent == tmp_path.resolve()
    assert sorted(os.listdir(folder)) == ["000000", "000001"]
    assert sorted(os.listdir(folder / "000001")) == ["sample.__key__", "sample.cls", "sample.jpg", "x"]


# -S


def test_subdirectories(run: Run, work: Path) -> None:
    data = make_tar([("d/a.txt", b"a"), ("d/b.txt", b"b"), ("d/c.txt", b"c")])
    command = """
        case $TAR_INDEX in
        0) mkdir y x none; cp sample.txt x; echo 2 > y/sample.cls; echo new > y/sample.__key__; touch none/scratch;;
        2) mkdir c; cp sample.txt c;;
        esac"""
    done = run("tarproc", "-v", "-p", 3, "-S", "--tmpdir", work, "-c", command, stdin=data)
    assert done.status == 0, done.stderr
    assert members_of(done.stdout) == [("d/a/x.txt", b"a"), ("new.cls", b"2\n"), ("d/c/c.txt", b"c")]
    assert "3 samples in, 2 out (3 written), 1 left out, " in done.stderr


def test_subdirectories_and_failures(run: Run) -> None:
    data = make_tar([("a.txt", b"a"), ("b.txt", b"b"), ("c.txt", b"c")])
    command = "mkdir 1 2; cp sample.txt 1; cp sample.txt 2; test $TAR_INDEX != 1 || echo bad.key > 2/sample.__key__"
    skip = run("tarproc", "-v", "-S", "-e", "skip", "-c", command, stdin=data)
    assert (skip.status, keys_in(skip.stdout)) == (1, ["a/1", "a/2", "c/1", "c/2"])
    assert "3 samples in, 2 out (4 written), 1 left out and reported, " in skip.stderr
    ignore = run("tarproc", "-v", "-S", "-e", "ignore", "-c", command, stdin=data)
    assert (ignore.status, keys_in(ignore.stdout)) == (1, ["a/1", "a/2", "b", "c/1", "c/2"])
    assert "3 samples in, 3 out (5 written), " in ignore.stderr


# failures


def test_nothing_runs_after_a_failure_at_p_1(run: Run, tmp_path: Path, ten: bytes) -> None:
    assert run("tarproc", "-c", f"touch {tmp_path}/$TAR_INDEX; test $TAR_INDEX != 3", stdin=ten).status == 1
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3"]


BASHES = ["bash", *filter(None, os.environ.get("OTHER_BASHES", "").split(":"))]  # paths


@pytest.mark.parametrize("shell", BASHES)
@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("no-such-program", "ended with status 127 ("),
        ("kill -TERM $$", "ended with status 143, as after SIGTERM ("),
        ("kill -TERM $BASHPID", "ended with status 143, as after SIGTERM ("),
        ("exit 137", "ended with status 137, as after SIGKILL ("),
        ("exit 147", "ended with status 147, as after SIGSTOP ("),
        ("exit 255", "ended with status 255 ("),
        ("kill -STOP $BASHPID", "was stopped by SIGSTOP, and killed ("),
        ("kill -TTIN $BASHPID", "was stopped by SIGTTIN, and killed ("),
    ],
)
def test_how_a_command_ended(run: Run, ten: bytes, shell: str, command: str, how: str) -> None:
    """Versions of bash say different things about their jobs, so we tell only what its status tells."""
    said = run("tarproc", "--shell", shell, "-c", command, stdin=ten).failure()
    assert f"tarproc: stdin: sample '000000': {how}" in said


def test_abort_writes_the_same_at_any_p(run: Run, work: Path) -> None:
    data = make_tar(make_samples(30))
    command = "test $TAR_INDEX -lt 7 -o $TAR_INDEX = 8"
    outputs = [run("tarproc", "--tmpdir", work, "-p", p, "-c", command, stdin=data) for p in (1, 8)]
    assert [done.status for done in outputs] == [1, 1]
    assert outputs[0].stdout == outputs[1].stdout
    assert data.startswith(outputs[0].stdout)
    assert keys_in(outputs[0].stdout + bytes(1024)) == [f"{n:06d}" for n in range(7)]
    assert all("sample '000007'" in done.stderr for done in outputs)


def test_damage_comes_after_what_is_before_it(run: Run, ten: bytes) -> None:
    cut = ten[: ten.rindex(b"000009.jpg") + 600]
    for parallel in (1, 8):
        done = run("tarproc", "-p", parallel, "-c", "true", stdin=cut)
        assert done.status == 1
        assert done.stdout == ten[: ten.index(b"000009.cls")]
        failed = run("tarproc", "-p", parallel, "-c", "exit $TAR_INDEX", stdin=cut)
        assert "sample '000001': ended with status 1" in failed.stderr


def test_skip_and_ignore(run: Run, work: Path, ten: bytes) -> None:
    command = "rm sample.jpg; echo changed > sample.cls; test $TAR_INDEX != 4"
    skip = run("tarproc", "-v", "-p", 2, "--tmpdir", work, "-e", "skip", "-c", command, stdin=ten)
    assert (skip.status, keys_in(skip.stdout)) == (1, [k for k in keys_in(ten) if k != "000004"])
    assert has_end(skip.stdout)
    assert "sample '000004': ended with status 1; it is left out" in skip.stderr
    assert "10 samples in, 9 out, 1 left out and reported, " in skip.stderr
    ignore = run("tarproc", "-v", "-p", 2, "--tmpdir", work, "-e", "ignore", "-c", command, stdin=ten)
    assert ignore.status == 1
    assert members_of(ignore.stdout)[4:6] == members_of(ten)[8:10]
    assert "sample '000004': ended with status 1; it is passed on unchanged" in ignore.stderr
    assert "10 samples in, 10 out, " in ignore.stderr


def test_timeout(run: Run, work: Path, tmp_path: Path, ten: bytes) -> None:
    command = f"if test $TAR_INDEX = 1; then sleep 300 & echo $! > {tmp_path}/pid; wait; fi"
    others = [k for k in keys_in(ten) if k != "000001"]
    for seconds in (1, 5, 25):  # enough for the others, on a machine that is busy too
        done = run("tarproc", "-e", "skip", "--tmpdir", work, "--timeout", seconds, "-c", command, stdin=ten)
        if keys_in(done.stdout) == others and (tmp_path / "pid").exists():
            break
    assert done.status == 1
    assert keys_in(done.stdout) == others
    assert f"sample '000001': took longer than {seconds} seconds and was killed" in done.stderr
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid), "the end of what took too long")


@pytest.mark.parametrize(
    "arguments", [("-c", "true", "--shell", "no-shell"), ("-s", "missing"), ("-s", "."), ("-c", ":", "--tmpdir", "no")]
)
def test_failures_before_any_input_is_read(shell: Run, ten: bytes, arguments: tuple[str, ...]) -> None:
    done = shell(f"{{ tarproc {' '.join(arguments)}; echo $? >&2; wc -c; }}", stdin=ten)
    assert done.stdout.split() == [b"%d" % len(ten)]
    assert done.stderr.endswith("\n1\n")
    assert done.stderr.count("\n") == 2


# how commands run


def test_a_slow_first_sample_does_not_idle_the_others(run: Run, work: Path, tmp_path: Path) -> None:
    line = f"until [ $TAR_INDEX != 0 -o -e {tmp_path}/59 ]; do sleep 0.02; done; touch {tmp_path}/$TAR_INDEX"
    data = make_tar(make_samples(60))
    assert run("tarproc", "-p", 2, "--tmpdir", work, "-c", line, stdin=data) == (0, data, "")


@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        ("yes | head -1", 0, "y\n"),
        ("cat", 0, ""),
        ("exec true", 0, ""),
        ("exit 3", 1, "ended with status 3"),
        ("echo a )", 1, "ended with status 2"),
        ("cat <<end\nhello $TAR_KEY\nend", 0, "hello a\n"),
        ("cat <<end\nhello", 0, "hello\n"),
        ("true # a comment", 0, ""),
        ("x=1; cd /; umask 777; set -e; trap '' TERM", 0, ""),
        ("! test -e /proc/self/status || grep SigIgn /proc/self/status | grep -q '0$'", 0, ""),
        ("[[ $(trap) == '' && $(ulimit -c) ]]", 0, ""),
        ("python3 -c 'import signal as s; exit(s.getsignal(s.SIGINT) == 1 or bool(s.pthread_sigmask(0, [])))'", 0, ""),
    ],
)
def test_as_under_bash(run: Run, command: str, status: int, says: str) -> None:
    data = make_tar([("a.txt", b"1")])
    done = run("tarproc", "-c", command, stdin=data)
    assert done.status == status
    assert says in done.stderr
    if status == 0:
        assert done.stdout == data


def test_much_output_does_no_harm(run: Run, shell: Run, tmp_path: Path, work: Path) -> None:
    data = make_tar([("a.txt", b"1")])
    done = shell("tarproc -c 'head -c 30000000 /dev/zero' 2> err; stat -c %s err", stdin=data)
    assert done.stdout == data + b"30000000\n"
    logged = run("tarproc", "--tmpdir", work, "--add-log", "log", "-c", "head -c 30000000 /dev/zero", stdin=data)
    assert [len(payload) for _, payload in members_of(logged.stdout)] == [1, 30000000]


def test_a_directory_that_resists(run: Run, work: Path) -> None:
    data = make_tar([("a.txt", b"1")])
    done = run("tarproc", "--tmpdir", work, "-c", "mkdir -p d/e; touch d/e/f; chmod 0 d/e; chmod 500 .", stdin=data)
    assert (done.status, done.stdout) == (0, data)
    assert "sample 'a': cannot collect" in run("tarproc", "--tmpdir", work, "-c", 'rm -rf "$PWD"', stdin=data).failure()


# one shell for many samples


def test_one_shell_runs_many_samples(run: Run, ten: bytes) -> None:
    """Guard the tests below: they would say nothing if each sample had a shell of its own."""
    out = run("tarproc", "-c", "cut -d ' ' -f 4 /proc/$BASHPID/stat > sample.cls", stdin=ten).output()
    assert len({payload for name, payload in members_of(out) if name.endswith("cls")}) == 1


SEEN = "pwd | sed 's:.*/::'; umask; echo \"[$mine]\"; trap; jobs; set -o | grep -w on; ulimit -f; echo $- $# $0 $?"


@pytest.mark.parametrize(
    "leaves",
    [
        "mine=1; export mine; TAR_KEY=other; unset TAR_INDEX; PATH=/; set -- a b",
        "cd /; umask 777; ulimit -f 100",
        "trap 'echo trapped >&2' EXIT TERM; trap '' INT HUP",
        "set -euf -o pipefail; shopt -s extglob; alias ls=false; echo() { false; }; cd() { false; }",
        "exec 3> sample.three 7< /dev/null; exec > /dev/null; exec < /dev/zero",
        "(sleep 300 &); { sleep 300; } & set -m",
        "readonly REPLY=1 TAR_SHARD; declare -r TAR_KEY; enable -n read echo; hash -p /bin/false true",
    ],
)
def test_nothing_reaches_the_next_sample(run: Run, tmp_path: Path, leaves: str) -> None:
    data = make_tar([("a.txt", b""), ("b.txt", b"")])
    command = (
        f"if [ $TAR_INDEX = 0 ]; then {leaves}; exit 0; fi; "
        f"{{ {SEEN}; echo $TAR_KEY $TAR_INDEX $TAR_SHARD; ls /proc/self/fd; true; }} > {tmp_path}/seen"
    )
    assert run("tarproc", "-c", command, stdin=data).status == 0
    after = (tmp_path / "seen").read_text()
    assert run("tarproc", "-c", command.replace(leaves, "true"), stdin=data).status == 0
    assert (tmp_path / "seen").read_text() == after
    os.umask(mask := os.umask(0))
    assert after.startswith(f"000001\n{mask:04o}\n[]\n")
    assert "\nhBc 0 bash 0\nb 1 -\n" in after


@pytest.mark.parametrize(
    "command",
    [
        'echo "$-" $# "$0" $LINENO "$BASH_EXECUTION_STRING"',
        "no-such-program",
        "echo $LINENO\n\nno-such-program",
        "ls -l /proc/self/fd | awk '{print $9, substr($11, 1, 5)}'",
        "declare -p OLDPWD SHLVL TAR_KEY",
        "shopt -s expand_aliases\nalias q='echo aliased'\nq",
        "cat <<E\nhi $TAR_KEY",
        "echo end\\",
        "echo 'unclosed",
        "if true; then",
        "true ) ; ( true",
        "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status",
        "kill -KILL $BASHPID",
        "kill -INT $BASHPID",
        "kill -PIPE $BASHPID; true",
        "kill -35 $BASHPID",
        "exit 137",
        "exit 300",
        "set -e; false; true",
        "trap 'echo bye' EXIT; exit 3",
        "trap; umask; ulimit -n; tty; return 3",
        "sleep 300 & exit 2",
        "[ $$ = $BASHPID ]",
    ],
)
def test_a_command_sees_what_it_would_in_a_new_shell(run: Run, command: str) -> None:
    """Compare with the shells that are started for each sample, as they are where BASH_ENV is set."""
    data = make_tar([("a.txt", b"1")])
    one, other = (run("tarproc", "-c", command, stdin=data, env=env) for env in ({}, {"BASH_ENV": "/dev/null"}))
    assert one == other


@pytest.mark.parametrize("env", [{"OLDPWD": "/usr"}, {"OLDPWD": "/no such"}, {"TAR_KEY": "x", "REPLY": "y"}])
def test_the_environment_is_that_of_a_new_shell(run: Run, env: dict[str, str]) -> None:
    test_a_command_sees_what_it_would_in_a_new_shell(
        lambda *arguments, **options: run(*arguments, **options | {"env": env | options["env"]}),
        "env | grep -v '^\\(_\\|BASH_ENV\\|PWD\\|TARTOOLS_GUARDED\\)=' | sort; echo $OLDPWD $REPLY",
    )


@pytest.mark.parametrize(
    ("kill", "said"),
    [
        *((f"kill -{number} $parent; wait", f"was ended by SIG{number}") for number in ("KILL", "TERM", "INT", "SEGV")),
        ("kill -STOP $BASHPID", "was stopped by SIGSTOP, and killed"),
    ],
)
def test_a_sample_that_kills_the_long_lived_shell_or_stops(
    kill: str, said: str, run: Run, tmp_path: Path, ten: bytes
) -> None:
    command = (
        "read -r _ _ _ parent _ < /proc/$BASHPID/stat; "
        f"if [ $TAR_INDEX = 4 ]; then sleep 300 & echo $! $BASHPID > {tmp_path}/pids; {kill}; fi"
    )
    done = run("tarproc", "-e", "skip", "-c", command, stdin=ten)
    assert keys_in(done.stdout) == [k for k in keys_in(ten) if k != "000004"]
    assert f"sample '000004': {said}" in done.stderr
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    until(lambda: not any(map(alive, pids)), "the end of what it left")


def test_long_lived_shells_that_were_killed_or_cannot_start(tmp_path: Path) -> None:
    """A sample that has not begun begins in another one; where none starts, nothing of it stays open."""
    bash = shutil.copy(str(shutil.which("bash")), tmp_path)
    both = "touch ../$TAR_INDEX; until [ -e ../0 ] && [ -e ../1 ]; do :; done"
    with (
        closing(SampleDirectories(DirectoryOptions(), str(tmp_path))) as folders,
        closing(Shells([bash, "-c", both], folders, keyed=True)) as shells,
    ):
        tasks = list(folders.write(Sample(b"%d" % number, (), "") for number in range(4)))
        for some in (tasks[:2], tasks[2:3]):
            with ThreadPoolExecutor() as pool:
                assert {done.failure for done in pool.map(shells.run, some)} == {""}
            for child in folders.guard.running:
                child.kill()
                child.has_ended(None)
        os.unlink(bash)
        opened = set()
        for _ in range(2):
            assert shells.run(tasks[3]).failure == "could not be started: No such file or directory"
            opened.add(len(os.listdir("/proc/self/fd")))
        assert len(opened) == 1


def test_keys_of_any_bytes(run: Run, tmp_path: Path) -> None:
    odd = [
        *("=a", "=", "a=b", "new\nline\n", " blank ", "\\n\\", "-n", "'\"", "\x01\x7f", "é", "$(echo x)"),
        5000 * "long/" + "k",
    ]
    data = make_tar([(f"{key}.txt", b"") for key in odd], tarfile.PAX_FORMAT)
    (tmp_path / "=in\n.tar").write_bytes(data)
    command = 'printf \'%s|\' "$TAR_KEY" "$TAR_INDEX" "$TAR_SHARD" > sample.txt'
    out = run("tarproc", "-p", 2, "-c", command, "=in\n.tar", "=in\n.tar").output()
    expected = [f"{key}|{n}|=in\n.tar|".encode() for n, key in enumerate(odd + odd)]
    assert [payload for _, payload in members_of(out)] == expected


@pytest.mark.parametrize("shell", ["bash", "dash", "sh"])
def test_other_shells_do_the_same(run: Run, tmp_path: Path, shell: str, ten: bytes) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    command = f'echo "$TAR_KEY $0" > sample.cls; sleep 300 & echo $! >> {tmp_path}/pids; test $TAR_INDEX != 3'
    done = run("tarproc", "-p", 2, "-e", "skip", "--shell", shell, "-c", command, stdin=ten)
    assert "sample '000003': ended with status 1; it is left out" in done.stderr
    found = [payload.decode() for name, payload in members_of(done.stdout) if name.endswith("cls")]
    assert found == [f"{key} {shell}\n" for key in keys_in(ten) if key != "000003"]
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 10
    until(lambda: not any(map(alive, pids)), "the end of what runs on")


def test_a_long_command(run: Run, ten: bytes) -> None:
    """Bash remarks what a job is; that must not hold it up, nor appear."""
    assert run("tarproc", "-c", f": {30000 * 'x '}", stdin=ten, timeout=60) == (0, ten, "")
    failed = run("tarproc", "-e", "skip", "-c", f": {2000 * 'x '}; exit 137", stdin=ten, timeout=60)
    assert failed.stderr.count("ended with status 137") == 10


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_what_several_workers_print_has_the_key(run: Run, ten: bytes, shell: str) -> None:
    """Each line, also one that is not ended; what a process in the background prints; none is lost or torn."""
    line = "x" * 3000
    command = f"for n in 1 2 3; do echo $n {line}; done; echo to stderr >&2; printf end; test $TAR_INDEX != 4"
    done = run("tarproc", "-p", 3, "-e", "skip", "--shell", shell, "-c", command, stdin=ten)
    expected = [
        f"{key}: {text}" for key in keys_in(ten) for text in (*(f"{n} {line}" for n in "123"), "to stderr", "end")
    ]
    *printed, failed = sorted(done.stderr.splitlines(), key=lambda text: text.startswith("tarproc"))
    assert sorted(printed) == sorted(expected)
    assert failed == "tarproc: stdin: sample '000004': ended with status 1; it is left out"
    for key in keys_in(ten):
        assert [text for text in printed if text.startswith(key)] == [text for text in expected if text.startswith(key)]


def test_many_lines_at_once_do_not_hold_up_a_command(run: Run, ten: bytes) -> None:
    """More than a pipe holds, also just before a time limit; control characters of keys are escaped."""
    done = run("tarproc", "-p", 2, "-c", "yes | head -c 400000; printf '%70000s'", stdin=ten, timeout=60)
    assert done.status == 0 and done.stderr.count(": y\n") == 10 * 200_000
    odd = make_tar([("a\x1b[31m.txt", b""), ("b.txt", b"")])
    for seconds in (0.5, 5, 25):  # enough to begin, on a machine that is busy too
        late = run("tarproc", "-p", 2, "-e", "skip", "--timeout", seconds, "-c", "echo begun; sleep 300", stdin=odd)
        if late.stderr.count(": begun\n") == 2:
            break
    assert late.stderr.count(f"took longer than {seconds} seconds and was killed") == 2
    assert "a\\x1b[31m: begun\n" in late.stderr and "b: begun\n" in late.stderr


# the end


@pytest.mark.parametrize("options", [(), ("--add-log", "log")])
def test_a_signal_ends_what_prints_where_nobody_reads(options: tuple[str, ...], tmp_path: Path, ten: bytes) -> None:
    (tmp_path / "in.tar").write_bytes(ten)
    command = [BIN / "tarproc", "-p", "2", *options, "-c", "yes | head -c 400000; false", "in.tar"]
    with running(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        until(lambda: waiting_in(process.stderr) > 60_000, "a full pipe")
        process.terminate()
        assert process.wait(PATIENCE) == -signal.SIGTERM


def start(work: Path, tmp_path: Path, data: bytes, *arguments: object, shell: str = "$$") -> subprocess.Popen[bytes]:
    """Start tarproc with two commands that don't end and have children; wait until they run."""
    new, pids = f"{tmp_path}/new.$TAR_INDEX", f"{tmp_path}/pids.$TAR_INDEX"
    command = f"shell={shell}; sleep 300 & echo $shell $! > {new}; mv {new} {pids}; wait"
    (tmp_path / "in.tar").write_bytes(data)
    process = subprocess.Popen(
        [BIN / "tarproc", "-p", "2", "--tmpdir", work, "-c", command, *map(str, arguments), "in.tar"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    until(lambda: len(list(tmp_path.glob("pids.*"))) == 2, "two commands")
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("extra", [(), ("-o", "out.tar", "--add-log", "log", "-e", "ignore")])
@pytest.mark.parametrize("shell", ["$$", "$BASHPID; cd /"])  # a new shell, or one that goes on
@by_turns("extra", "shell")
def test_signals_leave_nothing(
    work: Path, tmp_path: Path, ten: bytes, number: signal.Signals, extra: tuple[str, ...], shell: str
) -> None:
    process = start(work, tmp_path, ten, *extra, shell=shell)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout, stderr) == (-number, b"", b"")
    pids = [int(pid) for file in tmp_path.glob("pids.*") for pid in file.read_text().split()]
    assert len(pids) == 4
    until(lambda: not any(map(alive, pids)), "the end of the commands")
    if number == signal.SIGKILL:
        until(lambda: not os.listdir(work), "the end of the directories")
    assert os.listdir(work) == []
    assert not (tmp_path / "out.tar").exists()


def test_daemons_and_inputs_of_a_killed_tarproc(work: Path, tmp_path: Path) -> None:
    """What is in a session of its own, has no parent, has left the directory or has no environment; an input."""
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(1)))
    pids = tmp_path / "pids"
    command = (
        f"(env -i setsid bash -c 'echo $$ >> {pids}; exec sleep 300' &); cd /; "
        f"(setsid bash -c 'echo $$ >> {pids}; exec sleep 300' &); echo $BASHPID >> {pids}; exec sleep 300"
    )
    process = subprocess.Popen(
        [BIN / "tarproc", "--tmpdir", work, "-c", command, f"pipe:cat in.tar; echo $$ >> {pids}; exec sleep 300"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        env=clean_environment(),
    )
    until(lambda: pids.exists() and len(pids.read_text().split()) == 4, "four processes")
    process.kill()
    process.communicate(timeout=PATIENCE)
    until(lambda: not os.listdir(work), "the end of the directories")
    until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()), "the end of all")


def test_a_guard_that_was_killed_is_no_failure(run: Run, work: Path) -> None:
    data = make_tar([("a.txt", b"1")])
    done = run("tarproc", "--tmpdir", work, "-c", 'kill -9 $(pgrep -f "tartools-guard .*${PWD%/*}/")', stdin=data)
    assert (done.status, done.stdout) == (0, data)


# the stage


WORDS = ["a b", "$HOME", "*", "it's", '"', "", "~", "\\", "new\nline", "$$", "--", "-x", "`id`", "\udcff", "A=b"]


@pytest.mark.parametrize("options", [[], ["-p", "2"], ["--timeout", "60"]])
def test_words_behind_the_dashes_are_a_command_as_it_is(options: list[str], run: Run) -> None:
    program = "import os, sys; open('sample.out', 'wb').write(repr(list(map(os.fsencode, sys.argv[1:]))).encode())"
    archive = make_tar([(f"n{n}.txt", b"") for n in range(5)])
    out = run("tarproc", *options, "--", sys.executable, "-c", program, *WORDS, stdin=archive).output()
    expected = repr(list(map(os.fsencode, WORDS))).encode()
    assert [payload for name, payload in members_of(out) if name.endswith(".out")] == [expected] * 5


def test_no_shell_reads_the_first_word(run: Run) -> None:
    archive = make_tar([("n.txt", b"")])
    done = run("tarproc", "--", "env", "A=b", "sh", "-c", 'echo "$A $TAR_KEY" > sample.out', stdin=archive)
    assert members_of(done.stdout) == [("n.txt", b""), ("n.out", b"b n\n")]
    for word in ("if", "A=b", "nosuch"):
        assert run("tarproc", "--", word, "true", stdin=archive) == (2, b"", f"tarproc: there is no program {word!r}\n")


@pytest.mark.parametrize("options", [["-e", "skip"], ["-e", "ignore", "-p", "2"]])
def test_a_report_lists_the_samples_that_failed(options: list[str], run: Run, ten: bytes, tmp_path: Path) -> None:
    line = r"""echo "$TAR_KEY begins"; case $TAR_INDEX in 3) printf 'why\tnot\n\n'; exit 3 ;; 5) exit 1 ;; esac"""
    done = run("tarproc", *options, "--report", "failed.tsv", "-c", line, "-o", "out.tar", stdin=ten)
    assert done.status == 1 and all(f"{key} begins\n" in done.stderr for key in keys_in(ten))
    assert (tmp_path / "failed.tsv").read_text().splitlines() == [
        "__key__\t__shard__\tfailure\tlast_line",
        "000003\tstdin\tended with status 3\twhy\\tnot",
        "000005\tstdin\tended with status 1\t000005 begins",
    ]
    left = [key for key in keys_in(ten) if key not in ("000003", "000005") or "ignore" in options]
    assert keys_in((tmp_path / "out.tar").read_bytes()) == left


def test_a_report_of_a_sample_for_which_nothing_was_started(run: Run, tmp_path: Path) -> None:
    """A field called __key__ would be taken for the key: the sample is skipped, and its report has no last line."""
    archive = make_tar([("a.__key__", b"1"), ("b.txt", b"2")])
    done = run("tarproc", "-e", "skip", "--report", "r.tsv", "-c", "true", stdin=archive)
    assert (done.status, members_of(done.stdout)) == (1, [("b.txt", b"2")])
    (line,) = (tmp_path / "r.tsv").read_text().splitlines()[1:]
    assert line.startswith("a\t") and line.endswith("\t")


@pytest.mark.parametrize("options", [["-p", "2"], []])
def test_a_timeout_ends_a_command_that_prints_for_ever(options: list[str], shell: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar([("a.txt", b"1"), ("b.txt", b"2")]))
    words = shlex.join(["-e", "skip", "--timeout", "1", *options])
    assert shell(f"tarproc {words} -c yes in.tar 2>/dev/null | tar -tf -").output() == b""


@pytest.mark.parametrize("field", ["gz", "log.gz"])
def test_a_log_is_compressed_by_the_suffix_of_its_field(field: str, run: Run) -> None:
    done = run("tarproc", "--add-log", field, "-c", "echo words", stdin=make_tar([("a.txt", b"1")]))
    assert [(name, gzip.decompress(data)) for name, data in members_of(done.stdout)[1:]] == [(f"a.{field}", b"words\n")]


def test_a_script_with_a_nul(shell: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar([("a.txt", b"1")]))
    said = shell("tarproc -s <(printf 'true\\0') in.tar").failure()
    assert re.fullmatch(r"tarproc: /dev/fd/\d+: the script has a NUL byte, which no shell takes\n", said)


def test_a_report_of_a_run_that_stops_is_refused(run: Run, ten: bytes) -> None:
    assert "--report needs -e skip or -e ignore" in run("tarproc", "--report", "f", "-c", "true", stdin=ten).failure(2)
