"""What is left to smart_open: WebHDFS against a server of ours, HDFS by a `hdfs` of ours, what is missing or wrong."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tartools.train.cursor import ShardSlice
from tartools.train.mapwork import MapChunk, make_chunks
from tartools.train.ranks import ReaderId
from tartools.train.slices import SliceReader, assign, by_number
from tests.conftest import Run, clean_environment, make_samples, make_tar
from tests.storage.objects.wire import Answer, Connection, Request, Wire

SMALL = make_tar(make_samples(5))
BIG = make_tar([(f"{n:02d}.bin", random.Random(n).randbytes(1 << 20)) for n in range(5)])
HDFS = """\
#!/bin/sh
# hdfs dfs -cat PATH, hdfs dfs -put -f - PATH: over the directory $HDFS, with $FAILS as its status when that is set
[ "$1" = dfs ] || exit 255
case $2 in
-cat)
    [ -e "$HDFS/$3" ] || { echo "cat: \\`$3': No such file or directory" >&2; exit 1; }
    cat "$HDFS/$3" ;;
-put)
    [ "$3 $4" = "-f -" ] || exit 255
    cat > "$HDFS/$5._COPYING_"
    [ -n "$FAILS" ] || mv "$HDFS/$5._COPYING_" "$HDFS/$5" ;;
esac
exit ${FAILS:-0}
"""


class WebHdfs(Wire):
    """A name node and a data node of HDFS: OPEN, CREATE and APPEND of its REST API, which redirects to the data."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.users: set[str] = set()
        self.refuses: dict[str, int] = {}  # operations, and how often
        self.cuts: int | None = None  # bytes, after which what is read breaks off

    def exchange(self, connection: Connection, request: Request) -> None:
        """Answer, or break off."""
        request = request._replace(body=connection.receive())
        answer = self.answer(request)
        if self.cuts is None or answer.status != 200 or not answer.body:
            connection.send(answer)
            return
        connection.begin(answer, {"Content-Length": str(len(answer.body))})
        connection.wfile.write(answer.body[: self.cuts])
        connection.cut()

    def answer(self, request: Request) -> Answer:
        """Answer a request; the data node has the prefix /data."""
        node, _, path = request.path.partition("/webhdfs/v1")
        operation = request.query.get("op", "")
        self.users.add(request.query.get("user.name", ""))
        if self.refuses.get(operation):
            self.refuses[operation] -= 1
            return _exception(403, "AccessControlException")
        if operation in ("OPEN", "APPEND") and path not in self.files:
            return _exception(404, "FileNotFoundException")
        if not node:
            return Answer(307, {"Location": f"{self.base}/data{request.target}"})
        if operation == "OPEN":
            return Answer(200, {}, self.files[path])
        if operation == "CREATE":
            self.files[path] = request.body.data
            return Answer(201, {})
        self.files[path] += request.body.data
        return Answer(200, {})


def _exception(status: int, name: str) -> Answer:
    text = {"RemoteException": {"exception": name, "message": "it is as it is"}}
    return Answer(status, {"Content-Type": "application/json"}, json.dumps(text).encode())


@pytest.fixture
def web() -> Iterator[WebHdfs]:
    """Give a server of WebHDFS."""
    with WebHdfs() as server:
        yield server
    assert server.errors == []


@pytest.fixture
def hdfs(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a `hdfs`, whose files are in the directory `cluster`."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hdfs").write_text(HDFS)
    (tmp_path / "bin/hdfs").chmod(0o755)
    return {"PATH": f"{tmp_path}/bin:{clean_environment()['PATH']}", "HDFS": str(tmp_path / "cluster")}


def line(name: str, url: str, message: str) -> str:
    """Return a pattern of the only line that *name* says."""
    return rf"{name}: {re.escape(url)}: {message}\n"


# ---- WebHDFS ----


def url_of(web: WebHdfs, name: str, user: str = "") -> str:
    return f"{web.base.replace('http:', 'webhdfs:')}/{name}".replace("://", f"://{user}")


def test_webhdfs_reads_and_writes(web: WebHdfs, run: Run) -> None:
    for data in (SMALL, BIG):
        web.files = {"/d/a.tar": data}
        assert run("tarcat", url_of(web, "d/a.tar")) == (0, data, "")
        assert run("tarcat", url_of(web, "d/a.tar", "me@"), "-o", url_of(web, "d/b.tar", "me@")) == (0, b"", "")
        assert web.files == {"/d/a.tar": data, "/d/b.tar": data}
    assert web.users == {"", "me"}


def test_webhdfs_is_not_there(web: WebHdfs, run: Run) -> None:
    url = url_of(web, "no.tar")
    assert re.fullmatch(line("tarcat", url, "smart_open: WebHdfsException, status 404"), run("tarcat", url).failure())


@pytest.mark.parametrize("cuts", [0, 1000, len(SMALL) - 1])
def test_webhdfs_breaks_off(cuts: int, web: WebHdfs, run: Run, tmp_path: Path) -> None:
    web.files, web.cuts = {"/a.tar": SMALL}, cuts
    url = url_of(web, "a.tar")
    assert re.fullmatch(line("tarcat", url, r"smart_open: \w+"), run("tarcat", url, "-o", "out.tar").failure())
    assert list(tmp_path.iterdir()) == []


def test_webhdfs_has_it_already(web: WebHdfs, run: Run, tmp_path: Path) -> None:
    web.files = {"/a.tar": SMALL, "/out.tar": b"old"}
    url = url_of(web, "out.tar")
    done = run("tarcat", f"pipe:touch {tmp_path}/was-read", "-o", url)
    assert done == (1, b"", f"tarcat: {url}: already exists; --force replaces it\n")
    assert not (tmp_path / "was-read").exists()
    done = run("tarcat", "--force", url_of(web, "a.tar"), "-o", url_of(web, "a.tar"))
    assert done == (1, b"", f"tarcat: {url_of(web, 'a.tar')}: this output is also an input\n")
    assert web.files == {"/a.tar": SMALL, "/out.tar": b"old"}
    assert run("tarcat", "--force", url_of(web, "a.tar"), "-o", url) == (0, b"", "")
    assert web.files["/out.tar"] == SMALL


@pytest.mark.parametrize("times", [1, 99])
@pytest.mark.parametrize("operation", ["CREATE", "APPEND"])
def test_webhdfs_refuses(operation: str, times: int, web: WebHdfs, run: Run) -> None:
    """What failed is not tried again by a destructor, when nobody looks any more."""
    web.refuses[operation] = times
    url = url_of(web, "out.tar")
    said = run("tarcat", "-o", url, stdin=SMALL).failure()
    first = said.splitlines(keepends=True)[0]  # from 3.13 on Python tells of destructors that fail
    assert re.fullmatch(line("tarcat", url, "smart_open: WebHdfsException, status 403"), first)
    assert web.files == ({} if operation == "CREATE" else {"/out.tar": b""})  # it is written in place


def test_parquet_is_copied_to_be_read(web: WebHdfs, run: Run, tmp_path: Path) -> None:
    """pyarrow seeks, and smart_open reads WebHDFS from its beginning."""
    (tmp_path / "a.tar").write_bytes(SMALL)
    url = url_of(web, "t.parquet")
    assert run("tar2parquet", "a.tar", "-o", url).status == 0
    (tmp_path / "t.parquet").write_bytes(web.files["/t.parquet"])
    for words in (["tarcreate", "--parquet"], ["tarjoin", "--format", "parquet", "-f", "", "a.tar"]):
        done = run(*words, url)
        assert done.status == 0 and done == run(*words, "t.parquet")
    assert "a table on a server may not name a local file" in run("tarindex", "a.tar", "-o", url, "--force").failure()
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"__shard__": ["/a.tar"], "__begin__": [0], "__end__": [1024]}), tmp_path / "t.parquet")
    web.files["/t.parquet"] = (tmp_path / "t.parquet").read_bytes()
    assert "row 0: a table on a server may not name a local file: /a.tar" in run("tarcat", url).failure()


def test_training_reads_a_shard_whole(web: WebHdfs) -> None:
    """It is not cut for several workers, and who goes on in the middle reads what is before once more."""
    web.files = {"/a.tar": BIG}
    url = url_of(web, "a.tar")
    read = [[*SliceReader([url], by_number(assign([ShardSlice(0)], ReaderId(n, 3))))] for n in range(3)]
    assert [[sample["__key__"] for sample in share] for share in read] == [["00", "01", "02", "03", "04"], [], []]
    begun = SliceReader([url], by_number([ShardSlice(0)]))
    assert [*itertools.islice(begun, 2)] == read[0][:2]
    assert [*SliceReader([url], by_number([ShardSlice(0)]), begun.position())] == read[0][2:]
    assert [*make_chunks([url], [url], 1 << 20)] == [MapChunk(ShardSlice(0), url)]  # of stream_map


def test_nothing_is_sent_before_it_is_complete(web: WebHdfs, run: Run) -> None:
    done = run("tarcat", "-o", url_of(web, "out.tar"), stdin=BIG[:-50_000])
    assert done.status == 1 and re.fullmatch(r"tarcat: stdin: at byte \d+: [^\n]+\n", done.stderr)
    assert web.files == {}


def test_a_signature_is_not_shown(run: Run) -> None:
    url = "webhdfs://127.0.0.1:1/a.tar?delegation=SECRET"
    for arguments in ((url,), ("--force", "-o", url)):
        done = run("tarcat", *arguments, stdin=SMALL, env={"TARTOOLS_DEBUG": "1"})
        message = "tarcat: webhdfs://127.0.0.1:1/a.tar?…: smart_open: ConnectionError"
        assert message in done.stderr.splitlines()
        assert done.status == 1 and "SECRET" not in done.stderr


# ---- HDFS ----


def test_hdfs_reads_and_writes(hdfs: dict[str, str], run: Run, tmp_path: Path) -> None:
    (tmp_path / "cluster/a.tar").write_bytes(BIG)
    assert run("tarcat", "hdfs:///a.tar", env=hdfs) == (0, BIG, "")
    said = run("tarcat", "hdfs:///a.tar", "-o", "hdfs:///b.tar", env=hdfs).failure()
    assert said.endswith("status 1); --force writes it\n")
    assert not (tmp_path / "cluster/b.tar").exists()
    assert run("tarcat", "hdfs:///a.tar", "-o", "hdfs:///b.tar", "--force", env=hdfs) == (0, b"", "")
    assert (tmp_path / "cluster/b.tar").read_bytes() == BIG
    done = run("tarcat", "hdfs:///a.tar", "-o", "hdfs:///b.tar", env=hdfs)
    assert done == (1, b"", "tarcat: hdfs:///b.tar: already exists; --force replaces it\n")
    assert run("tarcat", "-c", 1, "hdfs:///a.tar", "-o", "hdfs:///b.tar", "--force", env=hdfs) == (0, b"", "")
    assert run("tarcat", "-c", 1, "hdfs:///a.tar", env=hdfs).stdout == (tmp_path / "cluster/b.tar").read_bytes()


@pytest.mark.parametrize("status", ["1", "3"])
def test_hdfs_fails(status: str, hdfs: dict[str, str], run: Run, tmp_path: Path) -> None:
    """A status other than 0 is a failure, even if all came."""
    (tmp_path / "cluster/a.tar").write_bytes(SMALL)
    done = run("tarcat", "hdfs:///a.tar", "-o", "out.tar", env=hdfs | {"FAILS": status})
    message = f"smart_open: HDFS read command failed with exit status {status}"
    assert done == (1, b"", f"tarcat: hdfs:///a.tar: {message}\n")
    done = run("tarcat", "--force", "-o", "hdfs:///b.tar", stdin=SMALL, env=hdfs | {"FAILS": status})
    message = f"smart_open: HDFS write command failed with exit status {status}"
    assert done == (1, b"", f"tarcat: hdfs:///b.tar: {message}\n")
    assert not (tmp_path / "out.tar").exists() and not (tmp_path / "cluster/b.tar").exists()


def test_hdfs_is_not_there(hdfs: dict[str, str], run: Run) -> None:
    done = run("tarcat", "hdfs:///no.tar", env=hdfs)
    message = "smart_open: HDFS read command failed with exit status 1"
    said = "cat: `/no.tar': No such file or directory"
    assert done == (1, b"", f"{said}\ntarcat: hdfs:///no.tar: {message}\n")
    done = run("tarcat", "hdfs:///no.tar", env={"PATH": "/nowhere"})
    assert done == (1, b"", "tarcat: hdfs:///no.tar: hdfs does not exist\n")


# ---- what is missing, or wrong ----


def test_nobody_listens(run: Run) -> None:
    for arguments in (("ftp://me@127.0.0.1:1/a.tar",), ("-o", "ftp://me@127.0.0.1:1/a.tar")):
        done = run("tarcat", *arguments, stdin=SMALL)
        message = "smart_open: Connection refused"
        if "-o" in arguments:
            message = "cannot tell whether this exists (Connection refused); --force writes it"
        assert done == (1, b"", f"tarcat: ftp://…@127.0.0.1:1/a.tar: {message}\n")


def test_a_scheme_that_nobody_knows(run: Run) -> None:
    known = "plain paths, file:, pipe:, s3:, gs:, ais:, aws:, gcp:, hf:, http:, https:, azure:, sftp:, scp:, ssh:"
    for verb, arguments in (("read", ["foo://x/a.tar"]), ("write", ["-o", "foo://x/a.tar"])):
        said = run("tarcat", *arguments, stdin=SMALL).failure(lines=1)
        assert said.startswith(f"tarcat: foo://x/a.tar: cannot {verb} foo: URLs (supported are {known}, ")
    assert run("tarcat", "foo://x/a.tar", env={"GOPEN_FOO": "tarcat -c 0 -"}, stdin=SMALL).stdout == bytes(10240)
