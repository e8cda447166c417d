"""The process that measures rows of one library: a line of JSON on stdin asks, one on stdout answers.

echo '{"library": "stream", "row": "order", "urls": ["a.tar"], "place": "/dir/texts-stream", ...}' |
    python -m tests.bench.beside.rows
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tests.bench.beside.base import Library, Reading, as_bytes
from tests.bench.beside.libraries import LIBRARIES, OurLoader
from tests.bench.beside.sets import damage_files, original
from tests.bench.loading import counted
from tests.bench.loose import used
from tests.bench.peers import one_by_one

Answer = dict[str, Any]

MAX_SAID = 100_000  # characters of what a library prints
OFFLINE = {
    "HF_DATASETS_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "DAFT_ANALYTICS_ENABLED": "0",
    "DO_NOT_TRACK": "1",
    "SCARF_NO_ANALYTICS": "true",
}


def memory() -> float:
    """Return MB that this process and its descendants held at most."""
    total, parents = 0.0, {os.getpid()}
    for _ in range(4):  # generations
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            except OSError:
                continue
            if int(fields["PPid"]) in parents:
                parents.add(int(fields["Pid"]))
    for pid in parents:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))
    return total


def rate(library: Library, reading: Reading, seconds: float) -> Answer:
    """Measure samples a second, from the first batch on, and the CPU time of 1,000."""
    count, wall, cpu = counted(lambda: map(len, library.batches(reading)), seconds)
    return {"rate": count / wall, "cpu": 1000 * cpu / count, "memory": memory()}


def at_random(library: Library, reading: Reading, seconds: float) -> Answer:
    """Measure samples a second in random order: by our loader, which shuffles all, or one by one by their indexes."""
    if isinstance(library, OurLoader):
        return rate(library, reading._replace(shuffle=True), seconds)
    count, get = library.getter(reading)
    found, wall, cpu = counted(lambda: one_by_one(get, count, reading.batch), seconds)
    return {"rate": found / wall, "cpu": 1000 * cpu / found}


def first(library: Library, reading: Reading, seconds: float) -> Answer:
    """Measure the seconds until the first batch; imports are done."""
    begun, before = time.perf_counter(), used()
    batch = next(iter(library.batches(reading)))
    answer = {"seconds": time.perf_counter() - begun, "cpu": used() - before, "samples": len(batch)}
    if len(batch) < reading.batch:
        raise ValueError(f"the first batch has {len(batch)} samples")
    return answer


def texts_of(batch: Iterable[Any]) -> list[bytes]:
    """Return a digest of each sample's text."""
    return [blake2b(as_bytes(sample["txt"]), digest_size=8).digest() for sample in batch]


def save(library: Library, reading: Reading, seconds: float) -> Answer:
    """Read a shuffled epoch; keep the state after half of it, and what comes then."""
    rest: list[bytes] = []
    count, state = 0, b""
    for batch in library.batches(reading._replace(shuffle=True)):
        if state:
            rest += texts_of(batch)
        elif (count := count + len(batch)) >= reading.half:
            state = pickle.dumps(library.state())
    if not rest:
        raise ValueError(f"the epoch has {count} samples")
    (reading.place.parent / f"{reading.place.name}.state").write_bytes(pickle.dumps((state, rest)))
    return {"samples": count}


def resume(library: Library, reading: Reading, seconds: float) -> Answer:
    """Resume where `save` stood: seconds until the first sample, and how the rest differs from that epoch's."""
    kept, rest = pickle.loads((reading.place.parent / f"{reading.place.name}.state").read_bytes())
    state = pickle.loads(kept)
    begun, took = time.perf_counter(), 0.0
    found: list[bytes] = []
    for batch in library.batches(reading._replace(shuffle=True), state):
        took = took or time.perf_counter() - begun
        found += texts_of(batch)
    found = found[: len(rest)]  # what comes then is the next epoch
    lost = len(set(rest) - set(found))
    again = len(found) - len(set(found) & set(rest))
    return {"seconds": took, "exact": found == rest, "lost": lost, "again": again, "of": len(rest)}


def damage(library: Library, reading: Reading, fault: str) -> Answer:
    """Read a damaged set; count the samples that are as they were made, others, and tell the error."""
    numbers: list[int] = []
    wrong, error = 0, ""
    try:
        if not reading.place.exists():
            library.prepare(reading)
        if library.about == "its own" and fault != "whole":
            damage_files(reading.place, fault)
        for batch in library.batches(reading):
            for sample in batch:
                number = number_of(sample)
                wrong += number is None
                numbers += [] if number is None else [number]
    except (Exception, SystemExit) as raised:  # whatever a library raises is its answer
        error = f"{type(raised).__name__}: {raised}"
    return {"good": len(set(numbers)), "again": len(numbers) - len(set(numbers)), "wrong": wrong, "error": error}


def number_of(sample: Any) -> int | None:
    """Return the number of the sample that this is, whole; None if it is none."""
    try:
        fields = {field: as_bytes(sample[field]) for field in ("txt", "cls")}
        number = int(fields["cls"])
    except (KeyError, TypeError, ValueError):
        return None
    return number if fields == original(number) else None


ROWS: dict[str, Callable[[Library, Reading, float], Answer]] = {
    "rate": rate,
    "random": at_random,
    "first": first,
    "save": save,
    "resume": resume,
}


def answer(asked: dict[str, Any]) -> Answer:
    """Measure what *asked* says."""
    library = LIBRARIES[asked["library"]]()
    names: Sequence[str] = Reading._fields
    options = {name: asked[name] for name in names if name in asked}
    reading = Reading(**options | {"place": Path(asked["place"])})
    library.load()
    try:
        if asked["row"] == "prepare":
            begun = time.perf_counter()
            library.prepare(reading)
            return {"seconds": time.perf_counter() - begun}
        if asked["row"] == "damage":
            return damage(library, reading, asked["fault"])
        return ROWS[asked["row"]](library, reading, asked["seconds"])
    finally:
        library.close()


def main() -> None:
    """Answer each line of stdin. What libraries print is told with the answer."""
    warnings.simplefilter("always")
    said = os.dup(2)
    with os.fdopen(os.dup(1), "w") as told, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        os.dup2(2, 1)
        tempfile.tempdir = place  # MosaicML streaming leaves locks behind
        os.environ.update(OFFLINE | {"HF_HOME": place, "RAY_TMPDIR": place})
        for line in sys.stdin:
            with tempfile.TemporaryFile() as output:
                os.dup2(output.fileno(), 2)
                try:
                    found = answer(json.loads(line))
                except Exception as error:
                    found = {"error": f"{type(error).__name__}: {error}"}
                finally:
                    os.dup2(said, 2)
                output.seek(0)
                found["said"] = output.read().decode(errors="replace")[-MAX_SAID:]
            told.write(json.dumps(found) + "\n")
            told.flush()


if __name__ == "__main__":
    main()
