"""Promises that no one command owns: odd names, odd numbers, secrets, templates, hostile contents."""

from __future__ import annotations

import fcntl
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import IO

import pytest

from tartools.cli import process
from tartools.commands.tarls import tarls
from tartools.shards.numbering import parse_numbering
from tests.commands.test_every_command import COMMANDS
from tests.conftest import BIN, Result, Run, make_samples, make_tar, members_of, python, running, start
from tests.processes import on_terminal
from tests.tiers import in_both

SAMPLES = make_samples(5)
TAR = make_tar(SAMPLES)
DEEP = make_tar([("a.json", b"[" * 200_000)])
SECRET = "https://me:secret@h/train-7.tar?signature=secret"
HOSTILE = 'gs://b/it\'s $(touch pwned) `touch pwned` "x";touch pwned'


# ---- names ----


def test_names_that_are_no_text_are_printed_as_they_are(shell: Run) -> None:
    done = shell("tarsplit -o $'a\\xff'", stdin=TAR, env={"PYTHONIOENCODING": "utf-8:strict"})
    assert done == (0, b"a\xff-000000.tar\n", "")


@pytest.mark.parametrize(
    ("text", "name"),
    [("50%%-%03d.tar", "50%-007.tar"), ("a%d-%%.tar", "a7-%.tar"), ("%%d", "%%d-000007.tar"), ("%%{shard}", "%%7")],
)
def test_a_doubled_percent_sign_is_one(text: str, name: str) -> None:
    assert parse_numbering(text, False).name(7) == name


@pytest.mark.parametrize(
    "line",
    ["tarcat -o /dev/stdout | cat", "tarcat -o >(cat > b.tar; echo > done); until test -e done; do :; done; cat b.tar"],
)
def test_pipes_with_a_name_are_written_in_place(line: str, shell: Run) -> None:
    assert shell(line, stdin=TAR) == (0, TAR, "")


@pytest.mark.parametrize("output", ["/dev/stdout", "/dev/tty"])
def test_a_terminal_is_no_output_under_any_name(output: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    (tmp_path / "run.py").write_text(
        f"import os, pty\nos._exit(os.waitstatus_to_exitcode(pty.spawn(['tarcat', 'a.tar', '-o', '{output}'])))\n"
    )
    done = start(sys.executable, "run.py", folder=tmp_path)
    assert done.status == 2
    assert done.stdout.decode().startswith(f"tarcat: {output}: is a terminal")


@pytest.mark.parametrize(
    "arguments",
    [
        ("tarcat", "file:///x%00y"),
        ("tarcat", "-T", "file:///x%00y"),
        ("tarcat", "-o", "file:///x%00y"),
        ("tarsplit", "-o", "file:///x%00y/"),
        ("tarsplit", "-o", "x%99999999999d"),
    ],
)
def test_names_that_no_file_can_have_are_refused(arguments: tuple[str, ...], run: Run) -> None:
    run(*arguments, stdin=TAR).failure(2, lines=1)


# ---- secrets ----


@pytest.mark.parametrize(
    "arguments",
    [
        ("tarsplit", "-o", "a", "--post", f"exit 3 {{}} '{SECRET}'"),
        ("tarcat", "--rekey", "{key}.{shard}", f"pipe:cat a.tar # {SECRET}"),
        ("tar2tsv", "-f", "__shard__", f"pipe:cat a.tar # {SECRET}"),
    ],
    ids=["post", "key", "column"],
)
def test_secrets_are_never_told(arguments: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    done = run(*arguments, stdin=TAR)
    assert done.stdout + done.stderr.encode() != b""
    assert "secret" not in done.stderr and b"secret" not in done.stdout


def test_a_shard_read_by_a_command_has_its_base_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    done = run("tarcat", "-c", 1, "--rekey", "{shard}", "pipe:cat a.tar; : https://h/b/train-7.tar?a=b/c")
    assert [name for name, _ in members_of(done.stdout)] == ["train-7.cls", "train-7.jpg"]


def test_a_plan_cannot_run_commands_by_its_urls(run: Run, tmp_path: Path) -> None:
    plan = b"__key__\t@txt\na\thttps://h/$(touch pwned)\n"
    run("tarcreate", stdin=plan, env={"GOPEN_HTTPS": 'echo "{}?token"'}).failure(2, lines=1)
    assert list(tmp_path.iterdir()) == []


# ---- hostile contents ----


@pytest.mark.parametrize(
    "arguments",
    [("tar2tsv", "-f", "json:a"), ("tarsort", "-s", "json:a"), ("tarfirst", "-S", "field('json:a') == 1")],
    ids=["tar2tsv", "tarsort", "tarfirst"],
)
def test_deep_json_is_a_failure_with_its_place(arguments: tuple[str, ...], run: Run) -> None:
    done = run(*arguments, stdin=DEEP)
    assert (done.status, done.stderr.count("\n")) == (1, 1)
    assert "stdin: sample 'a', field 'json': not JSON: " in done.stderr


def array(shape: str, kind: str = "<f4") -> bytes:
    """Return a .npy file of that *shape*, without data."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\0" + len(head).to_bytes(2, "little") + head


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("a.npy", array("(0x" + "f" * 9000 + ",)")),
        ("a.npy", array("(1e999,)")),
        ("a.npy", array("(" + "9" * 4000 + ", " + "9" * 4000 + ")")),
        ("a.npy", array("(" + "9223372036854775807, " * 400 + ")")),
        ("a.npy", array("(2,)", "<f" + "9" * 4200)),
        ("a.wav", b"RIFF\x24\0\0\0WAVEfmt \xff\xff\0\0" + bytes(40)),
        ("a.json", b"[" * 100_000),
        ("a.json", b'{"\xc2\x9b": "\\u001b[31m \\ud800"}'),
        ("a.txt", "\x1b[31m \u009b \u202e".encode()),
        ("a.jp\x1b[31mg", b"\xff\xd8\xff"),
    ],
)
def test_tarshow_describes_whatever_there_is_in_harmless_letters(name: str, payload: bytes, run: Run) -> None:
    done = run("tarshow", stdin=make_tar([(name, payload)]))
    assert done.status == 0 and re.fullmatch(r"(tarshow: broken: 1 of 1 sample: \w+\n)?", done.stderr)
    assert all(letter.isprintable() or letter == "\n" for letter in done.stdout.decode())


# ---- reading ----


def test_an_upstream_that_stays_does_not_keep_tarpcat(shell: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    shell(
        "tarpcat -c 1 - < <(echo $BASHPID > pid; cat a.tar; exec sleep 1000 2> /dev/null) > b.tar; kill $(cat pid)"
    ).output()


# ---- progress ----


def test_progress_in_a_log_is_lines_of_text(shell: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    waiting = "pipe:cat a.tar; until grep -q far log; do sleep 0.05; done"
    assert shell(f"tarcat --progress '{waiting}' -o b.tar 2> log") == (0, b"", "")
    assert re.fullmatch(r"(tarcat: 5 samples, 20\.5 kB, [0-9.]+ k?B/s so far\n)+", (tmp_path / "log").read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_a_finalizer_is_not_lost(tmp_path: Path, number: signal.Signals) -> None:
    for name in "ab":
        (tmp_path / f"{name}.tar").write_bytes(make_tar(make_samples(5, ord(name))))
    program = f"""
import os, sys
from tartools.commands.tarcat import tarcat
from tartools.storage.streams import SharedFile
def __del__(self, close=SharedFile.__del__):
    os.kill(os.getpid(), {number})
    close(self)
SharedFile.__del__ = __del__
sys.argv = ["tarcat", "a.tar", "b.tar", "pipe:sleep 1000", "-o", "out.tar"]
tarcat()
"""
    done = python(program, folder=tmp_path)
    assert (done.status, done.stderr) == (-number, "") and not (tmp_path / "out.tar").exists()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("Writer", ["tarcat", "-o", "w/x.tar.zst"]),
        ("Writer", ["tarcat", "-z", "-o", "pipe:cat > w/tmp && mv w/tmp w/out"]),
        ("Guard", ["tarproc", "--tmpdir", "w", "-c", "true"]),
    ],
)
def test_a_signal_while_an_output_or_directory_is_made_leaves_none(tmp_path: Path, made: str, words: list[str]) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(5)))
    program = f"""
import os, sys
from tartools.commands import load
from tartools.run.guard import Guard
from tartools.tar import Writer
def __init__(self, *words, begin={made}.__init__, **options):
    os.kill(os.getpid(), 15)
    begin(self, *words, **options)
{made}.__init__ = __init__
sys.argv = {words!r} + ["a.tar"]
load(sys.argv[0])()
"""
    assert python(program, folder=tmp_path) == (-15, b"", "")
    assert {path.name for path in (tmp_path / "w").iterdir()} <= {"tmp"}


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="pipes have no known size here")
def test_a_signal_ends_a_command_whose_reader_sleeps() -> None:
    """A full pipe to stdout, samples that wait to go there, and an input that does not come: nothing is waited for."""
    first, second = bytes((1 << 20) - 512), b"2" * 3000
    content = make_tar([("a.x", first), ("b.x", second), ("c.x", b"3")])[: (1 << 20) + 512 + 3072 + 512]
    with running([BIN / "tarcat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(content)
        process.stdin.flush()
        while waiting_in(process.stdin) or waiting_in(process.stdout) < 1 << 20:
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM


# A signal that another thread gets stands for one that comes just before the main thread waits: it ends no wait.
LOST = """
import fcntl, os, signal, struct, sys, termios, threading
from tartools.cli import process
from tartools.commands.tarcat import tarcat
process.SIGNAL_POLL_SECONDS = 0.1
sys.argv = ["tarcat", *sys.argv[1:]]
def send():
    while struct.unpack("i", fcntl.ioctl(0, termios.FIONREAD, bytes(4)))[0]:
        os.sched_yield()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=send, daemon=True).start()
tarcat()
"""


@pytest.mark.parametrize("options", [[], ["--progress"]], ids=["", "with progress"])
def test_a_signal_just_before_a_wait_is_not_lost(options: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOST, *options, "-o", "out.tar"]
    with running(command, cwd=tmp_path, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(make_tar(make_samples(3))[:2000])
        process.stdin.flush()
        assert process.wait(60) == -signal.SIGTERM
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["--progress"]], ids=["", "with progress"])
def test_an_alarm_that_was_set_before_ends_us(options: list[str], tmp_path: Path) -> None:
    """As `perl -e 'alarm 10; exec @ARGV'` sets one, where there is no timeout(1)."""
    set_and_run = (
        "import os, signal, sys; signal.setitimer(signal.ITIMER_REAL, 0.7); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", set_and_run, BIN / "tarcat", *options, "-o", "out.tar"]
    with running(command, cwd=tmp_path, stdin=subprocess.PIPE) as process:
        assert process.wait(60) == -signal.SIGALRM


def test_no_tick_ends_a_command_that_takes_its_time_to_end(tmp_path: Path) -> None:
    program = "import atexit, sys, time\nfrom tartools.cli import process\nfrom tartools.commands.tarls import tarls\n"
    program += "process.SIGNAL_POLL_SECONDS = 0.1\n"
    program += "atexit.register(time.sleep, 0.3)\nsys.argv[1:] = ['--version']\ntarls()"
    python(program).output()


def test_no_tick_ends_a_command_that_has_a_fault(tmp_path: Path) -> None:
    program = "import atexit, sys, time\nfrom tartools.cli import process\nprocess.SIGNAL_POLL_SECONDS = 0.1\n"
    program += "atexit.register(time.sleep, 0.3)\nprocess.run(lambda: {}['nothing'])"
    done = python(program)
    assert (done.status, done.stdout) == (1, b"") and done.stderr.endswith("KeyError: 'nothing'\n")


def waiting_in(pipe: IO[bytes]) -> int:
    """Return the bytes that wait in *pipe*."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe.fileno(), termios.FIONREAD, bytes(4)))
    return int(count)


# A finder of modules that finds nothing, but sends the signal when the module AT is looked for.
SENDER = """
import os, sys

class Sender:
    def find_spec(name, path=None, target=None):
        if name == os.environ.get("AT"):
            os.kill(os.getpid(), 2)

sys.meta_path.insert(0, Sender)
"""
MODULES = ("tartools.cli", "tartools.cli.declare", "tartools.storage", "tartools.samples.account")


def interrupted(command: list[str], at: str, folder: Path) -> Result:
    """Run *command* with SIGINT at the import of *at*."""
    (folder / "sitecustomize.py").write_text(SENDER)
    return start(*command, folder=folder, env={"PYTHONPATH": str(folder), "AT": at})


@pytest.mark.parametrize("name", COMMANDS)
@in_both
def test_a_command_dies_of_it(name: str, thorough: bool, tmp_path: Path) -> None:
    """At the import of its own module, and of others: of all of them, or of one."""
    own, number = f"tartools.commands.{name}", list(COMMANDS).index(name)
    for at in (own, *MODULES, "nothing") if thorough else (own, MODULES[number % len(MODULES)]):
        done = interrupted([str(BIN / name), "--version"], at, tmp_path)
        assert done == ((0, done.stdout, "") if at == "nothing" else (-signal.SIGINT, b"", "")), at


@pytest.mark.parametrize("first", [[str(BIN / "tartools")], [sys.executable, "-m", "tartools"]], ids=["script", "-m"])
def test_tartools_dies_of_it(first: list[str], tmp_path: Path) -> None:
    for at in ("gc", "pkgutil", "tartools.commands.tarcat", "tartools.cli"):
        assert interrupted([*first, "tarcat", "--version"], at, tmp_path) == (-signal.SIGINT, b"", ""), at


def test_nothing_is_imported_before_it_is_dealt_with(tmp_path: Path) -> None:
    """But for what Python imports itself, and the script that pip makes."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nbefore = {*sys.modules}\n")
    program = (
        "import sys, sitecustomize, _signal\nsys.argv = ['tarcat']\n"
        "class Finder:\n    def find_spec(name, *_):\n"
        "        if _signal.getsignal(2) == 1 - 1: return\n"
        "        assert name in ('tartools', 'tartools.commands', '__future__'), name\n"
        "sys.meta_path.insert(0, Finder)\nimport tartools.commands.tarcat\n"
    )
    start(sys.executable, "-c", program, folder=tmp_path, env={"PYTHONPATH": str(tmp_path)}).output()


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    line = f"trap '' INT; {BIN / 'tarcat'} --version; echo $?"
    done = interrupted(["bash", "-c", line], "tartools.cli", tmp_path)
    assert (done.stdout.splitlines()[-1], done.stderr) == (b"0", "")


@pytest.mark.parametrize("script", ["program.py", "tarball.py", "report"])
def test_a_program_that_imports_us_keeps_its_handler(script: str, tmp_path: Path) -> None:
    (tmp_path / script).write_text(
        "import gc, signal, tartools\n"
        "before = gc.get_threshold()\n"
        "from tartools.commands.tarcat import tarcat\n"
        "tartools.read\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "assert gc.get_threshold() == before\n"
    )
    interrupted([sys.executable, str(tmp_path / script)], "nothing", tmp_path).output()


def test_a_signal_that_was_swallowed_is_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(process, "received_signals", [signal.SIGTERM])
    assert tarls.main([__file__, "--all"]) == process.SIGNAL_STATUS_BASE + signal.SIGTERM


def test_what_is_registered_for_the_exit(tmp_path: Path) -> None:
    """The interpreter is not taken apart at the end, but does what it was asked to do before."""
    (tmp_path / "in.tar").write_bytes(make_tar(make_samples(1)))
    program = "import atexit, sys\nfrom tartools.commands.tarls import tarls\n"
    program += "atexit.register(print, 'first')\natexit.register(print, 'last')\ntarls()"
    out = python(program, tmp_path / "in.tar").output()
    assert out.splitlines()[-2:] == [b"last", b"first"] and out.count(b"last") == 1


TITLE = "\x1b]0;title\x07"
SEEN = r"\x1b]0;title\x07"
VALUE = TITLE + "a\u00e4\x9b2J"


def shown(folder: Path, line: str) -> bytes:
    """Return what *line* shows on a terminal, which ends lines by CR LF."""
    return on_terminal(line.split(), folder).output().expandtabs()


TABLES = [
    ("", "__key__\ttxt\n{}\t{}\n"),
    ("--csv ", "__key__,txt\r\n{},{}\r\n"),
    ("--no-header --no-key --jsonl ", '{{"txt": "{1}"}}\n'),
]


@pytest.mark.parametrize(("options", "table"), TABLES)
def test_a_table(options: str, table: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar([(f"{TITLE}.txt", VALUE.encode())]))
    line = f"tar2tsv {options}-f txt in.tar"
    if "json" in options:  # escapes itself what is below a blank
        value, seen = r"\u001b]0;title\u0007aä" + "\x9b2J", r"\u001b]0;title\u0007aä\x9b2J"
    else:
        value, seen = VALUE, rf"{SEEN}aä\x9b2J"
    assert run(*line.split()) == (0, table.format(TITLE, value).encode(), "")
    expected = table.format(SEEN, seen).replace("\r", "").replace("\n", "\r\n")
    assert shown(tmp_path, line) == expected.encode().expandtabs()


def test_names_of_shards(run: Run, tmp_path: Path) -> None:
    (tmp_path / f"{TITLE}.tar").write_bytes(b"")
    assert run("tarls") == (0, f"{TITLE}.tar\n".encode(), "")
    assert shown(tmp_path, "tarls") == f"{SEEN}.tar\r\n".encode()


def test_an_output_that_is_a_file_gets_the_values_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(make_tar([("a.txt", VALUE.encode())]))
    assert shown(tmp_path, "tar2tsv -f txt in.tar -o out.tsv") == b""
    assert (tmp_path / "out.tsv").read_text() == f"__key__\ttxt\na\t{VALUE}\n"
