"""How long the page of `tarshow --serve` takes to answer, in Chromium, and what its server holds.

    python -m tests.bench.serving [ROWS]

Two tables: ROWS (1,000,000) rows of texts with a class, and 20,000 of photographs (or drawn pictures) with their facts.
Prints a line of each step, in seconds from the key or click until the page shows the answer.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from playwright.sync_api import Page, expect, sync_playwright

from tests.bench.data import pictures, texts, write

TEXT_SAMPLES, PICTURE_SAMPLES = 100_000, 2_000  # in the shard; the rows of its table are repeated
PICTURE_ROWS = 20_000
HAS_PICTURE = "[...document.querySelectorAll('#samples img')].some(image => image.complete && image.naturalWidth > 0)"


def make_table(folder: Path, name: str, count: int, rows: int) -> Path:
    """Write the shard *name*.tar of *count* samples and an index of it, whose rows are repeated up to *rows*."""
    shard, index, table = (folder / f"{name}{ending}" for ending in (".tar", "-index.parquet", ".parquet"))
    with open(shard, "wb") as file:
        write(file, texts(count) if name == "texts" else pictures(count))
    facts = ["--facts"] if name == "pictures" else []
    subprocess.run(["tarindex", "-q", "-f", "cls", *facts, "-o", index, shard], check=True)
    once = pq.read_table(index)
    whole = pa.concat_tables([once] * -(-rows // count)).slice(0, rows)
    pq.write_table(whole, table)
    return table


@contextmanager
def served(table: Path) -> Iterator[tuple[str, float, int]]:
    """Serve *table*; give the address, the seconds until it was printed, and the number of the server's process."""
    begin = time.perf_counter()
    command = ["tarshow", "-q", "--serve", "--port", "0", table.name]
    process = subprocess.Popen(command, cwd=table.parent, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), time.perf_counter() - begin, process.pid
    finally:
        process.terminate()
        process.wait()


def memory(process: int, name: str) -> float:
    """Return the field *name* of the status of *process*, VmHWM (peak) or VmRSS, in MB."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1000


def measure(page: Page, table: Path, rows: int) -> None:
    """Print what the steps on the page of *table*, with *rows* rows, take."""
    has_pictures = table.name == "pictures.parquet"
    number = f"{rows:,}"

    def step(name: str, act: Callable[[], object], is_shown: Callable[[], object]) -> None:
        begin = time.perf_counter()
        act()
        is_shown()
        print(f"{table.stem}: {name}: {time.perf_counter() - begin:.2f} s")  # noqa: T201

    def search(text: str) -> None:
        page.keyboard.press("/")
        page.keyboard.type(text)
        page.keyboard.press("Enter")

    count = page.locator("#count")
    last, middle = (page.locator(f'#samples > li[data-index="{n}"][data-filled]') for n in (rows - 1, (rows - 1) // 2))
    facet = page.locator("[data-facet] button[aria-pressed]").first  # the most frequent value
    with served(table) as (address, seconds, process):
        print(f"{table.stem}: {rows:,} rows, until the address is printed: {seconds:.1f} s")  # noqa: T201
        print(f"{table.stem}: memory of the server, at most, so far: {memory(process, 'VmHWM'):.0f} MB")  # noqa: T201
        first = page.locator("#samples > li[data-filled]").first
        step("first samples", lambda: page.goto(address), first.wait_for)
        if has_pictures:
            step("first picture, after that", lambda: None, lambda: page.wait_for_function(HAS_PICTURE))
        step("all facets, after that", lambda: None, facet.wait_for)
        page.keyboard.press("Home")
        step("the end", lambda: page.keyboard.press("End"), last.wait_for)
        page.keyboard.press("g")
        page.keyboard.type("50%")
        step("the middle", lambda: page.keyboard.press("Enter"), middle.wait_for)
        step("a facet", facet.click, lambda: expect(count).not_to_have_text(f"{number} samples"))
        page.keyboard.press("Backspace")
        expect(count).to_have_text(f"{number} samples")
        step("words", lambda: search("000099"), lambda: expect(count).not_to_have_text(f"{number} samples"))
        print(f"{table.stem}: memory of the server after that: {memory(process, 'VmRSS'):.0f} MB")  # noqa: T201


def main() -> None:
    """Make the tables, and measure the page of each."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    expect.set_options(timeout=120_000)
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, count, many in (
            ("texts", min(TEXT_SAMPLES, rows), rows),
            ("pictures", min(PICTURE_SAMPLES, rows), min(PICTURE_ROWS, rows)),
        ):
            table = make_table(Path(made), name, count, many)
            measure(browser.new_page(viewport={"width": 1280, "height": 800}), table, many)
        browser.close()


if __name__ == "__main__":
    main()
