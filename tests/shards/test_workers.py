"""Archives that several processes read in pieces: the same table, the same words and status as one process gives."""

from __future__ import annotations

import gzip
import json
import random
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.archives import END, entry, long, pax
from tests.conftest import BIN, clean_environment, make_samples, make_tar, members_of, running
from tests.processes import alive, until
from tests.shards.counted import FORKED
from tests.tiers import also, by_turns, in_both

SMALL = 16 << 10  # bytes of a piece, here
Answer = tuple[int, str, bytes, int]  # status, stderr, output, children
Case = tuple[Sequence[str], bytes]

# Forks for each line of stdin, a request as JSON: commands and their arguments, to run in a folder with pieces of so
# many bytes. Prints one line of JSON for each command, and then one with the status of the fork.
PROGRAM = (
    FORKED
    + """
import io, json, sys
from tartools.commands.tar2tsv import tar2tsv
from tartools.commands.tarsort import tarsort
from tartools.shards import workers

def answer(folder, lines, size, held, way, before):
    global what
    what = way
    os.chdir(folder)
    workers.PART_BYTES, workers.MAX_OUTPUT_BYTES = size, held
    workers.os.sched_getaffinity = lambda _: range(3)
    exec(before, globals())
    for name, *arguments in lines:
        sys.stderr = io.StringIO()
        status = globals()[name].main(["-o", "out", "--force", *arguments])
        out = open("out", "rb").read().hex() if os.path.exists("out") else ""
        print(json.dumps([status, sys.stderr.getvalue(), out, len(forks), len(left())]), flush=True)
        forks.clear()
        if os.path.exists("out"):
            os.unlink("out")

for line in sys.stdin:
    if not (pid := fork()):
        answer(**json.loads(line))
        sys.exit()
    print(os.waitpid(pid, 0)[1], flush=True)
"""
)


@pytest.fixture(scope="module")
def program() -> Iterator[subprocess.Popen[str]]:
    """Give the process that has imported the commands."""
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=clean_environment(), text=True) as process:
        yield process


@pytest.fixture
def answers(program: subprocess.Popen[str], tmp_path: Path) -> Callable[..., list[Answer]]:
    """Return a function that says what each line, a command and its arguments, does, with pieces of *size* bytes.

    What it is to do *before* is Python.
    """

    def answers(
        lines: Sequence[Sequence[str]], size: int = SMALL, held: int = 1 << 26, what: str = "", before: str = ""
    ) -> list[Answer]:
        assert program.stdin is not None and program.stdout is not None
        request = {"folder": str(tmp_path), "lines": lines, "size": size, "held": held, "way": what, "before": before}
        program.stdin.write(json.dumps(request) + "\n")
        program.stdin.flush()
        found = []
        while isinstance(said := json.loads(program.stdout.readline()), list):
            *answer, left = said
            assert left == 0, "a process is left"
            status, errors, out, children = answer
            found.append((status, errors, bytes.fromhex(out), children))
        assert said == 0
        return found

    return answers


@pytest.fixture
def alike(answers: Callable[..., list[Answer]], tmp_path: Path) -> Callable[..., list[Answer]]:
    """Return a function that checks that pieces change nothing for archives, and says what a command did with them."""

    def alike(
        archives: Sequence[bytes], *options: str, command: str = "tar2tsv", **settings: int | str
    ) -> list[Answer]:
        lines = []
        for number, archive in enumerate(archives):
            (tmp_path / f"{number}.tar").write_bytes(archive)
            lines.append([command, *options, f"{number}.tar"])
        whole, cut = answers(lines, size=1 << 30), answers(lines, **settings)
        assert len(whole) == len(cut) == len(archives)
        for number, (one, other) in enumerate(zip(whole, cut, strict=True)):
            assert one[:3] == other[:3], f"archive {number}"
            assert one[3] == 0
        return cut

    return alike


Alike = Callable[..., list[Answer]]


def texts(count: int, size: int = 700) -> list[bytes]:
    """Return *count* samples, each all of its members."""
    return [
        entry(b"%06d.txt" % n, b"%d " % n * (size // 8)) + entry(b"%06d.cls" % n, b"%d" % (n % 7)) for n in range(count)
    ]


def test_pieces_change_nothing(alike: Alike) -> None:
    sound = b"".join(texts(200)) + END
    [(status, said, table, children)] = alike([sound], "-f", "cls txt")
    assert (status, said) == (0, "")
    assert table.count(b"\n") == 201
    assert table.splitlines()[200].startswith(b"000199\t3\t199 199 ")
    assert children > len(sound) // (2 * SMALL)


@pytest.mark.parametrize("options", [("--csv",), ("--jsonl",), ("--no-key", "--no-header"), ("--verbatim",)])
def test_every_form(alike: Alike, options: Sequence[str]) -> None:
    [(status, _, _, children)] = alike([b"".join(texts(100)) + END], "-f", "txt n=cls", *options)
    assert status == 0
    assert children > 2


def test_the_account_counts_all(answers: Callable[..., list[Answer]], tmp_path: Path) -> None:
    archive = b"".join(texts(200)) + END
    (tmp_path / "a.tar").write_bytes(archive)
    [(status, said, _, children)] = answers([["tar2tsv", "-v", "a.tar", "a.tar"]])
    assert status == 0
    assert children > 4
    assert said.startswith(f"tar2tsv: 400 samples in, 400 out, {2 * len(archive) / 1e3:.1f} kB")


@pytest.mark.parametrize(
    "line",
    [
        *("tar2tsv -c 200", "tar2tsv -f __index__;cls", "tar2tsv -f i=cls;__index__"),
        *("tarsort -S shuffle", "tarsort -s __index__ -r"),
    ],
)
def test_what_needs_an_order_has_one_process(alike: Alike, line: str) -> None:
    command, *options = line.split()
    [(status, _, table, children)] = alike([b"".join(texts(200)) + END], *options, command=command)
    assert (status, children) == (0, 0)
    assert table.count(b"\n") == 201 or (command == "tarsort" and len(table) > 400_000)


@in_both
def test_an_end_at_every_block(thorough: bool, alike: Alike) -> None:
    archive = b"".join(texts(24)) + END
    ends = range(0, len(archive), 512)
    chosen = ends if thorough else [*ends[:-2:7], *ends[-2:]]  # 7 has no part in the four blocks of a sample
    found = alike([archive[:size] for size in chosen], "-f", "cls txt", size=4096)
    assert {status for status, *_ in found[:-1]} == {1}
    assert found[-1][0] == 0 or "end-of-archive" in found[-1][1]
    assert max(children for *_, children in found) > 4


@in_both
def test_damage_in_every_header(thorough: bool, alike: Alike) -> None:
    archive = b"".join(texts(24)) + END
    places = range(0, len(archive) - 1024, 512 if thorough else 7 * 512)
    damaged = [archive[: at + 20] + b"?" + archive[at + 21 :] for at in places]
    found = alike(damaged, "-f", "cls txt", size=4096)
    assert {status for status, *_ in found} == {0, 1}  # some is in payloads
    headers = len([at for at in places if at % 1024 == 0])
    assert sum("checksum" in said for _, said, *_ in found) == headers - 1  # of the first: that this is no archive


def test_what_is_said_is_said_once(alike: Alike) -> None:
    samples = texts(60)
    link = entry(b"000030.lnk", kind=b"2")
    linked = b"".join([*samples[:20], link, *samples[20:40], link, *samples[40:]]) + END
    [(status, said, table, _)] = alike([linked])
    assert status == 1
    assert said.count("symbolic link") == 1
    assert "1 more such member not passed on" in said
    assert table.count(b"\n") == 61
    alike([linked], "--skip-special")
    [(status, said, *_)] = alike([linked[:-1024]], "--skip-special", "--lax")
    assert status == 0
    assert "--lax" in said


@pytest.mark.parametrize("between", [(), (entry(b"dir/", kind=b"5"),), (entry(b"._a.cls", b"x"),), (END,)])
def test_cuts_beside_other_things(alike: Alike, between: Sequence[bytes]) -> None:
    parts = [part for sample in texts(60) for part in (sample, *between)]
    [(status, _, table, children)] = alike([b"".join(parts) + END], "-f", "cls")
    assert (status, table.count(b"\n")) == (0, 61)
    assert children > (END not in between)  # the next cut is looked for in one archive


def test_a_group_goes_on_behind_what_is_no_member_of_it(alike: Alike) -> None:
    folder = entry(b"dir/", kind=b"5")
    samples = [entry(b"%04d.a" % n, b"x" * 600) + folder + entry(b"%04d.b" % n, b"y" * 600) for n in range(60)]
    [(status, _, table, children)] = alike([b"".join(samples) + END], "-f", "a b", size=2048)
    assert (status, table.count(b"\n")) == (0, 61)
    assert children > 4


def test_archives_in_payloads_are_no_samples(alike: Alike) -> None:
    inner = b"".join(texts(40, 300)) + END
    archive = entry(b"0.tar", inner) + b"".join(texts(30)) + entry(b"1.tar", inner) + entry(b"1.cls", b"1") + END
    for size in (2048, 4096, 8192, 20480):
        [(status, _, table, children)] = alike([archive], size=size)
        assert status == 0
        assert [line for line in table.split() if b"0000" not in line] == [b"__key__", b"0", b"1"]
        assert children >= 1


def test_global_headers_govern_what_is_behind(alike: Alike) -> None:
    samples = texts(60)
    archive = b"".join([*samples[:10], pax((b"comment", b"no more"), kind=b"g"), *samples[10:]]) + END
    renamed = [
        b"".join([*samples[:10], pax((b"path", path), kind=b"g"), *samples[10:]]) + END
        for path in (b"all.cls", b"all.txt")
    ]
    alike([archive, *renamed], "-f", "cls", "--fill", "none", size=4096)


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names(alike: Alike, format: int) -> None:
    members = [(f"{'d' * 120}/{n:06d}.{field}", b"%d" % n) for n in range(60) for field in ("cls", "id")]
    [(status, _, table, children)] = alike([make_tar(members, format)], "-f", "cls id")
    assert (status, table.count(b"\n")) == (0, 61)
    assert children > 2


def test_long_names_whose_headers_are_alike(alike: Alike) -> None:
    archive = b"".join(long(b"%s/%04d.cls" % (b"d" * 120, n // 2)) + entry(b"d" * 100, b"1") for n in range(99)) + END
    alike([archive], "--fill", "", size=2048)


def test_one_group_that_never_ends(alike: Alike) -> None:
    archive = b"".join(entry(b"one.%d" % n, b"x" * 500) for n in range(300)) + END
    [(status, _, table, _)] = alike([archive], "-f", "7", size=2048)
    assert (status, table) == (0, b"__key__\t7\none\t" + b"x" * 500 + b"\n")


def test_values_that_are_missing(alike: Alike) -> None:
    samples = texts(60)
    odd = [entry(b"odd.txt", b"x")]
    late, twice = b"".join(samples[:50] + odd + samples[50:]) + END, entry(b"a.x", b"1") * 2 + b"".join(samples) + END
    for options in (("-f", "cls"), ("-f", "cls", "--fill", "NA"), ("-f", "x", "--fill", "NA"), ("-f", "x;txt")):
        alike([late, twice], *options)
    [(status, said, *_)] = alike([late], "-f", "x y", "--fill", "NA")
    assert status == 1
    assert "no sample had a value for x y; the fields were: txt cls" in said
    [(status, said, table, _)] = alike([late], "-f", "cls")
    assert (status, table) == (1, b"")  # a file appears when it is complete
    assert "sample 'odd' has no value for 'cls'" in said


def test_names_that_are_no_text(alike: Alike) -> None:
    samples = texts(60)
    bad = b"".join([*samples[:40], entry(b"\xff.cls", b"1"), *samples[40:]]) + END
    [(status, said, *_)] = alike([bad], "-f", "cls")
    assert status == 1
    assert "not valid Unicode" in said
    [(status, said, *_)] = alike(
        [b"".join(entry(b"%d.\xff" % n, b"x" * 900) for n in range(99)) + END], "-f", "a", "--fill", ""
    )
    assert status == 1


SHARDS = [*(f"{number:03d}.tar" for number in range(20)), "big.tar", *(f"{number:03d}.tar" for number in range(20, 40))]


@pytest.mark.parametrize(
    "line",
    [
        ["tar2tsv", "-f", "cls", *SHARDS],
        ["tarsort", "-u", "last", *SHARDS[:30], "z.tgz", *SHARDS],
        ["tarsort", "-r", *SHARDS, "no.tar"],
        *also(["tar2tsv", "-f", "cls __shard__", *SHARDS, "no.tar", *SHARDS], ["tarsort", "-s", "cls", *SHARDS]),
    ],
    ids=lambda line: " ".join(line[:3]),
)
def test_many_shards(line: list[str], answers: Callable[..., list[Answer]], tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:03d}.tar").write_bytes(make_tar(make_samples(1 + number % 9, 100 * number)))
    (tmp_path / "big.tar").write_bytes(b"".join(texts(200)) + END)
    (tmp_path / "no.tar").write_bytes(b"x" * 512)
    (tmp_path / "z.tgz").write_bytes(gzip.compress(b"".join(texts(300)) + END))
    [whole], [cut] = answers([line], size=1 << 30), answers([line])
    assert whole[:3] == cut[:3]
    assert cut[3] > 20


@pytest.mark.parametrize("what", ["kill", "refuse"])
def test_processes_that_cannot_be(alike: Alike, what: str) -> None:
    [(status, said, table, _)] = alike([b"".join(texts(200)) + END], "-f", "cls", what=what)
    assert (status, said, table.count(b"\n")) == (0, "", 201)


def test_what_is_made_of_a_piece_is_bounded(alike: Alike) -> None:
    [(status, _, table, children)] = alike([b"".join(texts(200)) + END], "-f", "txt", held=1000)
    assert (status, table.count(b"\n")) == (0, 201)
    assert 0 < children <= 4  # it did not go on so


def random_archives(seed: int) -> list[bytes]:
    """Return archives of samples with a few odd things between them."""
    dice = random.Random(seed)
    archives = []
    for _ in range(12):
        parts: list[bytes] = []
        for sample in texts(dice.randrange(5, 60), 300):
            parts.append(sample)
            odd = dice.randrange(60)
            if odd == 0:
                parts.append(END)
            elif odd == 1:
                parts.append(entry(b"x%d.tar" % len(parts), b"".join(texts(dice.randrange(30)))))
            elif odd == 2:
                parts.append(entry(b"link", kind=b"1"))
            elif odd == 3:
                parts.append(pax((b"path", b"%d.cls" % len(parts))) + entry(b"z", b"1"))
            elif odd == 4:
                parts.append(entry(b"deep/%d." % len(parts), b"5"))
            elif odd == 5:
                parts += [b"?" * 512]
            elif odd == 6:
                parts.append(entry(b"plain", b"".join(texts(3))[: dice.randrange(2000)]))
        archives.append(b"".join(parts) + END)
    return archives


RANDOM = [
    *((size, "tar2tsv -f cls --fill -") for size in (1024, 5000)),
    *((2000, line) for line in ("tarsort", "tarsort -u first", "tarsort -s cls --missing last")),
    (2000, "tarsort -s __size__ -r"),
]


@by_turns("seed")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("size", "line"), RANDOM)
def test_random_archives(size: int, line: str, seed: int, alike: Alike) -> None:
    command, *options = line.split()
    found = alike(random_archives(seed), *options, command=command, size=size)
    assert {status for status, *_ in found} == {0, 1}
    assert sum(children > 1 for *_, children in found) > 6


ORDERS = [
    *([], ["-s", "cls", "-S", "int", "-r"], ["-s", "__size__"], ["-u", "last"], ["-M", "64K"]),
    *also(["-r"], ["-S", "version"], ["-s", "cls"], ["-s", "cls", "-u", "first"]),
]


@pytest.mark.parametrize("options", ORDERS, ids=" ".join)
def test_sorting(alike: Alike, options: list[str]) -> None:
    samples = texts(300, 300)
    random.Random(8).shuffle(samples)
    [(status, _, table, children)] = alike([b"".join(samples) + END], *options, command="tarsort")
    assert status == 0
    assert len(table) > len(samples) * 2048 or "-s cls -u" in " ".join(options)
    assert children > 10


def test_equal_samples_stay_in_order(alike: Alike, answers: Callable[..., list[Answer]], tmp_path: Path) -> None:
    samples = [
        entry(b"%d/%04d.cls" % (n % 3, n), b"%d" % (n % 2)) + entry(b"%d/%04d.z" % (n % 3, n), b"x" * 900)
        for n in range(300)
    ]
    [(status, _, sorted_by_class, children)] = alike([b"".join(samples) + END], "-s", "cls", command="tarsort")
    assert status == 0
    assert children > 10
    expected = b"".join(samples[::2] + samples[1::2])
    assert sorted_by_class.startswith(expected)


def test_samples_that_come_in_parts(alike: Alike) -> None:
    parts = [entry(b"%04d.a" % n, b"x" * 900) for n in range(100)] + [entry(b"%04d.b" % n, b"y") for n in range(100)]
    [(status, _, joined, children)] = alike([b"".join(parts) + END], command="tarsort")
    assert status == 0
    assert children > 5
    assert joined.startswith(b"".join(part for pair in zip(parts[:100], parts[100:], strict=True) for part in pair))
    for options in ([], ["-u", "first"], ["-u", "last"]):
        alike(
            [b"".join([*parts, *parts]) + END, b"".join([*parts[:60], parts[59], *parts[60:]]) + END],
            *options,
            command="tarsort",
        )


def test_samples_that_have_to_be_copied(alike: Alike) -> None:
    samples = texts(100)
    governed = [*samples[:50], pax((b"uname", b"me"), kind=b"g"), *samples[50:]]
    apart = [
        part
        for n in range(100)
        for part in (entry(b"%04d.a" % n, b"x" * 900), entry(b"d/", kind=b"5"), entry(b"%04d.b" % n, b"y"))
    ]
    for archive in (
        b"".join(governed) + END,
        b"".join(apart) + END,
        entry(b"big.bin", b"x" * 3_000_000) + b"".join(samples) + END,
    ):
        [(status, _, table, _)] = alike([archive], command="tarsort")
        assert status == 0
        assert len(table) > 200_000


def test_what_has_to_be_copied_is_left_to_one_process(answers: Callable[..., list[Answer]], tmp_path: Path) -> None:
    """A small compressed shard before a large plain one: no process reads in vain, and none is missing."""
    (tmp_path / "a.tar").write_bytes(b"".join(texts(200)) + END)
    (tmp_path / "s.tgz").write_bytes(gzip.compress(make_tar(make_samples(3, 900))))
    [(status, _, alone, forks)] = answers([["tarsort", "a.tar"]])
    assert status == 0 and forks > 2
    for inputs in (["s.tgz", "a.tar"], ["a.tar", "s.tgz"]):
        [(status, said, both, others)] = answers([["tarsort", *inputs]])
        assert (status, said, others) == (0, "", forks)
        assert len(members_of(both)) == len(members_of(alone)) + 6


CHANGING = """
find = workers.find_boundary
def changed(file, near):
    cut = find(file, near)
    if 60_000 < near < 80_000:
        try:
            os.waitid(os.P_PID, forks[0], os.WEXITED | os.WNOWAIT)  # it has seen the file as it was
        except ChildProcessError:
            pass
        {}
    return cut
workers.find_boundary = changed
"""


@pytest.mark.parametrize("line", [["tarsort"], ["tar2tsv", "-f", "cls"]], ids=" ".join)
@pytest.mark.parametrize("change", ['os.utime("a.tar", (1, 1))', 'os.path.exists("b") and os.rename("b", "a.tar")'])
def test_a_file_that_changes_or_is_replaced(
    line: list[str], change: str, answers: Callable[..., list[Answer]], tmp_path: Path
) -> None:
    (tmp_path / "a.tar").write_bytes(b"".join(texts(200)) + END)
    (tmp_path / "b").write_bytes(b"".join(texts(220)) + END)
    [(status, said, *_)] = answers([[*line, "a.tar"]], before=CHANGING.format(change))
    changed = "this file changed while it was read; start again when nothing writes to it"
    assert (status, said) == (1, f"{line[0]}: a.tar: {changed}\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_all(tmp_path: Path, number: int) -> None:
    """The output is a pipe that nobody empties, so that all processes wait."""
    with (tmp_path / "a.tar").open("wb") as file:
        for n in range(130):
            file.write(entry(b"%06d.txt" % n, b"x" * 1_000_000))
        file.write(END)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running([BIN / "tar2tsv", "-f", "txt", "a.tar"], cwd=tmp_path, **pipes) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        started = children_of(process.pid)
        assert started
        process.send_signal(number)
        process.stdout.close()
        assert process.wait(30) == -number
        until(lambda: not any(map(alive, started)), "the end of all processes")


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
