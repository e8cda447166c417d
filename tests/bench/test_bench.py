"""The benchmarks run: tiny archives, one round. How long anything takes is nobody's business here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tartools import commands
from tests.bench.__main__ import WORKS, cells_of, parsed
from tests.bench.data import SETS, home, make, samples_in
from tests.bench.measure import Bench, Measured, Round, installed
from tests.bench.starts import LINES, STARTS
from tests.bench.works import Goal, Line, Work
from tests.conftest import BIN, ROOT, Result, python, running, start
from tests.storage.objects import servers
from tests.tiers import also, exhaustive

SCALE = 0.001

Benchmarks = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Return the words that begin a run: its archives and outputs are below `tmp_path`."""
    (tmp_path / "out").mkdir()
    places = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    return [sys.executable, "-m", "tests.bench", "-n", "1", "--scale", str(SCALE), *places]


@pytest.fixture
def bench(command: list[str], tmp_path: Path) -> Benchmarks:
    """Return a function that runs the benchmarks, and sees that they leave no output."""

    def bench(*arguments: str, env: dict[str, str] | None = None) -> Result:
        done = start(*command, *arguments, folder=ROOT, env=env)
        assert list((tmp_path / "out").iterdir()) == []
        return done

    return bench


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Return where data set B is, or will be."""
    return home(tmp_path / "data", SCALE) / SETS["B"].path


def writing_end(fifo: Path, process: subprocess.Popen[bytes]) -> int:
    """Return *fifo* open for writing, as soon as somebody reads it. Raises: OSError if *process* has ended instead."""
    while True:
        ended = process.poll() is not None
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads it
            if ended:
                raise
        time.sleep(0.01)


def works_of(result: Result) -> dict[str, Any]:
    return {each["work"]: each for each in json.loads(result.stdout)["works"]}


@pytest.mark.parametrize("names", [["tsv-B"], *also(["tsv-B", "read-B"])], ids=" ".join)
def test_all_figures_of_a_work_are_told(names: list[str], bench: Benchmarks, texts: Path) -> None:
    done = bench("--json", *names)
    assert done.status == 0, done.stderr
    works = works_of(done)
    assert [line["name"] for line in works["tsv-B"]["lines"]] == ["tar2tsv", "tar tf"]
    for line in (line for name in names for line in works[name]["lines"]):
        (turn,) = line["rounds"]
        assert min(turn["wall"], turn["cpu"], turn["memory"]) > 0
        assert (turn["size"] > 0) == (">" in line["line"])
    assert works["tsv-B"]["ratios"]["tar tf"] > 0
    # the archive is the one that is told, and is kept
    with tarfile.open(texts) as archive:
        names = archive.getnames()
    keys = [f"{n:09d}" for n in range(samples_in("B", SCALE))]
    assert sorted(names) == sorted(f"{key}.{field}" for key in keys for field in ("txt", "cls"))
    assert names != sorted(names)
    assert [path.name for path in texts.parent.iterdir()] == [texts.name]
    assert "making" in done.stderr and "making" not in bench("tsv-B").stderr


def test_the_table_tells_what_is_reached(bench: Benchmarks) -> None:
    done = bench("start")
    assert done.status == 0, done.stderr
    heading, beside, limit = done.stdout.decode().splitlines()
    assert heading.split()[:3] == ["work", "ours", "s"]
    assert beside.startswith("start  tarcat  ") and " python " in beside
    assert " at most " in limit and limit.rpartition("0.1 s")[2].strip() in ("yes", "NO")


def test_the_start_of_each_command_is_a_work() -> None:
    assert sorted(LINES) == commands.names()
    assert [work for work in parsed(["start-all"]).works if not work.startswith("start-tar")] == []
    assert parsed(["start-all", "start"]).works == [*STARTS, "start"]


@pytest.mark.parametrize("name", ["tarstat", "tar2folder", *also(*sorted(set(LINES) - {"tarstat", "tar2folder"}))])
def test_a_start_is_told_beside_that_of_python(name: str, bench: Benchmarks) -> None:
    done = bench("--json", f"start-{name}")
    assert done.status == 0, done.stderr
    (work,) = works_of(done).values()
    assert work["ratios"]["python"] > 0 and [goal["most"] for goal in work["goals"]] == [3, 3]


def test_the_commands_of_another_version_are_timed_beside_ours(bench: Benchmarks, tmp_path: Path) -> None:
    other = tmp_path / "bin"
    other.mkdir()
    (other / "tarcat").write_text(f'#!/bin/sh\necho "$0" "$@" >> {tmp_path}/called\nexec {BIN}/tarcat "$@"\n')
    (other / "tarcat").chmod(0o755)
    done = bench("--before", str(other), "--json", "cat-A")
    assert done.status == 0, done.stderr
    work = works_of(done)["cat-A"]
    assert [line["name"] for line in work["lines"]] == ["tarcat", "before"] and work["ratios"]["before"] > 0
    assert {line.split()[0] for line in (tmp_path / "called").read_text().splitlines()} == {str(other / "tarcat")}
    assert bench("--before", str(tmp_path), "cat-A").status == 2


def test_markdown_tells_of_the_machine(bench: Benchmarks) -> None:
    done = bench("--markdown", "cat-B")
    assert done.status == 0, done.stderr
    about, _, heading, _, *rows = done.stdout.decode().splitlines()
    assert "webdataset" in about and about.endswith("Medians of 1 rounds.")
    assert all(row.startswith("| ") and row.replace("\\|", "").count("|") == heading.count("|") for row in rows)


def test_a_command_that_fails_is_no_figure(bench: Benchmarks, texts: Path, tmp_path: Path) -> None:
    make(tmp_path / "data", SCALE, "B")
    os.truncate(texts, 10_000)
    done = bench("--json", "tsv-B", "start")
    assert done.status == 1
    assert f"tsv-B: tar2tsv: status 1: tar2tsv: {texts}: at byte " in done.stderr
    works = works_of(done)
    assert works["tsv-B"]["failure"] and not any(line["rounds"] for line in works["tsv-B"]["lines"])
    assert works["start"]["failure"] == "" and all(line["rounds"] for line in works["start"]["lines"])


def test_a_command_that_does_too_little_is_no_figure(bench: Benchmarks, texts: Path, tmp_path: Path) -> None:
    make(tmp_path / "data", SCALE, "ONE")
    texts.with_name(SETS["ONE"].path).rename(texts)
    done = bench("tsv-B")
    assert (done.status, "tsv-B: its check: status 1" in done.stderr) == (1, True)
    assert "FAILED" in done.stdout.decode()


def test_a_peer_that_is_not_there_is_told(bench: Benchmarks, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for program in ("bash", "cat", "cmp", "gzip", "python3"):
        path = shutil.which(program)
        assert path is not None
        (tmp_path / "bin" / program).symlink_to(path)
    done = bench("gunzip-B", env={"PATH": f"{BIN}{os.pathsep}{tmp_path / 'bin'}"})
    assert done.status == 0, done.stderr
    assert done.stdout.decode().endswith("not installed; Debian has it in pigz\n")


def test_a_run_that_is_stopped_leaves_no_output(command: list[str], texts: Path, tmp_path: Path) -> None:
    texts.parent.mkdir(parents=True)
    os.mkfifo(texts)
    with running([*command, "tsv-B"], cwd=ROOT, stderr=subprocess.PIPE) as process:
        file = writing_end(texts, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        with pytest.raises(BrokenPipeError):
            os.write(file, b"x")  # nobody reads it any more
        os.close(file)
    assert list((tmp_path / "out").iterdir()) == []


def test_archives_that_cannot_be_made_are_a_failure(bench: Benchmarks, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    done = bench("start")
    assert done.status == 1 and "start: the data set ONE: status 1: " in done.stderr


def test_ratios_are_of_rounds_and_of_samples() -> None:
    split = Measured(WORKS["split-A"], 1.0)
    split.rounds = {"tarsplit": [Round(4, 1, 1), Round(9, 1, 1), Round(2, 1, 1)], "cp": [Round(1, 1, 1)] * 2}
    assert split.ratio(split.work.peers[0]) == 6.5
    sort = Measured(WORKS["sort-5m"], 0.1)
    sort.rounds = {"5 M samples": [Round(30, 1, 1)], "1 M samples": [Round(3, 1, 1)]}
    assert sort.ratio(sort.work.peers[0]) == 2


@pytest.mark.parametrize("good", [1, 2])
def test_a_library_that_fails_later_has_no_figures(good: int, tmp_path: Path) -> None:
    count = f"echo >>{tmp_path}/runs; test $(wc -l <{tmp_path}/runs) -le {good}"  # the first is the warm-up
    work = Work("ours", Line("true", "true"), (Line("theirs", count, needs="pytest"),), (Goal(1, "theirs"),), check="")
    measured = Bench(tmp_path, SCALE, 3, lambda line: None, tmp_path).measure(work)
    assert measured.failure == "" and [*measured.rounds] == ["true"] and len(measured.rounds["true"]) == 3
    (row,) = cells_of([measured])
    assert row[:2] == ("ours", "true") and any("failed: theirs: status 1" in cell for cell in row)


def test_what_works_ask_for_is_there() -> None:
    for work in WORKS.values():
        names = [line.name for line in work.lines]
        assert len(set(names)) == len(names), work.name
        assert {goal.beside for goal in work.goals} <= {"", *names[1:]}, work.name
        alone = work.name in ("job-true", "start-tarcreate", "start-tarjob") or work.ours.needs  # items, rows; a server
        assert work.sets or alone, work.name


@exhaustive
@pytest.mark.skipif(servers.NGINX is None, reason="needs nginx")
def test_a_server_is_there_for_each_line(bench: Benchmarks) -> None:
    done = bench("--json", "s3-A", "job-true")
    assert done.status == 0, done.stderr
    for work in works_of(done).values():
        assert work["failure"] == "" and work["missing"] == {}
        assert all(len(line["rounds"]) == 1 for line in work["lines"])


@exhaustive
def test_training_is_measured_beside_what_is_installed(bench: Benchmarks) -> None:
    done = bench("--json", "-s", "0.01", "order-B", "stream-B-2", "objects-shard")
    assert done.status == 0, done.stderr
    works = works_of(done)
    assert list(works) == ["order-B", "stream-B-2", "objects-shard"]
    absent = {
        name: f"not installed; pip install {library}"
        for name, library in (
            ("litdata", "litdata"),
            ("webshart", "webshart"),
            ("streaming (MDS)", "mosaicml-streaming"),
        )
        if not installed(library)
    }
    for name, work in works.items():
        assert work["failure"] == "" and work["missing"] == (absent if name == "order-B" else {})
        for line in work["lines"]:
            there = line["name"] not in work["missing"]
            assert [turn["wall"] > 0 < turn["cpu"] for turn in line["rounds"]] == [True] * there
        assert all((work["ratios"][goal["beside"]] is None) == (goal["beside"] in absent) for goal in work["goals"])


@exhaustive
def test_readers_of_training_come_to_each_sample_once(tmp_path: Path) -> None:
    program = """if True:
        import sys
        from pathlib import Path
        from tests.bench import peers
        for library in "table", "stream", "webdataset", "zipped", "pread", "pread_kept":
            for way in "order", "random":
                epoch = peers.READERS[library](peers.Task(Path(sys.argv[1]), way, 0, False, 5, Path(sys.argv[2])))
                print(library, way, sum(epoch()), sum(epoch()))
        """
    make(tmp_path, SCALE, "A16")
    count = 16 * samples_in("A16", SCALE)
    done = python(program, home(tmp_path, SCALE) / SETS["A16"].path, tmp_path, folder=ROOT)
    libraries = ("table", "stream", "webdataset", "zipped", "pread", "pread_kept")
    assert done.stdout.decode().splitlines() == [
        f"{library} {way} {count} {count}" for library in libraries for way in ("order", "random")
    ], done.stderr


def test_loaders_of_others_are_compared_with_ours(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ["--data", tmp_path, "--scale", "0.002", "-s", "0.01", "--only", "stream,webdataset,litdata"]
    done = start(
        sys.executable,
        "-m",
        "tests.bench",
        "peers",
        *words,
        "--rows",
        "damage",
        folder=ROOT,
        env={"TMPDIR": str(scratch)},
    )
    assert done.status == 0, done.stderr
    text = done.stdout.decode()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("| ")]
    ours, ours_going_on, theirs, theirs_going_on = rows[2:6]
    assert ours[0].startswith("tartools `WebDataset`") and ours_going_on[0].endswith("`handler=`")
    assert ours[1] == "**40**, error" and ours_going_on[1:5] == ["0, warning", "**15**, warning", *["0, warning"] * 2]
    assert theirs_going_on[0].startswith("webdataset ") and theirs[2] == theirs_going_on[2] == "**14**, silent"
    assert ours[6] == theirs[6] == "0"  # a dot in a folder's name
    if not installed("litdata"):
        assert text.endswith("Not installed: litdata (litdata).\n")
    assert [*scratch.iterdir(), *home(tmp_path, 0.002).glob("tartools-peers-*")] == []


@exhaustive
def test_speed_first_batch_and_resuming_are_compared(tmp_path: Path) -> None:
    words = ["--data", tmp_path, "--scale", "0.002", "-s", "0.01", "--only", "loader,stream,datasets"]
    done = start(
        sys.executable, "-m", "tests.bench", "peers", *words, "--rows", "rates,first,resume", folder=ROOT, timeout=600
    )
    assert done.status == 0, done.stderr
    rows = [row.split("|")[1:-1] for row in done.stdout.decode().splitlines() if row.startswith("| ")]
    assert [len(row) for row in rows] == [7] * 5 + [6] * 5 + [2] * 5
    assert [row[1].endswith("s, exact ") for row in rows[12:14]] == [True, True]
    assert all("error" not in cell for row in [*rows[2:5], *rows[7:9], *rows[12:14]] for cell in row)
    assert all(cell.endswith(") ") for row in rows[7:9] for cell in row[3:5])  # requests


def test_a_work_that_is_not_there_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        parsed(["cat-Z"])
    assert "cat-A" in capsys.readouterr().err
