"""tarcreate --zip and tar2zip: samples from zip files and back."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.conftest import Inside
from tests.conftest import Run, has_end, make_tar, members_of

SAMPLES = [
    ("d/a.jpg", b"\xff\xd8" * 900),
    ("d/a.cls", b"3\n"),
    ("README", b""),
    ("d/ü.seg.png", b"\x89PNG" * 70),
    ("d/ü.txt", b"x" * 5000),
]


def zipped(members: list[tuple[str | zipfile.ZipInfo, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return the zip file that Python writes of *members*."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, payload in members:
            archive.writestr(name, payload)
    return file.getvalue()


def of_zip(content: bytes) -> list[tuple[str, bytes]]:
    """Return the members of a zip file, as Python reads them."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [(info.filename, archive.read(info)) for info in archive.infolist()]


@pytest.mark.parametrize("options", [(), ("--deflate",)], ids=["stored", "deflated"])
def test_there_and_back(options: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    archive = make_tar(SAMPLES)
    (tmp_path / "a.tar").write_bytes(archive)
    assert run("tar2zip", *options, "a.tar", "-o", "a.zip") == (0, b"", "")
    assert of_zip((tmp_path / "a.zip").read_bytes()) == SAMPLES
    with zipfile.ZipFile(tmp_path / "a.zip") as found:
        infos = found.infolist()
    assert {(info.date_time, info.external_attr >> 16) for info in infos} == {((1980, 1, 1, 0, 0, 0), 0o100644)}
    assert not any(info.flag_bits & 8 for info in infos)  # sizes are in the headers before the payloads too
    assert {info.compress_type for info in infos} == {zipfile.ZIP_DEFLATED if options else zipfile.ZIP_STORED}
    back = run("tarcreate", "--zip", "a.zip").stdout
    assert members_of(back) == SAMPLES and has_end(back)


class Unseekable(io.BytesIO):
    """What Python's zipfile writes sizes behind payloads to."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise io.UnsupportedOperation

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation


def streamed() -> bytes:
    file = Unseekable()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, payload in SAMPLES:
            archive.writestr(name, payload)
    return file.getvalue()


def large_sizes() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, payload in SAMPLES:
            with archive.open(name, "w", force_zip64=True) as target:
                target.write(payload)
    return file.getvalue()


def commented() -> bytes:
    file = io.BytesIO(zipped(SAMPLES))
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"made by hand" * 40
    return file.getvalue()


def in_code_page() -> bytes:
    """Return a zip file as old Windows programs write it: names in code page 437."""
    return zipped([(name.replace("ü", "u"), payload) for name, payload in SAMPLES]).replace(b"d/u.", b"d/\x81.")


@pytest.mark.parametrize(
    "make",
    [
        streamed,
        large_sizes,
        commented,
        in_code_page,
        lambda: b"#!/bin/sh\nexit\n" + zipped(SAMPLES),
        lambda: zipped([("d/", b""), *SAMPLES[:2], ("__MACOSX/d/._a.jpg", b"x"), ("d/.DS_Store", b"y"), *SAMPLES[2:]]),
    ],
    ids=["streamed", "64 bits", "comment", "code page 437", "bytes before", "directories"],
)
def test_zip_files_of_others(make: Callable[[], bytes], run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(make())
    done = run("tarcreate", "--zip", "a.zip")
    assert (done.status, members_of(done.stdout)) == (0, SAMPLES)
    left = "tarcreate: a.zip: left out __MACOSX/d/._a.jpg and 1 more\n"
    assert done.stderr == (left if b"MACOSX" in make() else "")


def test_many_members_get_64_bits(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 3)
    Path("a.tar").write_bytes(make_tar(SAMPLES))
    assert inside("tar2zip", "a.tar", "-o", "a.zip").status == 0
    assert b"PK\6\6" in Path("a.zip").read_bytes()
    assert inside("tarcreate", "--zip", "a.zip", "-o", "b.tar").status == 0
    assert members_of(Path("b.tar").read_bytes()) == SAMPLES


def test_large_members_are_held_on_disk(run: Run, tmp_path: Path) -> None:
    payload = bytes(range(256)) * (70 << 10)  # 17.5 MiB
    (tmp_path / "a.tar").write_bytes(make_tar([("a.npy", payload), ("a.cls", b"1")]))
    for options in ((), ("--deflate",)):
        assert run("tar2zip", "--force", *options, "a.tar", "-o", "a.zip").status == 0
        assert of_zip((tmp_path / "a.zip").read_bytes()) == [("a.npy", payload), ("a.cls", b"1")]
        run("tarcreate", "--force", "--zip", "a.zip", "-o", "b.tar").output()
        assert members_of((tmp_path / "b.tar").read_bytes()) == [("a.npy", payload), ("a.cls", b"1")]


def test_classes_are_names_of_folders(run: Run, tmp_path: Path) -> None:
    for n in (1, 2):
        (tmp_path / f"{n}.zip").write_bytes(zipped([(f"cats/{n}.jpg", b"c"), (f"dogs/{n}.jpg", b"d")]))
    for field, names in (
        ("label.txt", {"label.txt": ("cats", "dogs")}),
        ("cls", {"cls": "01", "cls.txt": ("cats", "dogs")}),
    ):
        done = run("tarcreate", "--zip", "{2..1}.zip", "--class", field)
        expected = [
            (f"{label}/{n}.{name}", value)
            for n in (2, 1)
            for number, label in enumerate(("cats", "dogs"))
            for name, value in (("jpg", label[:1].encode()), *((f, of[number].encode()) for f, of in names.items()))
        ]
        said = "tarcreate: cls: 0 cats, 1 dogs\n" * (field == "cls")
        assert (done.stderr, members_of(done.stdout)) == (said, expected)
    done = run("tarcreate", "--zip", "-", "--class", "cls", stdin=(tmp_path / "1.zip").read_bytes())
    assert done.status == 2 and "stdin: this is read once, and --class cls numbers all classes first" in done.stderr
    why = "tarcreate: flat.zip: the sample 'a' is in no directory, so it has no 'cls'\n"
    for others, numbers in (([], ""), ([("cats/b.jpg", b"")], "tarcreate: cls: 0 cats\n")):
        (tmp_path / "flat.zip").write_bytes(zipped([("a.jpg", b""), *others]))
        done = run("tarcreate", "--zip", "flat.zip", "--class", "cls")
        assert done.failure(lines=1 + bool(others)) == numbers + why


def with_mode(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


def test_links_are_reported(run: Run, tmp_path: Path) -> None:
    link = with_mode("b.jpg", stat.S_IFLNK | 0o777)
    (tmp_path / "a.zip").write_bytes(zipped([("a.jpg", b"1"), (link, b"a.jpg")]))
    done = run("tarcreate", "--zip", "a.zip")
    assert (done.status, members_of(done.stdout), has_end(done.stdout)) == (1, [("a.jpg", b"1")], True)
    assert done.stderr == (
        "tarcreate: a.zip: b.jpg: a symbolic link is not followed and not stored (--skip-special accepts that)\n"
    )
    assert run("tarcreate", "--zip", "a.zip", "--skip-special") == (0, done.stdout, "")


def test_a_key_that_comes_back_is_told(run: Run, tmp_path: Path) -> None:
    names = ["a.jpg", "b.jpg", "a.cls", "b.cls"]
    (tmp_path / "a.zip").write_bytes(zipped([(name, b"") for name in names]))
    done = run("tarcreate", "--zip", "a.zip")
    assert (done.status, [name for name, _ in members_of(done.stdout)]) == (0, names)
    assert done.stderr.startswith("tarcreate: a.zip: the key 'a' comes back after other samples, ")


def encrypted() -> bytes:
    content = bytearray(zipped([("a.jpg", b"1")]))
    for at in (6, content.index(b"PK\1\2") + 8):
        content[at] |= 1
    return bytes(content)


def ending(count: int, size: int, offset: int, comment: bytes = b"") -> bytes:
    """Return a zip file of two members whose last record says so."""
    content = zipped([("a.jpg", b"1"), ("b.jpg", b"22")])
    record = struct.pack("<4s4x2H2LH", b"PK\5\6", count, count, size, offset, len(comment))
    return content[:-22] + record + comment


def with_extra(extra: bytes, at: int = 0xFFFFFFFF) -> bytes:
    """Return a zip file whose directory has the extra fields *extra* for its member, which is at byte *at*."""
    content = zipped([("a.jpg", b"1")])
    begin = content.index(b"PK\1\2")
    entry = bytearray(content[begin:-22])
    entry[30:32], entry[42:46] = struct.pack("<H", len(extra)), struct.pack("<L", at)
    directory = bytes(entry) + extra
    return content[:begin] + directory + struct.pack("<4s4x2H2LH", b"PK\5\6", 1, 1, len(directory), begin, 0)


def sharing() -> bytes:
    """Return a zip file of two members, of which the last byte of the first is the first of the second."""
    content = bytearray(zipped([("a.jpg", b"1P"), ("b.jpg", b"22")]).replace(b"1PP", b"1P"))
    first = content.index(b"PK\1\2")
    second = content.index(b"PK\1\2", first + 4)
    content[second + 42 : second + 46] = struct.pack("<L", content.index(b"PK\3\4", 4))
    content[-6:-2] = struct.pack("<L", first)
    return bytes(content)


UNLISTED = "the directory is damaged: there are members that it does not list"
WHOLE = zipped([("a.jpg", b"1"), ("b.jpg", b"22")])
FIRST = len(zipped([("a.jpg", b"1")])) - 22 - 51  # bytes of the first member


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (ending(0, 0, FIRST), f"at byte 0: {UNLISTED}"),
        (ending(0, 0, 0), f"at byte 0: {UNLISTED}"),
        (ending(1, 51, 2 * FIRST + 1 + 51), f"at byte 0: {UNLISTED}"),  # the second alone
        (b"PK\3\4" + bytes(99) + WHOLE, f"at byte 0: {UNLISTED}"),
        (ending(1, 102, 2 * FIRST + 1), "the directory lists 2 members, and its end says 1"),
        (ending(2, 102, 2 * FIRST + 9), "at byte 0: the directory is damaged: it says that 'a.jpg' begins here"),
        (sharing(), f"at byte {FIRST + 1}: the directory is damaged: it says that 'b.jpg' begins here"),
        (ending(2, 1 << 31, 0), "the directory of this zip file is damaged: Bad offset"),
        (WHOLE + b"\n", f"at byte {len(WHOLE) - 21}: the end of this zip file is damaged, or other bytes follow it"),
        (WHOLE[:-2] + b"\3\0ab", f"at byte {len(WHOLE) - 22}: the end of this zip file is damaged"),  # cut in it
        (ending(2, 102, 2 * FIRST + 1, b"PK\5\6" + bytes(40)), ": the end of this zip file is damaged"),
        (with_extra(struct.pack("<2HQ", 1, 8, 1 << 63)), "the directory is damaged: members reach into it"),
        (with_extra(struct.pack("<2HQ", 1, 8, (1 << 64) - 1)), "the directory is damaged: members reach into it"),
        (with_extra(struct.pack("<2HL", 1, 4, 7)), "the directory of this zip file is damaged: Corrupt zip64 extra"),
        (with_extra(b"\1\0\x20\0"), "the directory of this zip file is damaged: Corrupt extra field"),
        (with_extra(b"", 1), "the directory is damaged: members reach into it"),
        (zipped([("ä.jpg", b"1")]).replace("ä".encode(), b"\xff\xff"), "this zip file is damaged: 'utf-8' codec"),
    ],
    ids=range(17),
)  # fmt: skip
def test_a_damaged_directory(content: bytes, said: str, run: Run, tmp_path: Path) -> None:
    """Also where members are not listed: they are not left out silently."""
    (tmp_path / "a.zip").write_bytes(content)
    done = run("tarcreate", "--zip", "a.zip", "-o", "a.tar")
    assert (done.status, done.stderr.count("\n"), (tmp_path / "a.tar").exists()) == (1, 1, False)
    assert done.stderr.startswith("tarcreate: a.zip: at byte ") and said in done.stderr


def test_an_empty_zip_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped([]))
    done = run("tarcreate", "--zip", "a.zip")
    assert (done.status, members_of(done.stdout), has_end(done.stdout)) == (0, [], True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (encrypted, "the member 'a.jpg' is encrypted: unpack the file with its password"),
        (lambda: WHOLE.replace(b"b.jpg", b"a.jpg"), "two members are called 'a.jpg'"),
        (lambda: zipped([("a.jpg", b"")], zipfile.ZIP_BZIP2), "the member 'a.jpg' is compressed by bzip2: only "),
        (lambda: zipped([("d/../a.jpg", b"")]), "the key 'd/../a.jpg' is absolute or contains '..', "),
        (lambda: zipped([("/etc/a.jpg", b"")]), "the key '/etc/a.jpg' is absolute or contains '..', "),
        (lambda: b"", "at byte 0: this is not a zip file: it neither begins nor ends as one"),
        (lambda: make_tar(SAMPLES), "at byte 0: this is not a zip file: it neither begins nor ends as one"),
        (lambda: zipped([("a.jpg", b"1")])[:-1], "at byte 108: this zip file is truncated: its end is missing"),
    ],
)
def test_what_is_refused(make: Callable[[], bytes], said: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(make())
    assert run("tarcreate", "--zip", "a.zip", "-o", "a.tar").failure(lines=1).startswith(f"tarcreate: a.zip: {said}")
    assert not (tmp_path / "a.tar").exists()


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("a.jpg", b""), ("b.jpg", b""), ("a.jpg", b"")], "two members are called 'a.jpg': "),
        ([("\udcff.jpg", b"")], "'\\udcff.jpg': a name in a zip file is UTF-8; "),
    ],
)
def test_what_a_zip_file_cannot_hold(members: list[tuple[str, bytes]], said: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    assert run("tar2zip", "-q", "a.tar", "-o", "a.zip").failure(lines=1).startswith(f"tar2zip: a.tar: {said}")
    assert not (tmp_path / "a.zip").exists()
    assert b"PK\5\6" not in run("tar2zip", "-q", "a.tar").stdout  # what was streamed has no end


def test_a_payload_that_unpacks_to_more_than_it_says(run: Run, tmp_path: Path) -> None:
    content = bytearray(zipped([("a.txt", bytes(50 << 20))], zipfile.ZIP_DEFLATED))
    for at in (22, content.index(b"PK\1\2") + 24):
        content[at : at + 4] = struct.pack("<L", 10)
    (tmp_path / "a.zip").write_bytes(content)
    done = run("tarcreate", "--zip", "a.zip")
    assert (done.status, has_end(done.stdout)) == (1, False)
    assert done.stderr == ("tarcreate: a.zip: at byte 0: the member 'a.txt' is damaged: its checksum (CRC) differs\n")
