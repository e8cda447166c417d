"""`stream_map` in a process of its own, which loses two of its four workers. This imports no torch."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import tartools
from tests.conftest import ROOT, make_tar
from tests.processes import PATIENCE, until
from tests.train.mapped import expected

PROGRAM = """
import sys
from functools import partial
from tests.train.mapped import gated

if __name__ == "__main__":
    from tartools.train import stream_map  # which workers need not import

    for ordered in (True, False):
        function = partial(gated, f"gate-{ordered}")
        data = stream_map(function, sys.argv[2:], engine=sys.argv[1], workers=4, chunk_size="20K", ordered=ordered)
        with open(f"found-{ordered}", "w") as file:
            for one in data:
                print(repr(one), file=file, flush=True)
"""


def archive(seed: int, count: int) -> bytes:
    """Return an archive of *count* samples of different sizes."""
    draw = random.Random(seed)
    return make_tar(
        [
            (f"{seed}/{n:04d}.{field}", draw.randbytes(draw.randrange(900)))
            for n in range(count)
            for field in ("jpg", "cls")[: 1 + n % 2]
        ]
    )


def lose_two(folder: Path, engine: str, environment: dict[str, str], urls: list[str]) -> None:
    """Run PROGRAM in *folder*, and kill two of its four workers in the middle of their parts, in both orders."""
    (folder / "program.py").write_text(PROGRAM)
    every = [{"__key__": s.key, "__url__": s.shard, **s} for s in tartools.read(urls)]
    wanted = [repr(one) for one in expected(every)]
    gates = {name: (folder / name).open("w") for name in ("gate-True", "gate-False")}
    for gate in gates.values():
        fcntl.flock(gate, fcntl.LOCK_EX)
    process = subprocess.Popen(
        [sys.executable, "program.py", engine, *urls],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )

    def workers_at(name: str, count: int) -> list[int]:
        """Wait until so many workers have come to the gate *name*; return their numbers."""
        until(lambda: len(list(folder.glob(f"{name}-at-*"))) >= count or process.poll() is not None)
        return sorted(int(path.name.split("-")[-1]) for path in folder.glob(f"{name}-at-*"))

    try:
        for name, gate in gates.items():
            first = workers_at(name, 4)
            assert len(first) == 4
            for number in first[:2]:
                os.kill(number, signal.SIGKILL)
            assert len(workers_at(name, 6)) == 6
            gate.close()  # which opens it
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    for name in gates:
        found = (folder / name.replace("gate", "found")).read_text().splitlines()
        assert found == wanted if "True" in name else sorted(found) == sorted(wanted)
        calls = Counter((folder / f"{name}-calls").read_text().split())
        assert len(calls - Counter(sample["__key__"] for sample in every)) >= 2  # were called again
