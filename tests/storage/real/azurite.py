"""Azurite, Microsoft's emulator of Azure Storage: `npm install --global --ignore-scripts azurite`."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

from tartools.storage.objects.azure import API_VERSION, AzureAccount, _signature
from tests.storage.real.server import Refusal, Server, free_port, processes, require

NAME, KEY = "devstoreaccount1", "c2VjcmV0LW9mLWF6dXJpdGUtNw=="
CONTAINER = "trials"


@contextmanager
def azurite(folder: Path, certificate: Path) -> Iterator[Server]:
    """Give the service of blobs, with a container."""
    require("npm install --global --ignore-scripts azurite", "node", "azurite-blob")
    with processes(folder) as group:
        port = free_port()
        options = "--silent", "--disableTelemetry", "--skipApiVersionCheck", "-l", folder / "data"
        accounts = {"AZURITE_ACCOUNTS": f"{NAME}:{KEY}", "PATH": "/usr/local/bin:/usr/bin:/bin"}
        group.start("azurite", "azurite-blob", "--blobHost", "127.0.0.1", "--blobPort", port, *options, env=accounts)
        group.wait_for(port)
        endpoint = f"http://127.0.0.1:{port}/{NAME}"
        _make_container(endpoint)
        env = {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName={NAME};AccountKey={KEY};BlobEndpoint={endpoint}"}
        version = group.run("azurite-blob", "--version", env=accounts).strip()
        yield Server(
            version,
            f"azure://{CONTAINER}",
            env,
            lambda name: _get(endpoint, name),
            refusals=_refusals(env["AZURE_STORAGE_CONNECTION_STRING"], endpoint),
            secrets=[KEY, "SECRET"],
        )


def _request(method: str, address: str, endpoint: str) -> urllib.request.Request:
    """Return a signed request."""
    headers = {"x-ms-version": API_VERSION, "x-ms-date": formatdate(usegmt=True)}
    account = AzureAccount(NAME, endpoint, base64.b64decode(KEY))
    headers["Authorization"] = _signature(account, method, address, headers)
    return urllib.request.Request(address, method=method, headers=headers)


def _make_container(endpoint: str) -> None:
    with urllib.request.urlopen(_request("PUT", f"{endpoint}/{CONTAINER}?restype=container", endpoint)) as response:
        assert response.status == 201


def _get(endpoint: str, name: str) -> bytes | None:
    """Return the bytes of a blob."""
    try:
        with urllib.request.urlopen(_request("GET", f"{endpoint}/{CONTAINER}/{quote(name)}", endpoint)) as response:
            data: bytes = response.read()
    except urllib.error.HTTPError as error:
        assert error.code == 404, error
        return None
    return data


def _refusals(settings: str, endpoint: str) -> list[Refusal]:
    variable = "AZURE_STORAGE_CONNECTION_STRING"
    wrong_key = {variable: settings.replace(KEY, "d3Jvbmc=")}
    sas = {variable: f"BlobEndpoint={endpoint};SharedAccessSignature=sv=2021-12-02&sp=r&sig=SECRET"}
    dead = {variable: settings.replace(endpoint, "http://127.0.0.1:1"), "TARTOOLS_TRIES": "1"}
    missing, container, refused = "no such object", "no such container: nowhere", r"no permission to \w+ \(\w+\): "
    return [
        Refusal("an object that does not exist", ["{base}/none.tar"], missing),
        Refusal("a pattern without a match", ["{base}/none-*.tar"], "no object matches"),
        Refusal("a container that does not exist", ["azure://nowhere/a.tar"], container),
        Refusal("a pattern in it", ["azure://nowhere/*.tar"], container),
        Refusal("an output in it", ["-o", "azure://nowhere/a.tar", "{small}"], container),
        Refusal("a wrong key", ["{base}/none.tar"], refused + "is the key right", wrong_key),
        Refusal("a wrong key, writing", ["-o", "{base}/x.tar", "{small}"], refused + "is the key right", wrong_key),
        Refusal("a wrong signature", ["{base}/none.tar"], refused + "the role or SAS|does not accept|no such", sas),
        Refusal("no account", ["{base}/none.tar"], "no Azure account: set AZURE_STORAGE_CONN", {variable: ""}),
        Refusal("nobody listens", ["{base}/none.tar"], r"cannot connect to 127.0.0.1:1: .* \(1 try\)", dead),
        Refusal("no name of a blob", ["azure://trials"], "write azure://CONTAINER/BLOB"),
    ]
