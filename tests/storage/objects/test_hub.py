"""`hf:` URLs: data sets on a hub that Hugging Face's own libraries take for theirs."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

import tartools
from tests.conftest import ROOT, Run, has_end, make_tar, python, start
from tests.schedule import needs_torch
from tests.storage.objects import fake_hf
from tests.storage.objects.fake_hf import Repository
from tests.storage.objects.hubserver import TOKEN, Hub
from tests.storage.objects.wire import Answer, Received, Request
from tests.tiers import also, by_turns

SET = "hf://datasets/org/set"


def shard(*keys: int) -> bytes:
    """Return a shard of samples with *keys*."""
    return make_tar([(f"{key:06d}.{field}", b"%d" % key) for key in keys for field in ("cls", "txt")])


SHARDS = {f"train/{n:03d}.tar": shard(*range(5 * n, 5 * n + 5)) for n in range(4)}
README = b"---\nlicense: mit\n---\n# A set\n"
SECRETS = (TOKEN, "SECRETSIGNATURE")


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Give a hub with a data set, org/set."""
    with Hub() as hub:
        repository = hub.data_sets["org/set"] = Repository()
        repository.objects |= SHARDS | {"README.md": README, "a b%#?+ü.tar": SHARDS["train/000.tar"]}
        yield hub
    assert hub.errors == []


def refused(run: Run, env: dict[str, str], *line: object, status: int = 1) -> str:
    """Run a command that fails; return what it says, on one line, without secrets."""
    done = run(*line, env=env)
    assert (done.status, done.stderr.count("\n"), has_end(done.stdout)) == (status, 1, False), done
    assert not [secret for secret in SECRETS if secret in done.stderr], done
    return done.stderr


def told(run: Run, hub: Hub, tmp_path: Path, *line: object, token: str = TOKEN) -> str:
    """Return what a command says that fails to read."""
    return refused(run, hub.env(tmp_path, token) | {"TARTOOLS_TIMEOUT": "5"}, *line)


def changed_by(hub: Hub, part: str, does: Callable[[], object]) -> None:
    """Have *does* done once, before a request with *part* in its target is answered."""
    answer, waiting = hub.answer, [does]

    def doing(request: Request) -> Answer:
        if waiting and part in request.target:
            waiting.pop()()
        return answer(request)

    hub.answer = doing  # type: ignore[method-assign]


# ---- that it is a hub ----

CLIENT = """
import sys
from pathlib import Path
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
api = HfApi()
tree = api.list_repo_tree("org/set", recursive=True, repo_type="dataset")
files = {each.path: each for each in tree if hasattr(each, "size")}
assert len(files) == 6 and files["train/000.tar"].lfs.size == 20480 and files["README.md"].lfs is None, files
for name in files:
    path = Path(hf_hub_download("org/set", name, repo_type="dataset"))
    assert path.stat().st_size == files[name].size
    sys.stdout.buffer.write(path.read_bytes())
for name in ("new/x.tar", "note.txt"):
    api.upload_file(path_or_fileobj=name.encode(), path_in_repo=name, repo_id="org/set", repo_type="dataset")
ones = [CommitOperationAdd(f"set/{n}.tar", b"%d" % n) for n in range(3)]
api.create_commit("org/set", ones, commit_message="three", repo_type="dataset")
api.delete_file("set/2.tar", "org/set", repo_type="dataset")
assert api.file_exists("org/set", "set/1.tar", repo_type="dataset")
assert not api.file_exists("org/set", "set/2.tar", repo_type="dataset")
"""

LOADED = """
import datasets, sys
datasets.disable_progress_bars()
found = datasets.load_dataset("org/set", split="train", streaming=len(sys.argv) > 1)
print([(row["__key__"], row["cls"]) for row in found])
"""


def test_hugging_faces_own_client(hub: Hub, repository: Repository, tmp_path: Path) -> None:
    """It lists, downloads, uploads and deletes: small files, and those of Git LFS."""
    before = dict(repository.objects)
    hub.data_sets["org/set"].page = 3
    done = python(CLIENT, folder=tmp_path, env=hub.env(tmp_path))
    assert done.status == 0, done.stderr
    assert sorted(done.stdout) == sorted(b"".join(before.values()))
    added = {"new/x.tar": b"new/x.tar", "note.txt": b"note.txt", "set/0.tar": b"0", "set/1.tar": b"1"}
    assert repository.objects == before | added
    assert repository.log[2] == "three"


@by_turns("way")
@pytest.mark.parametrize("way", [(), ("streaming",)], ids=["whole", "streaming"])
def test_hugging_faces_datasets(way: tuple[str, ...], hub: Hub, repository: Repository, tmp_path: Path) -> None:
    del repository.objects["a b%#?+ü.tar"]
    out = python(LOADED, *way, folder=tmp_path, env=hub.env(tmp_path)).output()
    assert re.findall(r"'(\d{6})'", out.decode()) == [f"{n:06d}" for n in range(20)]


# ---- reading ----


def test_names_braces_wildcards_and_lists(hub: Hub, run: Run, tmp_path: Path) -> None:
    env = hub.env(tmp_path)
    local = {name: tmp_path / name.replace("/", "-") for name in SHARDS}
    for name, path in local.items():
        path.write_bytes(SHARDS[name])
    whole = run("tarcat", *local.values()).stdout
    (tmp_path / "list").write_text("".join(f"{SET}/{name}\n" for name in SHARDS))
    for line in (
        [f"{SET}/{name}" for name in SHARDS],
        [f"{SET}@main/train/{{000..003}}.tar"],
        [f"{SET}/train/*.tar"],
        [f"{SET}/**/0[0-9]?.tar"],
        ["-T", "list"],
    ):
        hub.kinds()
        assert run("tarcat", *line, env=env) == (0, whole, "")
        kinds = hub.kinds()
        assert (kinds["revision"], kinds["resolve"]) == (1, len(SHARDS)) and kinds.get("tree", 0) <= 2, kinds
    assert all("authorization" not in request.headers for request in hub.stored)
    assert run("tarcat", f"{SET}/a b%#?+ü.tar", env=env) == (0, SHARDS["train/000.tar"], "")
    listed = run("tarls", "-l", SET, env=env).stdout.decode().splitlines()
    assert [line.split(maxsplit=2)[::2] for line in listed] == [
        ["20480", f"{SET}/{name}"] for name in ("a b%#?+ü.tar", *SHARDS)
    ]


def test_pages_of_listings(hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    """Folders come first, as in no order; the whole listing is of one commit, and nothing is listed twice."""
    repository.page = 2
    names = [f"{SET}/{name}" for name in SHARDS]
    for line in ([f"{SET}/train/"], [f"{SET}/t"], [f"{SET}/*/*.tar"], [f"{SET}/train/00"]):
        assert run("tarls", *line, env=hub.env(tmp_path)).stdout.decode().splitlines() == names
    hub.kinds()
    assert run("tarls", f"{SET}/train/*.tar", env=hub.env(tmp_path)).status == 0
    assert hub.kinds() == {"revision": 2, "tree": 2}  # of those that are the same only one is asked for
    assert run("tarls", f"{SET}/nothing/", env=hub.env(tmp_path)).status == 1


@pytest.mark.parametrize("command", [["tarcat"], ["tarpcat", "-p", "2"], ["tarsort", "-s", "cls"]])
def test_a_run_reads_one_commit(command: list[str], hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    """Whatever is committed meanwhile: here at the first request for a file."""
    line = [*command, f"{SET}/train/*.tar"]
    before = run(*line, env=hub.env(tmp_path))
    assert before.status == 0
    changed_by(hub, "/resolve/", lambda: repository.objects.update(dict.fromkeys(SHARDS, shard(99))))
    assert run(*line, env=hub.env(tmp_path)) == before
    assert run(*line, env=hub.env(tmp_path)) != before


def test_revisions(hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    old = fake_hf.commit(repository)
    repository.tags |= {"v1": old, "refs/pr/1": old, "a/branch": old}
    repository.objects["train/000.tar"] = new = shard(99)
    env = hub.env(tmp_path)
    for revision in ("v1", old, "refs/pr/1", "a%2Fbranch"):
        assert run("tarcat", f"{SET}@{revision}/train/000.tar", env=env) == (0, SHARDS["train/000.tar"], "")
        assert (
            run("tarls", f"{SET}@{revision}/train/0*0.tar", env=env).stdout.decode()
            == f"{SET}@{revision}/train/000.tar\n"
        )
    for revision in ("", "@main"):
        assert run("tarcat", f"{SET}{revision}/train/000.tar", env=env) == (0, new, "")


def test_tables(hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    """With shards beside them, or anywhere; one request tells where a shard is, whoever reads how many ranges."""
    env = hub.env(tmp_path)
    line = [f"{SET}/train/*.tar"]
    assert run("tarindex", *line, "-o", f"{SET}/t.parquet", env=env) == (0, b"", "")
    table = pq.read_table(io.BytesIO(repository.objects["t.parquet"]))
    assert set(table.column("__shard__").to_pylist()) == {*SHARDS}
    hub.kinds()
    sorted_shards = run("tarsort", "-S", "shuffle", *line, env=env).stdout
    hub.kinds()
    assert run("tarsort", "-S", "shuffle", f"{SET}/t.parquet", "-o", "local.parquet", env=env) == (0, b"", "")
    assert run("tarcat", "local.parquet", env=env) == (0, sorted_shards, "")
    kinds = hub.kinds()
    assert kinds["resolve"] <= len(SHARDS) + 1, kinds
    repository.objects["train/000.tar"] = shard(99)
    assert run("tarcat", "local.parquet", env=env) == (0, sorted_shards, "")  # which names the commit
    said = told(run, hub, tmp_path, "tarcat", f"{SET}/t.parquet")
    assert "train/000.tar" in said and "replaced" in said


def test_a_cache_outlives_commits(hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    """A file that a commit does not change is not fetched again; one that it changes is."""
    env = hub.env(tmp_path) | {"TARTOOLS_CACHE": f"{tmp_path}/cache:1GB"}
    line = ["tarcat", f"{SET}/train/{{000..003}}.tar"]
    whole = run(*line, env=env).stdout
    repository.objects["README.md"] = b"another"
    hub.stored.clear()
    assert run(*line, env=env).stdout == whole
    assert [request.headers["range"] for request in hub.stored] == ["bytes=0-0"] * 4  # is it this version?
    repository.objects["train/000.tar"] = shard(99)
    assert run(*line, env=env).stdout == run(*line, env=hub.env(tmp_path)).stdout != whole
    kept = run("tartools", "cache", env=env).stdout.decode()
    assert kept.count(f"{SET}/train/000.tar") == 2 and "@" not in kept
    assert run("tartools", "cache", "--clear", SET, env=env).status == 0
    assert SET not in run("tartools", "cache", env=env).stdout.decode()


TRAINED = """
import sys, tartools.train
from torch.utils.data import DataLoader
if __name__ == "__main__":
    data = tartools.train.samples(sys.argv[1])
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=sys.argv[2])
    print(sorted(int(sample["__key__"]) for sample in loader))
"""


@needs_torch
@by_turns("start")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_the_commit_of_their_program(start: str, hub: Hub, repository: Repository, tmp_path: Path) -> None:
    changed_by(hub, "/resolve/", lambda: repository.put("train/003.tar", Received(20480, shard(99))))
    done = python(TRAINED, f"{SET}/train/*.tar", start, folder=tmp_path, env=hub.env(tmp_path))
    assert (done.status, done.stdout.decode()) == (0, f"{[*range(20)]}\n"), done
    kinds = hub.kinds()
    assert kinds["revision"] == 1 and kinds["resolve"] <= len(SHARDS), kinds


def test_an_address_that_expires(hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    """Between two ranges: the hub is asked for another, once."""
    data = make_tar([(f"{n}.bin", bytes([n]) * (9 << 20)) for n in range(3)])
    repository.objects["large.tar"] = data
    answer = hub.store.answer

    def expiring(request: object) -> Answer:
        found = answer(request)  # type: ignore[arg-type]
        if len(hub.stored) == 2:
            repository.expired = repository.signed
        return found

    hub.store.answer = expiring  # type: ignore[method-assign]
    assert run("tarcat", f"{SET}/large.tar", env=hub.env(tmp_path) | {"TARTOOLS_READAHEAD": "1"}) == (0, data, "")
    assert repository.resolved == ["large.tar"] * 2
    repository.expired = 1 << 30
    said = told(run, hub, tmp_path, "tarcat", f"{SET}/large.tar")
    assert "no permission to read (Forbidden)" in said


LIMITED = Answer(429, {"RateLimit": '"api";r=0;t=0', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}, b"")


@pytest.mark.parametrize(
    "busy",
    [LIMITED, Answer(503, {}), *also(Answer(429, {"Retry-After": "0"}), Answer(408, {}), Answer(500, {}), None)],
    ids=["RateLimit", "503", "Retry-After", "408", "500", "reset"],
)
def test_a_hub_that_is_busy(busy: Answer | None, hub: Hub, run: Run, tmp_path: Path) -> None:
    hub.before = [(kind, busy) for kind in ("/revision/", "/tree/", "/resolve/")]
    done = run("tarcat", f"{SET}/train/00[0]*", env=hub.env(tmp_path))
    assert done == (0, SHARDS["train/000.tar"], "") and hub.before == []
    hub.before = [("/resolve/", busy)] * 3
    said = told(run, hub, tmp_path, "tarcat", f"{SET}/train/000.tar")
    assert "(3 tries)" in said


def test_a_limit_of_requests_is_waited_for(hub: Hub, run: Run, tmp_path: Path) -> None:
    soon, late = (Answer(429, {"RateLimit": f'"resolvers";r=0;t={seconds}'}) for seconds in (1, 1000))
    hub.before = [("/resolve/", soon)]
    assert run("tarcat", f"{SET}/train/000.tar", env=hub.env(tmp_path)).status == 0
    first, second = (request.at for request in hub.requests if "/resolve/" in request.target)
    assert second - first >= 2  # it is rounded down
    hub.before = [("/resolve/", late)]
    assert "it asks for a retry in 1001 seconds" in told(run, hub, tmp_path, "tarcat", f"{SET}/train/000.tar")


# ---- who may ----

PRIVATE = "no such data set on the hub, or a private one; hf auth login, or HF_TOKEN, gives access"


def test_tokens(hub: Hub, run: Run, tmp_path: Path) -> None:
    """From HF_TOKEN, or the file that `hf auth login` writes; never in a message, never to the store."""
    hub.private = {"org/set"}
    url = f"{SET}/train/000.tar"
    places = {
        "hf/token": {},
        "own": {"HF_TOKEN_PATH": "own"},
        "huggingface/token": {"HF_HOME": "", "XDG_CACHE_HOME": "."},
    }
    for place, env in places.items():
        assert told(run, hub, tmp_path, "tarcat", url, token="") == f"tarcat: {url}: {PRIVATE}\n"
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(f"{TOKEN}\n")
        assert run("tarcat", url, env=hub.env(tmp_path, "") | env) == (0, SHARDS["train/000.tar"], "")
        (tmp_path / place).unlink()
    assert run("tarcat", url, env=hub.env(tmp_path)).status == 0
    assert hub.stored and all("authorization" not in request.headers for request in hub.stored)
    said = told(run, hub, tmp_path, "tarcat", url, token="hf_other")
    assert "the hub does not accept the token" in said and "hf_other" not in said


WRONG = {
    "hf://datasets/org/other/a.tar": r"no such data set on the hub, or one that the token has no access to",
    f"{SET}@v7/a.tar": r"the data set has no revision 'v7'",
    f"{SET}@{'0' * 40}/a.tar": r"the data set has no revision '0{40}'",
    f"{SET}/b.tar": r"the data set has no such file",
    f"{SET}/train/9*.tar": "no object matches",
    f"{SET}/pointer.txt": r"this is not a tar archive but a pointer of Git LFS .*",
    "hf://datasets/org/gated/a.tar": r"gated: accept its terms at http://127.0.0.1:\d+/datasets/org/gated",
}


@pytest.mark.parametrize("url", WRONG)
def test_what_is_wrong(url: str, hub: Hub, repository: Repository, run: Run, tmp_path: Path) -> None:
    hub.gated = {"org/gated"}
    hub.data_sets["org/gated"] = Repository()
    hub.data_sets["org/gated"].objects["a.tar"] = SHARDS["train/000.tar"]
    repository.objects["pointer.txt"] = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 10240\n"
    said = told(run, hub, tmp_path, "tarcat", url)
    where = re.escape(url).replace("/", r"(?:@\w+)?/")
    assert re.fullmatch(rf"tarcat: {where}: (?:at byte 0: )?{WRONG[url]}\n", said), said
    if "gated" in url:
        assert "then log in: hf auth login, or HF_TOKEN" in told(run, hub, tmp_path, "tarcat", url, token="")


@pytest.mark.parametrize(
    "url",
    [
        "hf://datasets/org",
        "hf://org/set/a.tar",
        "hf://datasets/org/set@/a.tar",
        "hf://datasets/org/s*/a.tar",
        SET,
        f"{SET}/d/",
    ],
)
def test_urls_that_name_no_file(url: str, hub: Hub, run: Run, tmp_path: Path) -> None:
    for line in ([url], ["-o", url, "x.tar"]):
        (tmp_path / "x.tar").write_bytes(SHARDS["train/000.tar"])
        assert "write hf://datasets/ORG/NAME[@REVISION]/PATH" in run("tarcat", *line, env=hub.env(tmp_path)).failure(2)


# ---- the guide ----


@needs_torch
def test_the_guide_does_what_it_says(hub: Hub, tmp_path: Path) -> None:
    """On a hub that has such a data set, with fewer samples."""
    text = (ROOT / "docs/huggingface.md").read_text()
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    picture = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(picture, "JPEG")
    for number in range(16):
        members = [
            (f"{number:04d}{n:05d}.{field}", data)
            for n in range(70)
            for field, data in (("jpg", picture.getvalue()), ("txt", b"a caption"))
        ]
        known = hub.data_sets.setdefault("pixparse/cc3m-wds", Repository())
        known.objects[f"cc3m-validation-{number:04d}.tar"] = make_tar(members)
    mine = hub.data_sets["me/cc3m-small"] = Repository()
    hub.private = {"me/cc3m-small"}
    printed = []
    for kind, code in blocks:
        line = ["bash", "-c", f"set -eo pipefail\n{code}"] if kind == "sh" else [sys.executable, "-c", code]
        out = start(*line, folder=tmp_path, env=hub.env(tmp_path), timeout=600).output()
        printed.append(out.decode())
    assert len(printed[0].split()) == 16 and "1120 pictures\n" in printed
    assert len([*tartools.read(str(tmp_path / "small.tar"))]) == 1000
    assert sorted(mine.objects) == [f"train-{n:04d}.tar" for n in range(5)] + ["train.parquet"]
    assert mine.log == ["Add train-0000.tar and 4 other files", "Add train.parquet"]
