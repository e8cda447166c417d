"""tarshow on a terminal: by itself, and as a pager with -i, in a pseudo-terminal to which keys are written."""

from __future__ import annotations

import fcntl
import io
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from tartools.samples.account import Account
from tartools.samples.sample import Sample, build
from tartools.show import pager
from tartools.show.terminal import Screen
from tests.conftest import Run, clean_environment, make_samples, make_tar

OURS = ("KITTY_WINDOW_ID", "TERM_PROGRAM", "TMUX", "STY", "LC_TERMINAL", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR")
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
PATIENCE = 60  # seconds


class Terminal:
    """A pseudo-terminal with a line of bash in its foreground, whose controlling terminal it is."""

    def __init__(self, line: str, folder: Path, environment: dict[str, str], size: tuple[int, int]) -> None:
        self.fd, theirs = os.openpty()
        self.resize(*size)
        self.settings = termios.tcgetattr(theirs)
        self.output = b""
        name = os.ttyname(theirs)
        kept = {
            k: v for k, v in clean_environment().items() if k not in OURS and not k.startswith(("WEZTERM", "KONSOLE"))
        }
        self.process = subprocess.Popen(  # the first terminal that the leader of a session opens is the one it has
            ["bash", "-c", f"exec < {name} > {name} 2>&1; {line}"],
            cwd=folder,
            env=kept | {"TERM": "xterm-256color"} | environment,
            start_new_session=True,
        )
        self._theirs = theirs

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, until: str | bytes) -> bytes:
        """Return what comes up to and with *until*, behind what was returned before."""
        wanted = until.encode() if isinstance(until, str) else until
        give_up = time.monotonic() + PATIENCE
        while wanted not in self.output:
            assert time.monotonic() < give_up, self.output
            if select.select([self.fd], [], [], 1)[0]:
                self.output += os.read(self.fd, 1 << 16)
        before, _, self.output = self.output.partition(wanted)
        return before + wanted

    def press(self, keys: str | bytes) -> None:
        os.write(self.fd, keys.encode() if isinstance(keys, str) else keys)

    def echoes(self) -> bool:
        """Tell whether the terminal is as a shell wants it, and not as somebody who reads single keys."""
        return termios.tcgetattr(self._theirs) == self.settings

    def end(self) -> tuple[int, bytes]:
        """Return the exit status, and what came since it was read last."""
        give_up = time.monotonic() + PATIENCE
        while self.process.poll() is None or select.select([self.fd], [], [], 0)[0]:
            assert time.monotonic() < give_up, self.output
            if select.select([self.fd], [], [], 0.05)[0]:
                self.output += os.read(self.fd, 1 << 16)
        return self.process.returncode, self.output

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.fd)
        os.close(self._theirs)


@contextmanager
def at(
    line: str, folder: Path, environment: dict[str, str] | None = None, size: tuple[int, int] = (80, 24)
) -> Iterator[Terminal]:
    terminal = Terminal(line, folder, environment or {}, size)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a.tar, of twelve samples with a picture, and words.tar, of 40 with a class."""
    file = io.BytesIO()
    Image.linear_gradient("L").resize((40, 30)).save(file, "PNG")
    (tmp_path / "a.tar").write_bytes(
        make_tar([member for n in range(12) for member in ((f"k{n}.png", file.getvalue()), (f"k{n}.cls", b"%d" % n))])
    )
    (tmp_path / "words.tar").write_bytes(make_tar([(f"w{n}.cls", b"%d" % n) for n in range(40)]))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "environment", "what"),
    [
        ("cat a.tar | tarshow -c 3", {"TERM": "xterm-kitty"}, b"\x1b_Ga=T"),
        ("tarshow -c 3 a.tar", {"LC_TERMINAL": "iTerm2"}, b"\x1b]1337;File="),
        ("tarshow -c 3 < a.tar", {"TERM": "foot"}, b"\x1bP"),
        ("cat a.tar | tarshow -c 3", {"COLORTERM": "truecolor"}, b"m\xe2\x96\x80"),
        ("tarshow -c 3 a.tar", {"TARTOOLS_PICTURES": "kitty"}, b"\x1b_Ga=T"),
        ("tarshow -c 3 a.tar", {"TARTOOLS_PICTURES": "none"}, b""),
        ("tarshow --pictures sixel -c 3 a.tar", {"TARTOOLS_PICTURES": "none"}, b"\x1bP"),
        ("tarshow -c 3 a.tar", {"TERM": "xterm-kitty", "NO_COLOR": "1"}, b""),
        ("tarshow -c 3 a.tar", {"TERM": "dumb", "KITTY_WINDOW_ID": "1"}, b""),
    ],
)
def test_a_terminal_gets_pictures(line: str, environment: dict[str, str], what: bytes, folder: Path) -> None:
    with at(line, folder, environment) as terminal:
        status, output = terminal.end()
    assert status == 0 and b"k2" in output
    drawn = {code for code in (b"\x1b_Ga=T", b"\x1b]1337;File=", b"\x1bP", b"m\xe2\x96\x80") if code in output}
    assert drawn == ({what} if what else set())
    if environment.get("TERM") == "dumb" or "NO_COLOR" in environment:
        assert b"\x1b" not in output


def test_a_wrong_wish_in_the_environment(folder: Path) -> None:
    with at("tarshow a.tar", folder, {"TARTOOLS_PICTURES": "ascii"}) as terminal:
        status, output = terminal.end()
    assert status == 2 and output.startswith(b"tarshow: TARTOOLS_PICTURES is 'ascii'; it can be auto, kitty,")


@pytest.mark.parametrize("line", ["cat a.tar | tarshow -i", "tarshow -i a.tar"])
def test_keys_turn_the_pages(line: str, folder: Path) -> None:
    with at(line, folder) as terminal:
        first = terminal.read("? help")
        assert first.startswith(ENTER) and b"\x1b[24;1H\x1b[7m 1  k0  " in first and b"number: 0" in first
        assert "▀".encode() in first and not terminal.echoes()
        place = 1
        for key, step in (
            *((" ", 1), ("n", 1), ("\x1b[C", 1), ("\r", 1), ("\x1b[6~", 1), ("p", -1), ("\x1b[D", -1), ("b", -1)),
            *(("\x1bOA", -1), ("j", 1), ("x", 0), ("\x1b[Z", 0), ("ä", 0)),
        ):
            terminal.press(key)
            place += step
            page = terminal.read("? help")
            assert f" {place}  k{place - 1}  ".encode() in page and b"number: %d\r\n" % (place - 1) in page
            if key == "ä":  # two bytes, and two keys that mean nothing
                terminal.read("? help")
        terminal.press("g")
        assert b" 1  k0  " in terminal.read("? help")
        terminal.press("?")
        terminal.read("space n → next   p b ← previous   g first   q quit")
        terminal.press("?")
        terminal.read("? help")
        terminal.press("p")
        assert b" 1  k0  " in terminal.read("this is the first")
        terminal.press("n" * 11)
        for _ in range(11):
            terminal.read("? help")
        terminal.press("n")
        assert b" 12  k11  " in terminal.read("this is the last")
        terminal.press("q")
        status, output = terminal.end()
        assert status == 0 and output.endswith(LEAVE) and terminal.echoes()


@pytest.mark.parametrize("key", ["q", "\x1b"])
def test_what_is_not_looked_at_is_not_read(key: str, folder: Path) -> None:
    archive = (folder / "words.tar").read_bytes()
    (folder / "cut.tar").write_bytes(archive[: 3 * 1024 + 512])
    with at("tarshow -iv -c 3 cut.tar", folder) as terminal:
        for n in range(3):
            assert b" %d  w%d  cut.tar " % (n + 1, n) in terminal.read("? help")
            terminal.press("n" if n < 2 else key)
        status, output = terminal.end()
        assert status == 0 and b"tarshow: 3 samples in, 3 out" in output and LEAVE in output and terminal.echoes()


def test_a_failure_is_told_on_the_screen_as_it_was(folder: Path) -> None:
    archive = (folder / "words.tar").read_bytes()
    (folder / "cut.tar").write_bytes(archive[: 3 * 1024 + 512])
    with at("tarshow -i cut.tar", folder) as terminal:
        terminal.read("? help")
        terminal.press("nnnn")
        status, output = terminal.end()
        assert status == 1 and terminal.echoes()
        assert output.partition(LEAVE)[2].startswith(b"tarshow: cut.tar: at byte ")


@pytest.mark.parametrize(("number", "status"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_signals_leave_the_terminal_as_it_was(number: str, status: int, folder: Path) -> None:
    line = "trap : INT TERM HUP; bash -c 'echo pid $$; exec tarshow -i a.tar'; echo ended $?"
    with at(line, folder) as terminal:
        terminal.read("pid ")
        process = int(terminal.read("\r\n"))
        terminal.read("? help")
        if number == "INT":
            terminal.press("\x03")
        else:
            os.kill(process, getattr(signal, f"SIG{number}"))
        output = terminal.read(f"ended {status}")
        assert LEAVE in output and terminal.echoes()


def test_it_stops_and_goes_on(folder: Path) -> None:
    with at("set -m; cat a.tar | tarshow -i; echo stopped; read x; fg > /dev/null; echo ended $?", folder) as terminal:
        terminal.read("? help")
        terminal.press("n")
        terminal.read(" 2  k1")
        terminal.read("? help")
        terminal.press("\x1a")
        assert LEAVE in terminal.read("stopped\r\n") and terminal.echoes()
        terminal.press("\n")
        terminal.read(ENTER)
        assert b" 2  k1  " in terminal.read("? help")
        terminal.press("n")
        assert b" 3  k2  " in terminal.read("? help")
        terminal.press("q")
        assert LEAVE in terminal.read("ended 0") and terminal.echoes()


@pytest.mark.parametrize("option", ["", "--progress"])
def test_it_is_still_as_long_as_nobody_does_anything(option: str, folder: Path) -> None:
    with at(f"tarshow -i --pictures none {option} words.tar", folder) as terminal:
        terminal.read("? help")
        terminal.press("?")
        terminal.read("q quit")
        terminal.read("\x1b[0m")
        assert terminal.output == b""
        assert select.select([terminal.fd], [], [], 2.5)[0] == []  # more than two ticks, and what progress waits for
        terminal.press("q")
        assert terminal.end()[0] == 0


def test_it_fills_a_terminal_whose_size_changes(folder: Path) -> None:
    with at("tarshow -i a.tar", folder) as terminal:
        terminal.read("? help")
        terminal.resize(60, 12)
        page = terminal.read("? help")
        assert b"\x1b[12;1H\x1b[7m 1  k0" in page


@pytest.mark.parametrize("term", ["xterm-kitty", "foot", "xterm-256color"])
@pytest.mark.parametrize("size", [(80, 24), (30, 8), (200, 50)])
def test_a_page_fits(term: str, size: tuple[int, int], folder: Path) -> None:
    """Neither long words nor many pictures make it scroll."""
    file = io.BytesIO()
    Image.new("RGB", (400, 300)).save(file, "PNG")
    members = [(f"k.{n}.png", file.getvalue()) for n in range(9)]
    members += [(f"k.{n}.txt", b"a line of text\n" * 30) for n in range(9)] + [("k.txt", b"x" * 999)]
    (folder / "large.tar").write_bytes(make_tar(members))
    with at("tarshow -i large.tar", folder, {"TERM": term}, size) as terminal:
        page = terminal.read("? help")
        terminal.press("q")
        assert terminal.end()[0] == 0
    shown = page.partition(b"\x1b[2J")[2].decode()
    shown = re.sub(r"\x1b_[^\x1b]*\x1b\\|\x1bP[^\x1b]*\x1b\\|\x1b[78]|\x1b\[\d+[AC]|\x1b\[[\d;]*m", "", shown)
    text, _, foot = shown.partition(f"\x1b[{size[1]};1H")
    lines = text.split("\r\n")
    assert foot.startswith(" 1  k ") and " more below  ? help" in foot
    assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]


def test_it_needs_terminals(run: Run, folder: Path) -> None:
    done = run("tarshow", "-i", "a.tar")
    assert done == (2, b"", "tarshow: -i needs a terminal on stdout\n")
    with at("tarshow -i a.tar", folder, {"TERM": "dumb"}) as terminal:
        assert terminal.end() == (2, b"tarshow: -i needs a terminal that it can clear (TERM is dumb)\r\n")
    ours, theirs = os.openpty()
    try:
        alone = subprocess.run(
            ["tarshow", "-i", "a.tar"],
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            start_new_session=True,
            check=False,
        )
    finally:
        os.close(theirs)
        os.close(ours)
    assert (alone.returncode, alone.stderr) == (2, b"tarshow: -i needs a terminal to read keys from\n")


class Keys:
    """A keyboard on which *keys* are pressed, and the pages that it was shown."""

    def __init__(self, keys: str) -> None:
        self.pages: list[str] = []
        self._keys = iter(keys)

    def write(self, data: bytes, /) -> None:
        self.pages.append(data.decode())

    def key(self) -> str:
        return next(self._keys)


def browsed(samples: Iterator[Sample], keys: str) -> tuple[Keys, Account]:
    keyboard, account = Keys(keys), Account()
    pager.browse(samples, keyboard, Screen, account)
    return keyboard, account


def test_samples_that_can_be_gone_back_to_are_bounded() -> None:
    samples = (build({"__key__": f"k{n}", "cls": n}) for n in range(5000))
    keyboard, account = browsed(samples, "n" * 1500 + "p" * 1200 + "gq")
    assert account.samples_out == 1501
    assert " 1,501  k1500 " in keyboard.pages[1500] and " 502  k501 " in keyboard.pages[-1]
    assert "this is the first that is kept" in keyboard.pages[-3]


def test_memory_that_can_be_gone_back_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager, "MOST_BYTES", 100_000)
    samples = (build({"__key__": f"k{n}", "bin": bytes(30_000)}) for n in range(50))
    keyboard, _ = browsed(samples, "n" * 20 + "gq")
    assert " 19  k18 " in keyboard.pages[-1]


def test_no_samples_are_no_pages(folder: Path) -> None:
    (folder / "empty.tar").write_bytes(make_tar([]))
    with at("tarshow -i empty.tar; tarshow -i -c 0 a.tar; echo ended $?", folder) as terminal:
        output = terminal.read("ended 0")
        assert b"help" not in output and output.count(LEAVE) == 2 and terminal.echoes()


def test_fields_are_chosen_for_the_pager_too(folder: Path) -> None:
    (folder / "s.tar").write_bytes(make_tar(make_samples(30)))
    with at("cat s.tar | tarshow -i -f cls", folder) as terminal:
        terminal.read("? help")
        terminal.press("nng")
        assert b"000000" in terminal.read(" 1  000000")
        terminal.press("q")
        assert terminal.end()[0] == 0
