"""What a command imports for a small local shard: the lasting guard of its start, which is most of such a run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.archives import picture
from tests.commands.test_every_command import COMMANDS
from tests.conftest import make_tar, python
from tests.schedule import needs_torch

# Modules that take 1 ms or more of a start: Python takes 15 to 25 ms itself, and an ordinary run two or three times as
# long. What is not here is imported by Python, by typing or by signal, or is small.
SLOW = {
    *(
        "argparse",
        "ast",
        "asyncio",
        "calendar",
        "concurrent.futures",
        "copy",
        "csv",
        "ctypes",
        "dataclasses",
        "datetime",
    ),
    *(
        "decimal",
        "difflib",
        "dis",
        "email",
        "fractions",
        "gzip",
        "hashlib",
        "html",
        "http.client",
        "importlib.metadata",
    ),
    *("inspect", "json", "lzma", "logging", "multiprocessing", "numpy", "pathlib", "pickle", "platform", "queue"),
    *("random", "selectors", "shlex", "shutil", "socket", "ssl", "statistics", "string", "subprocess", "tempfile"),
    *("textwrap", "threading", "traceback", "typing_extensions", "urllib.parse", "uuid", "zipfile"),
    *(
        "PIL",
        "av",
        "click",
        "duckdb",
        "huggingface_hub",
        "pyarrow",
        "rich",
        "soundfile",
        "torch",
        "typer",
        "webdataset",
    ),
    # our own, for what a run on a small shard does not do
    *("tartools.cli.drawing", "tartools.cli.typer_app", "tartools.samples.videos", "tartools.show.html"),
    *(
        "tartools.show.pager",
        "tartools.show.serve",
        "tartools.stages.checking.fixing",
        "tartools.storage.objects.ranges",
    ),
    "tartools.shards.delivery",  # samples by flags or labels
    *("tartools.stages.checking.listedrows", "tartools.stages.filtering.evaluating", "tartools.tables.catalog"),
    "tartools.tables.tablewriter",
}
PROCESSES = {"queue", "random", "selectors", "shlex", "shutil", "subprocess", "tempfile", "threading", "lzma"}
DELIVERY = {"tartools.shards.delivery"}
PILLOW = {*PROCESSES, "PIL", "logging", "pathlib", "string", "textwrap", "traceback"}
ANYTHING = SLOW  # pyarrow, which takes 0.2 s, imports most of them; torch too


class Start(NamedTuple):
    """The arguments of a run, in which {} is the shard, and the slow modules that it has a use for."""

    arguments: str
    modules: set[str] | frozenset[str] = frozenset()


STARTS = {
    "tarcat": Start("{} -c 1 -o o.tar"),
    "tarpcat": Start("{} -o o.tar", {"queue", "threading"}),
    "tarls": Start("{}", {"threading"}),
    "tarstat": Start("{}", PILLOW),  # the headers of pictures are read, for sizes and modes
    "tarshow": Start("{}", PILLOW),  # all of a picture is decoded, to find out whether it is broken
    "tarfirst": Start("{}"),
    "tarcheck": Start("{}"),
    "tardedup": Start("{} -o o.tar", DELIVERY),
    "tardiff": Start("{} {}", DELIVERY),
    "tarcreate": Start("a.tsv -o o.tar", {"shlex", "string"}),
    "tarindex": Start("{} -o o.parquet", ANYTHING),
    "tarfilter": Start("{} --share 0:1 -o o.tar", DELIVERY),
    "tarjoin": Start("{} --with a.tsv --left -o o.tar", {"threading"}),
    "tarmix": Start("1 {} -o o.tar"),
    "tarsort": Start("{} -o o.tar", {"threading"}),
    "tarsplit": Start("{} -n 2 -o part", {*DELIVERY, "queue", "threading"}),
    "tarproc": Start("{} -c true -o o.tar", {*PROCESSES, "ctypes"}),
    "tarjob": Start("-q --spec 1 -- true", PROCESSES),
    "tar2tsv": Start("{} -f cls -o o.tsv"),
    "tar2jsonl": Start("{} -o o.jsonl", {"json"}),
    "tar2parquet": Start("{} -o o.parquet", ANYTHING),
    "tar2tfrecord": Start("{} -o o.tfrecord", {"calendar", "copy", "datetime", "json", "pickle", "threading"}),
    "tar2zip": Start("{} -o o.zip", {"json", "lzma", "pathlib", "shutil", "threading", "urllib.parse", "zipfile"}),
    "tar2folder": Start("{} -o o", {"json"}),
    "tarbench": Start("--dry-run {}", ANYTHING),
}


def test_every_command_has_a_start() -> None:
    assert sorted(STARTS) == sorted(COMMANDS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_torch if name == "tarbench" else ()) for name in STARTS]
)
def test_a_run_imports_nothing_slow_that_it_does_not_need(name: str, tmp_path: Path) -> None:
    """A module that is new here is imported where it is needed, by a function, or has a reason and a row in STARTS."""
    (tmp_path / "a.tar").write_bytes(
        make_tar([("a.jpg", picture("JPEG")), ("a.cls", b"1"), ("b.jpg", picture("JPEG")), ("b.cls", b"2")])
    )
    (tmp_path / "a.tsv").write_text("__key__\tx.txt\na\ttext\n")
    program = f"""
import importlib, sys
arguments = {STARTS[name].arguments.replace("{}", "a.tar").split()!r}
status = importlib.import_module("tartools.commands.{name}").{name}.main(arguments)
needless = sorted(({SLOW!r} - {set(STARTS[name].modules)!r}) & {{*sys.modules}})
sys.exit(f"status {{status}}" if status else " ".join(needless) or 0)
"""
    done = python(program, folder=tmp_path)
    assert (done.status, done.stderr) == (0, "")
