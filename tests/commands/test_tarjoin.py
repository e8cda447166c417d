"""tarjoin, through the installed command: compared with a naive model, for all forms of B, sound and damaged."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import random
import tarfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tartools.formats.parquetread import read_small_batches
from tartools.tables.source import open_parquet
from tests.archives import GNU, entry, header
from tests.commands.conftest import Inside
from tests.conftest import Run, has_end, make_tar, members_of
from tests.tiers import by_turns

Fields = list[tuple[str, bytes]]
Samples = list[tuple[str, Fields]]  # keys, fields with payloads


def archive(samples: Samples) -> bytes:
    members = [(f"{key}.{field}", payload) for key, fields in samples for field, payload in fields]
    return make_tar(members, tarfile.PAX_FORMAT)


def table(samples: Samples, form: str, names: list[str], key: str = "__key__") -> bytes:
    """Return *samples* as a table whose columns are *names*; all have text for all of them."""
    rows = [[name, *(dict(fields)[field].decode() for field in names)] for name, fields in samples]
    header = [key, *names]
    if form == "jsonl":
        return "".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows).encode()
    if form == "parquet":
        file = io.BytesIO()
        columns = zip(*rows, strict=True) if rows else [[] for _ in header]
        pq.write_table(pa.table([pa.array(column, pa.string()) for column in columns], header), file, row_group_size=7)
        return file.getvalue()
    text = io.StringIO(newline="")
    if form == "csv":
        csv.writer(text).writerows([header, *rows])
    else:
        for row in [header, *rows]:
            cells = (cell.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n") for cell in row)
            text.write("\t".join(cells) + "\n")
    return text.getvalue().encode()


def model(a: Samples, b: Samples, mode: str = "") -> Samples:
    """Return what tarjoin makes of samples that have different fields."""
    known = dict(b)
    if mode == "--anti":
        return [(key, fields) for key, fields in a if key not in known]
    return [(key, fields + known.get(key, [])) for key, fields in a if mode == "--left" or key in known]


def two_sets(seed: int, names: list[str]) -> tuple[Samples, Samples]:
    """Return two data sets that share about half of their keys: A has keys twice, B has the fields *names*."""
    draw = random.Random(seed)
    keys = [f"{folder}{number:03d}" for folder in ("", "x/", "é é/", "y" * 97) for number in range(30)]
    first, second = draw.sample(keys, 80), draw.sample(keys, 80)
    if seed % 2:
        first.sort(key=str.encode)
        second.sort(key=str.encode)
    else:
        first += first[:9]
    sizes = [0, 1, 40, 511, 512, 513]
    a: Samples = [
        (key, [("jpg", draw.randbytes(draw.choice(sizes))), ("cls", b"%d" % n)]) for n, key in enumerate(first)
    ]
    words = ["", "a caption", "tab\tand\nline", 'back\\slash, "quoted"', "ü" * 300, "w" * 512]
    b: Samples = [(key, [(field, draw.choice(words).encode()) for field in names]) for key in second]
    return a, b


FORMS = ["tsv", "csv", "jsonl", "parquet", "tsv.gz", "jsonl.bz2", "tar", "tar.gz", "listed.parquet"]


@pytest.mark.parametrize("names", [["caption"], ["caption", "meta.txt"]], ids=len)
@pytest.mark.parametrize("seed", range(2))
@by_turns("names")
def test_the_same_as_a_model_from_every_form(
    seed: int, names: list[str], inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two_sets(seed, names)
    (tmp_path / "a-0.tar").write_bytes(archive(a[:30]))
    (tmp_path / "a-1.tar").write_bytes(gzip.compress(archive(a[30:])))
    for form in FORMS[:-1]:
        data = archive(b) if "tar" in form else table(b, form.partition(".")[0], names)
        packer: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress}
        (tmp_path / f"b.{form}").write_bytes(packer.get(form.rpartition(".")[2], bytes)(data))
    assert inside("tarindex", "b.tar", "-o", f"b.{FORMS[-1]}").status == 0
    lost = sum(key not in dict(b) for key, _ in a)
    left = len({key for key, _ in b} - {key for key, _ in a})
    for mode in ("", "--left", "--anti"):
        expected = [(f"{k}.{f}", data) for k, fields in model(a, b, mode) for f, data in fields]
        outputs: dict[bool, set[bytes]] = {True: set(), False: set()}  # from samples, which have headers; from rows
        for number, form in enumerate(FORMS):
            memory = ["-M", ["1e9", "9000", "1"][(number + seed) % 3]]
            monkeypatch.setattr("tartools.stages.joining.adding.MAX_ADDED_BYTES", [16 << 20, 1][number % 2])
            monkeypatch.setattr("tartools.stages.joining.adding.SAMPLES_IN_LOOKUP", [128, 3][number % 2])
            done = inside("tarjoin", "-v", *filter(None, [mode]), *memory, "a-*.tar", f"b.{form}")
            assert members_of(done.stdout) == expected, (form, mode)
            said = f"{lost} samples of A had no partner in B (left out), {left} samples of B had none in A"
            said = {"": said, "--left": f"{left} samples of B had no partner in A"}.get(mode, "")
            out = len(model(a, b, mode))
            counts = f"{len(a)} samples in, {out} out" + (f", {len(a) - out} left out" if out < len(a) else "")
            assert done.stderr.startswith("\n".join(f"tarjoin: {each}" for each in (said, f"{counts}, ") if each))
            assert done.status == 0
            outputs["tar" in form or "listed" in form].add(done.stdout)
        assert [len(each) for each in outputs.values()] == [1, 1]


def test_new_members_are_those_of_tarcreate(run: Run, tmp_path: Path) -> None:
    """Byte for byte: long and non-ASCII names need pax headers, sizes differ."""
    keys = ["a", "a b", "d/é", "k" * 96, "k" * 97, "d/" * 60 + "x", "ü" * 60, "ÿ"]
    rows = [f"{key}\t1\t{'w' * size}" for key, size in zip(keys, [0, 1, 511, 512, 513, 7, 70_000, 3], strict=True)]
    (tmp_path / "whole.tsv").write_text("__key__\tcls\ttxt\n" + "\n".join(rows) + "\n")
    (tmp_path / "part.tsv").write_text("__key__\tcls\n" + "\n".join(row.rpartition("\t")[0] for row in rows) + "\n")
    whole = run("tarcreate", "whole.tsv").output()
    run("tarcreate", "part.tsv", "-o", "a.tar").output()
    assert run("tarjoin", "-f", "txt", "a.tar", "whole.tsv").output() == whole
    assert run("tarjoin", "--prefer", "a", "a.tar", "whole.tsv").output() == whole
    assert run("tarjoin", "-x", "cls", "--left", "a.tar", "whole.tsv").output() == whole
    assert run("tarjoin", "--prefer", "b", "a.tar", "whole.tsv").output() == whole


def test_members_of_both_keep_their_bytes(run: Run, tmp_path: Path) -> None:
    a = [entry(b"k.jpg", b"1", magic=GNU), entry(b"l.jpg", b"2" * 70_000), entry(b"m.jpg", b"3")]
    b = [entry(b"m.txt", b"6" * 600, magic=GNU), entry(b"k.txt", b"4", b"\0"), entry(b"l.txt", b"5" * 80_000)]
    (tmp_path / "a.tar").write_bytes(b"".join(a) + bytes(1024))
    (tmp_path / "b.tar").write_bytes(b"".join(b) + bytes(1024))
    done = run("tarjoin", "a.tar", "b.tar").output()
    assert done.startswith(a[0] + b[1] + a[1] + b[2] + a[2] + b[0] + bytes(1024))
    assert run("tarjoin", "-", "b.tar", stdin=(tmp_path / "a.tar").read_bytes()).output() == done
    assert run("tarjoin", "--format", "tar", "a.tar", "-", stdin=(tmp_path / "b.tar").read_bytes()).output() == done
    assert run("tarjoin", "--with", "b.tar", stdin=(tmp_path / "a.tar").read_bytes()).output() == done
    (tmp_path / "list").write_text("a.tar\n")
    assert run("tarjoin", "-T", "list", "b.tar").output() == done
    assert run("tarjoin", "-T", "list", "--with", "pipe:cat b.tar").output() == done


def test_two_fields_of_one_name(run: Run, tmp_path: Path) -> None:
    a = make_tar([("k.jpg", b"1"), ("k.TXT", b"old"), ("k.cls", b"2"), ("k.Txt", b"older"), ("l.jpg", b"3")])
    (tmp_path / "a.tar").write_bytes(a)
    (tmp_path / "b.tsv").write_text("key\ttxt\nk\tnew\nl\tother\n")
    assert run("tarjoin", "a.tar", "b.tsv", "-o", "o.tar").failure() == (
        "tarjoin: a.tar: sample 'k' has the field 'txt' in A and in B (--prefer a or --prefer b takes one, "
        "-f 'new=old' renames those of B)\n"
    )
    assert not (tmp_path / "o.tar").exists()

    def fields(*options: str) -> list[tuple[str, bytes]]:
        return members_of(run("tarjoin", *options, "a.tar", "b.tsv").output())

    last = [("l.jpg", b"3"), ("l.txt", b"other")]
    old = [("k.jpg", b"1"), ("k.TXT", b"old"), ("k.cls", b"2"), ("k.Txt", b"older")]
    assert fields("--prefer", "a") == [*old, *last]
    assert fields("--prefer", "b") == [("k.jpg", b"1"), ("k.txt", b"new"), ("k.cls", b"2"), *last]
    assert fields("--verbatim") == [*old, ("k.txt", b"new"), *last]
    assert fields("-f", "TEXT=txt")[4] == ("k.TEXT", b"new")


def test_a_key_twice_in_b(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", b"")]))
    (tmp_path / "b.tsv").write_text("key\ttxt\n" + "".join(f"k{n % 900:03d}\t{n}\n" for n in range(1000)))
    (tmp_path / "c.tar").write_bytes(make_tar([("a.txt", b""), ("b.txt", b""), ("a.cls", b"")]))
    for memory in ("1G", "20K", "1"):
        said = run("tarjoin", "-M", memory, "a.tar", "b.tsv", "-o", "o.tar").failure()
        assert "B has the key 'k000' twice" in said
        assert "number 1 and 901 " in said
        said = run("tarjoin", "-q", "-M", memory, "a.tar", "c.tar", "-o", "o.tar").failure()
        assert "B has the key 'a' twice" in said
        assert not (tmp_path / "o.tar").exists()


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_values_become_fields(form: str, run: Run, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"key": 7, "text": "ü\n", "n": 5, "x": 0.1, "ok": True, "emb": [1.5, 2.0], "ints": [1, 2], "words": ["a"]},
        {"key": 8, "text": None, "n": None, "x": None, "ok": None, "emb": None, "ints": None, "words": None},
    ]
    rows[0] |= {"meta": {"a": [1, None]}, "deep.json": {"b": "c"}, "emb2.npy": [0.5], "__index_level_0__": 3}
    rows[1] |= {"meta": None, "deep.json": None, "emb2.npy": None, "__index_level_0__": 4}
    if form == "jsonl":
        (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        whole = pa.Table.from_pylist(rows)
        stored = pa.array([[1.5, 2], None], pa.list_(pa.float32(), 2))
        tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2]), stored)
        whole = whole.set_column(whole.schema.names.index("emb"), "emb", tensors)
        whole = whole.append_column("jpg", pa.array([b"\xff\xd8\0", None], pa.binary_view()))
        whole = whole.append_column("price", pa.array([Decimal("1.50"), None]))
        pq.write_table(whole, tmp_path / "b.parquet")
    (tmp_path / "a.tar").write_bytes(make_tar([("7.cls", b"1"), ("8.cls", b"2")]))
    found = dict(members_of(run("tarjoin", "a.tar", f"b.{form}").output()))
    if form == "parquet":
        assert (found.pop("7.jpg"), found.pop("7.price")) == (b"\xff\xd8\0", b"1.50")
    arrays = {name: np.load(io.BytesIO(found.pop(name))) for name in list(found) if name.endswith(".npy")}
    assert found == {
        "7.cls": b"1",
        "7.text": "ü\n".encode(),
        "7.n": b"5",
        "7.x": b"0.1",
        "7.ok": b"true",
        "7.words.json": b'["a"]',
        "7.meta.json": b'{"a": [1, null]}',
        "7.deep.json": b'{"b": "c"}',
        "8.cls": b"2",
    }
    assert {name: (array.dtype.str, array.tolist()) for name, array in arrays.items()} == {
        "7.emb.npy": ("<f8" if form == "jsonl" else "<f4", [1.5, 2.0]),
        "7.ints.npy": ("<i8", [1, 2]),
        "7.emb2.npy": ("<f8", [0.5]),
    }


def test_columns_of_a_table_of_samples(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("k.jpg", b"1"), ("l.jpg", b"2")]))
    run("tarindex", "a.tar", "-o", "a.parquet").output()
    rows = pq.read_table(tmp_path / "a.parquet").append_column("score", pa.array([0.5, 2]))
    pq.write_table(rows, tmp_path / "scored.parquet")
    done = run("tarjoin", "-f", "score", "a.parquet", "scored.parquet").output()
    assert members_of(done) == [("k.jpg", b"1"), ("k.score", b"0.5"), ("l.jpg", b"2"), ("l.score", b"2.0")]
    assert "'jpg' in A and in B" in run("tarjoin", "a.tar", "scored.parquet").stderr
    rows = (tmp_path / "scored.parquet").read_bytes()
    assert run("tarjoin", "--format", "parquet", "a.tar", "-", stdin=rows).output() == done


BAD = {
    "no key": ("b.tsv", b"id\ttxt\na\tb\n", "b.tsv: line 1: no column '__key__' or 'key' (--key-column"),
    "empty": ("b.tsv", b"", "b.tsv: the table is empty"),
    "empty lines": ("b.jsonl", b"", "b.jsonl: the table is empty"),
    "empty key": ("b.tsv", b"key\ttxt\na\tb\n\tc\n", "b.tsv: line 3: the key is empty"),
    "a cell too many": ("b.tsv", b"key\ttxt\na\tb\nc\td\te\n", "b.tsv: line 3: the header has 2 cells, this row has 3"),
    "a cut row": ("b.tsv", b"key\ttxt\na\tb\nc", "b.tsv: line 3: the header has 2 cells, this row has 1"),
    "a bad escape": ("b.tsv", b"key\ttxt\na\tb\\x\n", "b.tsv: line 2, column 2: unknown escape"),
    "a cut quote": ("b.csv", b'key,txt\na,"b\n', "b.csv: line 2: not CSV"),
    "a cut object": ("b.jsonl", b'{"key": "a", "txt": 1}\n{"key": "b", "tx', "b.jsonl: line 2: not JSON"),
    "no object": ("b.jsonl", b"[1]\n", "b.jsonl: line 1: not a JSON object"),
    "Latin-1 in JSON": ("b.jsonl", b'{"key": "\xe9"}\n', "b.jsonl: line 1: not UTF-8 text (byte 9 of the line)"),
    "null as key": ("b.jsonl", b'{"key": null, "txt": 1}\n', "b.jsonl: line 1: the key is null"),
    "a lone surrogate": ("b.jsonl", b'{"key": "a", "txt": "\\ud800"}\n', "b.jsonl: line 1: 'txt': a lone surrogate"),
    "paths": ("b.tsv", b"key\t@jpg\na\tb.jpg\n", "b.tsv: line 1: the column @jpg has paths of files to read"),
    "NUL": ("b.tsv", b"key\ttxt\na\tb\nc\0d\te\n", "b.tsv: line 3: the key has a NUL"),
    "another name": (
        "b.txt",
        b"key\ttxt\na\tb\n",
        "b.txt: at byte 0: this is not a tar archive but 12 bytes of text (--format tsv",
    ),
    "twice": ("b.tsv", b"key\ttxt\tTXT\na\tb\tc\n", "b.tsv: line 1: there are two for the field"),
    "no field": ("b.tsv", b"key\ta/b\na\tb\n", "b.tsv: line 1: key 'key' with field 'a/b' would not read back"),
    "cut Parquet": (
        "b.parquet",
        b"PAR1" + bytes(90),
        "b.parquet: at byte 94: this table is truncated: its end is",
    ),
    "cut gzip": ("b.tsv.gz", gzip.compress(b"key\ttxt\na\tb\n" * 99)[:-9], "b.tsv.gz: at byte "),
}


@pytest.mark.parametrize("case", BAD)
def test_damage_of_rows(case: str, inside: Inside, tmp_path: Path) -> None:
    name, data, message = BAD[case]
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", b"1")]))
    (tmp_path / name).write_bytes(data)
    for output in (["-o", "o.tar"], []):
        done = inside("tarjoin", *output, "a.tar", name)
        assert done.status == 1
        assert done.stderr.startswith(f"tarjoin: {message}"), done.stderr
        assert done.stderr.count("\n") == 1
        assert not has_end(done.stdout)
        assert not (tmp_path / "o.tar").exists()


def test_fields_of_one_set_that_differ_in_case_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("n.JPG", b"1"), ("n.jpg", b"2")]))
    (tmp_path / "b.tar").write_bytes(make_tar([("n.txt", b"3")]))
    (tmp_path / "c.tar").write_bytes(make_tar([("n.Jpg", b"3")]))
    run("tarjoin", "a.tar", "b.tar", "-o", "o.parquet").output()
    joined = [("n.JPG", b"1"), ("n.jpg", b"2"), ("n.txt", b"3")]
    for line in ("tarcat o.parquet", "tarjoin a.tar b.tar"):
        assert members_of(run(*line.split()).output()) == joined
    assert "has the field 'jpg' in A and in B" in run("tarjoin", "a.tar", "c.tar", "-o", "p.parquet").failure()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"key": "a", "x.json": "hello"}', "the column 'x.json' has text, and must have lists or objects"),
        ('{"key": "a", "x": 1, "x.json": [1, "a"]}', "two values of one row are for the column 'x'"),
    ],
)
def test_values_of_json_that_no_column_of_a_table_holds(row: str, said: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", b"1")]))
    (tmp_path / "b.jsonl").write_text(row)
    run("tarindex", "a.tar", "-o", "a.parquet").output()
    message = run("tarjoin", "a.parquet", "b.jsonl", "-o", "c.parquet").failure(lines=1)
    assert message.startswith("tarjoin: b.jsonl: ") and message.endswith(f"{said}\n")


def test_columns_of_parquet_that_cannot_be(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", b"1")]))
    good_keys = pa.array(["a"])
    tables = {
        "two columns are called 'v'": pa.table([good_keys, good_keys, good_keys], ["key", "v", "v"]),
        "row 1: the key is null": pa.table({"key": pa.nulls(1), "v": [1]}),
        "column 'v': a list of numbers has a null in it": pa.table({"key": good_keys, "v": [[1, None]]}),
        "no column '__key__' or 'key'": pa.table({"v": [1]}),
        "row 1: two columns are for one field": pa.table({"key": good_keys, "v": [[1]], "v.npy": [[2]]}),
    }
    for message, found in tables.items():
        pq.write_table(found, tmp_path / "b.parquet")
        said = run("tarjoin", "a.tar", "b.parquet", "-o", "o.tar").failure()
        assert said.startswith(f"tarjoin: b.parquet: {message}"), said
        assert not (tmp_path / "o.tar").exists()
    pq.write_table(pa.table({"key": ["a"], "v": pa.array([[]], pa.list_(pa.string()))}), tmp_path / "b.parquet")
    assert members_of(run("tarjoin", "a.tar", "b.parquet").output())[1] == ("a.v.json", b"[]")
    pq.write_table(pa.table({"key": ["a", "b"], "v": [bytes(6 << 20), b""]}), tmp_path / "b.parquet")
    with open_parquet(str(tmp_path / "b.parquet")) as opened:  # of large rows, few are held
        assert [len(batch) for batch in read_small_batches(opened, ["v"])] == [1, 1]
    for fields, said in (("txt TXT", "there are two for the field 'txt'"), ("txt txt", "'a' has a field twice")):
        (tmp_path / "b.tar").write_bytes(make_tar([(f"a.{field}", b"1") for field in fields.split()]))
        done = run("tarjoin", "--prefer", "a", "a.tar", "b.tar", "-o", "o.tar")
        assert done.status == 1
        assert said in done.stderr
    (tmp_path / "b.jsonl").write_text('{"key": "a", "v": [1], "V.npy": "x"}\n')
    assert "B has a field twice for sample 'a': v.npy V.npy" in run("tarjoin", "a.tar", "b.jsonl").stderr


def test_links_in_b_are_reported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", b"1")]))
    links = header(b"b.txt", kind=b"2") + header(b"c.txt", kind=b"2")
    (tmp_path / "b.tar").write_bytes(entry(b"a.txt", b"2") + links + bytes(1024))
    said = run("tarjoin", "a.tar", "b.tar", "-o", "o.tar").failure()
    assert "b.tar: b.txt: a symbolic link carries no sample data" in said
    assert "1 more such member not passed on" in said
    assert members_of((tmp_path / "o.tar").read_bytes()) == [("a.jpg", b"1"), ("a.txt", b"2")]
    assert run("tarjoin", "--skip-special", "a.tar", "b.tar")[0::2] == (0, "")


def test_samples_side_by_side_with_one_key(run: Run, tmp_path: Path) -> None:
    """What was between two of one key is left out: a reader would take them for one sample."""
    (tmp_path / "a.tar").write_bytes(make_tar([("k.jpg", b"1"), ("l.jpg", b"2"), ("k.cls", b"3")]))
    (tmp_path / "b.tsv").write_text("key\ttxt\nk\tx\n")
    said = run("tarjoin", "-q", "a.tar", "b.tsv", "-o", "o.tar").failure()
    assert "two samples with the key 'k' side by side" in said
    found = members_of(run("tarjoin", "-q", "--left", "a.tar", "b.tsv").output())
    assert found == [("k.jpg", b"1"), ("k.txt", b"x"), ("l.jpg", b"2"), ("k.cls", b"3"), ("k.txt", b"x")]


def test_members_without_a_field(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("README", b"1"), ("k.jpg", b"2")]))
    (tmp_path / "b.tsv").write_text("key\ttxt\nREADME\tx\n")
    said = run("tarjoin", "a.tar", "b.tsv", "-o", "o.tar").failure()
    assert "sample 'README': a member without a field is a sample of its own, so nothing can be added" in said
    assert members_of(run("tarjoin", "--anti", "a.tar", "b.tsv").stdout) == [("k.jpg", b"2")]
    (tmp_path / "b.tar").write_bytes(make_tar([("README", b"9"), ("k.txt", b"3")]))
    done = run("tarjoin", "--prefer", "a", "a.tar", "b.tar")
    assert members_of(done.stdout) == [("README", b"1"), ("k.jpg", b"2"), ("k.txt", b"3")]


def test_nothing_in_common_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("0007.jpg", b"")]))
    (tmp_path / "b.jsonl").write_text('{"key": 7, "txt": "x"}\n')
    done = run("tarjoin", "a.tar", "b.jsonl")
    assert (done.status, done.stdout) == (1, bytes(10240))
    assert done.stderr.splitlines()[1:] == ["tarjoin: no key of A is in B; the first is '0007' in A, and '7' in B"]
    said = "tarjoin: no key of A is in B; the first is '0007' in A, and '7' in B\n"
    assert run("tarjoin", "-q", "a.tar", "b.jsonl") == (1, done.stdout, said)
    done = run("tarjoin", "--left", "a.tar", "b.jsonl")
    assert (
        done.status == 0
        and done.stderr.endswith(said)
        and [name for name, _ in members_of(done.stdout)] == ["0007.jpg"]
    )
    (tmp_path / "h.tsv").write_text("key\ttxt\n")
    done = run("tarjoin", "a.tar", "h.tsv")
    said = ["1 sample of A had no partner in B (left out)", "no key of A is in B, which has no samples"]
    assert (done.status, done.stderr.splitlines()) == (1, [f"tarjoin: {line}" for line in said])


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("memory", ["1", "256M"])
def test_keys_that_are_names_of_files(form: str, memory: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("d/0.jpg", b""), ("d/1.jpg", b""), ("d/v_2.jpg", b"")]))
    names = ["d/0.jpg", "d/1.JPEG", "d/v.2.jpg"]
    if form == "csv":
        (tmp_path / "b").write_text("file_name,txt\n" + "".join(f"{name},x\n" for name in names))
    elif form == "jsonl":
        (tmp_path / "b").write_text("".join(f'{{"file_name": "{name}", "txt": "x"}}\n' for name in names))
    else:
        pq.write_table(pa.table({"file_name": names, "txt": ["x"] * 3}), tmp_path / "b")
    join = ("tarjoin", "-M", memory, "--key-column", "file_name", "--format", form, "a.tar", "b")
    done = run(*join)
    assert done.status == 0 and [name for name, _ in members_of(done.stdout)][1::2] == ["d/0.txt", "d/1.txt"]
    done = run(*join, "--dots", "last")
    assert [name for name, _ in members_of(done.output())][1::2] == ["d/0.txt", "d/1.txt", "d/v_2.txt"]
    done = run(*join, "--dots", "first")
    assert "1 sample of A had no partner in B" in done.stderr  # v.2.jpg is of the sample v


def test_dots_are_offered_where_no_key_matches(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("v.1.jpg", b"")]))
    (tmp_path / "b.csv").write_text("key,txt\nv.1.jpg,x\n")
    done = run("tarjoin", "a.tar", "b.csv")
    assert done.status == 1 and "'v.1.jpg' in B (--dots first or last says where a key ends that is" in done.stderr
    assert members_of(run("tarjoin", "--dots", "first", "a.tar", "b.csv").output())[1] == ("v.txt", b"x")
    (tmp_path / "b.tar").write_bytes(make_tar([("v.txt", b"")]))
    assert "--dots is for rows, but these are samples" in run("tarjoin", "--dots", "first", "a.tar", "b.tar").failure(2)


@pytest.mark.parametrize("memory", ["1", "256M"])
def test_a_key_in_another_unicode_form_is_told(memory: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("key,txt\nb,1\n\u00e9,2\nc,3\n")
    for name, said in (("e\u0301", True), ("e\u0300", False)):
        archive = make_tar([("b.jpg", b""), (f"{name}.jpg", b"")], tarfile.PAX_FORMAT)
        (tmp_path / "a.tar").write_bytes(archive)
        done = run("tarjoin", "-M", memory, "a.tar", "b.csv")
        assert done.status == 0 and [key for key, _ in members_of(done.stdout)] == ["b.jpg", "b.txt"]
        assert (r"the key 'e\u0301' of A is '\xe9' in B: they look the same" in done.stderr) == said
        assert "1 sample of A had no partner in B (left out), 2 samples of B had none in A" in done.stderr


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_rows_in_another_encoding_are_refused_or_read(form: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", b""), ("b.jpg", b"")]))
    rows = {"csv": "key,txt\na,ok\nb,café\n", "tsv": "key\ttxt\na\tok\nb\tcafé\n"}
    text = rows.get(form, '{"key": "a", "txt": "ok"}\n{"key": "b", "txt": "café"}\n')
    (tmp_path / f"b.{form}").write_bytes(text.encode("latin-1"))
    said = run("tarjoin", "a.tar", f"b.{form}").failure(lines=1)
    line = "line 2" if form == "jsonl" else "line 3, column txt"
    assert f"b.{form}: {line}: not UTF-8 text" in said and "--encoding cp1252" in said
    done = run("tarjoin", "--encoding", "latin-1", "a.tar", f"b.{form}")
    assert dict(members_of(done.output()))["b.txt"] == "café".encode()
    (tmp_path / f"b.{form}").write_bytes(text.encode("utf-16"))
    assert "--encoding utf-16 reads it" in run("tarjoin", "a.tar", f"b.{form}").failure(lines=1)
    assert run("tarjoin", "--encoding", "utf-16", "a.tar", f"b.{form}").output() == done.stdout


def test_a_word_of_f_that_nothing_has(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", b"")]))
    (tmp_path / "b.tar").write_bytes(make_tar([("a.txt", b"")]))
    (tmp_path / "b.tsv").write_text("key\ttxt\na\tb\n")
    (tmp_path / "b.jsonl").write_text('{"key": "a", "txt": 1}\n')
    for name in ("b.tar", "b.tsv", "b.jsonl"):
        said = run("tarjoin", "-f", "txt,cls", "a.tar", name, "-o", "o.tar").failure()
        assert "txt,cls (blanks separate fields: 'txt cls')" in said
        assert not (tmp_path / "o.tar").exists()
