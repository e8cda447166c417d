"""Azure: signatures, accounts and credentials of the environment, errors, names. Faults are played by other tests."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from tartools.errors import how_to_install
from tartools.storage.objects import azure
from tartools.storage.objects.azure import AzureAccount
from tests.conftest import Run, make_samples, make_tar
from tests.storage.objects.faults import Fault, FaultServer
from tests.storage.objects.inside import OBJECT, Inside

DATE = {"x-ms-version": "2021-12-02", "x-ms-date": "Sat, 28 Nov 2026 06:00:00 GMT"}
KEY = "dGVzdGluZw=="
BLOBS = "https://testing.blob.core.windows.net"
DATA = make_tar(make_samples(5))
SETTINGS = azure.SETTINGS_HINT
EMULATOR_KEY = base64.b64decode(azure.EMULATOR.rpartition("AccountKey=")[2])
SHARD = f"azure://b/{OBJECT}"


@pytest.mark.parametrize(
    ("method", "address", "headers", "signature"),
    [
        ("GET", f"{BLOBS}/c/a%20b%3F.tar", {"x-ms-range": "bytes=0-3", "If-Match": '"0x1"'},
         "DqkZ9cGMFj5kHMeFMyG2VhrHoDOV02ufMkBtvxb1mJ4="),
        ("PUT", f"{BLOBS}/c/a.tar?comp=block&blockid=QUJD%2F%2B%3D", {"Content-Length": "4", "Content-MD5": "xyz="},
         "YbbszUzlu26HSZXewOnJeYG+jKFkdJFVXnOvW50R5Ws="),
        ("PUT", f"{BLOBS}/c/a.tar", {"Content-Length": "0", "x-ms-blob-type": "BlockBlob", "If-None-Match": "*"},
         "tPb9GEJZElEJcvhcxJlsbvEYNDfJg9TLHWW9lJMJ/aI="),
        ("GET", "http://127.0.0.1:10000/testing/c?restype=container&comp=list&prefix=d%2Fa%20b", {},
         "LXPLdqiuGvIxMkntqmAgcKI/e8AvZ6CBibiA5HK99f8="),
    ],
    ids=["range", "block", "empty", "list"],
)  # fmt: skip
def test_signatures_are_those_of_azures_library(
    method: str, address: str, headers: dict[str, str], signature: str
) -> None:
    """They were made by azure-storage-blob 12.31.1."""
    account = AzureAccount("testing", BLOBS, b"testing")
    assert azure._signature(account, method, address, DATE | headers) == f"SharedKey testing:{signature}"


@pytest.mark.parametrize(
    ("settings", "account"),
    [
        ({"CONNECTION_STRING": f"DefaultEndpointsProtocol=https;AccountName=testing;AccountKey={KEY};"
                               "EndpointSuffix=core.windows.net", "ACCOUNT": "other"},
         AzureAccount("testing", BLOBS, b"testing")),
        ({"CONNECTION_STRING": "BlobEndpoint=https://testing.blob.core.windows.net/;SharedAccessSignature=?sv=1&sig=x"},
         AzureAccount("testing", BLOBS, b"", "sv=1&sig=x")),
        ({"CONNECTION_STRING": "UseDevelopmentStorage=true"},
         AzureAccount("devstoreaccount1", "http://127.0.0.1:10000/devstoreaccount1", EMULATOR_KEY)),
        ({"ACCOUNT": "testing", "KEY": KEY}, AzureAccount("testing", BLOBS, b"testing")),
        ({"ACCOUNT": "testing", "SAS_TOKEN": "?sig=x"}, AzureAccount("testing", BLOBS, b"", "sig=x")),
        ({"ACCOUNT": "a", "SERVICE_ENDPOINT": "http://h:1/a"}, AzureAccount("a", "http://h:1/a")),
    ],
)  # fmt: skip
def test_accounts(settings: dict[str, str], account: AzureAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    assert azure._account() == account


INSTALL = how_to_install("azure-identity").partition(" ")[2]  # without the interpreter, which is python or python3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, f"no Azure account: set {SETTINGS}"),
        ({"AZURE_STORAGE_CONNECTION_STRING": "secret"},
         "AZURE_STORAGE_CONNECTION_STRING is not a list of NAME=VALUE;"),
        ({"AZURE_STORAGE_CONNECTION_STRING": "AccountKey=YQ==;"},
         "AZURE_STORAGE_CONNECTION_STRING has neither AccountName nor BlobEndpoint"),
        ({"AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_KEY": "no base64"},
         f"the Azure account key is not base64, or the endpoint no URL: see {SETTINGS}"),
        ({"AZURE_STORAGE_ACCOUNT": "a"},
         f"no Azure credentials: set {SETTINGS}; or PYTHON {INSTALL}, and az login"),
    ],
    ids=["none", "no fields", "no name", "no key", "no library"],
)  # fmt: skip
def test_without_credentials(settings: dict[str, str], message: str, run: Run, tmp_path: Path) -> None:
    """What to set is said, and nothing secret is."""
    (tmp_path / "azure.py").write_text("")  # which has no azure.identity, whatever is installed
    for arguments in (["azure://b/a.tar"], ["-o", "azure://b/a.tar"]):
        done = run("tarcat", *arguments, stdin=DATA, env=settings | {"PYTHONPATH": str(tmp_path)}, real=True)
        said = re.sub(r"\S+/python[\d.]*", "PYTHON", done.stderr)
        assert (done.status, done.stdout, said) == (1, b"", f"tarcat: azure://b/a.tar: {message}\n")


IDENTITY = """\
class CredentialUnavailableError(Exception): pass
class DefaultAzureCredential:
    def get_token(self, scope):
        import logging, os, types
        assert scope == "https://storage.azure.com/.default"
        logging.getLogger("azure.identity._internal").warning("each source that has none")
        if "NO_LOGIN" in os.environ: raise CredentialUnavailableError
        print("asked", file=open("asked", "a"))
        return types.SimpleNamespace(token="TOKEN", expires_on=9e9)
"""


def test_a_token_of_default_azure_credential(faulty: FaultServer, run: Run, tmp_path: Path) -> None:
    (tmp_path / "lib/azure/core").mkdir(parents=True)
    (tmp_path / "lib/azure/identity.py").write_text(IDENTITY)
    (tmp_path / "lib/azure/core/exceptions.py").write_text("class ClientAuthenticationError(Exception): pass\n")
    settings = {"AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_SERVICE_ENDPOINT": faulty.base}
    env = settings | {"PYTHONPATH": str(tmp_path / "lib")}
    faulty.objects["a.tar"] = DATA
    assert run("tarcat", "azure://b/a.tar", "azure://b/a.tar", "-o", "out.tar", env=env, real=True) == (0, b"", "")
    assert {request.headers["authorization"] for request in faulty.requests} == {"Bearer TOKEN"}
    assert (tmp_path / "asked").read_text() == "asked\n"
    done = run("tarcat", "azure://b/a.tar", env=env | {"NO_LOGIN": "1"}, real=True)
    assert done == (1, b"", f"tarcat: azure://b/a.tar: no Azure credentials: az login, or set {SETTINGS}\n")


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "BlobNotFound", "no such object"),
        (404, "ContainerNotFound", "no such container: b"),
        (403, "AuthenticationFailed", r"the server does not accept the credentials \(AuthenticationFailed\): see .*"),
        (403, "AuthorizationFailure", r"no permission to read \(AuthorizationFailure\): is the key right, .*"),
        (400, "InvalidQueryParameterValue", r"the server refuses: 400 InvalidQueryParameterValue"),
    ],
)  # fmt: skip
def test_refusals(status: int, code: str, message: str, inside: Inside) -> None:
    inside.server.faults = [Fault(status=status, code=code, times=None)]
    inside.copy("azure").refused("azure://b/a.tar", message)


def test_no_permission_by_a_sas(inside: Inside) -> None:
    """The signature is in the address, and in no message."""
    inside.environ(
        AZURE_STORAGE_CONNECTION_STRING=f"BlobEndpoint={inside.server.base};SharedAccessSignature=sv=2&sig=SECRET%2F"
    )
    inside.server.faults = [Fault(status=403, code="AuthorizationPermissionMismatch", times=None)]
    message = r"no permission to read \(AuthorizationPermissionMismatch\): the role or SAS has to allow it"
    inside.copy("azure").refused("azure://b/a.tar", message)
    assert inside.server.requests[0].target.endswith("?sv=2&sig=SECRET%2F")
    inside.server.faults = [Fault(dropped=True, times=None)]
    assert "SECRET" not in inside.copy("azure").stderr


@pytest.mark.parametrize("name", ["", "c", "c/", "c/./a", "c/a/..", "/a"])
def test_what_is_no_blob(name: str, run: Run) -> None:
    said = run("tarcat", f"azure://{name}").failure(status=2)
    assert "write azure://CONTAINER/BLOB" in said or "can't have . or .. between slashes" in said


def test_odd_names(inside: Inside) -> None:
    for name in ("a b.tar", "+%41#?.tar", "d//é.tar", "~'\"&<>.tar"):
        assert inside.run("tarcat", SHARD, "-o", f"azure://b/{name}") == (0, b"", "")
        assert inside.server.objects[name] == inside.server.objects[OBJECT]
        assert inside.run("tarls", f"azure://b/{name[:2]}").stdout.decode() == f"azure://b/{name}\n"
        del inside.server.objects[name]
