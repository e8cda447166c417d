"""The page of tarshow --serve, through the installed command, in Debian's Chromium: all by keys, at two widths."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.archives import encoded, photograph
from tests.conftest import BIN, ROOT, Run, clean_environment, keys_in, make_tar
from tests.show.browser import DESKTOP, NARROW, chromium
from tests.tiers import by_turns, exhaustive

__all__ = ["chromium"]

MANY = 100_000
CLASSES = ("cat", "dog", "sea lion")
BIG = 12345678901234567890  # more than JavaScript's numbers can tell apart
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
expect.set_options(timeout=20_000)


def sound(seconds: float) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(int(8000 * seconds)) / 3).astype("float32"), 8000, format="WAV")
    return file.getvalue()


def mixed() -> bytes:
    """Return 60 samples: photographs of three classes, two of them cut; a sound, an array, long text, nested JSON."""
    photographs = [encoded(photograph(seed, 320, 240), "JPEG", quality=85) for seed in range(4)]
    members = []
    for n in range(60):
        key = f"n{n % 2}/{n:04d}"
        picture = photographs[n % 4]
        members.append((f"{key}.jpg", picture[:3000] if n in (5, 41) else picture))
        members.append((f"{key}.cls", CLASSES[n % 3].encode()))
        if n != 7:
            words = {"number": n, "big": BIG, "words": "a <b> & 'c'", "boxes": [[n, 1, 2, 3]] * 60}
            members.append((f"{key}.json", json.dumps(words).encode()))
    array = io.BytesIO()
    np.save(array, np.arange(12.0).reshape(3, 4))
    members.append(("u/array.npy", array.getvalue()))
    members.append(("u/sound.wav", sound(20)))
    members.append(("u/text.txt", b"\n".join(b"line %d of the fog" % n for n in range(200))))
    return make_tar(members)


def hostile() -> bytes:
    """Return samples whose names, fields, values and texts are markup."""
    words = json.dumps({HOSTILE: HOSTILE, "caption": HOSTILE, "list": [HOSTILE, {HOSTILE: 1}]}).encode()
    picture = encoded(Image.new("RGB", (40, 30)), "PNG")
    members = []
    for n in range(6):
        key = f"{n}{HOSTILE}".replace("/", "\u2044")
        members += [(f"{key}.png", picture), (f"{key}.cls", f"{n % 2}{HOSTILE}".encode()), (f"{key}.json", words)]
        members.append(
            (f"{key}.{HOSTILE.replace('/', '_')}.txt", f"{n} {HOSTILE}\n</pre><svg onload=alert(3)>".encode())
        )
    return make_tar(members, tarfile.PAX_FORMAT)


def numbered(count: int) -> bytes:
    """Return *count* samples NNNNNN.json of 64 bytes, with seven kinds."""
    template = b'{"name": "name 000000", "kind": "kind 0"}\n'
    block = np.frombuffer(make_tar([("000000.json", template)])[:1024], np.uint8)
    digits = np.arange(count)[:, None] // 10 ** np.arange(5, -1, -1) % 10
    blocks = np.tile(block, (count, 1))
    blocks[:, :6] += digits.astype(np.uint8)
    name, kind = 512 + template.index(b"000000"), 512 + template.index(b"kind 0") + 5
    blocks[:, name : name + 6] += digits.astype(np.uint8)
    blocks[:, kind] += (np.arange(count) % 7).astype(np.uint8)
    sums = int(block[148:154].tobytes(), 8) + digits.sum(1)
    blocks[:, 148:154] = sums[:, None] // 8 ** np.arange(5, -1, -1) % 8 + ord("0")
    return blocks.tobytes() + bytes(1024)


Serve = Callable[[Path], str]
Visit = Callable[..., Page]


class Servers:
    """Servers of pages, each started once, by their input."""

    def __init__(self) -> None:
        self.processes: dict[Path, subprocess.Popen[str]] = {}
        self.addresses: dict[Path, str] = {}

    def address(self, url: Path) -> str:
        """Return the address of the page of *url*."""
        if url not in self.addresses:
            command = [BIN / "tarshow", "-q", "--serve", "--port", "0", url.name]
            process = subprocess.Popen(
                command, cwd=url.parent, env=clean_environment(), stdout=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            self.processes[url] = process
            self.addresses[url] = process.stdout.readline().strip()
        return self.addresses[url]

    def stop(self, url: Path) -> None:
        """End the server of *url* as Ctrl-C does."""
        process = self.processes.pop(url)
        del self.addresses[url]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Give the servers of this module, and stop them."""
    servers = Servers()
    yield servers
    for url in list(servers.processes):
        servers.stop(url)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with mixed.tar."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "mixed.tar").write_bytes(mixed())
    return folder


@pytest.fixture
def visit(chromium: Browser, servers: Servers) -> Iterator[Visit]:
    """Return a function that opens the page of an input; nothing may go wrong on it, nor be asked of anybody else."""
    troubles: list[str] = []

    def visit(url: Path, size: tuple[int, int] = DESKTOP, scheme: str = "light", fragment: str = "") -> Page:
        address = servers.address(url)
        origin = address.partition("/?")[0]
        context = chromium.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request", lambda r: None if r.url.startswith((f"{origin}/", "blob:", "data:")) else troubles.append(r.url)
        )
        page.on("console", lambda message: None if is_expected(message.text) else troubles.append(message.text))
        page.goto(address)
        if fragment:
            page.goto("about:blank")  # so that the next address is loaded, not only looked up in the open page
            page.goto(f"{origin}/{fragment}")
        expect(page.locator("#count")).not_to_be_empty()
        return page

    yield visit
    for context in chromium.contexts:
        context.close()
    assert troubles == []


def is_expected(text: str) -> bool:
    """True if the console says only that the server has refused something, which the page shows in words."""
    return bool(re.match(r"Failed to load resource: (.* (400|404|409) |net::ERR_CONNECTION_REFUSED)", text))


def shown(page: Page) -> list[int]:
    """Return the numbers of the samples that are on the screen, from 0."""
    numbers: list[int] = page.evaluate(
        """() => {
            const box = document.getElementById("scroller").getBoundingClientRect();
            const inside = (r) => r.bottom > box.top + 1 && r.top < box.bottom - 1;
            return [...document.querySelectorAll("#samples > li")]
                .filter((node) => node.dataset.filled && inside(node.getBoundingClientRect()))
                .map((node) => Number(node.dataset.index));
        }"""
    )
    return numbers


def focused(page: Page, number: int) -> None:
    """Wait until the sample with this *number*, from 0, has the focus, and is filled."""
    expect(page.locator(f'#samples > li[data-index="{number}"][data-filled] .open')).to_be_focused()


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def search(page: Page, text: str, language: str = "words") -> None:
    page.locator("#language").select_option(language)
    press(page, "/")
    page.locator("#text").fill(text)
    press(page, "Enter")


def count(page: Page, text: str) -> None:
    """Wait until the page says how many samples there are."""
    expect(page.locator("#count")).to_have_text(text)


@pytest.fixture(scope="module")
def many(folder: Path) -> Path:
    """Return a table of 100,000 samples with a column json:kind."""
    (folder / "many.tar").write_bytes(numbered(MANY))
    command = [BIN / "tarindex", "-q", "-f", "json:kind", "many.tar", "-o", "many.parquet"]
    subprocess.run(command, cwd=folder, env=clean_environment(), check=True)
    return folder / "many.parquet"


FLIGHT = """async () => {
    const begin = performance.now();
    for (let n = 0; n < 60; n += 1) {
        scroller.scrollTop += scroller.scrollHeight / 150;
        await new Promise(requestAnimationFrame);
    }
    return performance.now() - begin;
}"""


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (NARROW, "dark")])
def test_a_hundred_thousand_samples_scroll(visit: Visit, many: Path, size: tuple[int, int], scheme: str) -> None:
    page = visit(many, size, scheme)
    rows: list[str] = []
    page.on("request", lambda request: rows.append(request.url) if "/api/rows" in request.url else None)
    focused(page, 0)
    assert shown(page)[0] == 0
    for key, number in (("End", MANY - 1), ("Home", 0)):
        press(page, key)
        focused(page, number)
        assert shown(page)[-1 if number else 0] == number
        expect(page.locator(":focus .base")).to_have_text(f"{number:06d}")
    press(page, "g")
    page.keyboard.type("50%")
    press(page, "Enter")
    focused(page, 49_999)
    page.mouse.move(size[0] / 2, size[1] / 2)
    top = shown(page)[0]
    page.mouse.wheel(0, 3000)
    expect(page.locator(f'#samples > li[data-index="{top}"]')).to_have_count(0)
    rows.clear()
    elapsed = page.evaluate(FLIGHT)
    # the scroll bar flies past 400 pages of rows: every 70 ms those that are seen are loaded, which may be two
    assert len(rows) <= 2 * (elapsed / 70 + 2)
    page.evaluate("scroller.scrollTop = scroller.scrollHeight / 4")
    expect(page.locator("#samples > li[data-filled]").first).to_have_attribute(
        "data-index", re.compile(r"^2[2-5]\d{3}$")
    )
    assert page.locator("#samples > li").count() <= 60
    assert page.evaluate("document.getElementsByTagName('*').length") < 1500
    press(page, "v")
    expect(page.locator("#samples")).to_have_class("list")
    press(page, "End")
    focused(page, MANY - 1)
    assert page.locator("#samples > li").count() <= 40


def test_facets_and_search_of_all_rows(visit: Visit, many: Path) -> None:
    page = visit(many)
    facet = page.get_by_role("button", name="kind 3 14,286")
    facet.click()
    count(page, "14,286 of 100,000 samples")
    expect(page.get_by_role("button", name="Remove the filter json:kind = kind 3")).to_be_visible()
    search(page, "099998")
    count(page, "1 of 100,000 samples")
    expect(page.locator("#samples .base")).to_have_text(["099998"])
    press(page, "Backspace", "Backspace")
    count(page, "100,000 samples")


def test_searches_and_what_they_say(visit: Visit, folder: Path) -> None:
    page = visit(folder / "mixed.tar")
    for language, text, number in (
        ("words", "fog", 1),
        ("words", "cls==cat", 20),
        ("words", '"cls==sea lion"', 20),
        ("expression", "cls == 'dog'", 20),
        ("sql", "cls = 'dog' AND \"json:number\" < 10", 2),
        ("sql", "__key__ = 'u/sound'", 1),
    ):
        search(page, text, language)
        count(page, f"{number} of 63 samples")
        focused(page, 0)
    search(page, "nonsense FROM", "sql")
    expect(page.locator("#search-error")).to_be_visible()
    assert page.locator("#search-error").inner_text()
    count(page, "1 of 63 samples")
    expect(page.locator("#text")).to_have_value("nonsense FROM")
    expect(page.locator(".chip")).to_have_text("WHERE __key__ = 'u/sound'")
    search(page, "nothing is like this")
    expect(page.locator("#empty")).to_contain_text("No sample matches.")
    expect(page.locator("#search-error")).to_be_hidden()
    page.get_by_role("button", name="Remove the last filter").click()
    count(page, "63 samples")
    page.go_back()
    count(page, "0 of 63 samples")
    page.go_forward()
    count(page, "63 samples")


def test_filters_sort_and_the_address(visit: Visit, folder: Path) -> None:
    page = visit(folder / "mixed.tar")
    page.get_by_role("button", name="dog 20").click()
    count(page, "20 of 63 samples")
    page.get_by_role("button", name="no json 1").click()
    count(page, "1 of 63 samples")
    expect(page.locator("#samples .base")).to_have_text(["0007"])
    press(page, "Backspace")
    count(page, "20 of 63 samples")
    page.locator("#sort").select_option("json:number")
    page.get_by_role("button", name="Ascending").click()
    expect(page.locator("#samples .base").first).to_have_text("0058")
    page.get_by_role("button", name="List", exact=True).click()
    expect(page.locator("#heads")).to_be_visible()
    press(page, "Escape", "Enter")
    expect(page.locator("#large-key")).to_have_text("n0/0058")
    page.reload()
    expect(page.locator("#large-key")).to_have_text("n0/0058")
    expect(page.locator("#large-number")).to_have_text("1 of 20")
    press(page, "Escape")
    expect(page.locator("#large")).to_be_hidden()
    page.get_by_role("button", name="Remove the filter cls = dog").click()
    count(page, "63 samples")
    expect(page.get_by_role("button", name="dog 20")).to_have_attribute("aria-pressed", "false")
    group = page.get_by_role("group", name="json:number: histogram")
    group.get_by_role("button").first.press("Shift+ArrowRight")
    expect(group.get_by_role("button").nth(1)).to_be_focused()
    press(page, "Enter")
    expect(page.get_by_role("button", name=re.compile("Remove the filter json:number 0 to"))).to_be_visible()
    expect(page.locator("#samples .base").last).to_have_text("0000")


def test_an_address_from_anywhere(visit: Visit, folder: Path) -> None:
    odd = '#filter={"column":"cls","from":{}}&filter=[1]&filter=null&filter={&filter={"column":7}&at=-1&open=x&view=x'
    page = visit(folder / "mixed.tar", fragment=odd)
    count(page, "63 samples")
    focused(page, 0)
    page = visit(folder / "mixed.tar", fragment="#q=cls+!!&lang=sql&view=list")
    expect(page.locator("#search-error")).to_be_visible()
    count(page, "63 samples")
    expect(page.locator("#text")).to_have_value("cls !!")
    page = visit(folder / "mixed.tar", fragment="#open=999")
    expect(page.locator("#large-sample .wrong")).to_be_visible()
    press(page, "Escape")
    expect(page.locator("#large")).to_be_hidden()


def test_a_choice_is_saved_and_the_command_does_the_same(
    visit: Visit, folder: Path, run: Run, shell: Run, tmp_path: Path
) -> None:
    page = visit(folder / "mixed.tar")
    focused(page, 0)
    press(page, "x", "ArrowRight", "ArrowRight", "X", "n", "n", "x")
    expect(page.locator("#marked")).to_have_text("4 samples marked")
    keys = ["n0/0000", "n1/0001", "n0/0002", "n0/0004"]
    expect(page.locator("#command")).to_contain_text("tarfilter --keys keys.txt mixed.tar")
    leaving = "!dispatchEvent(new Event('beforeunload', {cancelable: true}))"
    assert page.evaluate(leaving)
    assert saved(page, "Save keys", tmp_path) == "".join(f"{key}\n" for key in keys).encode()
    assert not page.evaluate(leaving)
    saved(page, "Save table", tmp_path)
    os.symlink(folder / "mixed.tar", tmp_path / "mixed.tar")
    assert keys_in(run("tarcat", "chosen.parquet").output()) == keys
    assert shell(page.locator("#command").inner_text()).status == 0
    assert keys_in((tmp_path / "chosen.tar").read_bytes()) == keys
    press(page, "A")
    expect(page.locator("#choice")).to_be_hidden()
    search(page, "cls == 'dog'", "expression")
    count(page, "20 of 63 samples")
    press(page, "a")
    expect(page.locator("#marked")).to_have_text("20 samples marked")
    dogs = [f"n{n % 2}/{n:04d}" for n in range(1, 60, 3)]
    assert saved(page, "Save keys", tmp_path).decode().split() == dogs
    press(page, "Backspace")
    count(page, "63 samples")
    expect(page.locator('#samples > li[data-index="1"]')).to_have_class(re.compile("marked"))
    focused(page, 0)
    press(page, "x")
    expect(page.locator("#marked")).to_have_text("21 samples marked")
    assert saved(page, "Save keys", tmp_path).decode().split() == ["n0/0000", *dogs]


def saved(page: Page, button: str, folder: Path) -> bytes:
    """Press *button*, and return the bytes of the file that it saves, which is in *folder* by its own name."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path.read_bytes()


def test_by_keys_alone(visit: Visit, folder: Path) -> None:
    page = visit(folder / "mixed.tar", NARROW, "dark")
    focused(page, 0)
    press(page, "?")
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    press(page, "Escape", "/")
    page.keyboard.type("cls==cat")
    press(page, "Enter")
    count(page, "20 of 63 samples")
    focused(page, 0)
    press(page, "ArrowDown", "ArrowRight", "Enter")
    title = page.locator("#large-key")
    expect(title).to_have_text("n1/0009")
    for key, number in (("n", 12), ("ArrowRight", 15), ("p", 12), ("ArrowLeft", 9), ("ArrowLeft", 6)):
        press(page, key)
        expect(title).to_have_text(f"n{number % 2}/{number:04d}")
    press(page, "x", "Escape")
    expect(page.locator("#large")).to_be_hidden()
    focused(page, 2)
    expect(page.locator("#samples > li.marked .base")).to_have_text(["0006"])
    press(page, "c")
    expect(page.get_by_role("button", name="Save keys")).to_be_focused()
    with page.expect_download():
        press(page, "Enter")
    press(page, "Escape", "f")
    expect(page.get_by_role("complementary", name="Filters")).to_be_visible()
    expect(page.locator(".facets .line").first).to_be_visible()
    for _ in range(20):
        press(page, "Tab")
        if page.evaluate("document.activeElement.matches('.facets .line')"):
            break
    number = page.locator(":focus .number").inner_text()
    press(page, "Enter")
    count(page, f"{number} of 63 samples")
    press(page, "Escape")
    expect(page.get_by_role("complementary", name="Filters")).to_be_hidden()
    assert page.evaluate("getComputedStyle(document.querySelector('li:has(:focus)')).outlineWidth") == "3px"


def test_the_help_and_the_docs_list_the_same_keys(visit: Visit, folder: Path) -> None:
    page = visit(folder / "mixed.tar")
    press(page, "?")
    rows = page.locator("#help-keys").locator("dt, dd").all_text_contents()
    helped = [(" ".join(keys.split()), words) for keys, words in zip(rows[::2], rows[1::2], strict=True)]
    docs = (ROOT / "docs" / "browse.md").read_text().partition("## Keys\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| (`.*`) \| (.*) \|$", docs, re.MULTILINE)
    assert [(keys.replace("`", ""), words) for keys, words in listed] == helped


def test_one_sample_with_all_its_fields(visit: Visit, folder: Path) -> None:
    page = visit(folder / "mixed.tar", fragment="#q=__key__+%3D+'n1/0003'&lang=sql")
    count(page, "1 of 63 samples")
    focused(page, 0)
    press(page, "Enter")
    large = page.locator("#large")
    expect(large.locator("h3 .name")).to_have_text(["jpg", "cls", "json", "Columns", "Place"])
    json_text = large.locator(".json").text_content() or ""
    assert f'"big": {BIG},' in json_text and '"words": "a <b> & \'c\'",' in json_text
    boxes = large.locator(".json details details").first
    assert not boxes.evaluate("(node) => node.open")
    boxes.locator("summary").first.click()
    assert boxes.evaluate("(node) => node.open")
    expect(large.locator("dd").filter(has_text=re.compile(r"mixed\.tar$"))).to_be_visible()
    picture = large.locator(".zoom img")
    picture.evaluate("(image) => image.decode()")
    before = picture.bounding_box()
    large.locator("#large-sample").focus()
    press(page, "+", "+", "+")
    after = picture.bounding_box()
    assert before and after and after["width"] > 2 * before["width"]
    press(page, "1")
    expect(large.locator(".zoom-tools")).to_contain_text("320 x 240 at 100 %")
    press(page, "Escape")
    expect(large).to_be_hidden()


def test_text_arrays_and_broken_pictures(visit: Visit, folder: Path) -> None:
    page = visit(folder / "mixed.tar", NARROW)
    search(page, "u/")
    count(page, "3 of 63 samples")
    page.locator("#samples .open").first.click()
    large = page.locator("#large")
    expect(large.locator(".field").first).to_contain_text("3x4")
    heat_map = large.get_by_alt_text("heat map of npy of u/array")
    heat_map.evaluate("(image) => image.decode()")
    press(page, "n", "n")
    expect(page.locator("#large-key")).to_have_text("u/text")
    text = large.locator("pre.text")
    assert text.text_content() == "\n".join(f"line {n} of the fog" for n in range(200))
    folded = text.bounding_box()
    large.get_by_role("button", name="Show all of the text").click()
    unfolded = text.bounding_box()
    assert folded and unfolded and unfolded["height"] > 2 * folded["height"]
    press(page, "Escape")
    search(page, "__key__ = 'n1/0005'", "sql")
    wrong = page.locator("#samples .wrong")
    expect(wrong).to_contain_text("truncated")
    press(page, "Enter")
    expect(large.locator(".stage .wrong, .field .wrong").first).to_contain_text("truncated")


def test_sounds_play_and_seek(visit: Visit, folder: Path) -> None:
    page = visit(folder / "mixed.tar", NARROW, "dark")
    ranges: list[str] = []
    page.on("request", lambda r: ranges.append(r.headers.get("range", "")) if "/api/payload" in r.url else None)
    search(page, "u/sound")
    count(page, "1 of 63 samples")
    press(page, "Enter")
    player = page.locator("#large audio")
    expect(player).to_be_visible()
    player.evaluate("(audio) => audio.readyState || new Promise((done) => audio.onloadedmetadata = done)")
    assert player.evaluate("(audio) => audio.duration") == pytest.approx(20, abs=0.1)
    press(page, "Space")
    player.evaluate("(audio) => new Promise((done) => audio.ontimeupdate = () => audio.currentTime > 0.2 && done())")
    player.evaluate("(audio) => new Promise((done) => { audio.onseeked = done; audio.currentTime = 15; })")
    player.evaluate("(audio) => new Promise((done) => audio.ontimeupdate = () => audio.currentTime > 15.2 && done())")
    press(page, "Space")
    assert player.evaluate("(audio) => audio.paused")
    assert ranges and all(text.startswith("bytes=") for text in ranges)
    press(page, "Escape")
    expect(page.locator("audio")).to_have_count(0)


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), pytest.param(NARROW, "dark", marks=exhaustive)])
def test_markup_in_shards_stays_text(visit: Visit, tmp_path: Path, size: tuple[int, int], scheme: str) -> None:
    url = tmp_path / "a<b>&amp;.tar"
    url.write_bytes(hostile())
    page = visit(url, size, scheme)
    count(page, "6 samples")
    expect(page.locator("#title")).to_have_text("a<b>&amp;.tar")
    key = f"0{HOSTILE}".replace("/", "\u2044")
    expect(page.locator("#samples .key").first).to_have_text(key)
    search(page, "alert(2)")
    count(page, "6 samples")
    expect(page.locator(".chip")).to_have_text("“alert(2)”")
    focused(page, 0)
    press(page, "v", "Enter")
    expect(page.locator("#large-key")).to_have_text(key)
    fields = page.locator("#large .field")
    expect(fields.first).to_be_visible()
    expect(fields.locator("pre.text").last).to_have_text(f"0 {HOSTILE}\n</pre><svg onload=alert(3)>")
    assert json.dumps(HOSTILE) in (fields.locator(".json").text_content() or "")
    press(page, "Escape")
    press(page, "f")
    expect(page.locator(".facets .line").filter(has_text=HOSTILE).first).to_be_visible()
    facets = page.locator(".facets .line .name").all_inner_texts()
    page.locator(".facets .line").filter(has_text=HOSTILE).first.click()
    expect(page.locator(".chip").last).to_contain_text(HOSTILE)
    count(page, "3 of 6 samples")
    assert f"0{HOSTILE}" in facets
    markup = "#samples script, #samples svg, #facets svg, #large script, img[onerror], [onload], [src=x]"
    assert page.locator(markup).count() == 0


CONTRAST = """() => {
    const root = getComputedStyle(document.documentElement);
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const light = (name) => {
        canvas.fillStyle = root.getPropertyValue(name);
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => {
            const share = value / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const pairs = [["--on-accent", "--accent"], ["--ink", "--warn"]];
    for (const ink of ["--ink", "--soft", "--accent", "--wrong"])
        for (const ground of ["--ground", "--surface", "--sunk", "--wash"]) pairs.push([ink, ground]);
    return pairs.map(([ink, ground]) => {
        const [low, high] = [light(ink), light(ground)].sort((one, other) => one - other);
        return [`${ink} on ${ground}`, (high + 0.05) / (low + 0.05)];
    });
}"""


@by_turns("scheme")
@pytest.mark.parametrize(("size", "columns"), [(NARROW, 2), (DESKTOP, 5)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_both_widths_and_can_be_read(
    visit: Visit, folder: Path, size: tuple[int, int], columns: int, scheme: str
) -> None:
    page = visit(folder / "mixed.tar", size, scheme)
    focused(page, 0)
    press(page, "x")
    expect(page.locator("#choice")).to_be_visible()
    boxes = page.evaluate(
        "[...document.querySelectorAll('#samples > li')].map(t => t.getBoundingClientRect().toJSON())"
    )
    assert [box["top"] == boxes[0]["top"] for box in boxes].count(True) == columns
    assert boxes[0]["top"] < 230 and all(0 <= box["left"] < box["right"] <= size[0] for box in boxes)
    for key, node in (("", "body"), ("v", "#scroller"), ("f", "#facets"), ("Enter", "#large-sample"), ("?", "#help")):
        if node == "#large-sample":
            press(page, "Escape")
        press(page, *filter(None, [key]))
        expect(page.locator(node)).to_be_visible()
        assert page.evaluate(
            f"document.querySelector('{node}').scrollWidth <= document.querySelector('{node}').clientWidth"
        ), node
        assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    nameless = """[...document.querySelectorAll("button, input, select, a, dialog, audio")]
        .filter((n) => !(n.textContent.trim() || n.ariaLabel || n.labels?.length || n.getAttribute("aria-labelledby")))
        .map((n) => n.outerHTML)"""
    assert page.evaluate(nameless) == []
    assert [pair for pair in page.evaluate(CONTRAST) if pair[1] < 4.5] == []
    ground, ink = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    assert (sum(map(int, re.findall(r"\d+", ground))) < sum(map(int, re.findall(r"\d+", ink)))) == (scheme == "dark")


def test_a_replaced_shard_and_a_server_that_has_ended(visit: Visit, servers: Servers, tmp_path: Path) -> None:
    url = tmp_path / "short.tar"
    url.write_bytes(make_tar([(f"{n}.txt", b"word %d" % n) for n in range(3)]))
    page = visit(url)
    focused(page, 0)
    other = tmp_path / "other"
    other.write_bytes(make_tar([(f"{n}.txt", b"other") for n in range(9)]))
    os.replace(other, url)
    press(page, "Enter")
    expect(page.locator("#banner")).to_be_visible()
    expect(page.locator("#banner")).to_contain_text("replaced")
    expect(page.locator("#large-sample .wrong")).to_contain_text("replaced")
    press(page, "Escape")
    servers.stop(url)
    search(page, "word")
    expect(page.locator("#search-error")).to_contain_text("start it again in the terminal")
