"""What is timed: a table of works, each a line of ours, those of its peers, and the ratio to reach beside one of them.

Lines are run by `bash -c`, after `set -o pipefail`. They find:

 - `$NAME`, `$NAME_COUNT`: an archive (or a folder of them) and its number of samples, for all names in `data.SETS`
 - `$OUT`: an empty folder for what they write, in memory if there is room
 - `$READERS`: the script `readers.py`
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from tests.bench.data import SETS


@dataclass(frozen=True)
class Line:
    """A command line, with what is done and run beside it.

    *before* is run first, and not timed. The time of *less*, a start-up, is taken off. *rounds* is for slow ones: not
    more than these, and no warm-up. *of* is the data set whose samples the time is for, if it is told for each.

    With *told* it is no command line, but one for the process of `tests.bench.loading`, which tells a number of these
    units and what they took. *needs* is a library or program that may not be there.
    """

    name: str
    line: str
    before: str = ""
    less: str = ""
    rounds: int = 0
    of: str = ""
    told: str = ""
    needs: str = ""


class Goal(NamedTuple):
    """What to reach: *figure* of ours is at most so many times that of the peer *beside*; "" for seconds, MB."""

    most: float
    beside: str = ""
    figure: str = "wall"


@dataclass(frozen=True)
class Work:
    """One work. *check* is a line that fails unless ours did it; it is run after the warm-up, and finds its output."""

    name: str
    ours: Line
    peers: tuple[Line, ...]
    goals: tuple[Goal, ...]
    check: str
    by_name: bool = False  # not run unless asked for: it takes minutes, and GB

    @property
    def lines(self) -> tuple[Line, ...]:
        """Ours first."""
        return (self.ours, *self.peers)

    @property
    def sets(self) -> list[str]:
        """The names of the data sets that its lines name."""
        text = " ".join(f"{each.line} {each.before} {each.less}" for each in self.lines)
        return [name for name in SETS if re.search(rf"\${name}\b", text)]


def cat_cat(name: str) -> Line:
    return Line("cat | cat", f'cat "${name}" | cat >/dev/null')


def bsdtar(name: str) -> Line:
    return Line("bsdtar", f'bsdtar -cf - @"${name}" | cat >/dev/null')


def cp(name: str) -> Line:
    return Line("cp", f'cp "${name}" "$OUT/copy"')


def gzip(level: str, name: str, rounds: int) -> Line:
    return Line(f"gzip {level}", f'gzip {level} -c "${name}" >"$OUT/x.gz"', rounds=rounds)


PAYLOADS = 'cmp <(tar -xOf "${0}") <(for shard in "$OUT"/*; do tar -xOf "$shard"; done)'
NAMES = 'tar -tf "{0}" | LC_ALL=C sort'
SAME_SIZE = 'test "$(stat -c %s "$OUT"/x*)" = "$(stat -c %s "${0}")"'


def pipes() -> list[Work]:
    """Archives to a pipe, as they are and unpacked."""
    return [
        Work(
            "cat-A",
            Line("tarcat", 'tarcat "$A" | cat >/dev/null'),
            (cat_cat("A"), bsdtar("A")),
            (Goal(0.4, "cat | cat"),),
            'tarcat "$A" | cmp - "$A"',
        ),
        Work(
            "cat-B",
            Line("tarcat", 'tarcat "$B" | cat >/dev/null'),
            (bsdtar("B"), cat_cat("B")),
            (Goal(0.45, "bsdtar"),),
            'tarcat "$B" | cmp - "$B"',
        ),
        Work(
            "gunzip-A",
            Line("tarcat", 'tarcat "$GA"/*.tgz | cat >/dev/null'),
            (Line("pigz", 'pigz -dc "$GA"/*.tgz | cat >/dev/null'),),
            (Goal(1.0, "pigz"),),
            'cmp <(tarcat "$GA"/*.tgz | tar -xOf -) <(gzip -dc "$GA"/*.tgz | tar -ixOf -)',
        ),
        Work(
            "gunzip-B",
            Line("tarcat", 'tarcat "$GB" | cat >/dev/null'),
            (Line("pigz", 'pigz -dc "$GB" | cat >/dev/null'),),
            (Goal(1.0, "pigz"),),
            'cmp <(tarcat "$GB") <(gzip -dc "$GB")',
        ),
        Work(
            "pcat-bz2",
            Line("tarpcat -p 2", 'tarpcat -p 2 "$BZ"/*.bz2 | cat >/dev/null'),
            (Line("tarcat", 'tarcat "$BZ"/*.bz2 | cat >/dev/null', rounds=3),),
            (Goal(0.55, "tarcat"),),
            'test "$(tarpcat -p 2 "$BZ"/*.bz2 | tar -tf - | wc -l)" = $((2 * 4 * BZ_COUNT))',
        ),
    ]


def durable(name: str, command: str, check: str) -> Work:
    """A copy of A that is on the disk when *command* ends: with --out FOLDER, where FOLDER is on a disk."""
    ours = command.split(maxsplit=1)[0]
    others = (
        Line(f"{ours}, TARTOOLS_FSYNC=0", f"TARTOOLS_FSYNC=0 {command}"),
        Line("cp, sync -f", 'cp "$A" "$OUT/x"; sync -f "$OUT/x"'),
    )
    return Work(name, Line(ours, command), others, (Goal(1.15, "cp, sync -f"),), check)


def outputs() -> list[Work]:
    """Archives cut, ordered and compressed, and a table of one."""
    in_order = (
        'tar -tf "$OUT/x.tar" | cut -d. -f1 | LC_ALL=C sort -c && '
        f"cmp <({NAMES.format('$B')}) <({NAMES.format('$OUT/x.tar')}) && {SAME_SIZE.format('B')}"
    )
    shuffled = (
        f"cmp <({NAMES.format('$A')}) <({NAMES.format('$OUT/x.tar')}) && {SAME_SIZE.format('A')} && "
        'test "$(tar -tf "$OUT/x.tar" | cksum)" != "$(tar -tf "$A" | cksum)"'
    )
    return [
        Work(
            "split-A",
            Line("tarsplit", 'tarsplit -s 100e6 -o "$OUT/x" "$A"'),
            (cp("A"),),
            (Goal(2, "cp"),),
            PAYLOADS.format("A"),
        ),
        durable("disk-A", 'tarcat "$A" -o "$OUT/x.tar"', 'cmp "$OUT/x.tar" "$A"'),
        durable("split-1000", 'tarsplit -s 1e6 -o "$OUT/x" "$A"', PAYLOADS.format("A")),
        Work(
            "split-B",
            Line("tarsplit", 'tarsplit -n 10000 -o "$OUT/x" "$B"'),
            (cp("B"),),
            (Goal(4, "cp"),),
            PAYLOADS.format("B"),
        ),
        Work(
            "sort-A",
            Line("tarsort", 'tarsort "$A" -o "$OUT/x.tar"'),
            (cp("A"),),
            (Goal(2, "cp"), Goal(100, figure="memory")),
            'cmp "$OUT/x.tar" "$A"',
        ),
        Work(
            "shuffle-A",
            Line("tarsort -S shuffle", 'tarsort -S shuffle "$A" -o "$OUT/x.tar"'),
            (cp("A"),),
            (Goal(2, "cp"), Goal(100, figure="memory")),
            shuffled,
        ),
        Work(
            "sort-B",
            Line("tarsort", 'tarsort "$B" -o "$OUT/x.tar"'),
            (Line("bsdtar", 'bsdtar -cf - @"$B" >"$OUT/x.tar"'),),
            (Goal(1.6, "bsdtar"),),
            in_order,
        ),
        Work(
            "tsv-B",
            Line("tar2tsv", 'tar2tsv -f cls "$B" >"$OUT/x.tsv"'),
            (Line("tar tf", 'tar tf "$B" >"$OUT/x.txt"'),),
            (Goal(2, "tar tf", "cpu"),),
            'test "$(wc -l <"$OUT/x.tsv")" = $((B_COUNT + 1))',
        ),
        Work(
            "stat-B",
            Line("tarstat", 'tarstat "$B" >"$OUT/x.stat"'),
            (Line("tar tf", 'tar tf "$B" >"$OUT/x.txt"'),),
            (Goal(2, "tar tf", "cpu"),),
            'grep -qx "samples: $B_COUNT" "$OUT/x.stat" && grep -qx "classes cls: 1000" "$OUT/x.stat"',
        ),
        Work(
            "tsv-V",
            Line("tar2tsv", 'tar2tsv -f cls "$V" >"$OUT/x.tsv"'),
            (Line("tar tf", 'tar tf "$V" >"$OUT/x.txt"'),),
            (Goal(2, "tar tf", "cpu"),),
            'test "$(wc -l <"$OUT/x.tsv")" = $((V_COUNT + 1))',
        ),
        Work(
            "stat-V",
            Line("tarstat", 'tarstat "$V" >"$OUT/x.stat"'),
            (Line("tar tf", 'tar tf "$V" >"$OUT/x.txt"'),),
            (Goal(2, "tar tf", "cpu"),),
            'grep -qx "samples: $V_COUNT" "$OUT/x.stat" && grep -qx "classes cls: 1000" "$OUT/x.stat"',
        ),
        Work(
            "check-B",
            Line("tarcheck", 'tarcheck "$B" >"$OUT/x.check"'),
            (Line("tar tf", 'tar tf "$B" >"$OUT/x.txt"'),),
            (Goal(3, "tar tf"),),
            'grep -qx "samples: $B_COUNT" "$OUT/x.check" && grep -qx "errors: 0" "$OUT/x.check"',
        ),
        Work(
            "diff-B",
            Line("tardiff", 'tardiff "$B" "$B" >"$OUT/x.diff"'),
            (Line("tar tf", 'tar tf "$B" >"$OUT/x.txt"'),),
            (Goal(2.5, "tar tf"),),
            'grep -qx "equal: $B_COUNT" "$OUT/x.diff" && grep -qx "changed: 0" "$OUT/x.diff"',
        ),
        *packing("A", 1),
        *packing("B", 2),
    ]


def packing(name: str, rounds: int) -> tuple[Work, Work]:
    """Compress the data set *name*, beside *rounds* of gzip."""
    fast = Goal(0.33, "gzip -6")
    return (
        Work(
            f"gzip-{name}",
            Line("tarcat -z", f'tarcat -z "${name}" >"$OUT/x.tgz"'),
            (gzip("-6", name, rounds), gzip("-1", name, rounds)),
            (fast, Goal(1.05, "gzip -1", "size")),
            f'gzip -dc "$OUT/x.tgz" | cmp - "${name}"',
        ),
        Work(
            f"zstd-{name}",
            Line("tarcat -o x.tar.zst", f'tarcat "${name}" -o "$OUT/x.tar.zst"'),
            (gzip("-6", name, rounds),),
            (fast, Goal(1.05, "gzip -6", "size")),
            f'tarcat "$OUT/x.tar.zst" | cmp - "${name}"',
        ),
    )


def runs() -> list[Work]:
    """Commands on samples, small shards, and a start."""
    return [
        Work(
            "proc-true",
            Line("tarproc -p 2", 'tarproc -p 2 -c true "$P" >"$OUT/x.tar"'),
            (Line("xargs -P2", 'seq "$P_COUNT" | xargs -P2 -n1 bash -c true'),),
            (Goal(1.0, "xargs -P2"),),
            'cmp "$OUT/x.tar" "$P"',
        ),
        Work(
            "proc-memory",
            Line("tarproc -p 2", 'tarproc -p 2 --tmpdir "$OUT" -c true "$P" >"$OUT/x.tar"'),
            (Line("xargs -P2", 'seq "$P_COUNT" | xargs -P2 -n1 bash -c true'),),
            (Goal(1.0, "xargs -P2"),),
            'cmp "$OUT/x.tar" "$P"',
        ),
        Work(
            "proc-cp",
            Line("tarproc -p 2", 'tarproc -p 2 -c "cp sample.jpg sample.out" "$P" >"$OUT/x.tar"'),
            (
                Line(
                    "xargs -P2",
                    """seq "$P_COUNT" | xargs -P2 -n1 bash -c 'cp "$OUT/a" "$OUT/b$0"'""",
                    before='head -c 110000 "$P" >"$OUT/a"',
                ),
            ),
            (Goal(1.6, "xargs -P2"),),
            'test "$(tar -tf "$OUT/x.tar" | wc -l)" = $((4 * P_COUNT))',
        ),
        Work(
            "start",
            Line("tarcat", 'tarcat "$ONE" >/dev/null'),
            (Line("python", "python -c pass"),),
            (Goal(0.1),),
            'tarcat "$ONE" | cmp - "$ONE"',
        ),
        Work(
            "tiny-shards",
            Line(
                "tarcat -T",
                'cd "$TINY" && tarcat -T list -o "$OUT/x.tar"',
                less='cd "$TINY" && tarcat -T first -o "$OUT/x.tar"',
            ),
            (
                Line(
                    "open, read, close",
                    'cd "$TINY" && python -P "$READERS" files list',
                    less='cd "$TINY" && python -P "$READERS" files first',
                ),
            ),
            (Goal(3, "open, read, close"),),
            'test "$(tar -tf "$OUT/x.tar" | wc -l)" = $((2 * TINY_COUNT))',
        ),
    ]


def jobs() -> Work:
    """Run a program that does nothing for many items."""
    items = "{1..$((2 * P_COUNT))}"
    return Work(
        "job-true",
        Line("tarjob -j 2", f'tarjob -q --spec "{items}" -j 2 -- true'),
        (Line("xargs -P2", "seq $((2 * P_COUNT)) | xargs -P2 -n1 true"),),
        (Goal(1.5, "xargs -P2"),),
        f'tarjob -q --spec "{items}" -j 2 --log "$OUT/log" -- true && '
        """test "$(grep -c '"status": "done"' "$OUT/log")" = $((2 * P_COUNT))""",
    )


def bucket() -> Work:
    """Read a shard in S3, from a server on this machine."""
    server, there = 'python -m tests.bench.bucket "$A" "$OUT/server"', '. "$OUT/server"'
    return Work(
        "s3-A",
        Line("tarcat", f"{there}; tarcat -q s3://bucket/a.tar >/dev/null", before=server, needs="nginx"),
        (Line("boto3", f'{there}; python -P "$READERS" boto3 a.tar', before=server, needs="nginx"),),
        (Goal(1 / 0.9, "boto3"),),
        f'{there}; tarcat -q s3://bucket/a.tar | cmp - "$A"',
    )


def reading(name: str, rounds: int) -> Work:
    """Go through the samples of the data set *name* in Python, and look at one field."""

    def line(library: str) -> str:
        return f'python -P "$READERS" {library} "${name}"'

    return Work(
        f"read-{name}",
        Line("tartools.read", line("tartools"), of=name),
        tuple(Line(each, line(each), rounds=rounds, of=name) for each in ("webdataset", "tarfile")),
        (Goal(0.2, "webdataset"),) if name == "B" else (),
        f"""test "$({line("tartools")})" = "${name}_COUNT $(tar -xOf "${name}" --wildcards '*.cls' | wc -c)\"""",
    )


def streaming() -> Work:
    """Go through small samples as dicts of all their fields, as training does, in one process."""

    def line(library: str, name: str, rounds: int = 0) -> Line:
        imports = 'python -c "import torch, webdataset, tartools"'
        return Line(name, f'python -P "$READERS" {library} "$B"', less=imports, rounds=rounds, of="B")

    return Work(
        "stream-B",
        line("stream", "tartools.train.samples"),
        (line("webdataset", "webdataset", 2),),
        (Goal(1 / 6, "webdataset"),),
        'test "$(python -P "$READERS" stream "$B")" = "$(python -P "$READERS" tartools "$B")"',
    )


def filtering() -> Work:
    """Choose a tenth of small samples by a value."""
    peer = 'python -P "$READERS" select "$B"'
    return Work(
        "filter-B",
        Line("tarfilter", 'tarfilter -S \'int(cls) < 100\' "$B" -o "$OUT/x.tar"'),
        (Line("webdataset, select", peer, rounds=2),),
        (Goal(0.3, "webdataset, select"),),
        f'read -r count _ < <({peer}) && test "$(tar -tf "$OUT/x.tar" | wc -l)" = $((2 * count)) && '
        """cmp <(tar -xOf "$OUT/x.tar" --wildcards '*.cls') <(tar2tsv --no-key --no-header -f cls "$OUT/x.tar" |"""
        """ awk '$1 < 100' | tr -d '\\n')""",
    )


def duplicates() -> list[Work]:
    """Leave out equal samples."""
    count = 'tar2tsv --no-header --no-key -f txt "$B" | LC_ALL=C sort -u | wc -l'
    return [
        Work(
            "dedup-B",
            Line("tardedup --equal txt", 'tardedup -q --equal txt "$B" -o "$OUT/x.tar"'),
            (Line("tarsort", 'tarsort "$B" -o "$OUT/x.tar"'), Line("tar tf", 'tar tf "$B" >"$OUT/x.txt"')),
            (),
            f'test "$(tar -tf "$OUT/x.tar" | wc -l)" = $((2 * $({count})))',
        ),
    ]


def joining() -> Work:
    """Add a caption to each of many small samples."""
    return Work(
        "join-B",
        Line(
            "tarjoin",
            'tarjoin "$B" "$OUT/b.tsv" -o "$OUT/x.tar"',
            before='tar2tsv -f caption=__key__ "$B" >"$OUT/b.tsv"',
        ),
        (Line("tarcat", 'tarcat "$B" -o "$OUT/x.tar"'),),
        (Goal(2, "tarcat"),),
        'cmp <(tar2tsv -f caption "$OUT/x.tar") "$OUT/b.tsv" && '
        """test "$(tar -tf "$OUT/x.tar" | grep -vc '[.]caption$')" = $((2 * B_COUNT))""",
    )


def mixing() -> Work:
    """Mix two shards, each a third of B, until one ends; webdataset only reads them."""
    shards = 'tarsplit --shards 3 "$B" -o "$OUT/s" >/dev/null'
    pair = '0.7 "$OUT/s-000000.tar" 0.3 "$OUT/s-000001.tar"'
    first = 'tar -tf "$OUT/s-000000.tar"'
    found = 'tar -tf "$OUT/x.tar"'
    return Work(
        "mix-B",
        Line("tarmix", f'tarmix -q {pair} -o "$OUT/x.tar"', before=shards),
        (Line("webdataset, RandomMix", 'python -P "$READERS" mix "$OUT"', before=shards, rounds=2),),
        (Goal(0.3, "webdataset, RandomMix"),),
        f"cmp <({first}) <({found} | grep -Fxf <({first})) && "
        f"awk '{{ off = $1 * 7 - $2 * 10; exit off * off > 200 * 200 }}' <<< \"$({found} | wc -l) $({first} | wc -l)\"",
    )


def tables() -> list[Work]:
    """A table is made of an archive, and read instead of it."""
    rows = 'python -c "import sys, pyarrow.parquet as p; print(p.read_metadata(sys.argv[1]).num_rows)" "$OUT/x.parquet"'
    group = "import sys, pyarrow.parquet as p; p.ParquetFile(sys.argv[1]).read_row_group(0)"
    order = 'tarsort -S shuffle --seed 7 "$OUT/t.parquet" -o "$OUT/s.parquet"'
    works = [
        Work(
            "index-B",
            Line("tarindex", 'tarindex "$B" -o "$OUT/x.parquet"'),
            (Line("tar tf", 'tar tf "$B" >"$OUT/x.txt"'),),
            (Goal(2, "tar tf"),),
            f'test "$({rows})" = "$B_COUNT"',
        ),
        Work(
            "index-V",
            Line("tarindex", 'tarindex -f cls "$V" -o "$OUT/x.parquet"'),
            (Line("tar tf", 'tar tf "$V" >"$OUT/x.txt"'),),
            (Goal(3, "tar tf", "cpu"),),
            f'test "$({rows})" = "$V_COUNT"',
        ),
        Work(
            "open-rows",
            Line("tarcat -c 1", 'tarcat -c 1 "$ROWS/t.parquet" >"$OUT/x.tar"'),
            (Line("pyarrow", f"""python -c '{group}' "$ROWS/t.parquet\""""),),
            (Goal(1.5, "pyarrow"), Goal(200, figure="memory")),
            'test "$(tar -tf "$OUT/x.tar" | wc -l)" = 1',
        ),
    ]
    for name, goals in (("A", (Goal(1.2, "tarcat of shards"),)), ("B", ())):
        index, copy = f'tarindex "${name}" -o "$OUT/t.parquet"', f'tarcat "${name}" -o "$OUT/x.tar"'
        works.append(
            Work(
                f"table-{name}",
                Line("tarcat", 'tarcat "$OUT/t.parquet" -o "$OUT/x.tar"', before=index),
                (Line("tarcat of shards", copy),),
                goals,
                f'cmp "$OUT/x.tar" "${name}"',
            )
        )
        shuffle = f'tarsort -S shuffle --seed 7 "${name}"'
        works.append(
            Work(
                f"shuffled-{name}",
                Line("tarcat", 'tarcat "$OUT/s.parquet" -o "$OUT/x.tar"', before=f"{index} && {order}"),
                (Line("tarsort, 3rd pass", f'{shuffle} -o "$OUT/x.tar"', less=f"({shuffle}; true) | head -c 1 | wc"),),
                (Goal(1.3, "tarsort, 3rd pass"),),
                f'cmp "$OUT/x.tar" <({shuffle})',
            )
        )
    return works


def joined() -> list[Work]:
    """Samples whose fields are in two sets of shards, read in batches by a joined table, beside the table of a copy."""

    def line(name: str, table: str, before: str = "", reader: str = "batches") -> Line:
        imports = 'python -c "import torch, tartools"'
        return Line(name, f'python -P "$READERS" {reader} "$OUT/{table}.parquet"', less=imports, before=before)

    works = []
    for name, first, second, limit in (("B", "txt", "cls", 1.6), ("A", "jpg", "cls json", 1.2)):
        sets = " && ".join(
            f'tarcat -f "{fields}" "${name}" -o "$OUT/{part}.tar" && '
            f'tarindex "$OUT/{part}.tar" -o "$OUT/{part}.parquet"'
            for part, fields in (("first", first), ("second", second))
        )
        make = (
            f'{sets} && tarjoin "$OUT/first.parquet" "$OUT/second.parquet" -o "$OUT/joined.parquet" && '
            'tarcat "$OUT/joined.parquet" -o "$OUT/copy.tar" && tarindex "$OUT/copy.tar" -o "$OUT/copy.parquet"'
        )
        same = f'test "$({line("", "joined").line})" = "$({line("", "copy").line})"'  # the files of `make` are there
        copy = line("the copy", "copy", make)
        works.append(
            Work(
                f"joined-{name}", line("joined table", "joined", make), (copy,), (Goal(limit, copy.name, "cpu"),), same
            )
        )
        if name == "B":
            alone = line("the table of this set", "first", make, "one_set")
            joined_line = line("fields of one set", "joined", make, "one_set")
            works.append(Work("joined-one", joined_line, (alone,), (Goal(1.1, alone.name, "cpu"),), same))
    return works


def scaling() -> list[Work]:
    """A million samples and five: the time of each should stay what it is."""
    works = []
    for name, options in (("sort", ""), ("shuffle", " -S shuffle")):
        line = {of: f'tarsort{options} "${of}" -o "$OUT/x.tar"' for of in ("M1", "M5")}
        few = Line("1 M samples", line["M1"], of="M1")
        many = Line("5 M samples", line["M5"], of="M5")
        works.append(Work(f"{name}-1m", few, (), (), SAME_SIZE.format("M1"), by_name=True))
        works.append(Work(f"{name}-5m", many, (few,), (Goal(1.5, few.name),), SAME_SIZE.format("M5"), by_name=True))
    return works


WORKS = {
    work.name: work
    for work in (
        *pipes(),
        *outputs(),
        *runs(),
        jobs(),
        bucket(),
        *tables(),
        *joined(),
        *duplicates(),
        streaming(),
        filtering(),
        joining(),
        mixing(),
        reading("A", 0),
        reading("B", 1),
        *scaling(),
    )
}
