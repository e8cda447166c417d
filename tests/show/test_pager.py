"""tarshow on a terminal: by itself, and as a pager with -i, in a pseudo-terminal to which keys are written."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from tartools.samples.account import Account
from tartools.samples.sample import Sample, build
from tartools.show import pager
from tartools.show.search import has_words, search_words
from tartools.show.sheet import line_columns
from tartools.show.terminal import Screen
from tests.archives import encoded
from tests.conftest import BIN, Run, clean_environment, make_samples, make_tar
from tests.processes import on_terminal
from tests.show.screen import Screen as Drawn
from tests.show.test_graphics import bomb
from tests.tiers import also, by_turns

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

    def press(self, keys: str, until: str | bytes = b"") -> bytes:
        """Press *keys*, and return what comes up to and with *until*."""
        os.write(self.fd, keys.encode())
        return self.read(until) if until else b""

    def echoes(self) -> bool:
        """Tell whether the terminal is as a shell wants it, and not as somebody who reads single keys."""
        return termios.tcgetattr(self._theirs) == self.settings

    def end(self, keys: str = "") -> tuple[int, bytes]:
        """Press *keys*, and return the exit status, and what came since it was read last."""
        if keys:
            self.press(keys)
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
    """A directory with a.tar, of twelve samples with a picture, and words.tar, of 40 with a class; cut.tar."""
    picture = encoded(Image.linear_gradient("L").resize((40, 30)))
    (tmp_path / "a.tar").write_bytes(
        make_tar([member for n in range(12) for member in ((f"k{n}.png", picture), (f"k{n}.cls", b"%d" % n))])
    )
    words = make_tar([(f"w{n}.cls", b"%d" % n) for n in range(40)])
    (tmp_path / "words.tar").write_bytes(words)
    (tmp_path / "cut.tar").write_bytes(words[: 3 * 1024 + 512])
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
        ("tarshow --graphics sixel -c 3 a.tar", {"TARTOOLS_PICTURES": "none"}, b"\x1bP"),
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
        assert first.startswith(ENTER) and b"\x1b[24;1H\x1b[7m 1" in first and b"number: 0" in first
        of = b" of 12" if "cat" not in line else b""  # how many a stream has is known at its end
        assert b" 1%s  k0  " % of in first
        assert "▀".encode() in first and not terminal.echoes()
        place = 1
        for key, step in (
            *((" ", 1), ("n", 1), ("\x1b[C", 1), ("\r", 1), ("\x1b[6~", 1), ("p", -1), ("\x1b[D", -1), ("b", -1)),
            *(("\x1bOA", -1), ("j", 1), ("x", 0), ("\x1b[Z", 0), ("ä", 0)),
        ):
            terminal.press(key)
            place += step
            page = terminal.read("? help")
            assert re.search(rb" %d( of \d+\+?)?  k%d  " % (place, place - 1), page)
            assert b"number: %d\r\n" % (place - 1) in page
            if key == "ä":  # two bytes, and two keys that mean nothing
                terminal.read("? help")
        assert b"number: 0" in terminal.press("\x1b[H", "? help")
        assert b"\x1b[23;1H\x1b[7m space n \xe2\x86\x92 next," in terminal.press("?", "g grid, q quit")
        terminal.press("?", "? help")
        assert b"number: 0" in terminal.press("p", "this is the first")
        terminal.press("n" * 11)
        for _ in range(11):
            terminal.read("? help")
        assert b" 12 of 12  k11  " in terminal.press("n", "this is the last")
        assert b" 1 of 12  k0  " in terminal.press("<", "? help")
        assert b" 12 of 12  k11  " in terminal.press("\x1b[F", "? help")
        status, output = terminal.end("q")
        assert status == 0 and output.endswith(LEAVE) and terminal.echoes()


def test_typing_into_the_pager(folder: Path) -> None:
    """As `test_samples_are_gone_to_and_searched`, with the bytes that a terminal sends."""
    with at("tarshow -i --graphics none words.tar", folder) as terminal:
        terminal.read("? help")
        assert b" 38 of 40  w37  " in terminal.press("/W3x\x7f7\r", "? help")
        terminal.press("/ä\x7fä\r", "no sample has ä ")
        assert b" 40 of 40  w39  " in terminal.press("41\x7f2\r", "this is the last")
        assert b" 4 of 40  w3  " in terminal.press("4\r", "? help")
        assert b"\x1b[7m> w3 " in terminal.press("g\x1b[B", "? help") and b"\x1b[7m> w6 " in terminal.read("? help")
        assert b"number: 6\r\n" in terminal.press("\r\x1b[4~", "? help")
        assert b" 40 of 40  w39  " in terminal.read("? help")
        terminal.press("12", " go to sample: 12 ")
        terminal.resize(60, 12)
        assert b"\x1b[12;1H" in terminal.read(" go to sample: 12 ")
        assert b" 12 of 40  w11  " in terminal.press("\r", "? help")
        assert terminal.end("q")[0] == 0 and terminal.echoes()


def test_a_key_stops_the_way_to_the_end(folder: Path) -> None:
    (folder / "many.tar").write_bytes(make_tar([(f"w{n}.cls", b"1") for n in range(5000)]))
    with at("cat many.tar | tarshow -iv --graphics none", folder) as terminal:
        terminal.read("? help")
        status, output = terminal.end("Gq")
    assert status == 0 and b" 1,001 samples read; any key stops" in output
    assert b"tarshow: 1001 samples in, 1001 out" in output


@pytest.mark.parametrize("key", ["q", "\x1b"])
def test_what_is_not_looked_at_is_not_read(key: str, folder: Path) -> None:
    with at("tarshow -iv -c 3 cut.tar", folder) as terminal:
        for n in range(3):
            assert b" %d of 3  w%d  cut.tar " % (n + 1, n) in terminal.read("? help")
            if n < 2:
                terminal.press("n")
        status, output = terminal.end(key)
        assert status == 0 and b"tarshow: 3 samples in, 3 out" in output and LEAVE in output and terminal.echoes()


def test_a_failure_is_told_on_the_screen_as_it_was(folder: Path) -> None:
    with at("tarshow -i cut.tar", folder) as terminal:
        terminal.read("? help")
        status, output = terminal.end("nnnn")
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
        terminal.press("n", " 2  k1")
        terminal.read("? help")
        assert LEAVE in terminal.press("\x1a", "stopped\r\n") and terminal.echoes()
        terminal.press("\n", ENTER)
        assert b" 2  k1  " in terminal.read("? help")
        assert b" 3  k2  " in terminal.press("n", "? help")
        assert LEAVE in terminal.press("q", "ended 0") and terminal.echoes()


@pytest.mark.parametrize("option", ["--progress", *also("")])
def test_it_is_still_as_long_as_nobody_does_anything(option: str, folder: Path) -> None:
    with at(f"tarshow -i --graphics none {option} words.tar", folder) as terminal:
        terminal.read("? help")
        terminal.press("?", "q quit")
        terminal.read("\x1b[0m")
        assert terminal.output == b""
        assert select.select([terminal.fd], [], [], 2.5)[0] == []  # more than two ticks, and what progress waits for
        assert terminal.end("q")[0] == 0


def test_it_fills_a_terminal_whose_size_changes(folder: Path) -> None:
    with at("tarshow -i a.tar", folder) as terminal:
        terminal.read("? help")
        terminal.resize(60, 12)
        page = terminal.read("? help")
        assert b"\x1b[12;1H\x1b[7m 1 of 12  k0" in page


@by_turns("term")
@pytest.mark.parametrize("term", ["xterm-kitty", "foot", "xterm-256color"])
@pytest.mark.parametrize("size", [(80, 24), (30, 8), (200, 50)])
def test_a_page_fits(term: str, size: tuple[int, int], folder: Path) -> None:
    """Neither long words nor many pictures make it scroll."""
    members = [(f"k.{n}.png", encoded(Image.new("RGB", (400, 300)))) for n in range(9)]
    members += [(f"k.{n}.txt", b"a line of text\n" * 30) for n in range(9)] + [("k.txt", b"x" * 999)]
    (folder / "large.tar").write_bytes(make_tar(members))
    with at("tarshow -i large.tar", folder, {"TERM": term}, size) as terminal:
        page = terminal.read("? help")
        assert terminal.end("q")[0] == 0
    shown = page.partition(b"\x1b[2J")[2].decode()
    shown = re.sub(r"\x1b_[^\x1b]*\x1b\\|\x1bP[^\x1b]*\x1b\\|\x1b[78]|\x1b\[\d+[AC]|\x1b\[[\d;]*m", "", shown)
    text, _, foot = shown.partition(f"\x1b[{size[1]};1H")
    lines = text.split("\r\n")
    assert foot.startswith(" 1 of 1  ") and " more below  ? help" in foot
    assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]


def test_it_needs_terminals(run: Run, folder: Path) -> None:
    assert run("tarshow", "-i", "a.tar") == (2, b"", "tarshow: -i needs a terminal on stdout\n")
    with at("tarshow -i a.tar", folder, {"TERM": "dumb"}) as terminal:
        assert terminal.end() == (2, b"tarshow: -i needs a terminal that it can clear (TERM is dumb)\r\n")
    said = "tarshow: -i needs a terminal to read keys from\n"
    assert on_terminal([BIN / "tarshow", "-i", "a.tar"], folder) == (2, b"", said)


class Keys:
    """A keyboard on which *keys* are pressed, and the pages that it was shown."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.pages: list[str] = []
        self._keys = iter(keys)

    def write(self, data: bytes, /) -> None:
        self.pages.append(data.decode())

    def read_key(self) -> str:
        return next(self._keys)

    def has_key(self) -> bool:
        return False


def browsed(samples: Iterable[Sample], keys: Iterable[str], screen: Screen | None = None) -> tuple[Keys, Account]:
    keyboard, account = Keys(keys), Account()
    pager.Pager(samples, keyboard, lambda: screen or Screen(), account, None).run()
    return keyboard, account


def numbered(count: int) -> Iterator[Sample]:
    return (build({"__key__": f"k{n}", "cls": n}) for n in range(count))


def test_samples_that_can_be_gone_back_to_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager, "MAX_SAMPLES_KEPT", 100)
    keyboard, account = browsed(numbered(500), [*"n" * 150, *"p" * 120, "home", "1", "enter", "q"])
    assert account.samples_out == 151
    assert " 151  k150 " in keyboard.pages[150] and " 52 of 151+  k51 " in keyboard.pages[-1]
    assert all("this is the first that is kept" in keyboard.pages[n] for n in (-1, -4))


@pytest.mark.parametrize(
    ("keys", "place", "note", "read"),
    [
        (["end"], "40 of 40  k39", "? help", 40),
        (["G", "n"], "40 of 40  k39", "this is the last", 40),
        (["end", "home"], "1 of 40  k0", "? help", 40),
        ([*"12", "enter"], "12  k11", "? help", 12),
        ([*"129", "backspace", "enter"], "12  k11", "? help", 12),
        ([*"12", "enter", *"3", "enter"], "3 of 12+  k2", "? help", 12),
        ([*"99", "enter"], "40 of 40  k39", "this is the last", 40),
        ([*"9" * 5000, "enter"], "40 of 40  k39", "this is the last", 40),
        (["0", "enter"], "1  k0", "this is the first", 1),
        ([*"12", "escape"], "1  k0", "? help", 1),
        ([*"1x", "enter"], "1  k0", "that is not a number", 1),
        (["/", *"K2", "enter"], "3  k2", "? help", 3),
        (["/", *"k2", "enter", "/", "enter"], "21  k20", "? help", 21),
        (["/", *"k2", "enter", "/", "escape"], "3  k2", "? help", 3),
        (["end", "/", *"k2", "enter"], "3 of 40  k2", "from the first again", 40),
        (["n", "/", *"kx", "enter"], "2 of 40  k1", "no sample has kx", 40),
        (["/", *"\xc3\xa4\x1b", "enter"], "1 of 40  k0", "no sample has ä\\x1b", 40),
        (["/", *"\xc3\xa4", "backspace", *"k1", "left", "enter"], "2  k1", "? help", 2),
        (["/", *"k2", "escape"], "1  k0", "? help", 1),
        (["/", "enter"], "1  k0", "? help", 1),
        (["/", "a", "backspace", "backspace"], "1  k0", "? help", 1),
        (["/", "again", *"k1", "enter"], "2  k1", "? help", 2),
        (["/", *"cls==3", "enter"], "4  k3", "? help", 4),
        (["/", *"CLS=7", "enter", "/", "enter"], "18  k17", "? help", 18),
        (["/", *"cls=1 k2", "enter"], "22  k21", "? help", 22),
        (["/", *"cls==40", "enter"], "1 of 40  k0", "no sample has cls==40", 40),
        (["/", *"txt=1", "enter"], "1 of 40  k0", "no sample has txt=1", 40),
    ],
)
def test_samples_are_gone_to_and_searched(keys: list[str], place: str, note: str, read: int) -> None:
    keyboard, account = browsed(numbered(40), [*keys, "q"])
    foot = keyboard.pages[-1].rpartition("\x1b[24;1H")[2]
    assert foot.startswith(f" {place} ") and foot.endswith(f" {note} ") and len(foot) == 80
    assert account.samples_out == read


def test_all_texts_are_searched_and_nothing_else() -> None:
    import gzip

    samples = [
        {"jpg": b"an oak", "npy": b"an oak"},
        {"txt": "x" * (2 << 20) + "an oak"},
        {"txt.gz": b"an oak"},
        {"json.gz": gzip.compress(b'{"caption": "An OAK\\nin autumn"}')},
        {"txt": "sea lion\n", "cls": 1},
        {"bin": b"\xff\xfean oak"},
    ]
    stored = [build({"__key__": str(n), **fields}) for n, fields in enumerate(samples)]
    for query, found in (
        ("an oak", [3, 5]),
        ('"an oak"', [3, 5]),
        ('"oak an"', []),
        ("json.gz=oak", [3]),
        ('"txt==Sea Lion"', [4]),
        ("txt==sea", []),
        ("txt=sea cls==1", [4]),
        ("4 lion", [4]),
    ):
        assert [n for n, sample in enumerate(stored) if has_words(sample, search_words(query))] == found, query


def test_the_way_to_the_end_is_told_and_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager, "SAMPLES_PER_STATUS", 10)
    keyboard, account = browsed(numbered(40), ["end", "q"])
    for read, page in zip((11, 21, 31), keyboard.pages[1:4], strict=True):
        assert f" {read} samples read; any key stops " in page
    assert "40 of 40" in keyboard.pages[-1] and account.samples_out == 40
    monkeypatch.setattr(Keys, "has_key", lambda _keys: True)
    for keys, place, read in ((["end"], "11  k10", 11), (["/", "x", "enter"], "1 of 10+  k0", 10)):
        keyboard, account = browsed(numbered(40), [*keys, "q"])
        assert f" {place} " in keyboard.pages[-1] and account.samples_out == read


def test_the_end_of_a_stream_holds_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager, "MAX_SAMPLES_KEPT", 100)
    keyboard, _ = browsed(numbered(1000), ["end", "home", "/", *"k1", "enter", "q"])
    assert " 1,000 of 1,000  k999 " in keyboard.pages[1] and " 901 of 1,000  k900 " in keyboard.pages[2]
    assert " 901 of 1,000  k900 " in keyboard.pages[-1] and "no sample has k1 " in keyboard.pages[-1]


def test_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["g", "down", "right", "page down", "up", "left", "page up", "enter", "g", "g", "q"]
    keyboard, account = browsed(numbered(40), keys)
    chosen = [re.findall(r"> (k\d+) ", page) for page in keyboard.pages]
    assert chosen == [[], ["k0"], ["k3"], ["k4"], ["k10"], ["k7"], ["k6"], ["k0"], [], ["k0"], []]
    assert re.findall(r"k\d+", keyboard.pages[4].partition("\x1b[24;1H")[0]) == [f"k{n}" for n in range(6, 12)]
    assert "  cls  1 B  number: 0" in keyboard.pages[1] and account.samples_out == 12
    monkeypatch.setattr(pager, "MAX_SAMPLES_KEPT", 4)
    keyboard, _ = browsed(numbered(40), ["g", "end", "home", "q"])
    pages = [re.findall(r"k\d+", page.partition("\x1b[24;1H")[0]) for page in keyboard.pages]
    assert pages == [["k0"], ["k2", "k3", "k4", "k5"], ["k36", "k37", "k38", "k39"], ["k36", "k37", "k38", "k39"]]
    assert "> k2 " in keyboard.pages[1] and "> k39\n" in keyboard.pages[2] and "> k36 " in keyboard.pages[3]


@by_turns("protocol")
@pytest.mark.parametrize("size", [(80, 24), (50, 24), (20, 8), (200, 50)])
@pytest.mark.parametrize("protocol", ["none", "blocks"])
def test_a_grid_fits(size: tuple[int, int], protocol: str) -> None:
    tall, wide = Image.new("RGB", (100, 900)), Image.new("RGB", (900, 100))
    keys = [f"a/long/path/日本語/of/directories/{n}" for n in range(60)]
    payloads = (bomb(), tall, wide)  # the first one is too large, which takes a message of several lines
    samples = [build({"__key__": key, "png": payloads[n % 3]}) for n, key in enumerate(keys)]
    keyboard, _ = browsed(samples, ["g", "q"], Screen(protocol, columns=size[0], rows=size[1]))
    page = keyboard.pages[1].partition("\x1b[2J")[2].partition(f"\x1b[{size[1]};1H")[0]
    lines = Drawn(page.encode()).lines
    assert page.count("\n") < size[1]
    assert max(map(line_columns, lines)) <= size[0]
    shown = [number for line in lines for number in re.findall(r"/(\d+)", line)]
    assert shown[0] == "0" and shown == [str(n) for n in range(len(shown))]
    assert len(shown) == max(1, (size[0] + 2) // 22) * max(1, (size[1] - 1) // 10)


@pytest.mark.parametrize(
    ("line", "shown", "more"),
    [
        ("tarshow words.tar", 15, "tarshow: 25 more samples: see them with -c N, -i or --html FILE\r\n"),
        ("tarshow < words.tar", 15, "tarshow: there are more samples: see them with -c N, -i or --html FILE\r\n"),
        ("cat words.tar | tarshow", 15, "tarshow: there are more samples: see them with -c N, -i or --html FILE\r\n"),
        ("tarshow cut.tar", 15, "tarshow: there are more samples: see them with -c N, -i or --html FILE\r\n"),
        ("tarshow large.tar", 15, "tarshow: there are more samples: see them with -c N, -i or --html FILE\r\n"),
        ("tarshow -f cls words.tar", 15, "tarshow: 25 more samples: see them with -c N, -i or --html FILE\r\n"),
        ("tarshow -q words.tar", 15, ""),
        ("tarshow -v words.tar", 15, "tarshow: 25 more samples: see them with -c N, -i or --html FILE\r\n"),
        ("tarshow few.tar", 15, ""),
        ("tarshow words.tar | cat", 40, ""),
        ("tarshow -c 40 words.tar", 40, ""),
        ("tarshow --random 40 words.tar", 40, ""),
        ("tarshow long.tar", 1, "tarshow: 1 more sample: see them with -c N, -i or --html FILE\r\n"),
    ],
)
def test_a_terminal_gets_two_screens(line: str, shown: int, more: str, folder: Path) -> None:
    (folder / "few.tar").write_bytes(make_tar([(f"w{n}.cls", b"%d" % n) for n in range(15)]))
    words = (folder / "words.tar").read_bytes()
    (folder / "cut.tar").write_bytes(words[: 30 * 1024 + 512])
    if "large" in line:  # too long to be counted
        (folder / "large.tar").write_bytes(words[: 40 * 1024] + make_tar([("z.bin", bytes(65 << 20))]))
    (folder / "long.tar").write_bytes(make_tar([(f"w{k}.{n}", b"a\nb\nc") for k in "ab" for n in range(20)]))
    with at(line, folder, {"TARTOOLS_PICTURES": "none"}) as terminal:
        status, output = terminal.end()
    text = re.sub(r"\x1b\[\d*m", "", output.decode())
    assert status == 0 and len(re.findall(r"^w\w+\r$", text, re.MULTILINE)) == shown
    assert more in text and ("more" in text) == bool(more)
    if "-v" in line:
        assert re.search(r"tarshow: (\d+) samples in, 15 out, (\d+) left out", text)


def test_two_screens_are_counted_with_pictures_and_wrapped_lines(folder: Path) -> None:
    (folder / "wide.tar").write_bytes(make_tar([(f"w{n}.txt", b"x" * 99) for n in range(40)]))
    with at("tarshow wide.tar", folder, {"TARTOOLS_PICTURES": "none"}, (50, 24)) as terminal:
        assert b"31 more samples" in terminal.end()[1]  # of 5 lines each
    with at("tarshow a.tar", folder) as terminal:
        status, output = terminal.end()
    drawn = Drawn(output.partition(b"tarshow: ")[0])
    assert status == 0 and b"tarshow: 8 more samples: " in output and len(drawn.lines) <= 46


def test_memory_that_can_be_gone_back_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager, "MAX_KEPT_MEMORY", 100_000)
    samples = (build({"__key__": f"k{n}", "bin": bytes(30_000)}) for n in range(50))
    keyboard, _ = browsed(samples, [*"n" * 20, "home", "q"])
    assert " 19 of 21+  k18 " in keyboard.pages[-1]


def test_no_samples_are_no_pages(folder: Path) -> None:
    (folder / "empty.tar").write_bytes(make_tar([]))
    with at("tarshow -i empty.tar; tarshow -i -c 0 a.tar; echo ended $?", folder) as terminal:
        output = terminal.read("ended 0")
        assert b"help" not in output and output.count(LEAVE) == 2 and terminal.echoes()


def test_fields_are_chosen_for_the_pager_too(folder: Path) -> None:
    (folder / "s.tar").write_bytes(make_tar(make_samples(30)))
    with at("cat s.tar | tarshow -i -f cls", folder) as terminal:
        terminal.read("? help")
        assert b"000000" in terminal.press("nn<", " 1 of 3+  000000")
        assert terminal.end("q")[0] == 0
