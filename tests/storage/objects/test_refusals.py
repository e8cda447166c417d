"""What a store refuses: one line that says which it is, at once, and one request."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tartools
from tartools.errors import UsageError
from tartools.storage.objects import uploads
from tests.commands.test_damage import WHOLE
from tests.conftest import Run, make_samples, make_tar, members_of
from tests.storage.objects.faults import SCHEMES, Fault, FaultServer
from tests.storage.objects.inside import OBJECT, Inside
from tests.tiers import by_turns

MISSING, BUCKET = "no such object", "no such bucket: nowhere"
WRONG = r"the server does not accept the credentials \({}\)"
REFUSED = [
    ("s3", 403, "InvalidAccessKeyId", WRONG.format("InvalidAccessKeyId")),
    ("s3", 403, "SignatureDoesNotMatch", WRONG.format("SignatureDoesNotMatch")),
    ("s3", 400, "ExpiredToken", WRONG.format("ExpiredToken")),
    ("s3", 403, "AccessDenied", r"no permission to (read|list) \(AccessDenied\)"),
    ("s3", 404, "NoSuchKey", MISSING),
    ("gs", 403, "forbidden", r"no permission to (read|list) \(forbidden\)"),
    ("gs", 404, "notFound", MISSING),
    ("ais", 401, "token required", "[^\n]*AIS_AUTHN_TOKEN[^\n]*"),
    ("ais", 403, "not allowed", r"no permission to (read|list) \(Forbidden\)"),
    ("ais", 404, "ais://b/a.tar does not exist", MISSING),
    ("http", 401, "", r"the server does not accept the credentials, or requires some \(Unauthorized\)"),
    ("http", 403, "", r"no permission to read \(Forbidden\)"),
    ("http", 404, "", "404 Not Found"),
    ("http", 410, "", "410 Gone"),
]


def test_what_a_server_refuses(inside: Inside) -> None:
    """To read, and to list."""
    for scheme, status, code, reason in REFUSED:
        for name in (OBJECT, *(["*.tar"] if scheme != "http" and reason != MISSING else [])):
            url = inside.server.url(scheme, name)
            inside.server.faults = [Fault("" if "*" in name else OBJECT, status=status, code=code, times=None)]
            done = inside.run("tarcat", url, "-o", "out.tar")
            assert done[:2] == (1, b"") and not Path("out.tar").exists(), done
            where = re.escape(url).replace(r"\*", r"[^ ]*")
            assert re.fullmatch(rf"tarcat: {where}: {reason}\n", done.stderr), done
            assert len(inside.server.requests) == 1, (scheme, status)
            inside.server.requests.clear()


def test_what_is_refused_later(inside: Inside) -> None:
    """Permission that is taken away, and a token that has expired, while an object is read."""
    for scheme in SCHEMES:
        for status in (401, 403) if scheme != "gs" else (403,):
            url = inside.server.url(scheme, OBJECT)
            inside.server.faults = [Fault(OBJECT, start=2000, status=status, code="AccessDenied", times=None)]
            done = inside.copy(scheme)
            assert (done.status, done.data) == (1, None), done
            assert re.fullmatch(rf"tarcat: {re.escape(url)}: [^\n]*(permission|credentials|token)[^\n]*\n", done.stderr)
            assert inside.starts().count(2000) == 1, (scheme, status)


@pytest.mark.parametrize("scheme", ["s3", "gs", "ais"])
def test_a_bucket_that_is_not_there(scheme: str, inside: Inside) -> None:
    for name in (OBJECT, "*.tar"):
        done = inside.run("tarcat", f"{scheme}://nowhere/{name}")
        assert (done.status, done.stdout) == (1, b"")
        assert re.fullmatch(rf"tarcat: {scheme}://nowhere/[^ ]*: {BUCKET}\n", done.stderr), done
        assert len(inside.server.requests) == 1
        inside.server.requests.clear()


def test_a_listing_that_is_none(inside: Inside) -> None:
    for scheme, body in itertools.product(("gs", "ais", "hf"), (b"x", b"1", b'{"items": 1, "entries": [{}]}')):
        inside.server.faults = [Fault(body=body, times=None, proxy=scheme == "hf")]
        assert "is not the JSON of" in inside.run("tarls", inside.server.url(scheme, "*.tar")).failure(lines=1)


def test_google_wants_credentials_where_there_are_none(faulty: FaultServer, run: Run) -> None:
    """As a process: google.auth leaves a connection open when it gives up."""
    faulty.faults = [Fault(status=401, code="authError", times=None)]
    for name in (OBJECT, "*.tar"):
        done = run("tarcat", f"gs://b/{name}", env=faulty.env)
        assert done[:2] == (1, b"")
        assert re.fullmatch(r"tarcat: gs://b/[^ ]*: no usable Google credentials: [^\n]+\n", done.stderr), done
    assert len(faulty.requests) == 2


# ---- nobody who could ask ----


@pytest.fixture
def nobody(faulty: FaultServer, tmp_path: Path) -> dict[str, str]:
    """Return the environment of who has no credentials; what hands them out in a cloud hangs up on each request."""
    faulty.faults = [Fault(dropped=True, times=None)]
    here = faulty.base.removeprefix("http://")
    return {
        "HOME": str(tmp_path / "nobody"),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{here}",
        "GCE_METADATA_HOST": here,
        "GCE_METADATA_IP": here,
        "CLOUDSDK_CONFIG": str(tmp_path / "none"),
    }


@pytest.mark.parametrize(
    ("url", "more", "said"),
    [
        ("s3://b/a.tar", {}, "no AWS credentials: [^\n]+AWS_PROFILE[^\n]+"),
        ("s3://b/a.tar", {"AWS_PROFILE": "nobody"}, "no AWS credentials: [^\n]+nobody[^\n]+"),
        ("s3://b/a.tar", {"AWS_ACCESS_KEY_ID": "AKIA"}, "no AWS credentials: [^\n]+"),
        ("s3://b/a.tar", {"AWS_ENDPOINT_URL": "127.0.0.1:1"}, "the endpoint [^\n]*"),
        ("gs://b/a.tar", {}, "no usable Google credentials: [^\n]+"),
        ("gs://b/a.tar", {"GOOGLE_APPLICATION_CREDENTIALS": "none"}, "no usable Google credentials: [^\n]+"),
        ("gs://b/a.tar", {"GOOGLE_APPLICATION_CREDENTIALS": "bad.json"}, "no usable Google credentials: [^\n]+"),
        ("ais://b/a.tar", {}, "set AIS_ENDPOINT to the URL of the AIStore proxy"),
    ],
)
def test_no_credentials(
    url: str, more: dict[str, str], said: str, nobody: dict[str, str], faulty: FaultServer, run: Run, tmp_path: Path
) -> None:
    """Libraries may ask around for them; we try none of that again, which would take a minute."""
    (tmp_path / "bad.json").write_text('{"type": "service_account"}')
    done = run("tarcat", url, env=nobody | more, timeout=60)
    assert done[:2] == (1, b"")
    assert re.fullmatch(rf"tarcat: {url}: {said}\n", done.stderr), done.stderr
    assert len(faulty.requests) <= 3


# ---- Signatures, keys, tokens and passwords: never in what a command says, whatever goes wrong, however much ----


SECRET = "SECRETSECRET"
SIGNED = f"?X-Amz-Credential={SECRET}%2F20260101&response-content-type=a/b+c&X-Amz-Signature={SECRET}"
ERROR = f"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>{SECRET}</AWSAccessKeyId></Error>".encode()
ENDLESS: dict[str, Any] = {"headers": {"Content-Length": "many"}}  # nothing tells where the body ends
FAULTS: dict[str, dict[str, Any]] = {
    "cut": {"cut": 700},
    "reset": {"cut": 1, "reset": True},
    "no answer": {"dropped": True},
    "silence": {"silent": True},
    "silence later": {"cut": 700, "stall": True},
    **{str(status): {"status": status} for status in (204, 400, 401, 403, 404, 410, 412, 416, 500, 501, 503)},
    "403 with a word": {"status": 403, "code": "SignatureDoesNotMatch", "body": ERROR},
    "503 with a word": {"status": 503, "code": "SlowDown", "headers": {"Retry-After": SECRET}},
    "a part of nothing": {"headers": {"Content-Range": SECRET}},
    "a part from elsewhere": {"headers": {"Content-Range": "bytes 7-1006/10240"}},
    "another length": ENDLESS,
    "chunks without an end": {"framing": "chunked", "cut": 600},
    "no archive": {"body": b"x" * len(WHOLE), "no_range": True},
    "an archive that is cut": {"no_range": True, "framing": "close", "cut": 700},
    "a redirect": {"status": 302},
    "a redirect to itself": {"status": 302, "headers": {"Location": f"{OBJECT}{SIGNED}"}},
    "a redirect to nobody": {"status": 307, "headers": {"Location": f"http://127.0.0.1:1/{SIGNED}"}},
    "a redirect to a file": {"status": 302, "headers": {"Location": f"file:///x{SIGNED}"}},
    "a redirect by name": {"status": 302, "headers": {"Location": f"http://{SECRET}:{SECRET}@127.0.0.1:1/"}},
}


@pytest.fixture
def talkative(empty: Inside) -> Inside:
    """Return commands in this process, which say as much as they can and know secrets of every kind."""
    empty.server.objects[OBJECT] = empty.server.objects["other"] = WHOLE
    empty.environ(
        TARTOOLS_DEBUG="1",
        TARTOOLS_TRIES="2",
        TARTOOLS_TIMEOUT="0.2",
        AWS_ACCESS_KEY_ID=f"AKIA{SECRET}",
        AWS_SECRET_ACCESS_KEY=SECRET,
        AWS_SESSION_TOKEN=SECRET,
        AIS_AUTHN_TOKEN=SECRET,
    )
    return empty


def check(status: int, stderr: str, url: str, name: str = "tarcat") -> None:
    """Check that a failure was told with its traceback, and nothing that is secret."""
    assert status == 1
    assert SECRET not in stderr
    assert "Traceback (most recent call last):" in stderr
    assert stderr.splitlines()[-1].startswith(f"{name}: {url.replace(SIGNED, '?…')}: "), stderr


@by_turns("kind")
@pytest.mark.parametrize("kind", ["signed", "redirected", "s3", "ais"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_whatever_goes_wrong(fault: dict[str, Any], kind: str, talkative: Inside) -> None:
    """In the first range, and in a later one; with signed URLs, and those that redirect to signed ones."""
    server = talkative.server
    url = server.url(kind if kind in ("s3", "ais") else "http", OBJECT) + (SIGNED if kind == "signed" else "")
    name = "other" if kind == "redirected" else OBJECT
    redirect = Fault(OBJECT, status=302, headers={"Location": f"other{SIGNED}"}, times=None)
    for skip in (0, 2):
        failing = Fault(name, method="GET", skip=skip, times=None, **fault)
        server.faults = [failing, redirect] if kind == "redirected" else [failing]
        talkative.environ(TARTOOLS_TIMEOUT="0.2" if {"silent", "stall"} & {*fault} or fault == ENDLESS else "10")
        for _ in range(20):  # 0.2 s may also be over before the server was asked that often
            done = talkative.run("tarcat", "-v", "--progress", url)
            if failing.played:
                break
        assert failing.played
        if done.status:
            check(done.status, done.stderr, url)
        assert SECRET not in done.stderr
        if "cut" not in fault and "body" not in fault and skip:  # endless is what comes behind all bytes; s3 refuses it
            assert done.status == (fault != ENDLESS or kind == "s3")


@pytest.mark.parametrize(
    "place",
    [
        *("http://127.0.0.1:1/", "https://127.0.0.1:1/", "http://127.0.0.1:99999/", "http://a b/", "http://*x/"),
        *("http://é..ü/", "http://127.0.0.1:x/", ""),
    ],
)
def test_places_where_no_server_is(place: str, talkative: Inside) -> None:
    """Or one that does not speak TLS."""
    talkative.environ(TARTOOLS_TIMEOUT="1")
    url = (place or talkative.server.base.replace("http:", "https:") + "/b/") + OBJECT + SIGNED
    done = talkative.run("tarcat", "-v", "--progress", url)
    check(done.status, done.stderr, url)


def test_a_proxy_that_is_not_there(talkative: Inside) -> None:
    talkative.environ(http_proxy=f"http://{SECRET}:{SECRET}@127.0.0.1:1/")
    for url in (
        talkative.server.url("http", OBJECT) + SIGNED,
        *(talkative.server.url(s, OBJECT) for s in ("s3", "gs", "ais")),
    ):
        done = talkative.run("tarcat", "-v", "--progress", url)
        check(done.status, done.stderr, url)


def test_an_output(talkative: Inside) -> None:
    talkative.server.objects["in"] = WHOLE
    source = talkative.server.url("http", "in")
    url = talkative.server.url("http", "out") + SIGNED
    for fault in (Fault("out", status=403), Fault("out", dropped=True), Fault("out", method="PUT", status=412)):
        fault.times = None
        talkative.server.faults = [fault]
        done = talkative.run("tarcat", "-v", "--progress", "-o", url, source)
        check(done.status, done.stderr, url)


def test_urls_in_lists_and_plans(talkative: Inside, tmp_path: Path) -> None:
    url = talkative.server.url("http", OBJECT) + SIGNED
    (tmp_path / "list").write_text(f"{url}\n")
    (tmp_path / "plan.tsv").write_text(f"__key__\t@jpg\na\t{url}\n")
    talkative.server.faults = [Fault(OBJECT, status=403, times=None)]
    done = talkative.run("tar2tsv", "-v", "--progress", "-T", "list")
    check(done.status, done.stderr, url, "tar2tsv")
    for arguments in (["plan.tsv"], [url]):
        done = talkative.run("tarcreate", "-v", "--progress", *arguments)
        assert done.status in (1, 2) and SECRET not in done.stderr and "?…" in done.stderr


@pytest.mark.parametrize("kind", ["signed", "redirected", "s3"])
def test_a_process(kind: str, faulty: FaultServer, run: Run) -> None:
    """With all that libraries may say at the end of one, and with the options that say most."""
    faulty.objects[OBJECT] = faulty.objects["other"] = WHOLE
    redirect = Fault(OBJECT, status=302, headers={"Location": f"other{SIGNED}"}, times=None)
    faulty.faults = [Fault("other" if kind == "redirected" else OBJECT, times=None, cut=700)]
    faulty.faults += [redirect] if kind == "redirected" else []
    url = faulty.url("s3" if kind == "s3" else "http", OBJECT) + (SIGNED if kind == "signed" else "")
    secrets = {"AWS_ACCESS_KEY_ID": f"AKIA{SECRET}", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": SECRET}
    more = {"TARTOOLS_DEBUG": "1", "TARTOOLS_TRIES": "1", "PYTHONWARNINGS": "default", "PYTHONDEVMODE": "1"}
    done = run("tarcat", "-v", "--progress", url, env=faulty.env | secrets | more)
    check(done.status, done.stderr, url)


def test_a_redirect_by_no_url(faulty: FaultServer, run: Run) -> None:
    for nowhere in (f"http://[{SIGNED}", f"//{SIGNED}", f"http://127.0.0.1:x/{SIGNED}"):
        faulty.faults = [Fault(OBJECT, status=302, headers={"Location": nowhere}, times=None)]
        url = faulty.url("http", OBJECT) + SIGNED
        done = run("tarcat", url, env={"TARTOOLS_DEBUG": "1", "TARTOOLS_TRIES": "1"})
        check(done.status, done.stderr, url)


# ---- passwords in URLs ----

WITH_PASSWORD: dict[str, Callable[[str], list[str]]] = {
    "an input": lambda url: ["tarcat", url],
    "an output": lambda url: ["tarcat", "-o", url],
    "in a list": lambda url: ["tarcat", "-T", "list"],
    "shards": lambda url: ["tarsplit", "-o", url],
    "a table": lambda url: ["tarcreate", url],
    "in a table": lambda url: ["tarcreate", "plan.tsv"],
}


@pytest.mark.parametrize("arguments", WITH_PASSWORD.values(), ids=WITH_PASSWORD)
def test_a_password_in_a_url(arguments: Callable[[str], list[str]], talkative: Inside, tmp_path: Path) -> None:
    """It would be seen in lists of processes, and in logs."""
    talkative.environ(TARTOOLS_DEBUG="0")
    base = talkative.server.base.removeprefix("http://")
    for place in (
        f"http://me:{SECRET}@{base}/b/{OBJECT}",
        f"HTTPS://:{SECRET}@h/b",
        f"s3://{SECRET}:{SECRET}@b/k",
        f"http://{SECRET}@{base}/b/{OBJECT}",
        f"HTTPS://{SECRET}@h/b",
        f"gs://{SECRET}@b/k",
    ):
        (tmp_path / "list").write_text(f"{place}\n")
        (tmp_path / "plan.tsv").write_text(f"__key__\t@jpg\na\t{place}\n")
        name, *rest = arguments(place)
        done = talkative.run(name, *rest)
        assert done[:2] == (2, b"") and SECRET not in done.stderr
        assert re.fullmatch(rf"{name}: [^\n]*(password|token) in it is refused[^\n]+\n", done.stderr), done.stderr
    assert talkative.server.requests == []


def test_a_password_in_the_url_of_a_file() -> None:
    for mode in ("rb", "wb"):
        with pytest.raises(UsageError, match="password") as failure:
            tartools.open(f"gs://me:{SECRET}@b/x", mode)
        assert SECRET not in str(failure.value)


# ---- keys of Google's ----


@pytest.mark.parametrize("answered", [400, 503, None])
def test_a_key_that_google_does_not_take(
    answered: int | None, key: str, faulty: FaultServer, run: Run, tmp_path: Path
) -> None:
    """The server that gives tokens for keys refuses this one, is busy, or is not there."""
    base = faulty.base if answered else "http://127.0.0.1:1"
    account = {"type": "service_account", "private_key": key, "client_email": "me@x", "private_key_id": SECRET}
    (tmp_path / "key.json").write_text(json.dumps(account | {"token_uri": f"{base}/token?{SECRET}"}))
    body = json.dumps({"error": "invalid_grant", "error_description": f"Invalid signature {SECRET}"}).encode()
    faulty.faults = [Fault(method="POST", status=answered, body=body, times=None)]
    env = {"GOOGLE_APPLICATION_CREDENTIALS": "key.json", "TARTOOLS_TRIES": "1", "TARTOOLS_TIMEOUT": "5"}
    done = run("tarcat", "gs://b/a.tar", env=env, timeout=60)
    assert done[:2] == (1, b"") and SECRET not in done.stderr
    assert re.fullmatch(r"tarcat: gs://b/a.tar: [^\n]*[Cc]redentials[^\n]*\n", done.stderr), done.stderr


# ---- in the words of the case ----


@pytest.mark.parametrize("location", ["http://[::1", "http://%5b::1%5d:8090/b/a.tar", "http://a b/"])
def test_a_redirect_to_an_invalid_url(location: str, inside: Inside) -> None:
    """The user's own URL is valid."""
    inside.server.faults = [Fault(OBJECT, status=302, headers={"Location": location}, times=None)]
    inside.copy("http").refused(inside.server.url("http", OBJECT), "the server redirects to an invalid URL")


def test_a_signed_url_that_has_expired(inside: Inside) -> None:
    """What the body of the store says, but no part that may be secret."""
    xml = {"Content-Type": "application/xml"}
    for text, reason in (
        ("<Code>AccessDenied</Code><Message>Request has expired</Message>", r"AccessDenied: Request has expired"),
        ("<Code>AccessDenied</Code><Message>see http://h/?X-Amz-Signature=1</Message>", "AccessDenied"),
        ("no XML at all", "Forbidden"),
    ):
        body = f"<Error>{text}</Error>".encode()
        inside.server.faults = [Fault(OBJECT, status=403, headers=xml, body=body, times=None)]
        inside.copy("http").refused(inside.server.url("http", OBJECT), rf"no permission to read \({reason}\)")


def test_a_folder_that_does_not_exist_on_a_web_server(inside: Inside) -> None:
    """Apache answers 409 to PUT, others 404; so do those that take no uploads."""
    Path("in").write_bytes(WHOLE)
    for status, phrase in ((404, "Not Found"), (409, "Conflict")):
        inside.server.faults = [Fault("out", method="PUT", status=status, times=None)]
        message = inside.run("tarcat", "-o", inside.server.url("http", "out"), "in").failure(lines=1)
        what = "the folder does not exist, or the server does not accept uploads (PUT)"
        assert message.endswith(f": cannot write: {what}: {status} {phrase}\n")


def test_a_bundle_of_certificates_that_is_set_to_nothing(inside: Inside) -> None:
    inside.environ(AWS_CA_BUNDLE="")
    assert inside.copy("s3") == (0, WHOLE, "")


def test_more_parts_than_the_server_takes(empty: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MIN_PART_BYTES", 5120)
    Path("in").write_bytes(WHOLE)
    text = "Part number must be an integer between 1 and 1000, inclusive"
    body = f"<Error><Code>InvalidArgument</Code><Message>{text}</Message></Error>".encode()
    empty.server.faults = [Fault(has="partNumber", status=400, body=body, times=None)]
    message = empty.run("tarcat", "-o", "s3://b/out", "in").failure(lines=1)
    assert message == f"tarcat: s3://b/out: the object has more parts than the server accepts ({text})\n"


@pytest.mark.parametrize("scheme", ["s3", "gs", "ais"])
def test_an_object_with_braces_in_its_name(scheme: str, inside: Inside) -> None:
    """It takes precedence over what the braces stand for, as a local file does."""
    name = "cu{a,b}.tar"
    assert inside.run("tarcat", "-o", inside.server.url(scheme, name), inside.server.url(scheme, OBJECT)).status == 0
    assert inside.run("tarcat", inside.server.url(scheme, name)).output() == WHOLE
    for part in "ab":
        inside.server.objects[f"cu{part}.tar"] = make_tar(make_samples(1, ord(part)))
    assert inside.run("tarcat", inside.server.url(scheme, name)).output() == WHOLE
    del inside.server.objects[name]
    assert len(members_of(inside.run("tarcat", inside.server.url(scheme, name)).output())) == 4
