"""The cache of open files: after a slow read, the kernel is asked for all places of the next ones first."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tartools.storage import openfiles


@pytest.mark.parametrize("in_buffer", [False, True])
@pytest.mark.parametrize("is_slow", [False, True])
def test_only_after_a_slow_read_is_the_kernel_asked_first(
    in_buffer: bool, is_slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = [1000.0], []

    def clock() -> float:
        now[0] += 1.0 if is_slow else 0.0
        return now[0]

    monkeypatch.setattr(openfiles, "perf_counter", clock)
    monkeypatch.setattr(openfiles.os, "posix_fadvise", lambda _, *place: asked.append(place[:2]), raising=False)
    monkeypatch.setattr(openfiles.os, "POSIX_FADV_WILLNEED", 3, raising=False)
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 20)
    begins, sizes = [5000, 0, 300], [20, 3, 10]  # the first is larger than the time, the last one less
    expected = b"".join(path.read_bytes()[at : at + size] for at, size in zip(begins, sizes, strict=True))
    cache, buffer = openfiles.OpenFileCache(), bytearray(33)
    with io.FileIO(path) as file:
        for _ in range(2):
            if in_buffer:
                assert cache.read_into([file] * 3, begins, sizes, memoryview(buffer)) == 33
            else:
                buffer[:] = cache.read([file] * 3, begins, sizes)
            assert buffer == expected
    assert asked == ([*zip(begins, sizes, strict=True)] if is_slow else [])
