"""Commands that write several outputs, or compare several inputs, on servers: as if all were here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Run, make_tar
from tests.storage.objects.faults import SCHEMES
from tests.storage.objects.inside import Inside
from tests.tiers import by_turns

pytestmark = by_turns("scheme")
MEMBERS = [(f"{n:02d}.{field}", b"%d" % (n % 3)) for n in range(10) for field in ("cls", "txt")]
WHOLE = make_tar(MEMBERS)
OTHER = make_tar([(name, b"new") if name == "07.cls" else (name, data) for name, data in MEMBERS[4:]])
CUT = 10_000  # bytes


def here(run: Run, tmp_path: Path, *line: object, status: int = 0) -> tuple[bytes, dict[str, bytes]]:
    """Run a command on local files; return its stdout and its outputs, which are removed."""
    for name, content in (("a.tar", WHOLE), ("b.tar", OTHER)):
        (tmp_path / name).write_bytes(content)
    done = run(*line)
    assert (done.status, done.stderr) == (status, "")
    found = sorted(tmp_path.rglob("out*"))
    return done.stdout, {str(path.relative_to(tmp_path)): path.read_bytes() for path in found}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tarfilter_with_rest(scheme: str, empty: Inside, run: Run, tmp_path: Path) -> None:
    objects, url = empty.server.objects, empty.server.url(scheme, "")
    objects["a.tar"] = WHOLE
    line = ["-S", "int(cls) > 0"]
    _, made = here(run, tmp_path, "tarfilter", *line, "a.tar", "-o", "out1.tar", "--rest", "out2.tar")
    done = empty.run("tarfilter", *line, f"{url}a.tar", "-o", f"{url}out1.tar", "--rest", f"{url}out2.tar")
    assert done == (0, b"", "")
    assert objects == made | {"a.tar": WHOLE} and len(made) == 2
    done = empty.run("tarfilter", *line, f"{url}a.tar", "-o", f"{url}n.tar", "--rest", f"{url}out2.tar")
    assert done.status == 1 and "out2.tar: already exists" in done.stderr and "n.tar" not in objects
    done = empty.run("tarfilter", *line, f"{url}a.tar", "-o", f"{url}t.parquet", "--rest", f"{url}r.parquet")
    assert done == (0, b"", "")
    for table, shard in (("t.parquet", "out1.tar"), ("r.parquet", "out2.tar")):
        assert empty.run("tarcat", f"{url}{table}").stdout == objects[shard]
    objects["a.tar"] = WHOLE[:CUT]
    done = empty.run("tarfilter", *line, f"{url}a.tar", "-o", f"{url}new1.tar", "--rest", f"{url}new2.tar")
    assert done.status == 1 and "at byte 10000" in done.stderr and not [name for name in objects if "new" in name]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tardiff(scheme: str, empty: Inside, run: Run, tmp_path: Path) -> None:
    objects, url = empty.server.objects, empty.server.url(scheme, "")
    objects |= {"a.tar": WHOLE, "b.tar": OTHER}
    for name in ("out.tar", "out.parquet"):
        said, made = here(run, tmp_path, "tardiff", "--list-keys", "a.tar", "b.tar", "-o", name, status=1)
        done = empty.run("tardiff", "--list-keys", f"{url}a.tar", f"{url}b.tar", "-o", f"{url}{name}")
        assert done == (1, said, "")
        read = "out.tar" if name == "out.tar" else None
        assert read is None or objects[read] == made[read]
    assert empty.run("tarcat", f"{url}out.parquet").stdout == objects["out.tar"]
    assert empty.run("tardiff", f"{url}a.tar", str(tmp_path / "a.tar")).status == 0
    objects["b.tar"] = OTHER[:CUT]
    done = empty.run("tardiff", f"{url}a.tar", f"{url}b.tar", "-o", f"{url}new.tar")
    assert done.status == 2 and "b.tar: at byte 10000" in done.stderr and "new.tar" not in objects


SPLITS = [
    ["--parts", "x:0.7,y:0.3", "-n", "4", "-o", "out-{part}-{shard:03d}.tar"],
    ["--parts", "x:0.7,y:0.3", "--stratify", "cls", "-o", "out/{part}.tar"],
    ["--by", "cls", "-n", "4", "-o", "out/{cls}/{shard:03d}.tar"],
]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("line", SPLITS, ids=" ".join)
def test_tarsplit_into_parts(line: list[str], scheme: str, empty: Inside, run: Run, tmp_path: Path) -> None:
    objects, url = empty.server.objects, empty.server.url(scheme, "")
    objects["a.tar"] = WHOLE
    (tmp_path / "out").mkdir()
    said = run("tarsplit", *line, stdin=WHOLE).stdout.decode().split()
    done = empty.run("tarsplit", *line[:-1], f"{url}{line[-1]}", f"{url}a.tar")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.decode().split() == [f"{url}{name}" for name in said]
    assert objects == {name: (tmp_path / name).read_bytes() for name in said} | {"a.tar": WHOLE}
    again = empty.run("tarsplit", *line[:-1], f"{url}{line[-1]}", f"{url}a.tar")
    assert again.status == 1 and "already exists; --force replaces it" in again.stderr
    before = dict(objects)
    objects["a.tar"] = WHOLE[:CUT]
    done = empty.run("tarsplit", *line[:-1], f"{url}{line[-1]}".replace("out", "new"), "--force", f"{url}a.tar")
    assert done.status == 1 and "at byte 10000" in done.stderr
    named = {name.removeprefix(url) for name in done.stdout.decode().split()}
    assert objects.keys() == before.keys() | named
