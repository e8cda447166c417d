"""What is a picture, a sound or text is so for all commands."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tartools.samples import filetypes
from tests.conftest import Run, make_tar

FORMS = {"jpg": "JPEG", "jpe": "JPEG", "tif": "TIFF", "jp2": "JPEG2000", "pgm": "PPM", "pbm": "PPM", "pnm": "PPM"}


def picture(suffix: str) -> bytes:
    file = io.BytesIO()
    mode = {"pbm": "1", "pgm": "L", "pnm": "L"}.get(suffix, "RGB")
    Image.new(mode, (9, 7)).save(file, FORMS.get(suffix, suffix.upper()))
    return file.getvalue()


def test_all_commands_know_the_same_pictures(run: Run, tmp_path: Path) -> None:
    suffixes = sorted(filetypes.PICTURES)
    (tmp_path / "a.tar").write_bytes(make_tar([(f"a.{suffix}", picture(suffix)) for suffix in suffixes]))
    shown = run("tarshow", "a.tar").stdout.decode().splitlines()[1:]
    assert [line.split()[0] for line in shown if " 9x7 " in line] == suffixes
    assert run("tar2parquet", "a.tar", "-o", "a.parquet").status == 0
    assert [one.name for one in pq.read_schema(tmp_path / "a.parquet") if pa.types.is_struct(one.type)] == suffixes
    done = run("tarcheck", "--decode", "--json", "a.tar")
    assert not {"suffix-lies", "broken-picture"} & set(json.loads(done.stdout)["findings"]), done.stdout
    cut = make_tar([(f"a.{suffix}", picture(suffix)[:20]) for suffix in suffixes])
    found = run("tarcheck", "--decode", "--json", stdin=cut)
    assert found.stdout.count(b'"broken-picture"') >= 1
    fields = {suffix for suffix in suffixes if f'"{suffix}: '.encode() in found.stdout}
    assert fields == set(suffixes)
