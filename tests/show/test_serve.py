"""tarshow --serve, by HTTP requests to the installed command."""

from __future__ import annotations

import base64
import http.client
import io
import json
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

from tartools.samples.account import Account
from tartools.shards.reading import Reading
from tartools.shards.shardrows import Indexing, row_inputs
from tartools.show.serve import rowindex
from tests.archives import encoded, npy, photograph
from tests.conftest import BIN, Run, keys_in, make_tar, running
from tests.media import make_sound, make_video
from tests.processes import until
from tests.storage.objects.faults import FaultServer
from tests.tiers import also

HOSTILE = "<script>alert(1)</script>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>'
HTML = b"<!doctype html><script>alert(1)</script>"
CLASSES = ("cat", "dog", "sea lion")
COUNT = 60  # samples of `make_data`


class Reply(NamedTuple):
    """What the server has answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        """Return the JSON of an answer that is one."""
        assert self.headers["Content-Type"] == "application/json"
        return json.loads(self.body)


class Client:
    """What asks the server whose address is *address*; `answer` fails for other statuses than 200."""

    def __init__(self, address: str, process: subprocess.Popen[bytes]) -> None:
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{20,})\n", address)
        assert match, address
        self.port, self.token = int(match[1]), match[2]
        self.process = process
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        opened = self.ask("GET", f"/?token={self.token}")
        assert (opened.status, opened.headers["Location"]) == (302, "/")
        self.cookie, *attributes = opened.headers["Set-Cookie"].split("; ")
        assert attributes == ["HttpOnly", "SameSite=Strict", "Path=/"]

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}) -> Reply:
        """Return the reply to a request; `_` in names of *headers* stands for a hyphen."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, names)
        reply = self.connection.getresponse()
        return Reply(reply.status, dict(reply.getheaders()), reply.read())

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, None, {"Cookie": self.cookie, **headers})

    def post(self, path: str, value: Any, **headers: str) -> Reply:
        names = {"Cookie": self.cookie, "Content_Type": "application/json", **headers}
        return self.ask("POST", path, value if isinstance(value, bytes) else json.dumps(value).encode(), names)

    def answer(self, path: str, value: Any = None) -> Any:
        reply = self.get(path) if value is None else self.post(path, value)
        assert reply.status == 200, reply
        return reply.value

    def query(self, **asked: Any) -> tuple[str, int]:
        made = self.answer("/api/query", asked)
        return made["query"], made["samples"]

    def keys(self, **asked: Any) -> list[str]:
        """Return the keys of the samples of a query, up to 500, in order."""
        query, samples = self.query(**asked)
        rows = self.answer(f"/api/rows?query={query}&begin=0&end={min(samples, 500)}")["rows"]
        assert len(rows) == min(samples, 500)
        return [row["key"] for row in rows]

    def refusal(self, status: int = 400, **asked: Any) -> str:
        """Return the message of a query that is refused."""
        reply = self.post("/api/query", asked)
        assert reply.status == status, reply
        return str(reply.value["error"])


def make_data() -> bytes:
    """Return 60 samples of three classes, with a picture, a caption and JSON, some without; then some of each kind."""
    members = []
    for n in range(COUNT):
        key = f"train/{n:04d}"
        members.append((f"{key}.jpg", encoded(photograph(n, 40 + n, 30), "JPEG")))
        members.append((f"{key}.cls", b"%d" % (n % 3)))
        if n % 4:
            text = f"a {CLASSES[n % 3]} of number {n}, <b>and</b> words"
            members.append((f"{key}.txt", text.encode()))
        if n % 2:
            members.append((f"{key}.json", json.dumps({"score": n / 2, "name": CLASSES[n % 3], "more": [n]}).encode()))
    turned = Image.new("RGB", (60, 20), (255, 0, 0))
    exif = turned.getexif()
    exif[0x0112] = 6  # Orientation: to be turned by 90 degrees
    return make_tar(
        [
            *members,
            ("x/array.npy", npy(np.arange(12.0).reshape(3, 4))),
            ("x/cut.jpg", encoded(photograph(1, 300, 200), "JPEG")[:3000]),
            (f"x/{HOSTILE.replace('/', '')}.txt", HOSTILE.encode()),
            ("x/pages.html", HTML),
            ("x/scripted.svg", SVG),
            ("x/sound.wav", make_sound(1.0)),
            ("x/turned.jpg", encoded(turned, "JPEG", exif=exif)),
            ("x/video.mp4", make_video(10)),
        ]
    )


@contextmanager
def serving(folder: Path, *arguments: object, env: dict[str, str] | None = None) -> Iterator[Client]:
    """Run tarshow --serve in *folder*; give a client. At the end it is interrupted, and must have left nothing."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    command = [str(BIN / "tarshow"), "--serve", *map(str, arguments), "--tmpdir", "tmp"]
    with running(command, cwd=folder, env=env or {}, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().decode()
        client = Client(address, process)
        yield client
        client.connection.close()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
        assert re.fullmatch(r"tarshow: [\d,]+ samples?: open this address in a browser; Ctrl-C ends it\n", said)
        assert process.wait(30) == -signal.SIGINT
        assert list(temporary.iterdir()) == []


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Give a client of a server of `make_data`, in two shards, without a table."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "data.tar").write_bytes(make_data())
    (folder / "more.tar").write_bytes(make_tar([("more.cls", b"7"), ("more.txt", b"the last one")]))
    with serving(folder, "data.tar", "more.tar") as client:
        yield client


def test_who_may_ask(client: Client) -> None:
    for path in ("/", "/page.js", "/api/about", "/nothing"):
        for token in ("", "?token=", "?token=wrong", "?token=" + client.token[:-1]):
            reply = client.ask("GET", path + token)
            assert (reply.status, reply.headers["Content-Type"]) == (403, "text/plain; charset=utf-8")
            assert b"open the address that tarshow has printed" in reply.body
    assert client.ask("GET", f"/api/about?token={client.token}").status == 200
    assert client.ask("GET", "/api/about", None, {"Cookie": client.cookie.replace("=", "=x")}).status == 403
    for host, status in (
        ("evil.example", 403), (f"evil.example:{client.port}", 403), ("127.0.0.1.evil.example", 403), ("", 403),
        ("localhost:1234", 200), ("[::1]:9", 200), ("127.0.0.1", 200),
    ):  # fmt: skip
        assert client.get("/api/about", Host=host).status == status, host
    assert client.get("/api/about", Sec_Fetch_Site="cross-site").status == 403
    assert client.get("/api/about", Sec_Fetch_Site="same-site").status == 403
    assert client.get("/", Sec_Fetch_Site="none").status == 200
    for origin in ("http://evil.example", "http://[", "null", f"http://127.0.0.1:{client.port}/", ""):
        assert client.post("/api/query", {}, Origin=origin).status == 403, origin
    assert client.post("/api/query", {}, Origin=f"http://127.0.0.1:{client.port}").status == 200


def test_requests_that_are_no_questions(client: Client) -> None:
    assert client.post("/api/query", {}, Content_Type="text/plain").status == 400
    assert client.post("/api/query", []).status == 400
    assert client.post("/api/query", b"[" * 100000).status == 400
    huge = client.ask("POST", "/api/query", None, {"Cookie": client.cookie, "Content-Length": str(1 << 40)})
    assert (huge.status, huge.headers["Connection"]) == (400, "close")
    for path in ("/../server.py", "/server.py", "/api", "/api/query", "/%2e%2e/page.js"):
        assert client.get(path).status == 404, path
    for path in ("/api/rows", "/api/rows?query=x&begin=0&end=1", "/api/sample?position=-1", "/api/sample?position=99"):
        assert client.get(path).status in (400, 404), path
    assert client.get("/api/sample?position=99").value == {"error": "there is no sample 99"}
    query, _ = client.query()
    assert client.get(f"/api/rows?query={query}&begin=0&end=501").status == 400
    assert client.answer(f"/api/rows?query={query}&begin=1000&end=1100") == {"rows": []}


def test_headers_of_all_answers(client: Client) -> None:
    for path in (
        "/",
        "/page.js",
        "/page.css",
        "/api/about",
        "/api/payload?position=0&field=jpg",
        "/favicon.ico",
        "/no",
    ):
        headers = client.get(path).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert not [name for name in headers if name.startswith("Access-Control")]
    assert client.get("/").headers["Content-Type"] == "text/html; charset=utf-8"
    assert client.get("/page.js").headers["Content-Type"] == "text/javascript; charset=utf-8"
    head = client.ask("HEAD", "/", None, {"Cookie": client.cookie})
    assert (head.status, head.body) == (200, b"")


def test_about(client: Client) -> None:
    about = client.answer("/api/about")
    assert about["inputs"] == ["data.tar", "more.tar"]
    assert about["title"] == "data.tar and 1 more"
    assert about["samples"] == COUNT + 9
    assert {"name": "jpg", "kind": "picture", "count": COUNT + 2} in about["fields"]
    kinds = {field["name"]: field["kind"] for field in about["fields"]}
    assert kinds["wav"] == "sound"
    assert kinds["mp4"] == "video"
    assert kinds["npy"] == "array"
    assert kinds["json"] == "json"
    assert kinds["cls"] == "number"
    columns = {column["name"]: (column["type"], column["facet"]) for column in about["columns"]}
    assert columns["cls"] == ("number", True)
    assert columns["json:score"] == ("number", True)
    assert columns["json:name"] == ("text", True)
    assert columns["__size__"] == ("number", True)
    assert columns["jpg.size"] == ("number", True)
    assert columns["__key__"] == ("text", False)
    assert "json:more" not in columns
    assert about["replaced"] is False


def test_rows_are_those_of_the_shards(client: Client) -> None:
    query, samples = client.query()
    assert samples == COUNT + 9
    rows = client.answer(f"/api/rows?query={query}&begin=0&end=500")["rows"]
    assert [row["position"] for row in rows] == list(range(samples))
    assert [row["key"] for row in rows] == [*keys_in(make_data()), "more"]
    assert rows[5]["shard"] == "data.tar"
    assert rows[-1]["shard"] == "more.tar"
    assert rows[-1]["offset"] == 0
    assert rows[-1]["size"] == 2048
    assert rows[-1]["fields"] == [
        {"name": "cls", "size": 1, "kind": "number"}, {"name": "txt", "size": 12, "kind": "text"},
    ]  # fmt: skip
    assert rows[-1]["text"] == "the last one"
    assert rows[-1]["columns"]["cls"] == 7
    assert rows[1]["text"] == "a dog of number 1, <b>and</b> words"
    assert rows[0]["text"] == ""
    assert rows[1]["columns"]["json:score"] == 0.5
    part = client.answer(f"/api/rows?query={query}&begin=3&end=6")["rows"]
    assert part == rows[3:6]


def test_words(client: Client) -> None:
    keys = [f"train/{n:04d}" for n in range(COUNT)]
    assert client.keys(words="0012") == ["train/0012"]
    assert client.keys(words="SEA number") == [key for n, key in enumerate(keys) if n % 3 == 2 and n % 4]
    assert client.keys(words='"sea lion"') == [key for n, key in enumerate(keys) if n % 3 == 2 and (n % 4 or n % 2)]
    assert client.keys(words="cls==7") == ["more"]
    assert client.keys(words="json:name=lion cls==2") == [key for n, key in enumerate(keys) if n % 3 == 2 and n % 2]
    assert client.keys(words="100%") == []
    assert client.keys(words='don"t') == []
    assert "words" in client.refusal(words="a " * 33)


def test_sql_and_expressions(client: Client) -> None:
    keys = [f"train/{n:04d}" for n in range(COUNT)]
    for where in ("cls = 1", "cls = 1 -- a comment", "cls IN (1) AND TRUE", "not (cls != 1)"):
        assert client.keys(where=where, language="sql") == keys[1::3], where
    assert client.keys(where='"json:score" > 28') == keys[57::2]
    assert client.keys(where="__key__ LIKE 'x/t%' OR contains(__key__, 'scripted')") == ["x/scripted", "x/turned"]
    assert client.keys(where="\"jpg.size\" IS NULL AND __shard__ = 'more.tar'") == ["more"]
    assert client.keys(where="int(cls) == 1", language="expression") == keys[1::3]
    assert client.keys(where="width('jpg') > 95 and 'train' in key", language="expression") == keys[56:]
    assert client.keys(where="int(cls) == 1", language="expression", words="0004") == ["train/0004"]
    assert "not an expression" in client.refusal(where="import os", language="expression")
    assert "language" in client.refusal(where="cls = 1", language="perl")
    assert "nothing" in client.refusal(where="nothing = 1")
    assert "Candidate" in client.refusal(where="clz = 1")


def test_sql_is_one_condition_that_reads_only_columns(client: Client) -> None:
    for where in (
        "cls = (SELECT 1)",
        "EXISTS (FROM read_csv('/etc/passwd'))",
        "cls IN (SELECT 1 FROM '/etc/passwd')",
        "1 = 1) UNION SELECT (1",
        "1 = 1) OR (SELECT count(*) FROM glob('/*')) > (1",
        "TRUE) LIMIT (1",
        "TRUE) GROUP BY ALL HAVING (TRUE",
        "TRUE) ORDER BY (1",
        "TRUE); DROP TABLE samples; SELECT (1",
        "TRUE); ATTACH '/tmp/x.db' AS x; SELECT (1",
        "TRUE); COPY samples TO '/tmp/x.csv'; SELECT (1",
        "TRUE); SET lock_configuration = false; SELECT (1",
        "read_text('/etc/passwd') = ''",
        "getenv('HOME') = ''",
        "current_setting('temp_directory') = ''",
        "length(repeat(__key__, 1000000000)) > 1",
        "len(range(1000000000)) > 1",
        "length(lpad(__key__, 1000000000, 'x')) > 1",
        "__key__ || __key__ = ''",
        "list_transform([1], x -> x) = [1]",
        "row_number() OVER () = 1",
        "count(*) > 1",
        "? = 1",
        "COLUMNS(*) = 1",
        "cls = 1 " * 1000,
    ):
        message = client.refusal(where=where)
        assert message, where
        assert "/tmp" not in message
    assert client.query()[1] == COUNT + 9


def test_the_database_is_locked_and_has_limits(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even SQL that no condition may have reads, writes and loads nothing, nor takes it much time or memory."""
    (tmp_path / "data.tar").write_bytes(make_data())
    run("tarindex", "data.tar", "-o", "data.parquet").output()
    monkeypatch.setattr(rowindex, "MEMORY_LIMIT", "100MB")
    monkeypatch.setattr(rowindex, "SPILL_LIMIT", "10MB")
    account = Account()
    inputs = row_inputs([str(tmp_path / "data.parquet")], account, Indexing(Reading(), 1))
    with closing(rowindex.make_index(inputs, account, str(tmp_path), 1)) as index:
        assert index.ask("SELECT count(*) FROM samples") == [(COUNT + 8,)]
        secret = [1]
        for sql in (
            "FROM read_csv('/etc/passwd')", "FROM '/etc/passwd'", f"FROM '{tmp_path}/data.parquet'", "FROM glob('/*')",
            "FROM secret", "COPY samples TO 'x.csv'", "ATTACH 'x.db'", "EXPORT DATABASE 'x'", "INSTALL httpfs",
            "LOAD httpfs", "SET enable_external_access = true", "SET memory_limit = '10GB'", "DELETE FROM samples",
            "CREATE TABLE x AS SELECT 1", "SET python_enable_replacements = true", "FROM read_text('https://a.example')",
        ):  # fmt: skip
            with pytest.raises(rowindex.QuestionError):
                index.ask(sql)
        assert secret
        begin = monotonic()
        with pytest.raises(rowindex.QuestionError, match="stopped after 1 s"):
            index.ask("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range < 0", seconds=1)
        assert monotonic() - begin < 30
        with pytest.raises(rowindex.QuestionError, match="more than 100MB of memory"):
            index.ask("SELECT max(len(l)) FROM (SELECT list(range) AS l FROM range(100000000))")
        assert index.ask("SELECT count(*) FROM samples") == [(COUNT + 8,)]


def test_a_question_ends_when_the_index_is_closed(tmp_path: Path, run: Run) -> None:
    (tmp_path / "data.tar").write_bytes(make_data())
    run("tarindex", "data.tar", "-o", "data.parquet").output()
    inputs = row_inputs([str(tmp_path / "data.parquet")], Account(), Indexing(Reading(), 1))
    index = rowindex.make_index(inputs, Account(), str(tmp_path), 1)
    slow = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range < 0"
    with ThreadPoolExecutor(rowindex.MAX_QUESTIONS_AT_ONCE) as pool:
        asked = [pool.submit(index.ask, slow, seconds=3600) for _ in range(rowindex.MAX_QUESTIONS_AT_ONCE)]
        index.close()
        for question in asked:
            assert isinstance(question.exception(), rowindex.QuestionError)
    with pytest.raises(rowindex.QuestionError, match="the server is ending"):
        index.ask("SELECT count(*) FROM samples")


def test_facets_filter_and_count(client: Client) -> None:
    query, samples = client.query()
    facets = client.answer(f"/api/facets?query={query}")["facets"]
    by_column = {facet.get("column", facet["kind"]): facet for facet in facets}
    assert by_column["cls"]["values"] == [
        {"value": 0, "count": 20}, {"value": 1, "count": 20}, {"value": 2, "count": 20},
        {"value": None, "count": 8}, {"value": 7, "count": 1},
    ]  # fmt: skip
    assert by_column["cls"]["others"] == 0
    assert by_column["json:name"]["values"][0] == {"value": None, "count": 39}
    scores = by_column["json:score"]
    assert scores["missing"] == 39
    assert sum(bin["count"] for bin in scores["bins"]) == 30
    missing = {field["field"]: field["count"] for field in by_column["missing"]["fields"]}
    assert missing["jpg"] == 7
    assert missing["json"] == 39
    assert "broken" not in by_column
    for facet in facets:
        if facet["kind"] == "histogram":
            assert sum(bin["count"] for bin in facet["bins"]) + facet["missing"] == samples
            for bin in facet["bins"]:
                condition = {"column": facet["column"], "from": bin["from"], "to": bin["to"]}
                assert client.query(facets=[condition])[1] == bin["count"], condition
        if facet["kind"] == "values":
            assert sum(value["count"] for value in facet["values"]) + facet["others"] == samples
            for value in facet["values"]:
                condition = {"column": facet["column"], "value": value["value"]}
                assert client.query(facets=[condition])[1] == value["count"], condition
    assert client.query(facets=[{"missing": "jpg"}])[1] == 7
    both, count = client.query(facets=[{"column": "cls", "value": 1}, {"missing": "txt"}])
    assert count == 5
    counted = client.answer(f"/api/facets?query={both}")["facets"]
    assert next(facet for facet in counted if facet.get("column") == "cls")["values"] == [{"value": 1, "count": 5}]
    for wrong in ({"column": "no", "value": 1}, {"missing": "no"}, {"column": "cls"}, {"column": "cls", "value": {}},
                  {"column": "json:name", "from": 1, "to": 2}, {"broken": True}):  # fmt: skip
        assert client.refusal(facets=[wrong]), wrong
    assert "Conversion" in client.refusal(facets=[{"column": "cls", "value": "x"}])


def test_facets_of_numbers_without_bounds(tmp_path: Path) -> None:
    values = ["1.7e308", "-1.7e308", "0.5", "1.5"]
    (tmp_path / "a.tar").write_bytes(
        make_tar([(f"{n}.json", f'{{"score": {value}}}'.encode()) for n, value in enumerate(values)])
    )
    with serving(tmp_path, "a.tar") as client:
        facets = client.answer(f"/api/facets?query={client.query()[0]}")["facets"]
    (scores,) = [facet for facet in facets if facet.get("column") == "json:score"]
    assert (sum(bin["count"] for bin in scores["bins"]), scores["missing"]) == (2, 2)


def test_sort(client: Client) -> None:
    keys = [f"train/{n:04d}" for n in range(COUNT)]
    descending = client.keys(sort=[{"column": "json:score", "descending": True}], words="train")
    assert descending == [*keys[59::-2], *keys[0::2]]
    by_class = client.keys(sort=[{"column": "cls"}, {"column": "__key__", "descending": True}], words="train")
    assert by_class == [*keys[57::-3], *keys[58::-3], *keys[59::-3]]
    assert "no column" in client.refusal(sort=[{"column": 'cls" --'}])


def test_a_sample_with_all_its_fields(client: Client) -> None:
    query, _ = client.query(words="train/0005")
    position = client.answer(f"/api/rows?query={query}&begin=0&end=1")["rows"][0]["position"]
    sample = client.answer(f"/api/sample?position={position}")
    assert (sample["key"], sample["shard"]) == ("train/0005", "data.tar")
    fields = {field["name"]: field for field in sample["fields"]}
    assert [*fields] == ["jpg", "cls", "txt", "json"]
    assert fields["jpg"]["description"] == "JPEG 45x30 RGB"
    assert fields["cls"]["text"] == "2"
    assert fields["txt"]["text"] == "a sea lion of number 5, <b>and</b> words"
    assert json.loads(fields["json"]["json"]) == {"score": 2.5, "name": "sea lion", "more": [5]}
    assert "\n" in fields["json"]["json"]


def position_of(client: Client, key: str) -> int:
    """Return the position of the sample with *key*."""
    query, samples = client.query(where=f"__key__ = '{key}'")
    assert samples == 1
    return int(client.answer(f"/api/rows?query={query}&begin=0&end=1")["rows"][0]["position"])


def test_sounds_videos_and_arrays(client: Client) -> None:
    sound = position_of(client, "x/sound")
    field = client.answer(f"/api/sample?position={sound}")["fields"][0]
    assert field["kind"] == "sound"
    assert field["description"].startswith("WAV 1.00 s")
    wave = client.get(field["waveform"])
    assert wave.headers["Content-Type"] == "image/png"
    picture = Image.open(io.BytesIO(wave.body))
    assert (picture.size, picture.mode) == ((1024, 256), "RGBA")
    assert picture.getpixel((0, 0)) == (0, 0, 0, 0)
    assert picture.getchannel("A").getextrema() == (0, 255)
    still = client.get(f"/api/thumbnail?position={position_of(client, 'x/video')}&field=mp4&size=32")
    assert Image.open(io.BytesIO(still.body)).size == (32, 24)
    array = position_of(client, "x/array")
    field = client.answer(f"/api/sample?position={array}")["fields"][0]
    assert field["shape"] == [3, 4]
    picture = Image.open(io.BytesIO(client.get(field["heatmap"]).body))
    assert picture.size == (4, 3)
    assert np.asarray(picture).ravel().tolist() == [n * 255 // 11 for n in range(12)]


def test_thumbnails(client: Client) -> None:
    reply = client.get("/api/thumbnail?position=3&field=jpg&size=20")
    assert reply.headers["Content-Type"] == "image/jpeg"
    assert Image.open(io.BytesIO(reply.body)).size == (20, 14)
    tag = reply.headers["ETag"]
    again = client.get("/api/thumbnail?position=3&field=jpg&size=20", If_None_Match=tag)
    assert (again.status, again.body) == (304, b"")
    turned = client.get(f"/api/thumbnail?position={position_of(client, 'x/turned')}&field=jpg")
    assert Image.open(io.BytesIO(turned.body)).size == (20, 60)
    for key, field, reason in (
        ("x/cut", "jpg", "truncated"), ("x/scripted", "svg", "no picture"), ("more", "cls", "no picture"),
        ("more", "jpg", "no field 'jpg'"),
    ):  # fmt: skip
        reply = client.get(f"/api/thumbnail?position={position_of(client, key)}&field={field}")
        assert reply.status == 404
        assert reason in reply.value["error"]


def test_payloads_have_types_of_our_choosing(client: Client) -> None:
    for key, field, type_, payload in (
        ("x/scripted", "svg", "application/octet-stream", SVG),
        ("x/pages", "html", "application/octet-stream", HTML),
        ("x/sound", "wav", "audio/wav", make_sound(1.0)),
        ("x/video", "mp4", "video/mp4", make_video(10)),
        ("more", "txt", "application/octet-stream", b"the last one"),
    ):
        reply = client.get(f"/api/payload?position={position_of(client, key)}&field={field}")
        assert (reply.status, reply.headers["Content-Type"], reply.body) == (200, type_, payload)
        assert reply.headers["Accept-Ranges"] == "bytes"
        is_played = type_.partition("/")[0] in ("audio", "video")
        assert reply.headers.get("Content-Disposition") == (None if is_played else "attachment")


def test_ranges_of_payloads(client: Client) -> None:
    payload, path = make_sound(1.0), f"/api/payload?position={position_of(client, 'x/sound')}&field=wav"
    size = len(payload)
    for header, begin, end in (
        ("bytes=0-9", 0, 10), ("bytes=100-", 100, size), ("bytes=-5", size - 5, size), (f"bytes=7-{size + 9}", 7, size),
    ):  # fmt: skip
        reply = client.get(path, Range=header)
        assert (reply.status, reply.body) == (206, payload[begin:end])
        assert reply.headers["Content-Range"] == f"bytes {begin}-{end - 1}/{size}"
    beyond = client.get(path, Range=f"bytes={size}-")
    assert (beyond.status, beyond.headers["Content-Range"]) == (416, f"bytes */{size}")
    assert client.get(path, Range="bytes=0-1,3-4").status == 200
    assert client.get(path, Range="lines=0-1").status == 200


def test_choice(client: Client) -> None:
    by_positions = client.answer("/api/choice", {"positions": [4, 2]})
    assert by_positions["samples"] == 2
    assert by_positions["command"] == "tarfilter --keys keys.txt data.tar more.tar -o chosen.tar"
    expression, _ = client.query(where="cls == '1' and \"'\" not in key", language="expression")
    by_expression = client.answer("/api/choice", {"query": expression})
    words = shlex.split(by_expression["command"])
    assert words[:4] == ["tarfilter", "-S", "cls == '1' and \"'\" not in key", "--ignore-errors"]
    everything, samples = client.query()
    assert client.answer("/api/choice", {"query": everything}) == {
        "samples": samples, "command": "tarcat data.tar more.tar -o chosen.tar",
        "keys": "tarfilter --keys keys.txt data.tar more.tar -o chosen.tar",
        "table": "tarcat chosen.parquet -o chosen.tar",
    }  # fmt: skip
    keys = client.post("/api/choice/keys", {"positions": [4, 2]})
    assert keys.headers["Content-Disposition"] == 'attachment; filename="keys.txt"'
    assert keys.body == b"train/0004\ntrain/0002\n"
    assert client.post("/api/choice/keys", {"query": expression}).body.split() == [
        f"train/{n:04d}".encode() for n in range(1, COUNT, 3)
    ]
    bitmap = client.get(f"/api/bitmap?query={expression}&begin=1&end=3").body
    assert len(bitmap) == -(-samples // 8)
    text = base64.b64encode(bitmap).decode()
    assert client.post("/api/choice/keys", {"bitmap": text}).body == b"train/0004\ntrain/0007\n"
    assert client.answer("/api/choice", {"bitmap": text})["samples"] == 2
    for wrong in ({"positions": [samples]}, {"positions": [True]}, {"positions": "1"}, {}, {"bitmap": "AA=="}, {"bitmap": 3}):  # fmt: skip  # noqa: E501
        assert client.post("/api/choice", wrong).status == 400, wrong
    assert client.post("/api/choice", {"query": "no"}).status == 404


def test_the_table_of_a_choice_is_read_by_commands(tmp_path: Path, run: Run) -> None:
    (tmp_path / "data.tar").write_bytes(make_data())
    run("tarindex", "data.tar", "-f", "cls", "-o", "data.parquet").output()
    with serving(tmp_path, "data.parquet") as client:
        sorted_query, _ = client.query(where="cls = 2", sort=[{"column": "__key__", "descending": True}])
        assert client.answer("/api/choice", {"query": sorted_query})["command"] == "tarcat chosen.parquet -o chosen.tar"
        table = client.post("/api/choice/table", {"query": sorted_query})
        assert table.headers["Content-Disposition"] == 'attachment; filename="chosen.parquet"'
        (tmp_path / "chosen.parquet").write_bytes(table.body)
        rows = pyarrow.parquet.read_table(tmp_path / "chosen.parquet")
        assert rows.column("cls").to_pylist() == [2] * 20
        assert keys_in(run("tarcat", "chosen.parquet").output()) == [f"train/{n:04d}" for n in range(59, 0, -3)]
        (tmp_path / "keys.txt").write_bytes(client.post("/api/choice/keys", {"query": sorted_query}).body)
        command = client.answer("/api/choice", {"positions": [2]})["command"]
        run(*shlex.split(command)).output()
        assert keys_in((tmp_path / "chosen.tar").read_bytes()) == [f"train/{n:04d}" for n in range(2, 60, 3)]
        (tmp_path / "data.parquet").write_bytes(b"PAR1")
        assert "was replaced" in client.post("/api/choice/table", {"positions": [1]}).value["error"]


def test_a_shard_that_is_replaced_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "data.tar").write_bytes(make_data())
    with serving(tmp_path, "data.tar") as client:
        assert client.get("/api/thumbnail?position=0&field=jpg").status == 200
        (tmp_path / "new.tar").write_bytes(make_tar([("a.txt", b"b")] * 1))
        (tmp_path / "new.tar").replace(tmp_path / "data.tar")
        for path in (
            "/api/thumbnail?position=1&field=jpg",
            "/api/payload?position=1&field=jpg",
            "/api/sample?position=1",
        ):
            reply = client.get(path)
            assert reply.status == 409, path
            assert "was replaced" in reply.value["error"]
        assert client.answer("/api/about")["replaced"] is True
        (tmp_path / "data.tar").unlink()
        assert client.get("/api/payload?position=2&field=jpg").status == 409


def test_broken_pictures_are_found_when_all_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "data.tar").write_bytes(make_data())
    with serving(tmp_path, "--decode", "data.tar") as client:
        query, _ = client.query()
        facets = client.answer(f"/api/facets?query={query}")["facets"]
        assert {"kind": "broken", "count": 1} in facets
        assert client.keys(facets=[{"broken": True}]) == ["x/cut"]
        assert client.query(facets=[{"broken": False}])[1] == COUNT + 7
        assert client.query(where='"jpg.width" > 90 AND "jpg.format" = \'JPEG\'')[1] == 10


@pytest.mark.parametrize("scheme", ["s3", *also("gs", "http", "azure")])
def test_a_table_and_shards_on_a_server(scheme: str, tmp_path: Path, run: Run) -> None:
    with FaultServer() as store:
        store.objects["d/data.tar"] = make_data()
        shard = store.url(scheme, "d/data.tar")
        run("tarindex", shard, "-f", "cls", "-o", "data.parquet", env=store.env).output()
        with serving(tmp_path, "data.parquet", env=store.env) as client:
            assert client.keys(words="cls==2") == [f"train/{n:04d}" for n in range(2, COUNT, 3)]
            path = f"/api/payload?position={position_of(client, 'x/sound')}&field=wav"
            asked = len(store.asked("GET"))
            assert client.get(path, Range="bytes=1000-1009").body == make_sound(1.0)[1000:1010]
            assert len(store.asked("GET")) - asked <= 2  # the first bytes, which say the type, and the range
            assert client.get("/api/thumbnail?position=3&field=jpg&size=20").status == 200
            assert client.answer("/api/sample?position=1")["fields"][2]["text"].startswith("a dog of number 1,")
            store.objects["d/data.tar"] = make_tar([("a.txt", b"b")])
            reply = client.get("/api/thumbnail?position=4&field=jpg")
            assert reply.status == 409
            assert "was replaced" in reply.value["error"]
            assert client.answer("/api/about")["replaced"] is True
        store.objects["d/data.tar"] = make_data()
        with serving(tmp_path, shard, env=store.env) as client:
            assert client.keys(words="sea number 0011") == ["train/0011"]


def test_joined_tables_and_tables_of_others(tmp_path: Path, run: Run) -> None:
    """The fields of a joined table are in two shards; a table without members has samples that are read to be shown."""
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{n}.txt", b"text %d" % n) for n in range(5)]))
    (tmp_path / "b.tar").write_bytes(make_tar([(f"{n}.cls", b"%d" % n) for n in range(5)]))
    run("tarjoin", "a.tar", "b.tar", "-o", "joined.parquet").output()
    with serving(tmp_path, "joined.parquet") as client:
        sample = client.answer("/api/sample?position=3")
        assert [(field["name"], field["text"]) for field in sample["fields"]] == [("txt", "text 3"), ("cls", "3")]
        facets = client.answer(f"/api/facets?query={client.query()[0]}")["facets"]
        columns = {facet.get("column") for facet in facets}
        assert "__size__" in columns and columns.isdisjoint({"__begin__", "__begin_2__", "__end__", "__end_2__"})
        assert client.keys(where='"cls.size" = 1', sort=[{"column": "__key__", "descending": True}]) == list("43210")
        query, _ = client.query()
        rows = client.answer(f"/api/rows?query={query}&begin=1&end=2")["rows"]
        assert rows[0]["text"] == "text 1"
    run("tarindex", "a.tar", "-o", "a.parquet").output()
    plain = pyarrow.parquet.read_table(tmp_path / "a.parquet").select(["__shard__", "__begin__", "__end__", "__key__"])
    pyarrow.parquet.write_table(plain, tmp_path / "plain.parquet")
    with serving(tmp_path, "plain.parquet") as client:
        assert client.answer("/api/about")["fields"] == []
        assert client.answer("/api/sample?position=2")["fields"][0]["text"] == "text 2"
        assert client.get("/api/payload?position=2&field=txt").body == b"text 2"


def test_names_that_differ_only_in_case_and_fields_twice(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(
        make_tar([("a.TXT", b"one"), ("a.txt", b"two"), ("b.txt", b"x"), ("b.txt", b"y"), ("c", b"no field")])
    )
    with serving(tmp_path, "a.tar") as client:
        sample = client.answer("/api/sample?position=0")
        assert [(field["name"], field["text"]) for field in sample["fields"]] == [("TXT", "one"), ("txt", "two")]
        assert client.get("/api/payload?position=0&field=TXT").body == b"one"
        assert client.get("/api/payload?position=0&field=txt").body == b"two"
        assert client.keys(words="two") == ["a"]
        assert [field["name"] for field in client.answer("/api/sample?position=1")["fields"]] == ["txt"]


def test_many_connections_at_once(client: Client) -> None:
    """More connections than there are threads are answered, one after the other; idle ones do not end the server."""
    connections = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(40)]
    try:
        request = (
            f"GET /api/about?token={client.token} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        for connection in connections:
            connection.sendall(request)
        for connection in connections:
            reply = b""
            while part := connection.recv(1 << 16):
                reply += part
            assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    finally:
        for connection in connections:
            connection.close()


def test_usage(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.txt", b"one")]))
    (tmp_path / "empty.tar").write_bytes(make_tar([]))
    for options in (["-c", 3], ["--html", "x.html"], ["-f", "txt"], ["-x", "txt"], ["--random", 3], ["--graphics", "none"]):  # fmt: skip  # noqa: E501
        assert "excludes --serve" in run("tarshow", "--serve", *options, "a.tar").failure(2)
    for options in (["--port", 3], ["--facts"], ["--decode"]):
        assert "need --serve" in run("tarshow", *options, "a.tar").failure(2)
    assert "no samples" in run("tarshow", "--serve", "empty.tar").failure()
    assert "No such file" in run("tarshow", "--serve", "none.tar").failure()
    assert "in no file or object" in run("tarshow", "--serve", stdin=b"").failure(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert (
            run("tarshow", "--serve", "--port", port, "a.tar")
            .failure()
            .startswith(f"tarshow: port {port} can't be used: Address already in use")
        )
    with serving(tmp_path, "a.tar", "--port", 0) as client:
        assert client.port


def test_a_signal_ends_it_while_connections_are_open(tmp_path: Path) -> None:
    (tmp_path / "data.tar").write_bytes(make_data())
    with serving(tmp_path, "data.tar") as client:
        idle = socket.create_connection(("127.0.0.1", client.port))
        client.process.send_signal(signal.SIGINT)
        until(lambda: client.process.poll() is not None, "the end")
        idle.close()


def test_a_signal_ends_it_while_questions_are_answered(tmp_path: Path, run: Run) -> None:
    """Nothing is said of the questions, and the process ends by the signal (see `serving`)."""
    (tmp_path / "data.tar").write_bytes(make_data())
    run("tarindex", "-f", "cls", "data.tar", "-o", "data.parquet").output()
    rows = pyarrow.parquet.read_table(tmp_path / "data.parquet")
    pyarrow.parquet.write_table(pyarrow.concat_tables([rows] * 300), tmp_path / "many.parquet")
    with serving(tmp_path, "many.parquet") as client:
        query, _ = client.query()
        connections = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(12)]
        lines = f"GET /api/facets?query={query} HTTP/1.1\r\nHost: localhost\r\nCookie: {client.cookie}\r\n\r\n"
        for connection in connections:
            connection.sendall(20 * lines.encode())
        assert connections[0].recv(17) == b"HTTP/1.1 200 OK\r\n"
        client.process.send_signal(signal.SIGINT)
        until(lambda: client.process.poll() is not None, "the end")
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("rows", [1, 200_000])  # the empty database does not fit, or its rows do not
def test_a_full_disk_is_an_error_and_no_traceback(rows: int, tmp_path: Path, shell: Run) -> None:
    (tmp_path / "data.tar").write_bytes(make_tar([("a.cls", b"1")]))
    shell("tarindex data.tar -o one.parquet").output()
    row = pyarrow.parquet.read_table(tmp_path / "one.parquet")
    numbered = pyarrow.table({"x": [f"{n * n:x}" for n in range(rows)]})
    for name in row.column_names:
        numbered = numbered.append_column(name, pyarrow.concat_arrays([row.column(name).combine_chunks()] * rows))
    pyarrow.parquet.write_table(numbered, tmp_path / "data.parquet")
    (tmp_path / "tmp").mkdir()
    done = shell(f"ulimit -f {1 if rows == 1 else 300}; tarshow --serve data.parquet --tmpdir tmp")
    assert re.fullmatch(r"tarshow: DuckDB can't hold the rows: IO Error: .+\n", done.failure())
    assert [*(tmp_path / "tmp").iterdir()] == []


def test_a_signal_ends_it_while_rows_are_loaded(tmp_path: Path, run: Run) -> None:
    (tmp_path / "data.tar").write_bytes(make_data())
    run("tarindex", "data.tar", "-o", "data.parquet").output()
    rows = pyarrow.parquet.read_table(tmp_path / "data.parquet")
    pyarrow.parquet.write_table(pyarrow.concat_tables([rows] * 3000), tmp_path / "many.parquet")
    (tmp_path / "tmp").mkdir()
    command: list[str | Path] = [BIN / "tarshow", "--serve", "many.parquet", "--tmpdir", "tmp"]
    with running(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: [*(tmp_path / "tmp").glob("*/rows.duckdb*")], "the database")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)
        assert (process.returncode, said) == (-signal.SIGINT, (b"", b""))
    assert [*(tmp_path / "tmp").iterdir()] == []
