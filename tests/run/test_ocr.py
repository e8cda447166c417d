"""The line that this project began with, `kujob` made `tarjob`: the text of fifty shards of pages, in S3."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.conftest import BIN, Run, make_tar, members_of
from tests.run.conftest import started
from tests.storage.objects import servers
from tests.storage.objects.sites import SIGNED, S3Site, ask
from tests.tiers import also, exhaustive

PAGES = 50
LINE = (
    "tarjob -v --spec '{0000..%04d}' -- "
    "tarproc -p 1 -c 'run-ocr *.png' s3://bucket/scanned-{}.tar -o s3://bucket/ocr-{}.tar"
)
RUN_OCR = """#!/bin/sh
# run-ocr PICTURE...: writes the text of each beside it
export OMP_THREAD_LIMIT=1
for picture; do tesseract "$picture" "${picture%.png}" --psm 7 -l eng >/dev/null || exit; done
"""
WORDS = ["time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child"]

pytestmark = pytest.mark.skipif(shutil.which("tesseract") is None, reason="tesseract is not installed")


def text_of(page: int) -> str:
    """Return what is written on *page*."""
    return f"The {WORDS[page % 10]} of the {WORDS[page // 10]}"


def picture_of(text: str) -> bytes:
    """Return a PNG with *text* in black on white."""
    font = ImageFont.load_default(size=40)
    picture = Image.new("L", (int(font.getlength(text)) + 40, 80), 255)
    ImageDraw.Draw(picture).text((20, 12), text, fill=0, font=font)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Site]:
    """Give a bucket called `bucket` with shards of a page each."""
    with servers.process(tmp_path_factory.mktemp("s3") / "log", "s3") as url:
        site = S3Site(url, "bucket")
        for page in range(PAGES):
            members = [(f"{page:04d}.png", picture_of(text_of(page)))]
            site.put(f"scanned-{page:04d}.tar", make_tar(members))
        yield site


@pytest.fixture(scope="module")
def environment(s3: S3Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what finds the bucket, and `run-ocr` in PATH."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "run-ocr").write_text(RUN_OCR)
    (folder / "run-ocr").chmod(0o755)
    path = os.pathsep.join([str(folder), str(BIN), os.environ["PATH"]])
    return s3.env | {"PATH": path, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


def check(pages: int, s3: S3Site, shell: Run, env: dict[str, str]) -> None:
    """Run `LINE` for some pages where there is no output, then where two of them are missing."""
    missing = [f"ocr-{page:04d}.tar" for page in range(pages)]
    for number in (pages, 2):
        for name in missing[:number]:
            ask("DELETE", f"{s3.env['AWS_ENDPOINT_URL']}/{s3.place}/{name}", headers=SIGNED)
        done = shell(LINE % (pages - 1), env=env, timeout=300)
        assert (done.status, done.stdout) == (0, b"")
        before = f"{pages - number} already done, " if number < pages else ""
        assert f"tarjob: {pages} items: {number} done, {before}0 failed, " in done.stderr
    for page, name in enumerate(missing):
        archive = s3.get(name)
        assert archive is not None
        (png, picture), (txt, text) = members_of(archive)
        assert (png, picture) == (f"{page:04d}.png", picture_of(text_of(page)))
        assert (txt, text.decode().strip()) == (f"{page:04d}.txt", text_of(page))
    for name in missing:
        ask("DELETE", f"{s3.env['AWS_ENDPOINT_URL']}/{s3.place}/{name}", headers=SIGNED)
    assert (len(s3.names()), s3.pending()) == (PAGES, 0)


@pytest.mark.parametrize("pages", [3, *also(PAGES)])
def test_on_this_machine(pages: int, s3: S3Site, environment: dict[str, str], shell: Run) -> None:
    check(pages, s3, shell, environment)


@exhaustive
def test_on_a_cluster(s3: S3Site, environment: dict[str, str], shell: Run) -> None:
    with started(1, **environment) as cluster:
        check(PAGES, s3, shell, environment | {"RAY_ADDRESS": cluster.address})


def test_a_remote_wildcard(s3: S3Site, environment: dict[str, str], tarjob: Run, tmp_path: Path) -> None:
    words = ("tarcat", "{}", "-o", "{/.}.copy.tar")
    done = tarjob("-v", "--spec", "s3://bucket/scanned-004[0-2].tar", "--", *words, env=environment)
    assert done.status == 0
    assert "tarjob: 3 items: 3 done, 0 failed, " in done.stderr
    copies = [(tmp_path / f"scanned-{page:04d}.copy.tar").read_bytes() for page in range(40, 43)]
    assert copies == [s3.get(f"scanned-{page:04d}.tar") for page in range(40, 43)]
    said = tarjob("--spec", "s3://bucket/none-*.tar", "--", *words, env=environment).failure()
    assert said.startswith("tarjob: s3://bucket/none-*.tar: ")
