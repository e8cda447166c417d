"""Pictures of tarshow: what a person sees of them, by every protocol, and where nothing is drawn."""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
import time
import zlib
from pathlib import Path

import PIL
import pytest
from PIL import Image, ImageChops, ImageDraw, ImageStat

from tartools.samples import decoding
from tartools.show import graphics, terminal
from tests.archives import encoded, npy
from tests.conftest import Run, clean_environment, make_tar
from tests.media import make_video
from tests.show.screen import Screen, sixels

PROTOCOLS = ("kitty", "iterm", "sixel", "blocks")
SIZE = {"COLUMNS": "100", "LINES": "40", "COLORTERM": "truecolor"}


def painting(width: int = 320, height: int = 240) -> Image.Image:
    """Return a gradient of colours with shapes on it, no two quarters alike."""
    across = Image.linear_gradient("L").rotate(90).resize((width, height))
    down = Image.linear_gradient("L").resize((width, height))
    picture = Image.merge("RGB", (across, down, ImageChops.invert(across)))
    pen = ImageDraw.Draw(picture)
    pen.ellipse((width // 8, height // 8, width // 3, height // 2), fill=(250, 240, 20))
    pen.rectangle((width * 5 // 8, height // 2, width * 7 // 8, height * 7 // 8), fill=(10, 30, 90))
    pen.polygon(((width // 2, 0), (width * 3 // 4, height // 4), (width // 2, height // 3)), fill=(255, 255, 255))
    return picture


def difference(one: Image.Image, other: Image.Image) -> float:
    """Return by how much the pixels of two pictures differ on average, of 255; *other* in the size of *one*."""
    small = other.convert("RGB").resize(one.size, Image.Resampling.BOX)
    return sum(ImageStat.Stat(ImageChops.difference(one.convert("RGB"), small)).mean) / 3


def shown(run: Run, protocol: str, archive: bytes, *arguments: str, **environment: str) -> Screen:
    done = run("tarshow", "--graphics", protocol, *arguments, stdin=archive, env=SIZE | environment)
    assert done.status == 0
    assert re.fullmatch(r"(tarshow: (broken|without \w+): [^\n]*\n)*", done.stderr)
    return Screen(done.stdout)


@pytest.mark.parametrize(
    ("protocol", "colours", "most"),
    [("kitty", "", 1.5), ("iterm", "", 1.5), ("sixel", "", 6), ("blocks", "truecolor", 2), ("blocks", "", 25)],
)
def test_a_picture_looks_as_it_is(run: Run, protocol: str, colours: str, most: float) -> None:
    whole = painting()
    screen = shown(run, protocol, make_tar([("a.png", encoded(whole))]), COLORTERM=colours)
    (drawn,) = screen.drawn or [screen.blocks()]
    assert (drawn.row, drawn.column) == (1, 0)
    assert (drawn.columns, drawn.rows) in ((49, 18), (48, 18))  # sixels keep the proportion, and end within a cell
    assert difference(drawn.picture, whole) < most
    for other in (whole.transpose(Image.Transpose.ROTATE_180), whole.convert("L")):
        assert difference(drawn.picture, other) > max(20, 1.5 * most)
    assert abs(drawn.picture.width / drawn.picture.height - 4 / 3) < 0.04
    assert screen.lines[0] == "a" and re.fullmatch(r"  png  [\d,]+ B  PNG 320x240 RGB", screen.lines[19])
    assert not any(screen.lines[1:19])


def test_a_photograph_is_no_larger_than_its_place(run: Run) -> None:
    whole = painting(4000, 3000)
    screen = shown(run, "kitty", make_tar([("a.jpg", encoded(whole, "JPEG", quality=95))]))
    assert screen.drawn[0].picture.size == (490, 368)
    assert difference(screen.drawn[0].picture, whole) < 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_pictures_stand_side_by_side(run: Run, protocol: str) -> None:
    one, other, small = painting(), painting().convert("L"), painting(28, 28)
    archive = make_tar(
        [
            *(("a.jpg", encoded(one, "JPEG")), ("a.cls", b"5"), ("a.seg.png", encoded(other))),
            *(
                ("b.png", encoded(small)),
                ("c.png", encoded(small)),
                ("d.txt", b"no picture"),
                ("e.png", encoded(small)),
            ),
        ]
    )
    screen = shown(run, protocol, archive)
    if protocol != "blocks":
        places = [(drawn.row, drawn.column) for drawn in screen.drawn]
        assert places == [(1, 0), (1, 51), (23, 0), (23, 30), (43, 0)]
        assert all(drawn.column + drawn.columns <= 100 for drawn in screen.drawn)
    lines = screen.lines
    assert lines[0] == "a" and re.fullmatch(
        r"  jpg  [\d,]+ B  JPEG 320x240 RGB +seg.png  [\d,]+ B  PNG 320x240 L", lines[19]
    )
    assert lines[20:23] == ["  cls  1 B  number: 5", "", "b" + " " * 29 + "c"]
    assert len(re.findall(r"png  [\d,]+ B  PNG 28x28 RGB", lines[37])) == 2
    assert lines[38:43] == ["", "d", "  txt  10 B  text: no picture", "", "e"]
    seen = screen.image()
    left, right = seen.crop((0, 20, 480, 380)), seen.crop((510, 20, 990, 380))
    assert difference(left, one) < 8 and difference(right, other) < 8
    assert difference(seen.crop((0, 460, 280, 740)), small) < 10  # enlarged


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_video_is_drawn_as_its_first_frame(run: Run, protocol: str) -> None:
    members = [
        ("a.mp4", make_video(25, codec="libx264", first_grey=150)),
        ("a.cls", b"1"),
        ("b.png", encoded(painting())),
    ]
    screen = shown(run, protocol, make_tar([*members, ("c.mp4", b"\0\0\0\x20ftypisom" + bytes(9))]), COLUMNS="200")
    assert screen.lines[0].split() == ["a", "b"]
    label = next(line for line in screen.lines if "  mp4  " in line)
    assert re.match(r"  mp4  [\d,]+ B  video, MP4, 1\.00 s, 64x48, 25 frames/s, h264 ", label)
    assert screen.lines[-1] == "  mp4  21 B  video, MP4, that cannot be read: Invalid data found when processing input"
    first = screen.image().crop((0, 20, 400, 300)).convert("L")
    low, high = first.getextrema()
    assert 145 <= low <= high <= 155
    assert len(screen.drawn) == (0 if protocol == "blocks" else 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_captions_are_level(run: Run, protocol: str) -> None:
    wide, tall = encoded(painting(320, 80)), encoded(painting(80, 320))
    members = [("a.x.png", wide), ("a.y.png", tall), ("a.z.png", tall[:200]), ("a.cls", b"1"), ("b.png", wide)]
    screen = shown(run, protocol, make_tar([*members, ("b.cls", b"2"), ("c.txt", b"words")]), COLUMNS="200")
    (captions,) = (line for line in screen.lines if "PNG 320x80 RGB" in line)
    row = screen.lines.index(captions)
    assert row == 33 and captions.count("PNG 320x80 RGB") == 2 and captions.count("PNG 80x320 RGB") == 1
    assert re.search(r"z.png  200 B( |$)", captions)
    assert re.fullmatch(r"  cls  1 B  number: 1 +cls  1 B  number: 2", screen.lines[row + 1])
    assert screen.lines[row + 2 : row + 4] == ["", "c"]
    assert {drawn.row for drawn in screen.drawn} <= {1}


@pytest.mark.parametrize("size", [(1, 1), (2, 7), (5, 5), (6, 12), (61, 47), (256, 13)])
@pytest.mark.parametrize("kind", ["noise", "stripes", "one colour"])
def test_sixels_are_the_pixels(size: tuple[int, int], kind: str) -> None:
    noise = random.Random(0).randbytes(size[0] * size[1])
    greys = [51 * (value % 6 if kind == "noise" else n % size[0] // 7 % 2) for n, value in enumerate(noise)]
    picture = Image.frombytes("L", size, bytes([51] * len(greys) if kind == "one colour" else greys)).convert("RGB")
    code = graphics.encode_sixel(picture, *size)
    assert code.startswith("\x1bP") and code.endswith("\x1b\\")
    drawn = sixels(code[2:-2])
    assert (drawn.size, drawn.tobytes()) == (size, picture.tobytes())
    assert not re.search(r"([?-~])\1{3}", code)  # repeated ones are counted


def test_pictures_that_do_not_fit_begin_a_new_band(run: Run) -> None:
    whole = encoded(painting())
    screen = shown(run, "kitty", make_tar([*((f"a.{n}.png", whole) for n in range(3)), ("a.txt", b"words")]))
    assert [(drawn.row, drawn.column) for drawn in screen.drawn] == [(1, 0), (1, 51), (20, 0)]
    assert screen.lines[-2:] == ["  txt  5 B  text: words", ""] or screen.lines[-1] == "  txt  5 B  text: words"


def test_a_thousand_lines_take_no_longer_than_they_are_many(run: Run) -> None:
    """Each is measured as often as it has places to stand: with the square of that, this would take minutes."""
    archive = make_tar([(f"a.{n:04d}", b"line\n" * 12) for n in range(1500)])
    assert run("tarshow", "--graphics", "blocks", stdin=archive, timeout=60).output().count(b"line\n") == 12 * 1500


def test_a_narrow_terminal(run: Run) -> None:
    screen = shown(run, "kitty", make_tar([("a.png", encoded(painting()))] * 2), COLUMNS="30", LINES="10")
    assert [(drawn.columns, drawn.rows) for drawn in screen.drawn] == [(13, 5)] * 2


def deep(mode: str) -> bytes:
    """Return a gradient from 1000 to 5000 of *mode*, as TIFF or PNG."""
    values = [1000 + 4000 * x // 199 for _ in range(100) for x in range(200)]
    if mode == "I;16":
        return encoded(Image.frombytes("I;16", (200, 100), struct.pack(f"<{len(values)}H", *values)))
    picture = Image.new(mode, (200, 100))
    picture.putdata(values)
    return encoded(picture, "TIFF")


def turned(orientation: int) -> bytes:
    """Return the painting as a camera stores it that was held so: EXIF 2.32, 4.6.4, tag 0x0112."""
    stored = {
        1: None,
        3: Image.Transpose.ROTATE_180,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    picture = painting() if stored is None else painting().transpose(stored)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(picture, "JPEG", quality=95, exif=exif)


def on_grey(picture: Image.Image) -> Image.Image:
    ground = Image.new("RGBA", picture.size, (*decoding.BACKGROUND_GREY, 255))
    return Image.alpha_composite(ground, picture.convert("RGBA")).convert("RGB")


def with_alpha() -> Image.Image:
    picture = painting().convert("RGBA")
    picture.putalpha(Image.radial_gradient("L").resize(picture.size))
    return picture


def test_every_kind_of_picture(run: Run) -> None:
    whole = painting()
    few = whole.quantize(32)
    grey = Image.linear_gradient("L").rotate(90).resize((200, 100))
    holes = few.copy()
    holes.info["transparency"] = 3
    kinds: dict[str, tuple[bytes, Image.Image]] = {
        "rgb.png": (encoded(whole), whole),
        "rgb.jpg": (encoded(whole, "JPEG", quality=95), whole),
        "rgb.webp": (encoded(whole, "WEBP", lossless=True), whole),
        "rgb.bmp": (encoded(whole, "BMP"), whole),
        "rgb.ppm": (encoded(whole, "PPM"), whole),
        "rgb.tif": (encoded(whole, "TIFF"), whole),
        "l.png": (encoded(whole.convert("L")), whole.convert("L")),
        "1.png": (encoded(whole.convert("1")), whole.convert("1")),
        "p.png": (encoded(few), few),
        "p_holes.png": (encoded(holes, transparency=3), on_grey(holes)),
        "la.png": (encoded(with_alpha().convert("LA")), on_grey(with_alpha().convert("LA"))),
        "rgba.png": (encoded(with_alpha()), on_grey(with_alpha())),
        "cmyk.jpg": (encoded(whole.convert("CMYK"), "JPEG", quality=95), whole),
        "cmyk.tif": (encoded(whole.convert("CMYK"), "TIFF"), whole),
        **({"ycbcr.tif": (encoded(whole.convert("YCbCr"), "TIFF"), whole)} if PIL.__version__ >= "13" else {}),
        "deep.png": (deep("I;16"), grey),
        "int.tif": (deep("I"), grey),
        "float.tif": (deep("F"), grey),
        "moves.gif": (encoded(few, "GIF", save_all=True, append_images=[Image.new("P", few.size)] * 3), few),
        **{f"turned{n}.jpg": (turned(n), whole) for n in (1, 3, 6, 8)},
    }
    screen = shown(run, "kitty", make_tar([(f"a.{name}", payload) for name, (payload, _) in kinds.items()]))
    assert len(screen.drawn) == len(kinds)
    wrong: dict[str, object] = {}
    for drawn, (name, (_, expected)) in zip(screen.drawn, kinds.items(), strict=True):
        if abs(drawn.picture.width / drawn.picture.height - expected.width / expected.height) > 0.02:
            wrong[name] = drawn.picture.size
        if difference(drawn.picture, expected) > 3:
            wrong[name] = difference(drawn.picture, expected)
    assert wrong == {}


def bomb() -> bytes:
    """Return a PNG of 12,000 by 12,000 pixels, in some 20 KB."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 12_000, 12_000, 1, 0, 0, 0, 0)
    data = zlib.compress(bytes(1501 * 12_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_wrong_stands_where_the_picture_would(run: Run, protocol: str) -> None:
    whole = encoded(painting(), "JPEG")
    archive = make_tar(
        [
            *(("a.jpg", whole[: len(whole) // 2]), ("a.cls", b"1"), ("b.png", bomb()), ("c.jpg", b"no picture")),
            ("d.png", encoded(painting(28, 28))),
        ]
    )
    screen = shown(run, protocol, archive)
    text = "\n".join(screen.lines)
    assert text.startswith("a") and "│ truncated: the data " in text and "│ end before the" in text and "jpg  " in text
    assert "exceeds" in text and "144000000" in text and "  cls  1 B  number: 1" in text
    assert "  jpg  10 B  a broken picture: its first bytes do not match any picture format" in text
    assert len(screen.drawn) == (protocol != "blocks")  # the last one is fine
    assert re.search(r"^┌─+┐", text, re.MULTILINE)


def test_eps_is_not_given_to_a_program(run: Run) -> None:
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n"
    screen = shown(run, "kitty", make_tar([("a.jpg", eps)]))
    assert screen.drawn == [] and "a broken picture: its first bytes" in "\n".join(screen.lines)


def test_hostile_names_are_escaped(run: Run) -> None:
    archive = make_tar(
        [("a\x1b[2J.x\x1b]0;t\x07.png", encoded(painting())), ("b.\x9b31m.png", encoded(painting())[:60])]
    )
    screen = shown(run, "kitty", archive)  # which knows no such codes
    assert screen.lines[0].startswith("a\\x1b[2J") and "x\\x1b]0;t\\x07.png" in screen.lines[19]


def test_other_fields_are_as_without_pictures(run: Run) -> None:
    archive = make_tar([("a.npy", npy([[0, 0, 0]] * 2, "<f4")), ("a.txt", b"one\ntwo\n"), ("b.json", b'{"k": [1, 2]}')])
    plain = run("tarshow", stdin=archive).stdout.decode()
    assert "\n".join(shown(run, "blocks", archive).lines).rstrip() == plain.rstrip()


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "220401"}, "kitty"),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "210800"}, "blocks"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"TERM": "wezterm"}, "iterm"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "mintty"}, "iterm"),
        *(({"TERM": term}, "sixel") for term in ("foot", "foot-extra", "mlterm", "contour-latest", "yaft-256color")),
        ({"TERM": "tmux-256color", "KITTY_WINDOW_ID": "1"}, "blocks"),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux-0/default,1,0"}, "blocks"),
        ({"TERM": "screen.xterm-256color", "LC_TERMINAL": "iTerm2"}, "blocks"),
        ({"TERM": "xterm-256color"}, "blocks"),
        ({}, "blocks"),
    ],
)
def test_what_the_environment_tells(environment: dict[str, str], protocol: str) -> None:
    assert terminal.guess_protocol(environment) == protocol


@pytest.mark.parametrize(
    "environment", [{"TERM": "xterm-kitty", "COLORTERM": "truecolor"}, {"TARTOOLS_PICTURES": "kitty"}]
)
def test_what_is_piped_has_no_escape_code(run: Run, environment: dict[str, str]) -> None:
    archive = make_tar([("a.png", encoded(painting())), ("a.cls", b"1")])
    done = run("tarshow", stdin=archive, env=environment)
    assert done.status == 0 and b"\x1b" not in done.stdout and b"PNG 320x240 RGB" in done.stdout
    assert run("tarshow", "--graphics", "none", stdin=archive, env=environment) == done
    assert run("tarshow", "--graphics", "auto", stdin=archive, env=environment) == done


def test_wrong_wishes(run: Run) -> None:
    assert "blocks" in run("tarshow", "--graphics", "ascii", stdin=make_tar([("a.cls", b"1")])).failure(2, lines=1)


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
@pytest.mark.parametrize(("colours", "most"), [("truecolor", 4), ("", 25)])
def test_half_blocks_in_tmux(colours: str, most: float, tmp_path: Path) -> None:
    """A real terminal shows what was sent: nothing wraps, nothing is cut, nothing scrolls away."""
    (tmp_path / "a.tar").write_bytes(make_tar([("a.png", encoded(painting())), ("a.cls", b"1")]))
    (tmp_path / "run").write_text(
        f"export COLORTERM={colours}\nunset NO_COLOR TARTOOLS_PICTURES\ncd '{tmp_path}'\ntarshow a.tar\ncat\n"
    )
    server = ["tmux", "-S", "socket", "-f", "/dev/null"]
    environment = {k: v for k, v in clean_environment().items() if k not in ("TMUX", "COLUMNS", "LINES")}
    command = [*server, "new-session", "-d", "-x", "80", "-y", "30", f"bash '{tmp_path}/run'"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
    try:
        give_up = time.monotonic() + 60
        captured = b""
        while b"number: 1" not in captured:
            assert time.monotonic() < give_up, captured
            capture = [*server, "capture-pane", "-e", "-p"]
            captured = subprocess.run(capture, cwd=tmp_path, capture_output=True, check=True).stdout
    finally:
        subprocess.run([*server, "kill-server"], cwd=tmp_path, check=True, timeout=60)
    screen = Screen(re.sub(rb"\x0f|\x1b\(B", b"", captured))
    drawn = screen.blocks()
    assert screen.lines[0] == "a" and re.fullmatch(r"  png  [\d,]+ B  PNG 320x240 RGB", screen.lines[16])
    assert (drawn.row, drawn.column, drawn.columns, drawn.rows) == (1, 0, 39, 15)
    assert difference(drawn.picture, painting()) < most
