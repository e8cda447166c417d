"""tardedup: what is left out, and why. That tables and streams say the same: `test_shards_and_tables`."""

from __future__ import annotations

import io
import os
import random
import re
import tarfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.archives import encoded, photograph
from tests.conftest import Run, keys_in, make_tar, members_of
from tests.properties.test_model import Members, grouped
from tests.tables.test_tables import anything
from tests.tiers import also, exhaustive


def stored(picture: Image.Image, form: str = "JPEG", **options: object) -> bytes:
    """Return *picture* as a file."""
    return encoded(picture, form, **options)


def copied(picture: Image.Image, seed: int) -> tuple[str, bytes]:
    """Return field and payload of a copy of *picture*: of another size, and compressed again."""
    draw = random.Random(seed)
    scale = draw.choice([0.6, 0.8, 1, 1.5, 3])
    again = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BICUBIC)
    form, field = draw.choice([("JPEG", "jpg"), ("JPEG", "jpg"), ("WEBP", "webp"), ("PNG", "png")])
    return field, stored(again, form, quality=draw.randrange(50, 95))


def pairs_in(report: Path) -> dict[str, str]:
    """Return which key was kept for each one that was left out."""
    head, *rows = [line.split("\t") for line in report.read_text().splitlines()]
    assert head == ["key", "shard", "kept_key", "kept_shard", "distance"]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[2] for row in rows}


@pytest.mark.parametrize(("count", "copies"), [(800, 50), pytest.param(5000, 100, marks=exhaustive)])
def test_copies_of_photographs_are_found_and_nothing_else(count: int, copies: int, run: Run, tmp_path: Path) -> None:
    members: Members = [(f"p/{number:04d}.jpg", stored(photograph(number), quality=90)) for number in range(count)]
    chosen = sorted(random.Random(1).sample(range(count), copies))
    for number in chosen:
        field, payload = copied(Image.open(io.BytesIO(members[number][1])), number)
        members.append((f"q/{number:04d}.{field}", payload))
    (tmp_path / "a.tar").write_bytes(make_tar(members[: count // 2]))
    (tmp_path / "b.tar").write_bytes(make_tar(members[count // 2 :]))
    line = ["tardedup", "--near", "jpg;png;webp", "a.tar", "b.tar", "-o", "o.tar", "--report", "r.tsv", "-p", "2"]
    done = run(*line, "--rest", "rest.tar")
    assert (done.status, done.stderr) == (0, f"tardedup: {copies} duplicates among {count + copies:,} samples\n")
    assert pairs_in(tmp_path / "r.tsv") == {f"q/{number:04d}": f"p/{number:04d}" for number in chosen}
    assert members_of((tmp_path / "o.tar").read_bytes()) == members[:count]
    assert members_of((tmp_path / "rest.tar").read_bytes()) == members[count:]


def test_which_one_is_kept(run: Run, tmp_path: Path) -> None:
    small, large, other = photograph(1), photograph(1).resize((640, 480)), photograph(2)
    members: Members = [
        ("a.jpg", stored(small)),
        ("b.jpg", stored(large)),
        ("c.jpg", stored(other)),
        ("d.jpg", stored(large)),
        ("e.jpg", stored(small)),
    ]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    for line, kept in (
        (["--near", "jpg"], "ac"),
        (["--near", "jpg", "--keep", "largest"], "bc"),
        (["--equal", "jpg"], "abc"),
        ([], "abc"),
    ):
        assert "".join(keys_in(run("tardedup", *line, "a.tar").stdout)) == kept, line
    (tmp_path / "t.tar").write_bytes(
        make_tar([("a.c", b"1"), ("a.x", b""), ("b.c", b"1"), ("c.c", b"2"), ("d.c", b"1"), ("d.x", b"1" * 600)])
    )
    assert keys_in(run("tardedup", "--equal", "c", "t.tar").stdout) == ["a", "c"]
    assert keys_in(run("tardedup", "--equal", "c", "--keep", "largest", "t.tar").stdout) == ["c", "d"]
    assert keys_in(run("tardedup", "t.tar").stdout) == ["a", "b", "c", "d"]


def test_near_is_not_passed_on(run: Run, tmp_path: Path) -> None:
    """A is near B, B is near C, A is not near C: then C stays, unless B is what is preferred."""
    shades = [Image.new("L", (32, 32), value) for value in (100, 103, 106)]
    members = [(f"{key}.png", stored(shade, "PNG")) for key, shade in zip("abc", shades, strict=True)]
    for order, kept in (("abc", "ac"), ("bac", "b"), ("cab", "ca")):
        archive = make_tar([member for key in order for member in members if member[0][0] == key])
        assert "".join(keys_in(run("tardedup", "--near", "png", stdin=archive).stdout)) == kept


@pytest.mark.parametrize("seed", [0, *also(1, 2)])
def test_random_archives(seed: int, run: Run, tmp_path: Path) -> None:
    """Equal samples are those with equal fields; nothing is lost, with any memory, and however the shards are cut."""
    draw = random.Random(seed)
    samples = [(sample.key, sample.fields) for sample in grouped(anything(seed, 40))]
    samples += [(f"again/{number}", fields[::-1]) for number, (_, fields) in enumerate(draw.choices(samples, k=25))]
    draw.shuffle(samples)
    members = [[(f"{key}.{field}" if field else key, data) for field, data in fields] for key, fields in samples]
    seen: set[object] = set()
    flags = []
    for _, fields in samples:
        flags.append(tuple(sorted(fields)) not in seen)
        seen.add(tuple(sorted(fields)))
    cut = draw.randrange(len(samples))
    for name, part in (("a", members[:cut]), ("b", members[cut:])):
        (tmp_path / f"{name}.tar").write_bytes(make_tar(list(chain.from_iterable(part)), tarfile.PAX_FORMAT))
    run("tarindex", "a.tar", "b.tar", "-o", "t.parquet").output()
    for line in (["a.tar", "b.tar", "-p", "3"], ["t.parquet", "-M", "2000"], ["t.parquet"]):
        run("tardedup", "-q", *line, "-o", "o.tar", "--rest", "r.tar", "--force").output()
        for name, wanted in (("o.tar", True), ("r.tar", False)):
            expected = [m for sample, flag in zip(members, flags, strict=True) if flag == wanted for m in sample]
            assert members_of((tmp_path / name).read_bytes()) == expected


def test_no_sample_of_the_validation_set_stays(run: Run, tmp_path: Path) -> None:
    """It is not written, also if it is the smaller one; a table of it answers when its shards are gone."""
    train = [(f"t/{number}.jpg", stored(photograph(number, 128, 96))) for number in range(6)]
    (tmp_path / "t.tar").write_bytes(make_tar(train))
    (tmp_path / "v.tar").write_bytes(make_tar([(f"v/{n}.jpg", stored(photograph(n), quality=60)) for n in (4, 2, 9)]))
    line = "tardedup --near jpg --keep largest --against v.tar t.tar --report r.tsv -o o.tar"
    done = run(*line.split())
    assert done.stderr == "tardedup: 2 duplicates among 6 samples, 2 of them of samples of --against\n"
    assert keys_in((tmp_path / "o.tar").read_bytes()) == ["t/0", "t/1", "t/3", "t/5"]
    assert pairs_in(tmp_path / "r.tsv") == {"t/2": "v/2", "t/4": "v/4"}
    run("tarindex", "--hash", "jpg", "v.tar", "-o", "v.parquet").output()
    (tmp_path / "v.tar").unlink()
    assert (
        run("tardedup", "--equal", "jpg", "--against", "v.parquet", "t.tar").output()
        == (tmp_path / "t.tar").read_bytes()
    )
    done = run("tardedup", "--near", "jpg", "--against", "v.parquet", "t.tar")
    assert done.status == 1 and re.fullmatch(r"tardedup: v\.tar: .*No such file.*\n", done.stderr), done


def odd_pictures() -> dict[str, bytes]:
    """Return pictures of unusual kinds, each like no other."""
    first = photograph(50).convert("RGB")
    turned = Image.Exif()
    turned[0x0112] = 6
    see_through = photograph(53).convert("RGBA")
    see_through.putalpha(Image.linear_gradient("L").resize(see_through.size))
    deep = Image.fromarray(np.asarray(photograph(54).convert("L")).astype(np.uint16) * 200)
    return {
        "cmyk": stored(photograph(51).convert("CMYK"), "JPEG"),
        "deep": stored(deep, "PNG"),
        "palette": stored(see_through.quantize(64), "PNG", transparency=3),
        "exif": stored(first, "JPEG", exif=turned),
        "animated": stored(photograph(55), "GIF", save_all=True, append_images=[photograph(56)]),
        "grey": stored(photograph(57).convert("L"), "TIFF"),
        "bits": stored(photograph(58).convert("1"), "PNG"),
        "alpha": stored(see_through.transpose(Image.Transpose.ROTATE_180), "WEBP"),
        "one pixel": stored(Image.new("RGB", (1, 1), "red"), "PNG"),
        "thin": stored(photograph(59).resize((3, 400)), "PNG"),
        "white": stored(Image.new("RGB", (50, 50), "white"), "JPEG"),
        "black": stored(Image.new("RGB", (50, 50), "black"), "JPEG"),
    }


def test_odd_pictures(run: Run, tmp_path: Path) -> None:
    """Each is equal to itself under another key, and near no other; so it is for a table."""
    found = odd_pictures()
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{key}.jpg", data) for key, data in found.items()]))
    (tmp_path / "b.tar").write_bytes(make_tar([(f"again/{key}.jpg", data) for key, data in found.items()]))
    run("tarindex", "--dhash", "jpg", "a.tar", "b.tar", "-o", "t.parquet").output()
    for inputs in (["a.tar", "b.tar"], ["t.parquet"]):
        assert run(
            "tardedup", "--near", "jpg", *inputs, "-o", "o.tar", "--report", "r.tsv", "--html", "p.html", "--force"
        ) == (0, b"", "tardedup: 12 duplicates among 24 samples\n")
        assert pairs_in(tmp_path / "r.tsv") == {f"again/{key}": key for key in found}
        page = (tmp_path / "p.html").read_text()
        assert page.count('<span class="face pair"><img') == page.count('"><img alt="kept.jpg') + 12 == 12
        assert page.count('src="data:image/webp') == 24
        assert "again/white next to white (kept), distance 0" in re.sub("<[^>]*>", "", page)
    for shard in ("a.tar", "b.tar"):
        (tmp_path / shard).unlink()  # the table says what the pictures look like
    done = run("tardedup", "--near", "jpg", "t.parquet", "-o", "o.parquet")
    assert done == (0, b"", "tardedup: 12 duplicates among 24 samples\n")
    assert pq.read_table(tmp_path / "o.parquet").num_rows == 12


def test_a_table_with_columns_is_not_read_beside_a_shard(run: Run, tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 2)):
        (tmp_path / f"{name}.tar").write_bytes(
            make_tar([(f"{name}{n}.cls", b"%d" % n) for n in range(first, first + 4)])
        )
    run("tarindex", "--hash", "cls", "a.tar", "-o", "a.parquet").output()
    (tmp_path / "a.tar").unlink()
    done = run("tardedup", "--equal", "cls", "a.parquet", "b.tar", "-o", "o.parquet")
    assert done == (0, b"", "tardedup: 2 duplicates among 8 samples\n")
    assert pq.read_table(tmp_path / "o.parquet")["__key__"].to_pylist() == ["a0", "a1", "a2", "a3", "b4", "b5"]


def test_the_page_begins_with_what_differs_most(run: Run, tmp_path: Path) -> None:
    pictures = [photograph(1), photograph(1), photograph(1).rotate(1)]
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{n}.jpg", stored(each)) for n, each in enumerate(pictures)]))
    run("tardedup", "-q", "--near", "jpg", "--distance", 15, "a.tar", "-o", "o.tar", "--html", "p.html").output()
    shown = re.findall(
        r"(\d) next to 0 \(kept\), distance (\d+)", re.sub("<[^>]*>", "", (tmp_path / "p.html").read_text())
    )
    assert shown == [("2", shown[0][1]), ("1", "0")] and shown[0][1] > "0"


ERRORS = [
    (["--equal", "jpg", "--near", "jpg"], 2, "--equal and --near exclude each other"),
    (["--distance", "3"], 2, "--distance needs --near"),
    (["--near", "jpg", "--distance", "16"], 2, "not a number of bits from 0 to 15: '16'"),
    (["--near", "jpg png"], 2, "--near takes one field"),
    (["--near", ""], 2, "--near takes one"),
    (["--equal", "x=jpg"], 2, "--equal takes names of fields"),
    (["--keep-uncompared"], 2, "--keep-uncompared needs --equal or --near"),
    (["--equal", "jpg", "--report", "-"], 2, "-o and --report are one file"),
    (["--rest", "r", "--html", "./r"], 2, "./r: --rest and --html are one file"),
    (["--rest", "r.tar", "--html", "./r.tar"], 2, "./r.tar: .tar says tar, and this writes HTML: name it .html; "),
    (["--rest", "a.tar"], 1, "a.tar: "),
    (["--against", "a.tar", "--rest", "a.tar"], 1, "a.tar: "),
    (["--against", "no.tar"], 1, "no.tar: No such file"),
    (["--rest", "r.parquet", "-z"], 2, "-z excludes an OUTPUT that ends in .parquet"),
    (["--equal", "txt"], 1, "a.tar: sample 'a' has no 'txt' to compare; its fields are: jpg; --keep-uncompared"),
    (["--equal", "txt,jpg"], 1, "(blanks separate fields: 'txt jpg')"),
    (["--near", "jpg"], 1, "a.tar: sample 'b': the picture 'jpg' can't be compared: truncated: the data end"),
    (["--near", "jpg", "--against", "a.tar", "e.tar"], 1, "a.tar: sample 'b': the picture 'jpg' can't be compared"),
]


@pytest.mark.parametrize(("line", "status", "message"), ERRORS, ids=str)
def test_errors(line: list[str], status: int, message: str, run: Run, tmp_path: Path) -> None:
    broken = stored(photograph(2))[:-300]
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", stored(photograph(1))), ("b.jpg", broken)]))
    (tmp_path / "e.tar").write_bytes(make_tar([]))
    before = sorted(os.listdir(tmp_path))
    done = run("tardedup", *line, *([] if "e.tar" in line else ["a.tar"]))
    assert (done.status, done.stdout) == (status, b"")
    assert re.fullmatch(r"tardedup: [^\n]+\n", done.stderr) and message in done.stderr, done
    assert sorted(os.listdir(tmp_path)) == before


def test_what_cannot_be_compared_may_stay(run: Run, tmp_path: Path) -> None:
    picture, broken = stored(photograph(1)), stored(photograph(2))[:-300]
    members = [
        ("a.jpg", picture),
        ("b.jpg", broken),
        ("c.cls", b"1"),
        ("d.jpg", broken),
        ("e.cls", b"1"),
        ("f.jpg", picture),
    ]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    run("tarindex", "--dhash", "jpg", "--hash", "jpg", "a.tar", "-o", "t.parquet").output()
    for source in ("a.tar", "t.parquet"):
        done = run("tardedup", "--near", "jpg", "--keep-uncompared", source)
        assert done.stderr.endswith("tardedup: 4 samples could not be compared, and were kept\n") and done.status == 0
        assert keys_in(done.stdout) == ["a", "b", "c", "d", "e"]
        done = run("tardedup", "--equal", "jpg", "--keep-uncompared", "--against", source, source)
        assert done.stderr.endswith(
            "tardedup: 2 samples of --against could not be compared, and were kept\n"
            "tardedup: 2 samples could not be compared, and were kept\n"
        )
        assert keys_in(done.stdout) == ["c", "e"]
        done = run("tardedup", "--near", "jpg", source)
        assert done.status == 1 and "a.tar: sample 'b': the picture 'jpg' can't be compared" in done.stderr


@pytest.mark.parametrize("change", ["printf x >>a.tar", "touch -d 2001-01-01 a.tar", "cp b.tar a.tar"])
def test_inputs_that_change_between_the_reads(change: str, run: Run, tmp_path: Path) -> None:
    for name, count in (("a", 4), ("b", 3)):
        (tmp_path / f"{name}.tar").write_bytes(make_tar([(f"{n}.cls", b"1") for n in range(count)]))
    said = run("tardedup", "a.tar", "--report", f"pipe:cat >r.tsv; {change}", "-o", "o.tar").failure()
    assert re.fullmatch(r"tardedup: a\.tar: .*\n", said)
    assert not (tmp_path / "o.tar").exists()


def test_columns_of_other_programs(run: Run, tmp_path: Path) -> None:
    """A column of no use is one line of an error."""
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", stored(photograph(1))), ("b.jpg", stored(photograph(2)))]))
    run("tarindex", "a.tar", "-o", "t.parquet").output()
    table = pq.read_table(tmp_path / "t.parquet")
    columns: Sequence[tuple[str, object, str]] = [
        ("jpg.dhash", pa.array([-1, 5]), "are hashes of 64 bits"),
        ("jpg.dhash", pa.array(["x", "y"]), "are hashes of 64 bits"),
        ("jpg.dhash", pa.array([None, 5], pa.uint64()), "has no value in jpg.dhash"),
        ("jpg.colours", pa.array([bytes(47), bytes(48)]), "are colours of 48 bytes"),
        ("jpg.blake2b", pa.array([b"short", b"x"]), "are digests of 16 bytes"),
    ]
    sides = {"jpg.width": pa.array([8, 8]), "jpg.height": pa.array([6, 6])}
    sound = {"jpg.dhash": pa.array([3, 5], pa.uint64()), "jpg.colours": pa.array([bytes(48)] * 2), **sides}
    for name, column, message in columns:
        odd = table
        for each, values in {**sound, name: column}.items():
            odd = odd.append_column(each, values)
        pq.write_table(odd, tmp_path / "odd.parquet")
        option = ["--equal", "jpg"] if "blake2b" in name else ["--near", "jpg"]
        done = run("tardedup", *option, "odd.parquet")
        assert done.status == 1 and re.fullmatch(rf"tardedup: odd\.parquet: .*{message}.*\n", done.stderr), done
