"""tarmix, through the installed command: shares, ends of sources, keys, tables, and that nothing is lost."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tartools import cli
from tartools.cli import drawing
from tartools.commands.tarmix import MixingOptions, tarmix
from tartools.samples.account import Account
from tests.commands.conftest import Inside
from tests.conftest import Run, make_tar, members_of

SIZES = {"a": 70, "b": 100, "c": 5}


def some(letter: str, count: int, size: int = 0) -> bytes:
    """Return an archive of *count* samples, whose keys begin with *letter*."""
    return make_tar([(f"{letter}{n:04d}.txt", b"%d" % n + bytes(size)) for n in range(count)])


def keys_in(content: bytes) -> list[str]:
    return [name.removesuffix(".txt") for name, _ in members_of(content)]


def order_of(content: bytes) -> str:
    """Return the letters of the samples in *content*; check that each source is in order, begun anew at its end."""
    keys = keys_in(content)
    for letter, count in SIZES.items():
        numbers = [int(key[1:]) for key in keys if key[0] == letter]
        assert numbers == [n % count for n in range(len(numbers))]
    return "".join(key[0] for key in keys)


@pytest.fixture
def folder(tmp_path: Path, inside: Inside) -> Path:
    """Return a folder with shards and tables of three data sets, and one without samples."""
    for letter, count in SIZES.items():
        (tmp_path / f"{letter}.tar").write_bytes(some(letter, count))
        assert inside("tarindex", f"{letter}.tar", "-o", f"{letter}.parquet").status == 0
    (tmp_path / "empty.tar").write_bytes(make_tar([]))
    return tmp_path


RECORDED = "abaabbaaaabaaabaaaababaaaaaabbabaaaaaabbaaabbbaaabaaabaaaaaaaabbaaaababbaaaaabbabaaaaaababbaaaabbaaa"
MIXTURES = [  # options and shares, what comes of each source, what is said
    (["0.7", "a", "0.3", "b"], {"a": 70, "b": 30}, "{a} ended after 70 samples; left out: 70 of {b}"),
    (["--stop", "all", "7", "a", "3e0", "b"], {"a": 70, "b": 100}, ""),
    (["--stop", "all", "1", "a", "1", "b", ".5", "c"], {"a": 70, "b": 100, "c": 5}, ""),
    (
        ["--stop", "longest", "0.7", "a", "0.3", "c"],
        {"a": 70, "c": 30},
        "{c} was begun 6 times, so keys come again; --rekey '{{source}}/{{round}}/{{key}}' makes them differ",
    ),
    (["--stop", "longest", "1", "a"], {"a": 70}, ""),
    (["--count", "20", "--stop", "all", "1", "a", "3", "b"], {"a": 5, "b": 15}, None),
    (["--count", "0", "1", "a", "3", "b"], {}, None),
    (
        ["--count", "999", "0.7", "a", "0.3", "b"],
        {"a": 70, "b": 30},
        "{a} ended after 70 samples, so 100 samples are written, not 999; left out: 70 of {b}",
    ),
    (
        ["--count", "999", "--stop", "all", "1", "a", "1", "c"],
        {"a": 70, "c": 5},
        "{a} ended after 70 samples, so 75 samples are written, not 999",
    ),
]


@pytest.mark.parametrize(("line", "counts", "said"), MIXTURES, ids=str)
def test_mixtures(line: list[str], counts: dict[str, int], said: str | None, folder: Path, inside: Inside) -> None:
    expected = None
    for suffix in ("tar", "parquet"):
        names = {letter: f"{letter}.{suffix}" for letter in SIZES}
        words = [names.get(word, word) for word in line]
        for output in ("o.tar", "o.parquet"):
            done = inside("tarmix", "-v", *words, "-o", output, "--force")
            assert done.status == 0, done
            *messages, account = done.stderr.splitlines()
            if said is not None:
                assert messages == ([f"tarmix: {said.format(**names)}"] if said else [])
            found = re.match(r"tarmix: (\d+) samples in, (\d+) out(?:, (\d+) left out)?, ", account)
            assert found is not None
            came, went, left = (int(number or 0) for number in found.groups())
            assert (came, went) == (went + left, sum(counts.values()))
            content = inside("tarcat", output).stdout
            expected = expected or content
            assert content == expected
    assert expected is not None
    letters = order_of(expected)
    found_counts = Counter(letters)
    assert sum(found_counts.values()) == sum(counts.values())
    assert all(abs(found_counts[letter] - count) <= 2 for letter, count in counts.items())
    if line == MIXTURES[0][0]:
        assert letters == RECORDED  # as on any machine, with any release of Python


def test_what_total_leaves_out_is_told(folder: Path, inside: Inside) -> None:
    def run(*line: str) -> str:
        done = inside("tarmix", "--count", "10", *line, "-o", "o.tar", "--force")
        assert done.status == 0
        return done.stderr

    start = "tarmix: 10 samples are written, as --count says; left out: "
    assert run("1", "a.parquet", "1", "b.parquet") == f"{start}65 of a.parquet, 95 of b.parquet\n"
    assert run("1", "a.tar", "1", "b.parquet") == f"{start}what follows in a.tar (not read), 95 of b.parquet\n"
    assert run("-q", "1", "a.tar") == ""
    done = inside("tarmix", "1", "c.tar", "1", "pipe:cat a.tar", "-o", "p.tar")
    assert done.stderr == "tarmix: c.tar ended after 5 samples; left out: what follows in pipe:cat … a.tar (not read)\n"
    assert inside("tarcat", "a.tar", "b.tar", "-o", "z.tar.xz").status == 0
    done = inside("tarmix", "1", "c.tar", "1", "b.tar", "z.tar.xz", "1", "a.tar", "b.parquet", "-o", "z.tar")
    found = re.fullmatch(
        r"tarmix: c.tar ended after 5 samples; left out: "
        r"what follows in b.tar and 1 more \(not read\), (\d+) of a.tar and 1 more\n",
        done.stderr,
    )
    assert found is not None
    assert int(found[1]) == 170 - sum(key.startswith("a") for key in keys_in((folder / "z.tar").read_bytes()))


def test_seeds(folder: Path, inside: Inside) -> None:
    line = ["tarmix", "-q", "1", "a.tar", "1", "b.tar"]
    runs = [inside(*line, "--seed", str(seed)).stdout for seed in (0, 0, 1, -5, 1 << 40)]
    assert runs[0] == runs[1] == inside(*line).stdout
    assert len({order_of(content) for content in runs}) == 4


def test_words_lists_and_sources_of_several_shards(folder: Path, inside: Inside) -> None:
    """A list has words: shares too. Numbers are shares, unless they are written otherwise."""
    plain = inside("tarmix", "-q", "--stop", "all", "2", "a.tar", "b.parquet", "1", "c.tar").stdout
    assert len(keys_in(plain)) == 175
    assert keys_in(plain)[-1] == "b0099"
    (folder / "mix").write_text("2\n{a.tar,b.parquet}\n\n1\nc.tar\n")
    (folder / "rest").write_text("b.parquet\0001\0c.tar")
    (folder / "1").write_bytes(some("a", 70))
    (folder / "b-1.tar").symlink_to("b.tar")
    for words in (["-T", "mix"], ["-0", "-T", "rest", "2", "a.tar"], ["2.0", "./1", "b-?.tar", "1", "c.tar"]):
        assert inside("tarmix", "-q", "--stop", "all", *words).output() == plain
    piped = inside("tarmix", "-q", "--stop", "all", "2", "a.tar", "b.tar", "1", "-", stdin=some("c", 5))
    assert piped.stdout == plain


def test_keys(folder: Path, inside: Inside) -> None:
    """Sources may have keys in common, and rounds have all of them."""
    (folder / "d.tar").write_bytes(some("a", 70)[35 * 1024 :])
    for output in ("o.tar", "o.parquet"):
        done = inside("tarmix", "--stop", "all", "1", "a.tar", "1", "d.tar", "-o", output)
        assert (done.status, done.stderr) == (
            0,
            "tarmix: the key 'a0035' comes again among the first 10,000 samples; --rekey '{source}/{key}' makes keys "
            "of different sources differ\n",
        )
    said = inside("tarmix", "--stop", "all", "1", "a.tar", "1", "a.tar", "-o", "twice.tar").failure()
    assert "two samples with the key 'a0000' side by side" in said
    done = inside("tarmix", "--stop", "all", "1", "a.tar", "1", "a.tar", "-o", "twice.parquet")
    assert (done.status, done.stderr[:38]) == (0, "tarmix: the key 'a0000' comes again am")
    out = inside("tarmix", "--stop", "all", "--rekey", "{source}/{key}", "1", "a.tar", "1", "a.tar").output()
    assert sorted(keys_in(out)) == [f"{source}/a{n:04d}" for source in (0, 1) for n in range(70)]
    template = "{source}-{round}-{index:03d}-{shard}-{txt}"
    out = inside("tarmix", "--stop", "longest", "--rekey", template, "7", "a.tar", "3", "c.tar").output()
    keys = [key.split("-") for key in keys_in(out)]
    assert [int(key[2]) for key in keys] == list(range(len(keys)))
    assert [(key[1], key[4]) for key in keys if key[3] == "c"][:11] == [(str(n // 5), str(n % 5)) for n in range(11)]
    assert {(key[0], key[3]) for key in keys} == {("0", "a"), ("1", "c")}


def test_progress_knows_no_number_of_shards_that_are_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for stop, said in (("longest", "100 samples, 143"), ("all", "75 samples, 2 of 2 shards, ")):
        account = Account(lambda _: None)
        tarmix._function(
            account=account,
            source=cli.Inputs(inputs=["7", "a.tar", "3", "c.tar"]),
            output=cli.Output(url=f"{stop}.tar"),
            mixture=MixingOptions(stop=stop),
        )
        assert drawing.counts_in_words(account, 1.0).startswith(said)


def test_fifty_sources_with_few_open_files(run: Run, shell: Run, tmp_path: Path) -> None:
    """Every second one is a table of six shards."""
    words: list[str] = []
    indexed: list[str] = []
    for number in range(50):
        names = [f"{number:02d}-{part}.tar" for part in range(6)]
        for part, name in enumerate(names):
            (tmp_path / name).write_bytes(some(f"{number:02d}{part}", 2))
        words += ["1", f"{number:02d}.parquet" if number % 2 else f"{number:02d}-?.tar"]
        indexed += names * (number % 2)
    run("tarindex", *indexed, "-o", "all.parquet").output()
    table = pq.read_table(tmp_path / "all.parquet")
    for place, number in enumerate(range(1, 50, 2)):
        pq.write_table(table.slice(12 * place, 12), tmp_path / f"{number:02d}.parquet")
    content = run("tarmix", "--stop", "all", *words).output()
    assert len(set(keys_in(content))) == len(keys_in(content)) == 600
    assert Counter(key[:2] for key in keys_in(content)[:300]) == Counter(
        {f"{number:02d}": pytest.approx(6, abs=2) for number in range(50)}
    )
    limited = shell(f"ulimit -n 160; tarmix --stop all {' '.join(words)}")
    assert (limited.status, limited.stdout == content, limited.stderr) == (0, True, "")


ERRORS = [
    ([], 2, "no source: name shares and shards"),
    (["a.tar", "1", "c.tar"], 2, "the first word must be a share, and 'a.tar' is not a number"),
    (["0.7", "0.3", "a.tar"], 2, "no shard follows the share 0.7"),
    (["0.7", "a.tar", "0.3"], 2, "no shard follows the share 0.3"),
    (["0", "a.tar", "1", "b.tar"], 2, "0 is not a share"),
    (["nan", "a.tar"], 2, "nan is not a share"),
    (["1e99", "a.tar"], 2, "1e99 is not a share"),
    (["1", "a.tar", "+Infinity", "b.tar"], 2, "+Infinity is not a share"),
    (["1", "a.tar", "1e-10", "b.tar"], 2, "less than one of 1,000,000,000"),
    (["1", "a.tar", "--", "-1", "b.tar"], 2, "-1 is not a share"),
    (["1", "-", "1", "-"], 2, "stdin can be read only once"),
    (["1", "a.tar", "1", "no-*.tar"], 1, "no-*.tar: no file matches"),
    (["1", "a.tar", "1", "no.tar"], 1, "no.tar: No such file"),
    (["1", "a.tar", "-T", "none"], 1, "none: the list of files is empty"),
    (["--rekey", "{source", "1", "a.tar"], 2, "it may use {index}, {source}, {round}, {key}, {shard}, {FIELD}"),
    (["--rekey", "{key}", "1", "a.tar", "-o", "x.parquet"], 2, "--rekey excludes an OUTPUT that ends in .parquet"),
    (["-z", "1", "a.tar", "-o", "x.parquet"], 2, "-z excludes an OUTPUT that ends in .parquet"),
    (["1", "-", "-o", "x.parquet"], 2, "stdin: a table can't list these samples"),
    (["--stop", "longest", "1", "a.tar", "1", "empty.tar"], 1, "empty.tar: this source has no samples"),
    (["--stop", "longest", "1", "empty.tar", "-o", "x.parquet"], 1, "empty.tar: this source has no samples"),
    (["--stop", "longest", "1", "a.tar", "1", "pipe:cat c.tar"], 1, "has ended before the longest source"),
]


@pytest.mark.parametrize(("line", "status", "message"), ERRORS, ids=str)
def test_errors(line: list[str], status: int, message: str, folder: Path, inside: Inside) -> None:
    (folder / "none").write_text("\n")
    before = sorted(os.listdir(folder))
    done = inside("tarmix", *line, *([] if "-o" in line else ["-o", "x.tar"]))
    assert (done.status, done.stderr.count("\n")) == (status, 1), done
    assert done.stderr.startswith("tarmix: ") and message in done.stderr
    assert sorted(os.listdir(folder)) == before
