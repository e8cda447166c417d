"""tarshow --html, through the installed command, and the page in Debian's Chromium."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import struct
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tartools import storage
from tartools.samples.account import Account
from tartools.shards.reading import read_samples
from tartools.show.html.page import Choice, write_page
from tests.archives import encoded, photograph
from tests.conftest import Run, make_tar, start
from tests.media import make_video
from tests.show.browser import DESKTOP, NARROW, PHONE, chromium
from tests.tiers import by_turns

__all__ = ["chromium"]

HOSTILE = "<script>alert(1)</script>.jpg"
NAMES = ("cat", "dog", "sea lion")


def plain_picture(colour: tuple[int, int, int], size: tuple[int, int] = (120, 80)) -> bytes:
    return encoded(Image.new("RGB", size, colour), "PNG")


def sound(seconds: float = 1.0) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(int(8000 * seconds)) / 3).astype("float32"), 8000, format="WAV")
    return file.getvalue()


def mixed() -> bytes:
    """Return 24 samples: a picture of one colour each, of three classes in turn; a sound; two that are broken."""
    members = []
    for n in range(24):
        key = f"train/n{n % 2}/{n:04d}"
        members.append((f"{key}.png", plain_picture((10 * n, 255 - 10 * n, 128))))
        members.append((f"{key}.cls", NAMES[n % 3].encode()))
        members.append((f"{key}.json", json.dumps({"number": n, "words": "a <b> & 'c'"}).encode()))
    members.append(("u/sound.wav", sound()))
    members.append(("u/cut.jpg", encoded(photograph(1, 500, 375), "JPEG", quality=90)[:5000]))
    members.append((HOSTILE, plain_picture((1, 2, 3))))
    members.append(("u/\"onfocus='alert(2)'.txt", b"</script><script>alert(3)</script>\n<img src=x onerror=alert(4)>"))
    return make_tar(members)


class Reader(HTMLParser):
    """What elements and attributes there are, and the text of the inline style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        if self.lasttag in ("style", "script") and data.strip() and self.lasttag not in self.inline:
            self.inline[self.lasttag] = data


def made(run: Run, tmp_path: Path, archive: bytes, *options: object) -> str:
    assert run("tarshow", "-q", "--html", "page.html", "--force", *options, stdin=archive) == (0, b"", "")
    return (tmp_path / "page.html").read_text()


def keys_of(page: str) -> list[str]:
    return [re.sub("<.*?>", "", key) for key in re.findall(r'<span class="key">(.*?)</span></button>', page)]


def test_the_page_is_one_file_under_a_strict_policy(run: Run, tmp_path: Path) -> None:
    reader = Reader(made(run, tmp_path, mixed()))
    policy = next(a["content"] for _, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy") or ""
    sums = {
        f"{tag}-src": f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for tag, text in reader.inline.items()
    }
    assert dict(directive.split(" ", 1) for directive in policy.split("; ")) == {
        "default-src": "'none'",
        "img-src": "data:",
        "media-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        **sums,
    }
    assert len(sums) == 2
    tags = [tag for tag, _ in reader.elements]
    assert (tags.count("script"), tags.count("style"), tags.count("iframe"), tags.count("object")) == (1, 1, 0, 0)
    for tag, attributes in reader.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:"), tag


def test_two_hundred_photographs_are_at_most_five_megabytes(run: Run, tmp_path: Path) -> None:
    photographs = [encoded(photograph(seed, 500, 375), "JPEG", quality=90) for seed in range(8)]
    assert 40_000 < sum(map(len, photographs)) / 8 < 120_000  # as photographs of that size are
    made(run, tmp_path, make_tar([(f"{n:04d}.jpg", photographs[n % 8]) for n in range(200)]))
    assert (tmp_path / "page.html").stat().st_size < 5_000_000


def said(run: Run, archive: bytes, *options: object) -> str:
    """Return what stderr says about a page."""
    done = run("tarshow", "--html", "page.html", "--force", *options, stdin=archive)
    assert done[:2] == (0, b"")
    return done.stderr


def labels(page: str) -> dict[str, int]:
    """Return what the summary of *page* counts."""
    rows = re.findall(r'<span class="name">([^<]*)</span><svg.*?<span class="number">([0-9,]+)', page)
    return {name: int(count.replace(",", "")) for name, count in rows}


def test_which_samples(run: Run, tmp_path: Path) -> None:
    archive = make_tar([(f"{n:04d}.cls", b"%d" % (n % 7)) for n in range(1000)])
    numbers = [f"{n:04d}" for n in range(1000)]
    default = keys_of(made(run, tmp_path, archive))
    assert len(default) == 200 and sorted(set(default)) == default and default != numbers[:200]
    assert keys_of(made(run, tmp_path, archive, "--random", 200)) == default
    assert keys_of(made(run, tmp_path, archive, "--seed", 1)) != default
    assert keys_of(made(run, tmp_path, archive, "-c", 100, "--random", 20))[-1] < "0100"
    assert keys_of(made(run, tmp_path, archive, "-c", 3)) == numbers[:3]
    page = made(run, tmp_path, archive, "--random", 100)
    drawn = keys_of(page)
    assert len(drawn) == 100 and sorted(set(drawn)) == drawn
    assert [sum(key[1] == str(digit) for key in drawn) > 2 for digit in range(10)] == [True] * 10
    assert made(run, tmp_path, archive, "--random", 100) == page
    assert keys_of(made(run, tmp_path, archive, "--random", 100, "--seed", 1)) != drawn
    assert keys_of(made(run, tmp_path, archive, "--random", 20, "-c", 20)) == numbers[:20]
    assert "No sample on this page matches" in made(run, tmp_path, archive, "-c", 0)
    (tmp_path / "a.tar").write_bytes(archive)
    counted = run("tarshow", "-v", "--html", "new.html", "--random", 100, "a.tar")
    assert counted.status == 0 and "\ntarshow: 1000 samples in, 100 out, 900 left out, " in counted.stderr
    assert keys_of((tmp_path / "new.html").read_text()) == drawn
    shown = run("tarshow", "--random", 100, stdin=archive).stdout.decode()
    assert re.findall(r"^\d+$", shown, re.MULTILINE) == drawn


def test_sounds_have_an_end(run: Run, tmp_path: Path) -> None:
    long, short = sound(200), sound(0.5)
    page = made(run, tmp_path, make_tar([("a.wav", long), ("b.wav", short), ("c.mp3", b"ID3" + bytes(9))]))
    players = [attributes["src"] or "" for tag, attributes in Reader(page).elements if tag == "audio"]
    assert [player.partition(",")[0] for player in players] == ["data:audio/wav;base64", "data:audio/mpeg;base64"]
    assert base64.b64decode(players[0].partition(",")[2]) == short
    assert page.count('class="wave"') == 2 and page.count("too large to be played here") == 1
    longer = sound(100)
    many = Reader(made(run, tmp_path, make_tar([(f"{n:02d}.wav", longer) for n in range(20)])))
    assert [tag for tag, _ in many.elements].count("audio") == (24 << 20) // len(longer)


def test_only_sounds_are_counted_as_sounds(run: Run, tmp_path: Path) -> None:
    beep = sound(0.1)
    samples = [
        (f"{n:02d}.{field}", data) for n in range(60) for field, data in (("bin", bytes(500_000)), ("wav", beep))
    ]
    page = Reader(made(run, tmp_path, make_tar([*samples, ("99.bin", bytes(3 << 20)), ("99.wav", sound(0.1))])))
    assert [tag for tag, _ in page.elements].count("audio") == 61


def test_page_and_stderr_say_what_is_shown(run: Run, tmp_path: Path) -> None:
    archive = make_tar([(f"{n:04d}.cls", b"1") for n in range(300)])
    others = " (use --random N or -c N to choose differently)\n"
    for options, words in (
        ((), "200 of 300 samples, at random"),
        (("--random", 10), "10 of 300 samples, at random"),
        (("-c", 299), "the first 299 of a larger input"),
        (("-c", 299, "--random", 5), "5 of the first 299 of a larger input, at random"),
        (("-c", 0), "the first 0 of a larger input"),
    ):
        assert said(run, archive, *options) == f"tarshow: page.html: {words}{others}"
        assert f'<p class="totals">{words} · ' in (tmp_path / "page.html").read_text()
    for options in (("-c", 300), ("-c", 301), ("--random", 300)):
        assert said(run, archive, *options) == ""
        assert '<p class="totals">300 samples · ' in (tmp_path / "page.html").read_text()


def test_nothing_behind_the_first_samples_is_checked_or_counted(run: Run, tmp_path: Path) -> None:
    archive = make_tar([(f"{n:04d}.cls", b"1") for n in range(300)])
    for rest in (b"no header" * 100, archive[20 * 1024 : 20 * 1024 + 700]):
        done = run("tarshow", "-v", "--html", "page.html", "--force", "-c", 10, stdin=archive[: 20 * 512] + rest)
        assert done.status == (1 if rest.startswith(b"no") else 0)
    assert "the first 10 of a larger input" in done.stderr
    assert "tarshow: 10 samples in, 10 out, " in done.stderr


def test_progress_knows_how_many_samples_are_drawn(tmp_path: Path) -> None:
    """What the bar shows from the second second on, at the end of a page."""
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{n:04d}.cls", b"1") for n in range(300)]))
    for first, drawn, name, total in ((None, 20, "drawing", 20), (None, 500, "drawing", 300), (30, None, "", 30)):
        account = Account()
        samples = read_samples([str(tmp_path / "a.tar")], account)
        with storage.open_sink(str(tmp_path / f"{total}.html")) as sink:
            write_page(samples, sink, "a", Choice(first, drawn, 0), 384, 1, account)
        phase = account.progress.phase
        assert (phase.name, phase.total, phase.done()) == (name, total, total)


def test_more_values_than_can_be_listed(run: Run, tmp_path: Path) -> None:
    fields = make_tar([(f"{n:04d}/k.f{n}", b"1") for n in range(1200)])
    page = made(run, tmp_path, fields, "--random", 3)
    assert "<p>more than 1,000</p>" in page and "Folders" not in page
    page = made(run, tmp_path, make_tar([(f"{n:04d}.cls", b"%d" % n) for n in range(1200)]), "--random", 3)
    assert labels(page) == {"cls": 1200}


def test_a_long_list_of_broken_pictures_is_cut(run: Run, tmp_path: Path) -> None:
    page = made(run, tmp_path, make_tar([(f"{n:04d}.jpg", b"no picture") for n in range(1100)]), "--random", 1)
    assert page.count('class="why"') == 1000 and "and 100 more" in page and "Broken (1,100)" in page


def test_large_pictures(run: Run, tmp_path: Path) -> None:
    archive = make_tar([("a.png", plain_picture((1, 2, 3), (2048, 1365))), ("b.png", plain_picture((1, 2, 3)))])
    sizes = r'<img [^>]*width="(\d+)" height="(\d+)"[^>]*><span class="pixels">([^<]*)<'
    assert re.findall(sizes, made(run, tmp_path, archive)) == [
        ("384", "256", "2048x1365, shown at 384x256"),
        ("120", "80", "120x80"),
    ]
    assert re.findall(sizes, made(run, tmp_path, archive, "--large")) == [
        ("1024", "683", "2048x1365, shown at 1024x683"),
        ("120", "80", "120x80"),
    ]


Visit = Callable[..., Page]


@pytest.fixture
def visit(chromium: Browser, run: Run, tmp_path: Path) -> Iterator[Visit]:
    """Return a function that opens the page of an archive; nothing may go wrong on it, nor be asked of anybody."""
    troubles: list[str] = []

    def visit(archive: bytes, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> Page:
        made(run, tmp_path, archive)
        url = (tmp_path / "page.html").as_uri()
        context = chromium.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.on("console", lambda message: troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda r: None if r.url == url or r.url.startswith("data:") else troubles.append(r.url))
        page.goto(url)
        return page

    yield visit
    for context in chromium.contexts:
        context.close()
    assert troubles == []


@by_turns("scheme")
@pytest.mark.parametrize(("size", "columns"), [(PHONE, 2), (NARROW, 2), (DESKTOP, 5)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_phones_and_desks(visit: Visit, size: tuple[int, int], columns: int, scheme: str) -> None:
    page = visit(mixed(), size, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    boxes = page.evaluate("[...document.querySelectorAll('.tile')].map(t => t.getBoundingClientRect().toJSON())")
    assert len(boxes) == 28
    assert [box["top"] == boxes[0]["top"] for box in boxes].count(True) == columns
    assert boxes[0]["top"] < size[1] - 150 and all(box["width"] > 150 and box["height"] > 150 for box in boxes)
    assert {b["left"] for b in boxes[::columns]} == {boxes[0]["left"]} and boxes[0]["left"] < 25
    opened = page.evaluate("[...document.querySelectorAll('.card')].map(c => [c.open, c.open = true][0])")
    assert opened == [size is DESKTOP] * 5  # fields, sizes, cls, folders, broken
    cards = page.evaluate("[...document.querySelectorAll('.card')].map(c => c.getBoundingClientRect().toJSON())")
    assert all(0 <= card["left"] < card["right"] <= size[0] and card["height"] > 60 for card in cards)
    page.evaluate("Promise.all([...document.images].map(image => image.decode()))")
    ground, ink = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    dark = sum(map(int, re.findall(r"\d+", ground))) < sum(map(int, re.findall(r"\d+", ink)))
    assert dark == (scheme == "dark")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground


def test_pictures_look_as_they_are(visit: Visit) -> None:
    page = visit(mixed())
    seen = page.evaluate(
        """Promise.all([...document.querySelectorAll('.tile img')].slice(0, 24).map(async (image) => {
            await image.decode();
            const canvas = new OffscreenCanvas(1, 1).getContext("2d");
            canvas.drawImage(image, 60, 40, 1, 1, 0, 0, 1, 1);
            return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }))"""
    )
    assert np.abs(np.array(seen) - [(10 * n, 255 - 10 * n, 128) for n in range(24)]).max() <= 4
    assert page.get_by_alt_text("png: PNG 120x80 RGB").count() == 24


def focused(page: Page, key: str) -> None:
    """Wait until the tile of the sample *key* has the focus."""
    expect(page.locator(":focus .key")).to_have_text(key)


def test_the_filter(visit: Visit) -> None:
    page = visit(mixed())
    shown = page.locator("#shown")
    assert shown.inner_text() == "28 of 28"
    page.keyboard.press("/")
    for typed, count in (
        ("cls=cat", 8),
        ("CLS=Cat", 8),
        ("cls=A", 16),
        ("cls=do", 8),
        ("cls==do", 0),
        ("CLS==dog", 8),
        ('"cls=sea lion"', 8),
        ('"cls==sea lion"', 8),
        ("cls=lion", 8),
        ("sea", 8),
        ("train/n1 dog", 4),
        ("folder=train/n1", 12),
        ('"number: 17,"', 1),
        ("is=broken", 1),
        ("nothing like it", 0),
        ("", 28),
    ):
        expect(page.locator("#filter")).to_be_focused()
        page.keyboard.press("Control+A")
        page.keyboard.press("Delete")
        page.keyboard.type(typed)
        assert shown.inner_text() == f"{count} of 28", typed
        assert page.locator(".tile:visible").count() == count
        assert page.locator("#none").is_visible() == (count == 0)
    page.get_by_role("button", name="sea lion 8").click()
    assert shown.inner_text() == "8 of 28" and page.input_value("#filter") == '"cls==sea lion"'
    page.get_by_role("button", name="sea lion 8").click()
    assert shown.inner_text() == "28 of 28"
    page.get_by_role("button", name="1 broken").click()
    assert page.locator(".tile:visible .key").all_inner_texts() == ["u/cut"]
    page.locator("#filter").fill("")
    page.get_by_role("button", name="u/cut", exact=True).click()
    assert page.locator(".tile:visible .key").all_inner_texts() == ["u/cut"]


def test_fields_that_are_called_like_what_the_filter_knows(visit: Visit) -> None:
    """`folder` and `is` are the filter's own; fields of these names have a dot before them."""
    members = [
        (f"{'de'[n % 2]}/k{n}.{field}", value)
        for n in range(8)
        for field, value in (("folder", b"e"), ("is", b"broken"))
    ]
    page = visit(make_tar(members))
    for words, count in (("folder=e", 4), (".folder=e", 8), ("is=broken", 0), (".is=broken", 8)):
        page.locator("#filter").fill(words)
        assert page.locator(".tile:visible").count() == count, words


def test_small_pictures_beside_others_are_seen_large(visit: Visit) -> None:
    picture = encoded(Image.linear_gradient("L").resize((28, 28)), "PNG")
    page = visit(make_tar([("a.png", picture), ("a.mask.png", picture)]))
    page.locator(".tile").click()
    box = page.locator("dialog dd img").bounding_box()
    assert box and box["width"] >= 100 and box["width"] == pytest.approx(box["height"], abs=1)


def test_the_keys(visit: Visit) -> None:
    page = visit(mixed())
    page.keyboard.press("/")
    page.keyboard.type("train")
    page.keyboard.press("Enter")
    place = 0
    focused(page, "train/n0/0000")
    for key, step in (
        *(("ArrowRight", 1), ("l", 1), ("ArrowDown", 5), ("j", 5), ("ArrowLeft", -1), ("h", -1), ("ArrowUp", -5)),
        *(("k", -5), ("h", 0), ("k", 0), ("End", 23), ("l", 0), ("j", 0), ("Home", -23)),
    ):
        page.keyboard.press(key)
        place += step
        focused(page, f"train/n{place % 2}/{place:04d}")
    page.keyboard.press("Enter")
    large = page.locator("dialog")
    title = large.locator("h2")
    expect(title).to_have_text("train/n0/0000")
    page.keyboard.press("ArrowRight")
    expect(title).to_have_text("train/n1/0001")
    assert large.locator("dt").all_inner_texts() == ["png", "cls", "json"]
    assert large.locator("dd.what").all_inner_texts() == ["PNG 120x80 RGB", "dog", "JSON"]
    assert '"words": "a <b> & \'c\'"' in large.locator("pre:visible").inner_text()
    box = large.locator("img").bounding_box()
    assert box and box["width"] > 300
    assert large.locator(".pixels").inner_text() == "120x80"
    assert page.locator(".tile .pixels:visible").count() == 0
    page.keyboard.press("Escape")
    expect(large).to_be_hidden()
    focused(page, "train/n1/0001")
    page.locator(".tile").nth(2).click()
    expect(title).to_have_text("train/n0/0002")
    page.get_by_role("button", name="Next sample").click()
    expect(title).to_have_text("train/n1/0003")
    page.get_by_role("button", name="Close").click()
    expect(large).to_be_hidden()
    focused(page, "train/n1/0003")


def test_hostile_names_are_text_and_broken_pictures_say_so(visit: Visit) -> None:
    page = visit(mixed(), PHONE)
    keys = page.locator(".key").all_inner_texts()
    assert keys[-2:] == ["<script>alert(1)</script>", "u/\"onfocus='alert(2)'"]
    assert page.locator(".tile").last.locator(".face pre").inner_text() == (
        "</script><script>alert(3)</script>\n<img src=x onerror=alert(4)>"
    )
    for tile in (-1, -2):
        page.locator(".tile").nth(tile).click()
        assert page.locator("dialog h2").inner_text() == keys[tile]
        page.keyboard.press("Escape")
    wrong = page.locator(".tile .wrong")
    assert wrong.count() == 1 and wrong.is_visible()
    assert wrong.inner_text().startswith("jpg: JPEG 500x375 RGB: truncated: the data end")


def test_sounds_can_be_played(visit: Visit) -> None:
    page = visit(mixed())
    tile = page.locator(".tile", has=page.locator("audio"))
    assert tile.locator("svg.wave").bounding_box()
    length = tile.locator("audio").evaluate(
        """(audio) => new Promise((done, fail) => {
            audio.onloadedmetadata = () => done(audio.duration);
            audio.onerror = () => fail(audio.error.message);
            audio.preload = "metadata";
        })"""
    )
    assert length == pytest.approx(1.0, abs=0.01)


def videos() -> dict[str, bytes]:
    """Return videos of a second by field: two that browsers play, and two that they may not."""
    return {
        "mp4": make_video(25, codec="libx264"),
        "webm": make_video(25, form="webm", codec="libvpx"),
        "mkv": make_video(25, form="matroska", codec="libvpx"),
        "avi": make_video(25, form="avi"),
    }


def test_videos_have_a_still_and_a_player(visit: Visit) -> None:
    page = visit(
        make_tar([*((f"{n}.{field}", data) for n, (field, data) in enumerate(videos().items())), ("4.mp4", b"x")])
    )
    tiles = page.locator(".tile")
    assert [tiles.nth(n).locator("img.still").count() for n in range(5)] == [1, 1, 1, 1, 0]
    assert [tiles.nth(n).locator("video").count() for n in range(5)] == [1, 1, 0, 0, 0]
    assert not tiles.nth(0).locator("video").is_visible()  # the tile has the still
    tiles.nth(0).locator(".open").click()
    video = page.locator("dialog video")
    assert video.is_visible() and not page.locator("dialog img.still").is_visible()
    assert (video.get_attribute("poster") or "").startswith("data:image/webp;base64,")
    played = video.evaluate(
        """async (video) => {
            video.muted = true;
            await video.play();
            await new Promise((done) => video.addEventListener("timeupdate", done, {once: true}));
            return [video.videoWidth, video.currentTime > 0, video.duration];
        }"""
    )
    assert played[:2] == [64, True] and played[2] == pytest.approx(1.0, abs=0.1)
    page.keyboard.press("Escape")
    tiles.nth(3).locator(".open").click()
    assert page.locator("dialog img.still").is_visible() and page.locator("dialog video").count() == 0


def test_a_video_without_pyav_is_played_in_its_tile(visit: Visit, tmp_path: Path, chromium: Browser) -> None:
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "av.py").write_text("raise ModuleNotFoundError('no av', name='av')\n")
    (tmp_path / "a.tar").write_bytes(make_tar([("a.mp4", make_video(25, codec="libx264")), ("a.txt", b"a caption")]))
    line = [sys.executable, "-m", "tartools", "tarshow", "--html", "page.html", "a.tar"]
    assert start(*line, folder=tmp_path, env={"PYTHONPATH": str(folder)}).status == 0
    page = chromium.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator("img").count() == 0
    assert page.locator(".tile video").is_visible() and not page.locator(".tile .face").is_visible()
    page.locator(".tile .open").click()
    assert page.locator("dialog video").is_visible() and not page.locator("dialog .face").is_visible()
    page.close()


def test_videos_have_an_end(run: Run, tmp_path: Path) -> None:
    video = make_video(25)
    large = video + struct.pack(">I4s", 8 << 20, b"free") + bytes((8 << 20) - 8)  # with a box that players pass over
    page = made(run, tmp_path, make_tar([("a.mp4", large), ("b.mp4", video), ("b.wav", sound(200)), ("c.mp4", video)]))
    reader = Reader(page)
    sources = [attributes["src"] or "" for tag, attributes in reader.elements if tag == "video"]
    assert [base64.b64decode(source.partition(",")[2].partition("#")[0]) for source in sources] == [video]
    assert page.count("too large to be played here") == 3 and page.count('class="still') == 3
    padded = video + struct.pack(">I4s", 3 << 20, b"free") + bytes((3 << 20) - 8)
    many = Reader(made(run, tmp_path, make_tar([(f"{n:02d}.mp4", padded) for n in range(10)])))
    assert [tag for tag, _ in many.elements].count("video") == (24 << 20) // len(padded)


CAPTION = "A long caption of an oak in autumn, photographed from below. " + "It rains. " * 12 + "The end."


@pytest.mark.parametrize("size", [NARROW, DESKTOP])
def test_texts_wrap(visit: Visit, size: tuple[int, int]) -> None:
    texts = [
        ("a.txt", CAPTION.encode()),
        ("b.txt", b"short"),
        ("c.txt", b"w" * 3000 + "é".encode()),
        ("d.json", b'["x"]'),
    ]
    picture = [("e.txt", CAPTION.encode()), ("e.cls.txt", b"oak"), ("e.png", plain_picture((1, 2, 3)))]
    page = visit(make_tar([*texts, *picture]), size)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    faces = page.locator(".tile .face pre")
    assert faces.count() == 4 and faces.nth(0).inner_text() == CAPTION
    assert faces.nth(1).inner_text() == "short" and faces.nth(2).inner_text() == "w" * 2000 + "…"
    wraps = "(pre) => pre.scrollWidth <= pre.clientWidth && pre.scrollHeight > 75"
    assert [faces.nth(n).evaluate(wraps) for n in (0, 2)] == [True, True]
    last = page.locator(".tile").nth(4)
    assert last.locator(".face img").count() == 1 and last.locator(".face pre").count() == 0
    prose = last.locator("dd.prose")
    assert prose.inner_text().startswith("A long caption of an oak") and prose.bounding_box()["height"] > 25  # type: ignore[index]
    last.locator(".open").click()
    assert page.locator("dialog dd.prose").inner_text() == CAPTION
    page.keyboard.press("Escape")
    page.locator(".tile .open").nth(0).click()
    assert page.locator("dialog dd pre").inner_text() == CAPTION


def charts(page: str) -> dict[str, list[str]]:
    """Return the names in each chart of classes of *page*, by its title."""
    cards = re.findall(r"<summary>([^<]*)</summary>(.*?)</details>", page, re.DOTALL)
    return {title: re.findall(r'class="name">([^<]*)<', body) for title, body in cards if "data-filter" in body}


def test_one_fact_has_one_chart(run: Run, tmp_path: Path) -> None:
    def archive(*odd: int) -> bytes:
        """Return 30 samples of three classes; of those in *odd*, the name of the class is that of another one."""
        return make_tar(
            [
                (f"{NAMES[n % 3]}/{n:02d}.{field}", value)
                for n in range(30)
                for field, value in (
                    ("cls", b"%d" % (n % 3)),
                    ("cls.txt", NAMES[(n + (n in odd)) % 3].encode() + b"\n"),
                    ("part", b"%d" % (n % 2)),
                )
            ]
        )

    whole = ["0 · cat", "1 · dog", "2 · sea lion"]
    assert charts(made(run, tmp_path, archive())) == {"cls, cls.txt, Folders (3)": whole, "part (2)": ["0", "1"]}
    assert charts(made(run, tmp_path, archive(), "--random", 3)) == charts(made(run, tmp_path, archive()))
    assert charts(made(run, tmp_path, archive(29))) == {
        "cls, Folders (3)": whole,
        "cls.txt (3)": ["cat", "dog", "sea lion"],
        "part (2)": ["0", "1"],
    }
    fewer = made(
        run, tmp_path, make_tar([(f"{n:02d}.{field}", b"%d" % (n % 2)) for n in range(9) for field in "ab"[n < 5 :]])
    )
    assert charts(fewer) == {"a (2)": ["0", "1"], "b (2)": ["0", "1"]}


def test_a_page_without_samples(visit: Visit) -> None:
    page = visit(make_tar([]))
    assert page.locator("#shown").inner_text() == "0 of 0" and page.locator("#none").is_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
