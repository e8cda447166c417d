"""Outputs to `hf:` URLs: whole or not at all, one commit for each or for a set."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tartools import storage
from tartools.errors import StorageError
from tartools.storage.objects import hf
from tests.conftest import BIN, Run, running
from tests.storage.objects.fake_hf import Repository, commit
from tests.storage.objects.hubserver import Hub
from tests.storage.objects.test_hub import SET, changed_by, refused, shard
from tests.storage.objects.wire import Answer, Received, Request
from tests.tiers import by_turns

WHOLE = shard(*range(12))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """Give a hub with an empty data set, org/set; there is a shard in.tar here."""
    (tmp_path / "in.tar").write_bytes(WHOLE)
    with Hub() as hub:
        hub.data_sets["org/set"] = Repository()
        yield hub
    assert hub.errors == []


def test_an_output_is_a_commit(hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    """Of a large file, in Git LFS, and of a small one, which is a part of the commit; --force replaces both."""
    env = hub.env(tmp_path)
    for name in ("d/out.tar", "out.small"):
        assert run("tarcat", "in.tar", "-o", f"{SET}/{name}", env=env) == (0, b"", "")
        assert repository.objects.pop(name) == WHOLE and repository.log.pop() == f"Add {name}"
        repository.objects[name] = old = shard(1)
        hub.requests.clear()
        said = refused(run, env, "tarcat", "in.tar", "-o", f"{SET}/{name}")
        assert said == f"tarcat: {SET}/{name}: already exists; --force replaces it\n"
        assert repository.objects[name] == old and hub.kinds() == {"paths-info": 1}
        assert run("tarcat", "--force", "in.tar", "-o", f"{SET}@main/{name}", env=env) == (0, b"", "")
        assert run("tarcat", f"{SET}/{name}", env=env) == (0, WHOLE, "")
    assert run("tarcat", "--force", "-c", "1", f"{SET}/d/out.tar", "-o", f"{SET}/d/out.tar", env=env) == (0, b"", "")
    assert repository.objects["d/out.tar"] == shard(0)  # what was read is a commit, and stays


def test_others_make_commits_too(hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    other = Received(5, b"other")
    changed_by(hub, "/commit/", lambda: repository.put("other", other))
    assert run("tarcat", "in.tar", "-o", f"{SET}/out.tar", env=hub.env(tmp_path)) == (0, b"", "")
    assert repository.objects == {"out.tar": WHOLE, "other": b"other"}
    changed_by(hub, "/commit/", lambda: repository.put("new.tar", other))
    said = refused(run, hub.env(tmp_path), "tarcat", "in.tar", "-o", f"{SET}/new.tar")
    assert "new.tar: already exists" in said and repository.objects["new.tar"] == b"other"


@pytest.mark.parametrize("name", ["out.tar", "out.small"])
def test_a_commit_whose_answer_is_lost_is_not_made_twice(
    name: str, hub: Hub, repository: Repository, run: Run, tmp_path: Path
) -> None:
    for force in ([], ["--force"]):
        hub.after = ["/commit/"]
        assert run("tarcat", *force, "in.tar", "-o", f"{SET}/{name}", env=hub.env(tmp_path)) == (0, b"", "")
        assert hub.after == [] and len(repository.log) <= 2
        assert repository.objects == {name: WHOLE}
        repository.objects.pop(name)
        repository.log.clear()


@by_turns("busy")
@pytest.mark.parametrize(
    "busy", [Answer(503, {}), Answer(429, {"Retry-After": "0"}), None], ids=["503", "429", "reset"]
)
def test_a_hub_that_is_busy(busy: Answer | None, hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    hub.before = [("/commit/", busy)]
    assert run("tarcat", "in.tar", "-o", f"{SET}/out.tar", env=hub.env(tmp_path)) == (0, b"", "")
    assert repository.objects == {"out.tar": WHOLE} and hub.before == []
    hub.before = [("/commit/", busy)] * 3
    assert "(3 tries)" in refused(run, hub.env(tmp_path), "tarcat", "in.tar", "-o", f"{SET}/new.tar")
    assert repository.objects == {"out.tar": WHOLE}


def test_what_is_not_taken(hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    """By the store, by .gitignore, by a data set that is not there, without a token or with one that may only read."""
    env = hub.env(tmp_path)
    hub.store.answer = lambda request: Answer(403, {})  # type: ignore[method-assign]
    said = refused(run, env, "tarcat", "in.tar", "-o", f"{SET}/out.tar")
    assert said == f"tarcat: {SET}/out.tar: no permission to write (403)\n"
    repository.ignored = {"out.small"}
    said = refused(run, env, "tarcat", "in.tar", "-o", f"{SET}/out.small")
    assert said.endswith("out.small: the .gitignore of the data set leaves this file out\n")
    said = refused(run, env, "tarcat", "in.tar", "-o", "hf://datasets/org/other/out.tar")
    assert "no such data set on the hub" in said
    hub.private = {"org/set"}
    said = refused(run, hub.env(tmp_path, ""), "tarcat", "in.tar", "-o", f"{SET}/out.tar")
    assert said.endswith("hf auth login, or HF_TOKEN, gives access\n")
    hub.private.clear()
    hub.before = [("/commit/", Answer(403, {}))]
    said = refused(run, env, "tarcat", "in.tar", "-o", f"{SET}/new.small")
    assert said.endswith("new.small: no permission to write (403)\n")
    said = refused(run, env, "tarcat", "in.tar", "-o", f"{SET}@{commit(repository)}/out.tar", status=2)
    assert "a commit does not change: name a branch" in said
    assert repository.objects == {} and repository.log == []


def test_without_the_library(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "find_spec", lambda name: None)
    with pytest.raises(StorageError, match=r"install huggingface_hub; .*hf upload"):
        storage.open_write(f"{SET}/out.tar")


@pytest.mark.parametrize(
    "command", [["tarcat", "-o", f"{SET}/out.tar"], ["tarsplit", "-n", "2", "-o", f"{SET}/out-"]], ids=["one", "set"]
)
def test_whoever_is_ended_makes_no_commit(command: list[str], hub: Hub, repository: Repository, tmp_path: Path) -> None:
    """While it uploads, to a store that says nothing; no temporary file is left either."""
    waits, asked = threading.Event(), threading.Event()

    def silent(request: Request) -> Answer:
        asked.set()
        waits.wait(60)
        return Answer(500, {})

    hub.store.answer = silent  # type: ignore[method-assign]
    folder = tmp_path / "tmp"
    folder.mkdir()
    env = hub.env(tmp_path) | {"TMPDIR": str(folder)}
    with running([BIN / command[0], *command[1:], "in.tar"], cwd=tmp_path, env=env) as process:
        assert asked.wait(60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    waits.set()
    assert repository.objects == {} and repository.log == [] and [*folder.iterdir()] == []


# ---- sets ----


def test_a_set_is_one_commit(hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    """With --force it replaces the set that was there, of which nothing remains."""
    env, url = hub.env(tmp_path), f"{SET}/s-%03d.tar"
    done = run("tarsplit", "-n", "3", "in.tar", "-o", url, env=env)
    names = [f"s-{n:03d}.tar" for n in range(4)]
    assert (done.status, done.stdout.decode().split()) == (0, [f"{SET}/{name}" for name in names]), done
    assert sorted(repository.objects) == names
    assert repository.log == ["Add s-000.tar and 3 other files"]
    assert run("tarcat", f"{SET}/s-*.tar", env=env).stdout == WHOLE
    assert "already exists" in refused(run, env, "tarsplit", "-n", "6", "in.tar", "-o", url)
    assert run("tarsplit", "--force", "-n", "6", "in.tar", "-o", url, env=env).status == 0
    assert sorted(repository.objects) == names[:2] and len(repository.log) == 2
    parts = ["--parts", "a:50,b:50", "-o", f"{SET}/{{part}}-%d.tar"]
    assert run("tarsplit", *parts, "in.tar", env=env).status == 0
    assert sorted(repository.objects)[:2] == ["a-0.tar", "b-0.tar"] and len(repository.log) == 3
    assert "/tmp" not in done.stderr and not [*tmp_path.glob("*.tmp")]


@pytest.mark.parametrize("cut", [5000, len(WHOLE) - 10240])
def test_a_set_that_fails_is_none(cut: int, hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(WHOLE[:cut])
    said = refused(run, hub.env(tmp_path), "tarsplit", "-n", "2", "in.tar", "-o", f"{SET}/s-")
    assert re.fullmatch(rf"tarsplit: in\.tar: at byte {cut}: [^\n]+\n", said), said
    assert repository.objects == {} and repository.log == []


def test_commands_that_write_tables_and_other_files(hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    env = hub.env(tmp_path)
    repository.objects["a.tar"] = WHOLE
    for line in (
        ["tarindex", f"{SET}/a.tar", "-o", f"{SET}/t.parquet"],
        ["tarsort", "-S", "shuffle", f"{SET}/t.parquet", "-o", f"{SET}/u.parquet"],
        ["tarfilter", "-S", "int(cls) > 5", f"{SET}/u.parquet", "-o", f"{SET}/v.tar", "--rest", f"{SET}/w.parquet"],
        ["tar2parquet", f"{SET}/v.tar", "-o", f"{SET}/rows.parquet"],
        ["tar2zip", f"{SET}/v.tar", "-o", f"{SET}/v.zip"],
    ):
        assert run(*line, env=env) == (0, b"", ""), line
    assert len(repository.log) == 6
    there = run("tar2tsv", "-f", "cls", f"{SET}/v.tar", f"{SET}/w.parquet", env=env).stdout
    assert sorted(there.split()[2:][1::2], key=int) == [b"%d" % n for n in range(12)]
