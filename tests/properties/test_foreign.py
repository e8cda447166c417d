"""Sound files as other programs make them: zip files, Parquet files and tables of text, and the samples in them.

Each is made by a generator of this module, byte by byte or by another library, from samples that it chose: so the right
result is known without tartools.
"""

from __future__ import annotations

import csv
import io
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import Inside, inside
from tests.conftest import members_of
from tests.tiers import also

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

__all__ = ["inside"]  # a fixture
CASES = 5
seeds = pytest.mark.parametrize("seed", [0, *also(*range(1, 60))])
Members = list[tuple[str, bytes]]

WORDS = {  # encoding -> words that it can write, as names and as text
    "utf-8": ("plain", "ünïcode", "书法", "テスト", "emoji😀", "e\u0301"),
    "gbk": ("书法", "颜真卿", "数据集", "样本"),  # not 图片, whose bytes happen to be UTF-8 of other letters
    "cp932": ("テスト", "写真", "データ", "日本語表示"),
    "big5": ("資料", "圖片", "功能"),
    "cp949": ("사진", "자료", "한국어"),
    "cp1251": ("Привет", "фото", "данные"),
    "cp866": ("Привет", "фото"),
    "latin-1": ("café", "naïve", "Größe"),
}


# ---- zip files, by the APPNOTE of PKWARE ----


def zip_file(dice: random.Random, members: list[tuple[bytes, bytes, int]], system: int) -> bytes:
    """Return a zip file of *members* (name, payload, flags), as one of many programs writes it."""
    data = bytearray(dice.choice([b"", b"", b"#!/bin/sh\nexit\n"]))  # before a self-extracting file
    prefix = len(data)
    directory = b""
    for name, payload, flags in members:
        deflated = dice.random() < 0.5
        body = payload
        if deflated:
            packer = zlib.compressobj(wbits=-15)
            body = packer.compress(payload) + packer.flush()
        streamed = dice.random() < 0.3
        flags |= 8 if streamed else 0
        crc, sizes = zlib.crc32(payload), (len(body), len(payload))
        extra = dice.choice([b"", b"", struct.pack("<HHBI", 0x5455, 5, 1, 1700000000)])
        common = struct.pack("<HHHHH", 20, flags, 8 if deflated else 0, dice.randrange(1 << 16), 0x5A21)
        local = struct.pack("<III", *((0, 0, 0) if streamed else (crc, *sizes))) + struct.pack(
            "<HH", len(name), len(extra)
        )
        at = len(data)
        data += b"PK\3\4" + common + local + name + extra + body
        if streamed:
            data += dice.choice([b"PK\7\x08", b""]) + struct.pack("<III", crc, *sizes)
        mode = (0o100644 << 16) if system == 3 else 0x20
        directory += b"PK\1\2" + struct.pack("<BB", 20, system) + common + struct.pack("<III", crc, *sizes)
        directory += struct.pack("<HHHHHII", len(name), len(extra), 0, 0, 0, mode, at - prefix) + name + extra
    comment = dice.choice([b"", b"made by a test"])
    count = len(members)
    end = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), len(data) - prefix, len(comment))
    return bytes(data) + directory + b"PK\5\6" + end + comment


@seeds
def test_zip_files(seed: int, inside: Inside, tmp_path: Path) -> None:
    dice = random.Random(seed)
    for case in range(CASES):
        encoding = dice.choice(list(WORDS))
        system = dice.choice([0, 3, 10, 11])
        backslashes = system != 3 and dice.random() < 0.5
        says_utf8 = encoding == "utf-8" and dice.random() < 0.5
        members: list[tuple[bytes, bytes, int]] = []
        expected: Members = []
        for number in range(dice.randrange(1, 6)):
            key = f"{dice.choice(WORDS[encoding])}/{dice.choice(WORDS[encoding])}{number}"
            for field in dice.sample(["jpg", "txt", "seg.png", "cls"], dice.randrange(1, 4)):
                payload = dice.randbytes(dice.choice([0, 1, 500, 70_000]))
                expected.append((f"{key}.{field}", payload))
                name = f"{key}.{field}".replace("/", "\\") if backslashes else f"{key}.{field}"
                members.append((name.encode(encoding), payload, 0x800 if says_utf8 else 0))
        hidden = dice.sample([b".git/x.jpg", b"__MACOSX/._a.jpg", b"d/.DS_Store", b"@eaDir/a.jpg"], dice.randrange(3))
        members += [(name, b"junk", 0) for name in hidden]
        (tmp_path / f"{case}.zip").write_bytes(zip_file(dice, members, system))
        options = [] if encoding == "utf-8" else ["--encoding", encoding]
        done = inside("tarcreate", "--zip", f"{case}.zip", *options)
        assert (done.status, members_of(done.stdout)) == (0, expected), (seed, case, encoding, done.stderr)
        assert ("left out" in done.stderr) == bool(hidden) and ("backslashes" in done.stderr) == backslashes
        if encoding not in ("utf-8", "latin-1"):  # of which code page 437 makes other letters
            plain = inside("tarcreate", "--zip", f"{case}.zip")
            assert plain.status == 0 and "is not UTF-8, and is read as code page 437" in plain.stderr, (seed, case)


# ---- Parquet files ----


def column(dice: random.Random, rows: int) -> tuple[Any, list[dict[str, bytes]]]:
    """Return a column of *rows* values, and the fields that each becomes, by what follows the column's name."""
    file = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kinds: dict[str, tuple[Any, Any, Any]] = {  # kind -> its type, a value, and the fields of that
        "int": (pa.int64(), lambda: dice.randrange(-9, 9), lambda v: {"": b"%d" % v}),
        "text": (
            dice.choice([pa.string(), pa.large_string()]),
            lambda: dice.choice(WORDS["utf-8"]),
            lambda v: {"": v.encode()},
        ),
        "bytes": (dice.choice([pa.binary(), pa.large_binary()]), lambda: dice.randbytes(5), lambda v: {"": v}),
        "file": (file, lambda: {"bytes": dice.randbytes(9), "path": "x.jpg"}, lambda v: {"": v["bytes"]}),
        "numbers": (pa.list_(pa.int32()), lambda: [1, 2][: dice.randrange(3)], lambda v: {"": str(v).encode()}),
        "files": (
            dice.choice([pa.list_, pa.large_list])(file),
            lambda: [{"bytes": dice.randbytes(3), "path": f"d/{n}.PNG"} for n in range(dice.randrange(3))],
            lambda v: {f".{n}.png": one["bytes"] for n, one in enumerate(v)},
        ),
        "payloads": (
            pa.list_(pa.binary()),
            lambda: [b"\xff\xd8\xff" + dice.randbytes(3) for _ in range(dice.randrange(3))],
            lambda v: {f".{n}.jpg": one for n, one in enumerate(v)},
        ),
        "words": (pa.list_(pa.string()), lambda: ["ü"], lambda v: {"": '["ü"]'.encode()}),
        "bool": (pa.bool_(), lambda: dice.random() < 0.5, lambda v: {"": b"true" if v else b"false"}),
    }
    kind, value, fields = kinds[dice.choice(list(kinds))]
    values = [None if dice.random() < 0.3 else value() for _ in range(rows)]
    array = pa.array(values, kind)
    if pa.types.is_string(kind) and dice.random() < 0.5:
        array = array.dictionary_encode()
    return array, [{} if one is None else fields(one) for one in values]


@seeds
def test_parquet_files(seed: int, inside: Inside, tmp_path: Path) -> None:
    dice = random.Random(seed)
    for case in range(CASES):
        rows = dice.choice([1, 2, 7, 30])
        columns = {f"c{number}": column(dice, rows) for number in range(dice.randrange(1, 5))}
        keys = [f"{dice.choice(WORDS['utf-8'])}/{row:03d}" for row in range(rows)]
        named = dice.random() < 0.5
        table = pa.table({"file_name" if named else "__key__": [f"{key}.JPEG" if named else key for key in keys]} | {
            name: array for name, (array, _) in columns.items()
        })  # fmt: skip
        pq.write_table(
            table,
            tmp_path / f"{case}.parquet",
            row_group_size=dice.choice([1, 3, 100]),
            compression=dice.choice(["none", "snappy", "zstd", "gzip"]),
            use_dictionary=dice.random() < 0.5,
            data_page_version=dice.choice(["1.0", "2.0"]),
        )
        expected: Members = []
        for row, key in enumerate(keys):
            fields = {name + ending: one for name, (_, made) in columns.items() for ending, one in made[row].items()}
            expected += [(f"{key}.{field}", payload) for field, payload in fields.items()]
        words = " ".join([*columns, "__key__=file_name"])
        done = inside("tarcreate", "--parquet", f"{case}.parquet", *(["-f", words] if named else []))
        whole = {name.rpartition("/")[2].partition(".")[0] for name, _ in expected}
        lost = rows - len(whole)  # rows of nulls alone
        assert (done.status, members_of(done.stdout)) == (1 if lost else 0, expected), (seed, case, done.stderr)
        assert done.stderr.startswith(f"tarcreate: {lost} row") == bool(lost)


# ---- tables of text ----


@seeds
def test_tables(seed: int, inside: Inside, tmp_path: Path) -> None:
    dice = random.Random(seed)
    for case in range(CASES):
        encoding = dice.choice([*WORDS, "utf-8-sig", "utf-16"])
        words = [*WORDS.get(encoding, WORDS["utf-8"]), "a,b", 'say "x"', "two\nlines", "", " blank "]
        names = dice.sample(["txt", "caption", "label.txt", "meta"], dice.randrange(1, 4))
        rows = [[f"k{number}", *(dice.choice(words) for _ in names)] for number in range(dice.randrange(1, 20))]
        file = io.StringIO(newline="")
        writer = csv.writer(
            file,
            quoting=dice.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
            lineterminator=dice.choice(["\n", "\r\n"]),
        )
        writer.writerows([["__key__", *names], *rows])
        content = file.getvalue().encode(encoding)
        (tmp_path / f"{case}.csv").write_bytes(content)
        expected = [
            (f"{key}.{name}", cell.encode()) for key, *cells in rows for name, cell in zip(names, cells, strict=True)
        ]
        done = inside("tarcreate", f"{case}.csv", "--encoding", encoding)
        assert (done.status, done.stderr, members_of(done.stdout)) == (0, "", expected), (seed, case, encoding)
        plain = inside("tarcreate", f"{case}.csv")
        if encoding.startswith("utf-8") or content.isascii():
            assert plain == done
        else:
            assert plain.status == 1 and "not UTF-8" in plain.stderr, (seed, case, encoding)
        inside(
            "tarcreate",
            "-o",
            f"{case}.tar",
            "--format",
            "tsv",
            stdin=b"__key__\tjpg\n" + b"".join(b"%b\tJ\n" % key.encode() for key, *_ in rows),
        )
        joined = inside("tarjoin", f"{case}.tar", f"{case}.csv", "--encoding", encoding)
        added = [member for member in members_of(joined.stdout) if not member[0].endswith(".jpg")]
        assert (joined.status, joined.stderr, added) == (0, "", expected), (seed, case, encoding)
