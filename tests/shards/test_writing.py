"""What the name of an output says of its compression; how many outputs may be open."""

from __future__ import annotations

import os
import resource

import pytest

from tartools.errors import UsageError
from tartools.shards.delivery import allow_open_files
from tartools.shards.writing import codec_for
from tests.conftest import open_descriptors


@pytest.mark.parametrize(
    ("url", "gzip", "name"),
    [
        ("a.tar", False, None),
        ("a", False, None),
        ("-", True, "gzip"),
        ("a", True, "gzip"),
        ("a.tgz", False, "gzip"),
        ("a.tgz", True, "gzip"),
        ("A.TAR.GZ", False, "gzip"),
        ("a.tar.bz2", False, "bzip2"),
        ("a.tar.xz", False, "xz"),
        ("a.tar.zst", False, "zstd"),
        ("a.tar.lz4", False, "lz4"),
        ("a.gz", False, None),
        ("s3://b/a.tar.zst", False, "zstd"),
        ("https://h/a.tgz?signature=a.tar", False, "gzip"),
        ("ais://b/a.tar.lz4?provider=aws", False, "lz4"),
        ("pipe:gzip > a.tgz", False, None),
        ("pipe:cat > a.tar", True, "gzip"),
    ],
)
def test_the_suffix_of_an_output_decides(url: str, gzip: bool, name: str | None) -> None:
    codec = codec_for(url, gzip)
    assert (codec.name if codec else None) == name


@pytest.mark.parametrize("url", ["a.tar", "a.tar.zst", "a.tar.xz"])
def test_gzip_under_another_suffix_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="-z"):
        codec_for(url, True)


def test_what_is_open_already_does_not_count_as_an_output() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(30)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_descriptors()) + 20, limits[1]))
        allow_open_files(40)
        held += [os.open(os.devnull, os.O_RDONLY) for _ in range(40)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in held:
            os.close(fd)
