"""Make the pictures in docs/pictures: a contact sheet and a served page in a browser, and what tarstat prints.

    python docs/pictures.py

It needs Chromium and playwright. The data set is drawn here: shapes in colours, with two pictures that are cut off.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from PIL import Image, ImageDraw

import tartools

FOLDER = Path(__file__).parent / "pictures"
SAMPLES = 480
CLASSES = {"triangle": 3, "square": 4, "pentagon": 5, "hexagon": 6, "circle": 60}  # name: corners
COLOURS = {"red": "#d6453d", "green": "#3d9a5f", "blue": "#3f78c9", "amber": "#e3a02b", "violet": "#8a5cc2"}
GROUNDS = ("#f4efe6", "#dfe8ee", "#20262e", "#e9e4f0", "#31413a")
SIZES = ((480, 360), (480, 360), (360, 480), (640, 480))
CUT = (101, 333)  # numbers of the samples whose pictures are cut off
SCREEN = (1280, 800)  # pixels of the browser
COLUMNS, ROWS = 80, 60  # of the terminal


def draw(chance: random.Random, kind: str, colour: str) -> bytes:
    """Return a JPEG of a shape of this *kind* and *colour*, somewhere on a plain ground."""
    width, height = chance.choice(SIZES)
    picture = Image.new("RGB", (width, height), chance.choice(GROUNDS))
    radius = chance.uniform(0.2, 0.42) * min(width, height)
    place = (chance.uniform(radius, width - radius), chance.uniform(radius, height - radius))
    turned = 0.0 if CLASSES[kind] > 10 else chance.uniform(0, 360)
    ImageDraw.Draw(picture).regular_polygon((*place, radius), CLASSES[kind], turned, fill=COLOURS[colour])
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=chance.randrange(60, 96))
    return file.getvalue()


def make_data(url: str, samples: int = SAMPLES) -> None:
    """Write the data set to *url*: a picture, its class, and, except for one in 160, a description in JSON."""
    chance = random.Random(0)
    with tartools.TarWriter(url) as writer:
        for number in range(samples):
            (kind,) = chance.choices(tuple(CLASSES), weights=(9, 7, 5, 4, 3))
            colour = chance.choice(tuple(COLOURS))
            picture = draw(chance, kind, colour)
            sample: dict[str, object] = {
                "__key__": f"{number:06d}",
                "jpg": picture[: len(picture) // 2] if number in CUT else picture,
                "cls": kind,
            }
            if number % 160 != 7:
                sample["json"] = {"colour": colour, "caption": f"a {colour} {kind}"}
            writer.write(sample)


def photograph_page(address: str, picture: Path, ready: str = "body", keys: tuple[str, ...] = ()) -> None:
    """Write a picture of the page at *address*, as Chromium shows it, to the PNG file *picture*.

    *ready*: a selector of what has to be there; then *keys* are pressed.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": SCREEN[0], "height": SCREEN[1]})
        tab.goto(address)
        tab.wait_for_selector(ready)
        for key in keys:
            tab.keyboard.press(key)
        tab.wait_for_load_state("networkidle")
        tab.evaluate("Promise.all([...document.images].map(image => image.decode().catch(() => {})))")
        tab.wait_for_timeout(500)  # milliseconds: pictures fade in
        shot = tab.screenshot()
        browser.close()
    with Image.open(io.BytesIO(shot)) as opened:
        opened.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)


def photograph_served(command: list[str], folder: str, picture: Path) -> None:
    """Write a picture of the page that *command*, run in *folder*, serves: of five marked samples."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        photograph_page(address, picture, ".facets .card", ("x", *("ArrowRight",) * 4, "X"))
        server.send_signal(signal.SIGINT)


def printed_on_terminal(command: list[str], folder: str) -> str:
    """Return what *command*, which runs in *folder*, prints on a terminal, with its escape codes."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=theirs):
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 1 << 16):
                parts.append(part)
        except OSError:  # so Linux says that the other end is closed
            pass
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


def draw_terminal(words: str, title: str, picture: Path) -> None:
    """Write *words*, with escape codes, to the SVG file *picture*, as a terminal with this *title* shows them."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO(), legacy_windows=False)
    console.print(Text.from_ansi(words.rstrip("\n")))
    drawn = console.export_svg(title=title, unique_id="tarstat")
    picture.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))  # fonts from elsewhere


def main() -> None:
    """Make the pictures."""
    commands = Path(sys.executable).parent
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        make_data(f"{folder}/shapes.tar")
        subprocess.run([commands / "tarshow", "--html", "shapes.html", "shapes.tar"], cwd=folder, check=True)
        photograph_page(Path(folder, "shapes.html").as_uri(), FOLDER / "tarshow-html.png")
        serve = [str(commands / "tarshow"), "-q", "--serve", "--decode", "shapes.tar"]
        photograph_served(serve, folder, FOLDER / "tarshow-serve.png")
        words = printed_on_terminal([str(commands / "tarstat"), "--decode", "shapes.tar"], folder)
        draw_terminal(words, "tarstat --decode shapes.tar", FOLDER / "tarstat.svg")


if __name__ == "__main__":
    main()
