"""The reader of tar streams, branch by branch, against archives made by hand and against Python's tarfile."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tartools.errors import TarFormatError, TruncatedError
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import Stream
from tartools.tar import ARCHIVE_END as ENDED
from tartools.tar import (
    ContiguousGroups,
    Mark,
    Member,
    ScatteredGroup,
    Special,
    grouping,
    header,
    range_in_file,
    read_members,
    read_range,
    reader,
    rescan,
    split_path,
)
from tartools.tar.groups import Need
from tartools.tar.header import MAX_EXTENDED_HEADER
from tartools.tar.rescan import members_in
from tests.archives import BLOCK, END, GNU, USTAR, V7, Trickle, base256, data, entry, file_stream, long, pax, sealed
from tests.archives import header as block
from tests.commands.test_damage import NEEDED, WHOLE

Found = tuple[bytes, bytes]  # path and payload


@pytest.fixture(name="scratch")
def scratch_files(tmp_path: Path) -> Iterator[list[io.FileIO]]:
    """Give the list of the scratch files that `parse` made; they are closed at the end."""
    made: list[io.FileIO] = []
    yield made
    for file in made:
        file.close()


def parse(
    stream: Stream, made: list[io.FileIO] | None = None, *, lax: bool = False, need: Need = Need.PAYLOADS
) -> list[Member | Special | Mark]:
    """Return the contents of *stream*; members that are listed are compared with those that are found later."""

    def scratch() -> io.FileIO:
        assert made is not None, "no scratch file should be needed"
        made.append(scratch_file())
        return made[-1]

    found: list[Member | Special | Mark] = []
    for part in read_members(stream, url="a.tar", scratch=scratch, need=need, lax=lax):
        if isinstance(part, ContiguousGroups):
            found += members_of_run(part)
        elif isinstance(part, ScatteredGroup):
            found += map(Member._make, part.members)
        else:
            found.append(part)
    return found


def members_of_run(run: ContiguousGroups) -> list[Member]:
    """Return the members of *run*, which are grouped as it says, be they listed or found later."""
    source, keys, starts, listed, firsts, _ = run
    assert len(starts) == len(keys) + 1
    found = [members_in(source, *span) for span in pairwise(starts)]
    for key, group in zip(keys, found, strict=True):
        assert {split_path(member[0])[0] for member in group} == {key}
    later = [Member._make(member) for group in found for member in group]
    if listed is None:
        return later
    assert [(m[0], m[4]) for m in listed] == [(m.path, m.size) for m in later]
    assert firsts == [sum(map(len, found[:n])) for n in range(len(keys))]
    return list(map(Member._make, listed))


def parse_bytes(content: bytes, step: int = 1 << 30, *, lax: bool = False) -> list[Member | Special | Mark]:
    return parse(Trickle(content, step), lax=lax)


def contents(found: list[Member | Special | Mark]) -> list[Found]:
    return [(member.path, member.read()) for member in found if isinstance(member, Member)]


def raw(members: list[Member]) -> bytes:
    """Return the members as they are written."""
    return b"".join(member.header + data(member.read()) for member in members)


def one(content: bytes) -> Member:
    """Return the only thing in *content*, which is a member."""
    (member,) = (found for found in parse_bytes(content + END) if found is not ENDED)
    assert isinstance(member, Member)
    return member


LONG = b"d/" * 60 + b"a.jpg"

NAMES = {
    "ustar": (entry(b"a.jpg", b"x"), b"a.jpg"),
    "ustar prefix": (entry(b"b/a.jpg", b"x", prefix=b"long/way"), b"long/way/b/a.jpg"),
    "100 bytes, no NUL": (entry(b"a" * 100, b"x"), b"a" * 100),
    "155 + 100": (entry(b"a" * 100, b"x", prefix=b"p" * 155), b"p" * 155 + b"/" + b"a" * 100),
    "v7": (entry(b"a.jpg", b"x", b"\0", magic=V7), b"a.jpg"),
    "v7 with a type": (entry(b"a.jpg", b"x", magic=V7), b"a.jpg"),
    "v7: no prefix": (block(b"a.jpg", 1, b"\0", magic=V7, tail=b"junk") + data(b"x"), b"a.jpg"),
    "GNU: times are no prefix": (block(b"a.jpg", 1, magic=GNU, tail=b"13627467000\0") + data(b"x"), b"a.jpg"),
    "GNU long name": (long(LONG) + entry(b"cut.jpg", b"x", magic=GNU), LONG),
    "GNU long link and name": (long(b"to", b"K") + long(LONG) + entry(b"cut.jpg", b"x", magic=GNU), LONG),
    "pax path": (pax((b"path", LONG)) + entry(b"cut.jpg", b"x"), LONG),
    "pax path empty": (pax((b"path", b"")) + entry(b"a.jpg", b"x"), b"a.jpg"),
    "pax twice, the later counts": (pax((b"path", b"no"), (b"path", LONG)) + entry(b"cut", b"x"), LONG),
    "pax in two headers": (pax((b"path", LONG)) + pax((b"mtime", b"1.5")) + entry(b"cut", b"x"), LONG),
    "Solaris pax": (pax((b"path", LONG), kind=b"X") + entry(b"cut", b"x"), LONG),
    "pax path with newline and =": (pax((b"path", b"a=\nb.jpg")) + entry(b"cut", b"x"), b"a=\nb.jpg"),
    "not UTF-8": (entry(b"\xe9t\xe9.jpg", b"x"), b"\xe9t\xe9.jpg"),
    "contiguous file": (entry(b"a.jpg", b"x", b"7"), b"a.jpg"),
    "unknown type": (entry(b"a.jpg", b"x", b"q"), b"a.jpg"),
    "signed checksum": (block(b"\xe9\x80.jpg", 1, signed=True) + data(b"x"), b"\xe9\x80.jpg"),
}


@pytest.mark.parametrize(("content", "path"), NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("step", [1 << 30, 100])
def test_names(content: bytes, path: bytes, step: int) -> None:
    found = parse_bytes(content + END, step)
    assert contents(found) == [(path, b"x")]
    assert found[-1] is ENDED
    assert raw([m for m in found if isinstance(m, Member)]) == content  # headers as they were


SIZES = {
    "octal": (block(b"a.x", size_field=b"00000000005\0") + data(b"hello"), b"hello"),
    "octal without NUL": (block(b"a.x", size_field=b"000000000005") + data(b"hello"), b"hello"),
    "octal with blanks": (block(b"a.x", size_field=b"         5 \0") + data(b"hello"), b"hello"),
    "base-256": (block(b"a.x", size_field=base256(5)) + data(b"hello"), b"hello"),
    "empty is zero": (block(b"a.x", size_field=bytes(12)), b""),
    "pax goes before the header": (pax((b"size", b"5")) + block(b"a.x", 0) + data(b"hello"), b"hello"),
}


@pytest.mark.parametrize(("content", "payload"), SIZES.values(), ids=SIZES)
def test_sizes(content: bytes, payload: bytes) -> None:
    assert one(content).read() == payload


def sparse_header(more: int) -> bytes:
    old = bytearray(block(b"s", 3 * BLOCK, b"S", magic=GNU))
    old[482] = more
    return sealed(old)


HUGE = pax((b"comment", b"v" * 900_000))  # four of them are as many as may be


@pytest.mark.parametrize(
    ("content", "at", "what"),
    [
        (block(b"a.x", size_field=base256(-1)), 0, "size"),
        (block(b"a.x", size_field=b"0000000009\0\0"), 0, "size"),
        (entry(b"a.x") + block(b"b.x", size_field=b"12x\0\0\0\0\0\0\0\0\0"), BLOCK, "size"),
        (pax((b"size", b"-5")) + entry(b"a.x"), 0, "size"),
        (pax((b"size", b"9" * 5000)) + entry(b"a.x"), 0, "size"),
        (entry(b"p", b"12 path=abc", b"x") + entry(b"a.x"), 0, "pax"),
        (entry(b"p", b"99 path=abc\n", b"x") + entry(b"a.x"), 0, "pax"),
        (entry(b"p", b"3 path=abc\n", b"x") + entry(b"a.x"), 0, "pax"),
        (entry(b"p", b"0 path=abc\n", b"x") + entry(b"a.x"), 0, "pax"),
        (entry(b"p", b"7 pathx\n", b"x") + entry(b"a.x"), 0, "pax"),
        (entry(b"p", b"5 =x\n", b"x") + entry(b"a.x"), 0, "pax"),
        (entry(b"p", b"\0" * 10, b"g") + entry(b"a.x"), 0, "pax"),
        (entry(b"a.x") + block(b"p", MAX_EXTENDED_HEADER + 1, b"x"), BLOCK, "limit"),
        (block(b"p", size_field=base256(1 << 80), kind=b"L"), 0, "limit"),
        (HUGE * 5 + entry(b"a.x"), 4 * len(HUGE), "limit"),
        (sparse_header(1) + (b"\7" * 511 + b"\0") * 3000, BLOCK, "limit"),
        (entry(b"a.x") + pax((b"mtime", b"1")) + END, 3 * BLOCK, "checksum"),
        (entry(b"a.x") + b"\1" * BLOCK, BLOCK, "checksum"),
        (b"hello" * 1000, 0, "not a tar archive"),
    ],
)
@pytest.mark.parametrize("step", [1 << 30, 100])
def test_malformed(content: bytes, at: int, what: str, step: int) -> None:
    with pytest.raises(TarFormatError, match=what) as raised:
        parse_bytes(content + END, step)
    assert (raised.value.url, raised.value.offset) == ("a.tar", at)


def test_an_extended_header_may_have_the_size_of_the_limit() -> None:
    record = b"%d comment=%s\n" % (MAX_EXTENDED_HEADER, b"v" * (MAX_EXTENDED_HEADER - len(b"1048576 comment=\n")))
    assert len(record) == MAX_EXTENDED_HEADER
    assert one(entry(b"PaxHeaders/x", record, b"x") + entry(b"a.x", b"1")).read() == b"1"


def sparse(maps: int) -> bytes:
    """Return an old sparse file of GNU tar, with so many *maps* behind the header."""
    blocks = b"".join(b"\7" * 504 + bytes([n < maps - 1]) + bytes(7) for n in range(maps))
    return sparse_header(maps > 0) + blocks + bytes(3 * BLOCK)


SPARSE = pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.name", b"real.x"), (b"GNU.sparse.realsize", b"9999"))
DUMPED = b"payload" * 100
SPECIALS = {  # of links, devices and directories no payload follows, whatever their size field says
    "hard link": (block(b"b", 700, b"1", link=b"a.x"), Special("b", "hard link", False)),
    "symbolic link": (block(b"b", 700, b"2", link=b"a.x"), Special("b", "symbolic link", False)),
    "character device": (block(b"b", 700, b"3"), Special("b", "character device", False)),
    "block device": (block(b"b", 700, b"4"), Special("b", "block device", False)),
    "directory": (block(b"b", 700, b"5"), Special("b", "directory", True)),
    "fifo": (block(b"b", 700, b"6"), Special("b", "fifo", False)),
    "GNU dump: D": (entry(b"b", DUMPED, b"D", magic=GNU), Special("b", "directory", True)),
    "GNU dump: M": (entry(b"b", DUMPED, b"M", magic=GNU), Special("b", "continuation of another volume", False)),
    "GNU dump: V": (entry(b"b", DUMPED, b"V", magic=GNU), Special("b", "volume label", True)),
    "old directory: a slash": (entry(b"d/", kind=b"0", magic=V7), Special("d/", "directory", True)),
    "old directory, no type": (entry(b"d/", kind=b"\0", magic=V7), Special("d/", "directory", True)),
    "long name": (long(LONG) + block(b"cut", kind=b"2", magic=GNU), Special(LONG.decode(), "symbolic link", False)),
    **{f"sparse, {maps} maps": (sparse(maps), Special("s", "sparse file", False)) for maps in (0, 1, 3)},
    "pax sparse: its real name": (SPARSE + entry(b"S.1/r", b"map"), Special("real.x", "sparse file", False)),
}


@pytest.mark.parametrize(("content", "special"), SPECIALS.values(), ids=SPECIALS)
@pytest.mark.parametrize("step", [1 << 30, 300])
def test_members_that_are_special(content: bytes, special: Special, step: int) -> None:
    found = parse_bytes(entry(b"a.x", b"1") + content + entry(b"c.x", b"2") + END, step)
    assert contents(found) == [(b"a.x", b"1"), (b"c.x", b"2")]
    assert [part for part in found if isinstance(part, Special)] == [special]


@pytest.mark.parametrize("folder", [block(b"d/\0.x"), block(b"", prefix=b"d/sub"), block(b"d/", kind=b"\0")])
@pytest.mark.parametrize("step", [1 << 30, 100])
def test_directories_are_none_of_the_members_whatever_is_around_them(folder: bytes, step: int) -> None:
    link = block(b"a.link", kind=b"2")
    for middle in (folder, link + folder, folder + link):
        found = parse_bytes(
            entry(b"a.x", b"1") + middle + entry(b"a.y", b"2") + folder + entry(b"b.x", b"3") + END, step
        )
        assert contents(found) == [(b"a.x", b"1"), (b"a.y", b"2"), (b"b.x", b"3")]
        assert [f.kind for f in found if isinstance(f, Special)].count("directory") == 2


def test_a_path_of_nuls_is_a_member_too() -> None:
    odd = [bytes(512) + b"b.txt", b"a\0b.txt"]
    content = b"".join(pax((b"path", path)) + entry(b"cut", b"1") + entry(b"a\0b.jpg", b"2") for path in odd)
    assert contents(parse_bytes(content + END)) == [(odd[0], b"1"), (b"a", b"2"), (odd[1], b"1"), (b"a", b"2")]


@pytest.mark.parametrize("need", [Need.PAYLOADS, Need.FIELDS])
def test_a_file_that_grows_is_read_on(need: Need, tmp_path: Path) -> None:
    content = b"".join(entry(b"%03d.x" % n, bytes([n]) * 5000) for n in range(100)) + END
    with file_stream(tmp_path / "a.tar", content[:20_000], step=2000) as stream:
        reading = read_members(stream, url="a.tar", scratch=scratch_file, need=need)
        found = [next(reading)]  # now it knows how long the file is
        with (tmp_path / "a.tar").open("ab") as more:
            more.write(content[20_000:])
        found += reading
    assert sum(len(part.keys) for part in found if isinstance(part, ContiguousGroups)) == 100


def test_global_records_are_folded_into_members_that_lack_them() -> None:
    """They hold up to the end of the archive, not in the one behind it; `comment` (git archive) is nobody's."""
    global_ = pax((b"comment", b"abc"), (b"mtime", b"1.5"), (b"uname", b"me"), kind=b"g")
    own = pax((b"mtime", b"2.5")) + entry(b"b.x", b"2")
    whole = pax((b"mtime", b"3"), (b"uname", b"x")) + entry(b"c.x", b"3")
    found = parse_bytes(global_ + entry(b"a.x", b"1") + own + whole + END + entry(b"d.x", b"4") + END)
    members = [m for m in found if isinstance(m, Member)]
    assert contents(found) == [(b"a.x", b"1"), (b"b.x", b"2"), (b"c.x", b"3"), (b"d.x", b"4")]
    heads = [header.parse_records(m.header[BLOCK:-BLOCK].rstrip(b"\0")) for m in members]
    assert heads[0] == {b"mtime": b"1.5", b"uname": b"me"}
    assert heads[1] == {b"mtime": b"2.5", b"uname": b"me"}
    assert raw(members[2:]) == whole + entry(b"d.x", b"4")
    with tarfile.open(fileobj=io.BytesIO(raw(members) + END)) as opened:
        assert [info.mtime for info in opened][:3] == [1.5, 2.5, 3]


def test_a_global_header_of_comments_changes_nothing() -> None:
    content = entry(b"a.x", b"1") + entry(b"b.x", b"2")
    found = parse_bytes(pax((b"comment", b"0123abcd"), kind=b"g") + content + END)
    assert raw([m for m in found if isinstance(m, Member)]) == content


def test_a_global_header_between_extended_header_and_member() -> None:
    found = parse_bytes(
        long(LONG) + pax((b"atime", b"2")) + pax((b"mtime", b"1.5"), kind=b"g") + entry(b"cut", b"1") + END
    )
    member = found[0]
    assert isinstance(member, Member)
    assert member.path == LONG
    with tarfile.open(fileobj=io.BytesIO(member.header + data(b"1") + END)) as opened:
        (info,) = opened.getmembers()
    assert (info.name, info.mtime, info.pax_headers["atime"]) == (LONG.decode(), 1.5, "2")


def test_global_records_apply_to_large_members_of_files(tmp_path: Path, scratch: list[io.FileIO]) -> None:
    payload = b"p" * (3 << 20)
    content = pax((b"mtime", b"1.5"), kind=b"g") + entry(b"a.x", payload) + END
    for need in Need:
        with file_stream(tmp_path / "a.tar", content) as stream:
            member = parse(stream, need=need)[0]
            assert isinstance(member, Member)
            assert b"mtime=1.5" in member.header
            assert member.read() == payload


ENDS = {
    "one zero block": bytes(BLOCK),
    "two": END,
    "to a record": bytes(9 * BLOCK),
    "a block and a bit": bytes(BLOCK + 1),
    "to the next record and a bit": bytes(10 * BLOCK - 1),
    "2 MiB": bytes(2 << 20),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("step", [1 << 30, 300])
def test_sound_ends(end: bytes, step: int) -> None:
    found = parse_bytes(entry(b"a.x", b"1") + end, step if len(end) < 1 << 20 else 5000)
    assert contents(found) == [(b"a.x", b"1")]
    assert found[1:] == [ENDED]


@pytest.mark.parametrize("between", [1, 2, 3, 20, 45, 300])
def test_archives_behind_one_another_are_read_on(between: int) -> None:
    found = parse_bytes(entry(b"a.x", b"1") + bytes(BLOCK * between) + entry(b"b.x", b"2") + END)
    assert contents(found) == [(b"a.x", b"1"), (b"b.x", b"2")]
    assert [f is ENDED for f in found] == [False, True, False, True]


def test_an_archive_without_members() -> None:
    assert parse_bytes(bytes(10240)) == [ENDED]


A = entry(b"a.x", b"payload")  # two blocks
B = entry(b"b.x", b"payload")
TRUNCATED = {
    "nothing": (b"", 0, "empty"),
    "in the first header": (A[:100], 100, "a header: 412 bytes"),
    "behind the header": (A[:BLOCK], BLOCK, "the payload of 'a.x'"),
    "in the payload": (A[: BLOCK + 3], BLOCK + 3, "the payload of 'a.x'"),
    "in the padding": (A[:-1], 2 * BLOCK - 1, "the payload of 'a.x': 1 bytes"),
    "between members": (A, 2 * BLOCK, "lax=True"),
    "in the first zero block": (A + bytes(511), 2 * BLOCK + 511, "lax=True"),
    "in the second header": (A + A[:20], 2 * BLOCK + 20, "a header"),
    "in an extended header": (A + pax((b"path", LONG))[:-1], 4 * BLOCK - 1, "an extended header: 1 bytes"),
    "behind an extended header": (A + pax((b"path", LONG)), 4 * BLOCK, "a header"),
    "in a sparse map": (sparse_header(1) + bytes(20), BLOCK + 20, "a sparse header"),
    "in a second archive": (A + END + A[:-1], 6 * BLOCK - 1, "the payload"),
    "behind a second archive's global header": (
        A + END + pax((b"mtime", b"1"), kind=b"g"),
        6 * BLOCK,
        "without an end-of-archive",
    ),
    "behind a second archive": (A + END + A, 6 * BLOCK, "without an end-of-archive"),
}


@pytest.mark.parametrize(("content", "at", "what"), TRUNCATED.values(), ids=TRUNCATED)
@pytest.mark.parametrize("step", [1 << 30, 300])
def test_truncated(content: bytes, at: int, what: str, step: int) -> None:
    with pytest.raises(TruncatedError, match=what) as raised:
        parse_bytes(content, step)
    assert (raised.value.url, raised.value.offset) == ("a.tar", at)


def test_a_cut_at_any_byte_is_found(tmp_path: Path) -> None:
    """From a pipe and from a file, in an archive with every kind of region, up to the first zero block.

    A part of the first name alone can't be told from a text.
    """
    name_end = WHOLE.index(b"\0")
    with file_stream(tmp_path / "a.tar", WHOLE) as stream:
        assert stream.file is not None
        for cut in range(NEEDED - 1, -1, -1):
            error, offset = (TarFormatError, 0) if 0 < cut <= name_end else (TruncatedError, cut)
            with pytest.raises(error) as raised:
                parse_bytes(WHOLE[:cut], 700)
            assert raised.value.offset == offset
            os.truncate(tmp_path / "a.tar", cut)
            stream.file.seek(0)
            with pytest.raises(error) as raised:
                parse(stream, need=Need.FIELDS if cut % 2 else Need.PAYLOADS)
            assert raised.value.offset == offset


@pytest.mark.parametrize("content", [A, A + bytes(100), A + END + A], ids=["none", "cut", "of the second"])
def test_lax_accepts_a_missing_end_and_tells(content: bytes) -> None:
    found = parse_bytes(content, lax=True)
    assert contents(found)[0] == (b"a.x", b"payload")
    assert found[-3] == Special("a.tar", "missing end", False)  # told before the last group is given
    assert found[-1] is ENDED


@pytest.mark.parametrize("content", [b"", A[:-1], A[:100], A + A[:600], A + pax((b"path", LONG))])
def test_lax_accepts_nothing_else(content: bytes) -> None:
    with pytest.raises(TruncatedError):
        parse_bytes(content, lax=True)


@pytest.mark.parametrize(
    ("tail", "at"),
    [
        *((b"x", 0), (b"\0" * 100 + b"x", 0), (b"x" * BLOCK, 0), (bytes(BLOCK) + b"x" * 600, BLOCK)),
        *((bytes(blocks * BLOCK + 300) + b"x" + bytes(BLOCK), blocks * BLOCK) for blocks in (7, 20, 45, 300)),
    ],
)
def test_garbage_behind_the_end(tail: bytes, at: int) -> None:
    with pytest.raises(TarFormatError, match="neither zeros nor an archive") as raised:
        parse_bytes(A + END + tail)
    assert raised.value.offset == len(A + END) + at


def test_any_flipped_byte_of_a_header_is_found() -> None:
    missed = []
    for at in (*range(0, 148), *range(156, 512)):
        content = bytearray(A + A + END)
        content[len(A) + at] ^= 0x40
        try:
            parse_bytes(bytes(content))
        except TarFormatError as error:
            if "checksum" in str(error) and error.offset == len(A):
                continue
            missed.append((at, error))
        else:
            missed.append((at, "no error"))
    assert missed == []


def test_changed_checksums_are_found_unless_they_mean_the_same() -> None:
    meant = 0
    for at in range(148, 156):
        for value in range(256):
            content = bytearray(A + END)
            content[at] = value
            try:
                assert contents(parse_bytes(bytes(content))) == [(b"a.x", b"payload")]
            except TarFormatError:
                continue
            stored = bytes(content[148:156]).partition(b"\0")[0].strip(b" ")
            assert int(stored, 8) == int(A[148:154], 8)
            meant += 1
    assert 256 <= meant < 600  # the byte behind the NUL, blanks and NULs for one another


def archive_of_all_kinds() -> bytes:
    """Return an archive in which everything that readers meet is near a buffer's boundary at some size of it."""
    parts = [
        entry(b"a.x", b"1" * 1500),
        entry(b"a.y"),
        pax((b"path", LONG)) + entry(b"cut", b"2" * 511),
        long(LONG + b"2") + entry(b"cut", b"3" * 513, magic=GNU),
        block(b"dir/", kind=b"5"),
        block(b"link", kind=b"2", link=b"a.x"),
        entry(b"b.x", b"4" * 5000),
        pax((b"mtime", b"1.5"), kind=b"g"),
        entry(b"c.x", b"5" * 1024),
        END,
        entry(b"d.x", b"6"),
        sparse_header(1) + b"\7" * 504 + bytes(8) + bytes(3 * BLOCK),
        entry(b"e.x", b"7" * 9000),
        END,
    ]
    return b"".join(parts)


EXPECTED = [
    (b"a.x", b"1" * 1500),
    (b"a.y", b""),
    (LONG, b"2" * 511),
    (LONG + b"2", b"3" * 513),
    (b"b.x", b"4" * 5000),
    (b"c.x", b"5" * 1024),
    (b"d.x", b"6"),
    (b"e.x", b"7" * 9000),
]


@pytest.mark.parametrize("buffer", [512, 1024, 1536, 4096, 10000])
@pytest.mark.parametrize("step", [1, 7, 511, 512, 513, 1000, 4096])
def test_every_boundary_from_a_pipe(
    buffer: int, step: int, monkeypatch: pytest.MonkeyPatch, scratch: list[io.FileIO]
) -> None:
    monkeypatch.setattr(reader, "BUFFER_BYTES", buffer)
    monkeypatch.setattr(reader, "MAX_GROUP_IN_MEMORY", 4000)
    monkeypatch.setattr(grouping, "MAX_GROUP_IN_MEMORY", 4000)
    found = parse(Trickle(archive_of_all_kinds(), step), scratch)
    assert contents(found) == EXPECTED
    assert [f.kind for f in found if isinstance(f, Special)] == ["directory", "symbolic link", "sparse file"]
    assert len(scratch) >= 2  # b.x and e.x, and what else was too large for a small buffer


@pytest.mark.parametrize("buffer", [512, 1024, 1536, 4096, 10000])
@pytest.mark.parametrize("step", [7, 511, 513, 4096])
@pytest.mark.parametrize("need", Need)
@pytest.mark.parametrize("start", [0, 100])
def test_every_boundary_from_a_file(
    *, buffer: int, step: int, need: Need, start: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = [m for m in parse_bytes(archive_of_all_kinds()) if isinstance(m, Member)]
    monkeypatch.setattr(reader, "BUFFER_BYTES", buffer)
    monkeypatch.setattr(reader, "MIN_SKIP_BYTES", 600)
    monkeypatch.setattr(reader, "FIRST_READ_BYTES", 300)
    with file_stream(tmp_path / "a.tar", b"j" * start + archive_of_all_kinds(), start, step) as stream:
        found = parse(stream, need=need)
        members = [m for m in found if isinstance(m, Member)]
        assert contents(found) == EXPECTED
        found_later = need is Need.PLACES  # such members are read into memory
        for member in () if found_later else members:
            file, begin, end = range_in_file(member.source, member.start, member.data + member.size)
            assert file is stream.file
            assert not need.leaves_payloads or member.source is file
            if member.head is None:
                assert read_range(file, begin, end) == member.header + member.read()
        assert raw(members) == raw(whole)


@pytest.mark.parametrize("cut", [1, 300, 700, 3000])
@pytest.mark.parametrize("need", Need)
def test_a_large_member_that_is_cut(
    cut: int, need: Need, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scratch: list[io.FileIO]
) -> None:
    monkeypatch.setattr(reader, "BUFFER_BYTES", 1024)
    monkeypatch.setattr(reader, "MAX_GROUP_IN_MEMORY", 1024)
    content = (A + entry(b"b.x", b"4" * 5120))[:-cut]
    with file_stream(tmp_path / "a.tar", b"j" * 10 + content, 10) as stream:
        for source in (stream, Trickle(content, 300)):
            with pytest.raises(TruncatedError, match=f"'b.x': {cut} bytes") as raised:
                parse(source, scratch, need=need)
            assert raised.value.offset == len(content)


@pytest.mark.parametrize(("mib", "step"), [(3, 65536), (17, 1 << 20)])
def test_members_of_a_pipe_above_sixteen_mib_go_to_scratch(mib: int, step: int, scratch: list[io.FileIO]) -> None:
    payload = bytes(range(256)) * (mib << 12)
    found = parse(Trickle(entry(b"a.x", payload) + entry(b"b.x", b"2") + END, step), scratch)
    assert contents(found) == [(b"a.x", payload), (b"b.x", b"2")]
    assert isinstance(found[0], Member)
    assert scratch == ([found[0].source] if mib > 16 else [])


def test_members_of_a_window_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pax((b"path", LONG)) + entry(b"cut", b"1" * 700) + entry(b"b.x", b"2" * 3000) + entry(b"c.x")
    expected = [(LONG, b"1" * 700), (b"b.x", b"2" * 3000), (b"c.x", b"")]
    whole = b"j" * 512 + content + b"j" * 512
    found = map(Member._make, members_in(whole, 512, 512 + len(content)))
    assert [(m.path, m.read()) for m in found] == expected
    with file_stream(tmp_path / "a.tar", whole) as stream:
        assert stream.file is not None
        for memory in (1 << 20, 1024):
            monkeypatch.setattr(rescan, "MAX_MEMBER_READ_BYTES", memory)
            members = list(map(Member._make, members_in(stream.file, 512, 512 + len(content))))
            assert [(m.path, m.read()) for m in members] == expected
            assert all(isinstance(m.source, io.FileIO) == (memory == 1024) for m in members)
    assert members_in(b"", 0, 0) == []


@pytest.mark.parametrize("content", [A[:-512], A + END, b"\1" * 1024, block(b"l", kind=b"2")])
def test_a_window_that_holds_something_else_is_an_error(content: bytes) -> None:
    with pytest.raises(TarFormatError):
        members_in(content, 0, len(content))


@pytest.mark.parametrize(
    ("field", "number"),
    [
        (b"0000644\0", 0o644),
        (b"  644 \0\0", 0o644),
        (b"644\0 999", 0o644),
        (b"\0" * 8, 0),
        (b" " * 8, 0),
        (base256(1 << 40), 1 << 40),
        (base256(-1), -1),
        (base256(-(1 << 40)), -(1 << 40)),
        (base256(5, 8), 5),
    ],
)
def test_numbers(field: bytes, number: int) -> None:
    assert header.parse_number(field) == number


@pytest.mark.parametrize("field", [b"8\0", b"9\0", b"-1\0", b"0x1\0", b"1 1\0", b"1_1\0", b"+1\0"])
def test_what_is_no_number(field: bytes) -> None:
    with pytest.raises(TarFormatError, match="not a number"):
        header.parse_number(field.ljust(8, b"\0"))


def test_payloads_open_as_seekable_files(tmp_path: Path) -> None:
    payload = bytes(range(256)) * 40
    with file_stream(tmp_path / "a.tar", entry(b"a.x", payload) + END) as stream:
        for member in (parse(stream)[0], one(entry(b"a.x", payload))):
            assert isinstance(member, Member)
            file = member.open()
            assert file.read(10) == payload[:10]
            assert file.seek(-5, os.SEEK_END) == len(payload) - 5
            assert file.read() == payload[-5:]
            assert file.read(1) == b""
            assert file.seek(300) == 300
            assert file.seek(5, os.SEEK_CUR) == 305
            assert file.read(3) == payload[305:308]
            assert file.seek(1 << 20) == 1 << 20
            assert file.read() == b""
            with pytest.raises(ValueError, match="negative"):
                file.raw.seek(-1)


def test_made_up_headers_do_not_fill_the_memory() -> None:
    for cache in (header.EXPECTED_SUMS, header.PARSED_SIZES):
        for n in range((1 << 16) + 10):
            cache[b"%07o\0" % n + b"0"]
        assert len(cache) <= (1 << 16) + 2


def test_magic_constants_agree() -> None:
    assert (header.USTAR, header.GNU, header.BLOCK) == (USTAR, GNU, BLOCK)


@pytest.mark.parametrize("between", [b"", entry(b"d/", kind=b"5")])
@pytest.mark.parametrize("size", [10, 300_000, 17 << 20])
def test_a_group_before_a_directory_says_where_it_begins(size: int, between: bytes, scratch: list[io.FileIO]) -> None:
    def scratch_of() -> io.FileIO:
        scratch.append(scratch_file())
        return scratch[-1]

    first, second = entry(b"a.cls", b"1"), entry(b"a.bin", bytes(size))
    for content, whole in ((first + second + between, True), (first + between + second, not between)):
        stream = Trickle(entry(b"0.x") + content + entry(b"b.x", b"2") + END, 70_000)
        parts = read_members(stream, url="a.tar", scratch=scratch_of)
        found = [part for part in parts if isinstance(part, ScatteredGroup)]
        assert found or (size < 1 << 20 and not between)
        assert all(part.offset == (BLOCK if whole else None) for part in found)
