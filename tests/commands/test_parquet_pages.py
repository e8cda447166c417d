"""tarcreate --parquet of large columns, whose pages are read a piece at a time: as pyarrow reads them, or a failure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartools.commands.tarcreate import tarcreate
from tartools.errors import TarFormatError
from tartools.formats import parquetcolumns, parquetpages, parquetread, snappy
from tests.tiers import by_turns

PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def table(rows: int) -> pa.Table:
    """Return columns of all kinds that are read so, with nulls, empty values, values that come again, and numbers."""
    chance = random.Random(1)
    data = [chance.randbytes(chance.choice([0, 3, 40, 200])) for _ in range(rows)]
    texts = [None if n % 5 == 0 else "ä word " * (n % 30) for n in range(rows)]
    pictures = [None if n % 7 == 3 else {"bytes": data[n // 2], "path": f"{n}.jpg"} for n in range(rows)]
    return pa.table({
        "a.bin": pa.array([None if n % 3 == 1 else data[n] for n in range(rows)], pa.large_binary()),
        "jpg": pa.array(pictures, PICTURE),
        "nothing": pa.array([None] * rows, pa.binary()),
        "same": pa.array([b"x" * 300] * rows, pa.binary()),
        "txt": pa.array(texts, pa.string()),
        "list": pa.array([[b"1"]] * rows, pa.list_(pa.binary())),
        "n": pa.array(range(rows)),
    })  # fmt: skip


@pytest.fixture
def read(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[[int], tuple[int, bytes, str]]:
    """Return a function that reads `a.parquet`: by pages, where columns have so many bytes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parquetread, "BUFFER", 50)
    monkeypatch.setattr(parquetread, "MOST_ROWS", 7)
    monkeypatch.setattr(parquetpages, "WHOLE", 100)
    monkeypatch.setattr(parquetpages, "SNAPPY", 1000)
    monkeypatch.setattr(parquetpages, "HEADER", 8)

    def made(large: int) -> tuple[int, bytes, str]:
        monkeypatch.setattr(parquetcolumns, "LARGE", large)
        status = tarcreate.main(["--parquet", "a.parquet", "--force", "-o", "a.tar"])
        output = Path("a.tar")
        found = output.read_bytes() if output.exists() else b""
        output.unlink(missing_ok=True)
        return status, found, capfd.readouterr().err

    return made


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set into which come the names of columns that are read by pages."""
    found: set[str] = set()
    columns = parquetcolumns.Pages.columns

    def noted(*arguments: object) -> dict[str, parquetcolumns.Column]:
        chosen = columns(*arguments)  # type: ignore[arg-type]
        found.update(chosen)
        return chosen

    monkeypatch.setattr(parquetcolumns.Pages, "columns", noted)
    return found


BYTES = {"a.bin", "jpg", "nothing", "same", "txt"}
WRITERS: dict[str, Callable[[pa.Table], object]] = {
    **{
        f"{codec} {version}": lambda made, codec=codec, version=version: pq.write_table(
            made,
            "a.parquet",
            compression=codec,
            data_page_version=version,
            use_dictionary=["jpg", "same", "txt"],
            dictionary_pagesize_limit=3000,
            data_page_size=2000,
            write_batch_size=30,
            row_group_size=150,
            write_page_checksum=True,
        )
        for codec in ("none", "snappy", "gzip", "zstd")
        for version in ("1.0", "2.0")
    },
    "defaults": lambda made: pq.write_table(made, "a.parquet"),
    "duckdb": lambda made: duckdb.sql("COPY made TO 'a.parquet'"),
    "polars": lambda made: polars.DataFrame(made).write_parquet("a.parquet", data_page_size=500),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_as_pyarrow_reads_them(writer: str, read: Callable[[int], tuple[int, bytes, str]], here: set[str]) -> None:
    WRITERS[writer](table(400))
    wanted = read(1 << 30)
    assert (wanted[0], wanted[2], here) == (0, "", set())
    assert read(0) == wanted
    assert here == BYTES
    if writer == "defaults":  # values that may not be null
        bare = [field.with_nullable(False) for field in table(9).select(["same", "n"]).schema]
        pq.write_table(table(9).select(["same", "n"]).cast(pa.schema(bare)), "a.parquet")
        assert read(0) == read(1 << 30)


@pytest.mark.parametrize("codec", ["lz4", "brotli"])
def test_what_only_pyarrow_reads(codec: str, read: Callable[[int], tuple[int, bytes, str]], here: set[str]) -> None:
    pq.write_table(table(400), "a.parquet", compression=codec)
    assert read(0) == read(1 << 30)
    assert here == set()


@pytest.mark.parametrize("writer", ["none 1.0", "snappy 1.0", "zstd 2.0"])
@by_turns("writer")
def test_damage(writer: str, read: Callable[[int], tuple[int, bytes, str]]) -> None:
    """Cut at any byte, it is a failure. With any byte changed, it is one too, or nothing else changes."""
    WRITERS[writer](table(30).drop_columns(["list", "nothing"]))
    content = Path("a.parquet").read_bytes()
    status, whole, _ = read(0)
    assert status == 0
    ends = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    failures = 0
    for at in [*range(4, ends, 37), *range(ends, len(content), 7)]:
        bits = (0x01, 0x20, 0x80, 0xFF)[at // 2 % 4]
        Path("a.parquet").write_bytes(content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :])
        status, found, said = read(0)
        assert (status, found) in ((1, b""), (0, whole)), (at, bits)
        assert said.count("\n") == status and said.startswith("tarcreate: a.parquet: " * status), (at, said)
        failures += status
    assert failures > 100


def test_a_path_without_the_file(read: Callable[[int], tuple[int, bytes, str]]) -> None:
    rows = [{"bytes": b"1", "path": "1.jpg"}] * 20 + [{"bytes": None, "path": "ü.jpg"}]
    pq.write_table(pa.table({"image": pa.array(rows, PICTURE)}), "a.parquet")
    status, found, said = read(0)
    assert (status, found) == (1, b"") and "row 21: the column 'image' has only the path 'ü.jpg', not the" in said
    assert read(1 << 30) == (status, found, said)


def test_text_that_is_not(read: Callable[[int], tuple[int, bytes, str]]) -> None:
    pq.write_table(
        pa.table({"txt": ["a", "¡¡¡"]}), "a.parquet", compression="none", use_dictionary=False, write_statistics=False
    )
    content = Path("a.parquet").read_bytes()
    Path("a.parquet").write_bytes(content.replace("¡¡¡".encode(), b"\xa1" * 6))
    status, _, said = read(0)
    where = "at byte 4: in the row group that begins here, after row 0"
    assert status == 1 and said.startswith(f"tarcreate: a.parquet: {where}: this Parquet file is damaged: ")


def pieces(data: bytes, step: int) -> Iterator[bytes]:
    return iter([data[at : at + step] for at in range(0, len(data), step)])


blocks = st.lists(st.one_of(st.binary(max_size=300), st.just(b"the same words "), st.just(b"\0" * 999)), max_size=40)


@given(blocks, st.integers(1, 2000), st.integers(0, 1 << 20))
@settings(max_examples=150, deadline=None)
def test_snappy_in_pieces(parts: list[bytes], step: int, place: int) -> None:
    """All data come back. If they are cut, or a byte is changed, what comes is what its library gives, or an error."""
    codec, data = pa.Codec("snappy"), b"".join(parts)
    packed = codec.compress(data, asbytes=True)
    assert b"".join(snappy.decompressed(pieces(packed, step))) == data
    at = place % len(packed)
    with pytest.raises(TarFormatError):
        list(snappy.decompressed(pieces(packed[:at], step)))
    with pytest.raises(TarFormatError):
        list(snappy.decompressed(pieces(packed + b"\0", step)))
    other = packed[:at] + bytes([packed[at] ^ 1 << place % 8]) + packed[at + 1 :]
    try:
        size, _ = snappy._begun(pieces(other, step))
        wanted = codec.decompress(other, size, asbytes=True) if 0 < size < 1 << 20 else None
    except (TarFormatError, OSError):
        wanted = None
    if wanted is None:
        with pytest.raises(TarFormatError):
            list(snappy.decompressed(pieces(other, step)))
    else:
        assert b"".join(snappy.decompressed(pieces(other, step))) == wanted


def test_snappy_of_more_than_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies reach back into what was handed on, as far as the window."""
    monkeypatch.setattr(snappy, "WINDOW", 1 << 16)
    monkeypatch.setattr(snappy, "HELD", 1 << 17)
    chance = random.Random(2)
    words = [chance.randbytes(chance.randrange(4, 60)) for _ in range(300)]
    data = b"".join(chance.choices(words, k=20_000))
    packed = pa.Codec("snappy").compress(data, asbytes=True)
    assert len(packed) < 0.9 * len(data)
    found = list(snappy.decompressed(pieces(packed, 1000)))
    assert b"".join(found) == data and max(map(len, found)) < 1 << 18
