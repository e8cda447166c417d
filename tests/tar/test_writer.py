"""The writer of tar streams: raw bytes, new headers, ranges of files; and that other readers understand them."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tartools import tar
from tartools.errors import SampleError, StorageError
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import FileSink
from tartools.tar import (
    ContiguousGroups,
    Member,
    ScatteredGroup,
    Writer,
    encode_header,
    new_member,
    read_members,
    rename_member,
    rewrite_member,
    writer,
)
from tartools.tar.header import format_records, parse_records
from tests.archives import BLOCK, END, GNU, V7, Trickle, base256, data, entry, header, long, pax, sealed
from tests.conftest import has_end, make_samples, make_tar


def members(content: bytes) -> list[Member]:
    """Return the members of the archive *content*."""
    found: list[Member] = []
    for part in read_members(Trickle(content), url="a.tar", scratch=scratch_file):
        if isinstance(part, (ContiguousGroups, ScatteredGroup)):
            found += map(Member._make, part.members or ())
    return found


def written(found: list[Member], *, end: bool = True) -> bytes:
    """Return what the writer makes of *found*."""
    sink = io.BytesIO()
    out = Writer(sink)
    for member in found:
        out.add([member])
    if end:
        out.end()
    else:
        out.flush()
    return sink.getvalue()


def by_tarfile(archive: bytes) -> tarfile.TarInfo:
    """Return the only member of *archive* as Python's tarfile sees it."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        (info,) = opened.getmembers()
        return info


@pytest.mark.parametrize("count", [0, 1, 9, 10, 1000])
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_written_byte_for_byte_and_the_end_is_tars(count: int, format: int) -> None:
    archive = make_tar(make_samples(count), format)
    assert written(members(archive)) == archive
    assert has_end(archive)


@pytest.mark.parametrize("size", [0, 7 * BLOCK, 8 * BLOCK, 9 * BLOCK, 17 * BLOCK, 18 * BLOCK, 19 * BLOCK])
def test_every_length_ends_on_a_record(size: int) -> None:
    archive = written([new_member(b"a.x", bytes(size))])
    assert has_end(archive)
    assert len(archive) == tar.archive_size(size + BLOCK)
    assert members(archive)[0].read() == bytes(size)


def test_size_counts_what_was_added() -> None:
    out = Writer(io.BytesIO())
    found = members(make_tar(make_samples(50)))
    for n, member in enumerate(found, 1):
        out.add([member])
        assert out.size == sum(m.stored_size for m in found[:n])


@pytest.mark.parametrize("pending", [1, 1000, 1 << 20])
@pytest.mark.parametrize("direct", [1, 700, 1 << 20])
def test_pieces_of_any_origin_in_any_order(
    pending: int, direct: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Memory and files, contiguous or not, with new heads or not: what comes out is what was added, in order."""
    monkeypatch.setattr(writer, "MAX_UNWRITTEN_BYTES", pending)
    monkeypatch.setattr(writer, "MIN_DIRECT_BYTES", direct)
    archive = make_tar(make_samples(40))
    (tmp_path / "a.tar").write_bytes(archive)
    with io.FileIO(str(tmp_path / "a.tar")) as file:
        memory = members(archive)
        ranges = [m._replace(source=file) for m in memory]
        fresh = [rename_member(m, b"n" + m.path) for m in memory[:20]] + [
            rename_member(m, b"r" + m.path) for m in ranges[:20]
        ]
        order = [*memory, *ranges[::2], *fresh, *memory[::-3], *ranges[10:20], *memory[20:]]
        expected = b"".join(m.header + data(m.read()) for m in order)
        assert written(order, end=False) == expected
        fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
        with FileSink(fd, "out") as sink:  # here ranges go by sendfile
            out = Writer(sink)
            out.add(order)
            out.flush()
        assert (tmp_path / "out").read_bytes() == expected


def test_add_range_joins_what_is_contiguous() -> None:
    archive = make_tar(make_samples(10))
    found = members(archive)
    sink = io.BytesIO()
    out = Writer(sink)
    for member in found:
        out.add_range(archive, member.start, member.end)
    out.add(found[:3])
    out.end()
    assert sink.getvalue() == written([*found, *found[:3]])


def test_no_write_after_a_failed_one_repeats_bytes() -> None:
    class Full(io.BytesIO):
        def write(self, content: object, /) -> int:
            raise StorageError("No space left on device", url="a.tar")

    out = Writer(Full())
    with pytest.raises(StorageError):
        out.add([new_member(b"a.x", bytes(3 << 20))])
        out.flush()
    sink = io.BytesIO()
    out.sink = sink
    out.flush()
    assert sink.getvalue().strip(b"\0") == b""


def test_a_source_that_became_shorter_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.x", bytes(9000))]))
    with io.FileIO(str(tmp_path / "a.tar")) as file:
        member = Member(b"a.x", file, 0, BLOCK, 9000)
        os.truncate(tmp_path / "a.tar", 2000)
        with pytest.raises(StorageError, match="shorter"):
            written([member])
        with pytest.raises(StorageError, match="shorter"), FileSink(str(tmp_path / "out"), "out", os.O_CREAT) as sink:
            writer.copy_range(file, 0, 9000, sink)
        with pytest.raises(StorageError, match="shorter"):
            member.read()


NAMES = [
    b"a.x",
    b"a" * 100,
    b"a" * 101,
    b"p" * 155 + b"/" + b"a" * 100,
    b"p" * 156 + b"/" + b"a" * 100,
    b"p" * 155 + b"/" + b"a" * 101,
    b"a" * 300,
    b"/" + b"a" * 100,
    b"d/" * 60 + b"x",
    "ä/ö.jpg".encode(),
    b"\xe9t\xe9.jpg",
    b"a\nb=c.x",
    b" a. x",
    b"./a.x",
    b"../a.x",
]


@pytest.mark.parametrize("path", NAMES, ids=[f"{len(n)}-{n[:6]!r}" for n in NAMES])
def test_new_members_have_their_name_and_nothing_by_chance(path: bytes) -> None:
    archive = written([new_member(path, b"hello")])
    (member,) = members(archive)
    assert (member.path, member.read()) == (path, b"hello")
    info = by_tarfile(archive)
    assert info.name.encode("utf-8", "surrogateescape") == path
    assert (info.mode, info.uid, info.gid, info.mtime, info.uname, info.size) == (0o644, 0, 0, 0, "", 5)


@pytest.mark.parametrize(("length", "blocks"), [(100, 1), (256, 1), (257, 3)])
def test_pax_headers_only_where_ustar_does_not_do(length: int, blocks: int) -> None:
    path = b"p" * (length - 101) + b"/" + b"a" * 100 if length > 100 else b"a" * 100
    assert len(encode_header(path, 5)) == blocks * BLOCK


@settings(deadline=None)
@given(length=st.integers(1, 12000))
@example(length=85)
@example(length=86)
@example(length=984)
@example(length=9983)
def test_the_length_of_a_pax_record_counts_itself(length: int) -> None:
    records = {b"path": b"v" * length, b"comment": b"=\n"}
    payload = format_records(records)
    assert parse_records(payload) == records
    assert int(payload.partition(b" ")[0]) == payload.index(b"\n") + 1


@pytest.mark.parametrize(("size", "octal"), [(0, True), (8**11 - 1, True), (8**11, False), (1 << 40, False)])
def test_sizes_beyond_octal_are_pax(size: int, octal: bool) -> None:
    head = encode_header(b"a.x", size)
    assert len(head) == (BLOCK if octal else 3 * BLOCK)
    assert tarfile.TarInfo.fromtarfile(_opened(head)).size == size


def _opened(head: bytes) -> tarfile.TarFile:
    """Return a tarfile that stands in front of *head*."""
    opened = tarfile.open(fileobj=io.BytesIO(END))  # noqa: SIM115
    opened.fileobj = io.BytesIO(head)
    return opened


@pytest.mark.parametrize("path", [b"", b"a\0b.x"])
def test_names_that_no_archive_holds_are_refused(path: bytes) -> None:
    with pytest.raises(SampleError, match="not a member name"):
        encode_header(path, 1)


OLD = {
    "ustar": entry(b"a.x", b"hello"),
    "ustar prefix": entry(b"a.x", b"hello", prefix=b"there"),
    "GNU": entry(b"a.x", b"hello", magic=GNU),
    "GNU with times": header(b"a.x", 5, magic=GNU, tail=b"13627467000\0" * 2) + data(b"hello"),
    "GNU, before 1970": header(b"a.x", 5, magic=GNU, mtime=base256(-86400)) + data(b"hello"),
    "GNU long": long(b"n" * 300 + b".x") + entry(b"n" * 100, b"hello", magic=GNU),
    "pax": pax((b"path", b"n" * 300 + b".x"), (b"mtime", b"1577836800.5"), (b"SCHILY.xattr.user.a", b"1"))
    + entry(b"n" * 100, b"hello"),
    "v7": entry(b"a.x", b"hello", b"\0", magic=V7),
    "contiguous": entry(b"a.x", b"hello", b"7"),
}


@pytest.mark.parametrize("content", OLD.values(), ids=OLD)
@pytest.mark.parametrize("path", [b"b.x", b"m" * 270 + b".x"], ids=["short", "long"])
def test_renamed_members_keep_the_rest(content: bytes, path: bytes) -> None:
    (old,) = members(content + END)
    new = rename_member(old, path)
    before, after = by_tarfile(content + END), by_tarfile(written([new]))
    assert after.name == path.decode()
    kept = ("mode", "uid", "gid", "mtime", "size", "uname", "gname")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    assert after.pax_headers.get("SCHILY.xattr.user.a") == before.pax_headers.get("SCHILY.xattr.user.a")
    (read,) = members(written([new]))
    assert (read.path, read.read()) == (path, b"hello")
    assert rename_member(old, old.path) is old


def test_junk_of_before_posix_does_not_become_an_owner() -> None:
    old = bytearray(header(b"a.x", 5, b"\0", magic=V7))
    old[265:300] = b"j" * 35
    (member,) = members(sealed(old) + data(b"hello") + END)
    assert by_tarfile(written([rename_member(member, b"b.x")])).uname == ""


def test_rewritten_members_keep_their_header_where_path_and_size_stay() -> None:
    (old,) = members(OLD["GNU"] + END)
    assert rewrite_member(old, b"a.x", b"world!", 5).header == old.header
    new = rewrite_member(old, b"a.x", b"longer payload", 14)
    info = by_tarfile(written([new]))
    assert (info.size, info.mode, info.uid) == (14, 0o640, 0o2322)
    assert members(written([new]))[0].read() == b"longer payload"


def test_a_new_size_drops_the_old_pax_size() -> None:
    (old,) = members(pax((b"size", b"5")) + header(b"a.x", 0) + data(b"hello") + END)
    assert by_tarfile(written([rewrite_member(old, b"a.x", b"hi", 2)])).size == 2
    assert by_tarfile(written([rename_member(old, b"b.x")])).size == 5


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=2000)), max_size=8))
@settings(max_examples=100, deadline=None)
def test_what_we_write_we_read(content: list[tuple[bytes, bytes]]) -> None:
    content = [(path.replace(b"\0", b"n").rstrip(b"/") or b"n", payload) for path, payload in content]
    archive = written([new_member(*each) for each in content])
    assert [(m.path, m.read()) for m in members(archive)] == content
