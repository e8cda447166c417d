"""Blobs in Azure Storage, by its REST API: ranges, listings, uploads in blocks. See docs/adr/0008.

A URL is `azure://CONTAINER/BLOB`; the account and the credentials are those of the environment, under the names that
Azure's own tools use. Names are taken literally. Source: Azure Storage documentation, "Blob service REST API".
"""

from __future__ import annotations

import base64
import functools
import hmac
import logging
import os
import threading
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from email.utils import formatdate
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

from tartools.errors import ExistsError, NotFoundError, StorageError, UsageError, how_to_install
from tartools.storage.objects import http, integrity
from tartools.storage.objects.contract import ListedObject, NoPermissionError, Object, Page, Reply
from tartools.storage.objects.http import (
    DONE_STATUSES,
    RANGE_STATUSES,
    Client,
    Payload,
    Response,
    content_length,
    parse_date,
)
from tartools.storage.objects.uploads import Upload
from tartools.storage.url import bucket_and_name

API_VERSION = "2021-12-02"
AZURE_SCOPE = "https://storage.azure.com/.default"
RENEWAL_SECONDS = 300  # before a token ends, a new one is asked for
PAGE_OBJECTS = 5000  # the largest page
EMULATOR = (  # what UseDevelopmentStorage=true stands for; the key is a documented constant
    "AccountName=devstoreaccount1;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;AccountKey="
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
SIGNED_HEADERS = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date"),
    *("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)
EXISTS_CODES = ("BlobAlreadyExists", "ConditionNotMet", "UnauthorizedBlobOverwrite")
NOT_ACCEPTED = ("AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation")
SETTINGS_HINT = (
    "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN"
)
HTTP_CLIENT = Client()

_lock: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


# ---- the account ----


class AzureAccount(NamedTuple):
    """An account of Azure Storage.

    *name*: its name.
    *endpoint*: the URL of its blobs, without a slash at the end.
    *key*: the shared key, which signs requests; b"" if there is none.
    *sas*: a shared access signature, a query without its "?"; "" if there is none. Without both, a token is sent.
    """

    name: str
    endpoint: str
    key: bytes = b""
    sas: str = ""


def _account() -> AzureAccount:
    """Return the account in `AZURE_STORAGE_CONNECTION_STRING`, or else in AZURE_STORAGE_ACCOUNT and its companions.

    These are AZURE_STORAGE_KEY and AZURE_STORAGE_SAS_TOKEN, ignored with a connection string. The endpoint: in the
    connection string, or else AZURE_STORAGE_SERVICE_ENDPOINT, or else PROTOCOL://ACCOUNT.blob.SUFFIX, with https and
    core.windows.net unless the connection string names others. A connection string without AccountName: the name is the
    first part of the endpoint's host.
    Raises: StorageError if both variables are missing, one is malformed, or the connection string names neither account
    nor endpoint.
    """
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    name, endpoint = (os.environ.get(f"AZURE_STORAGE_{n}", "") for n in ("ACCOUNT", "SERVICE_ENDPOINT"))
    key, sas = (os.environ.get(f"AZURE_STORAGE_{n}", "") for n in ("KEY", "SAS_TOKEN"))
    if not text and not name:
        raise StorageError(f"no Azure account: set {SETTINGS_HINT}")
    fields = _fields(text) if text else {"accountname": name, "accountkey": key, "sharedaccesssignature": sas}
    protocol = fields.get("defaultendpointsprotocol", "https")
    suffix = fields.get("endpointsuffix", "core.windows.net")
    name = fields.get("accountname", "")
    endpoint = fields.get("blobendpoint", "") or endpoint
    if not name and not endpoint:
        raise StorageError("AZURE_STORAGE_CONNECTION_STRING has neither AccountName nor BlobEndpoint")
    endpoint = endpoint or f"{protocol}://{name}.blob.{suffix}"
    try:
        secret = base64.b64decode(fields.get("accountkey", ""), validate=True)
        name = name or (urlsplit(endpoint).hostname or "").partition(".")[0]
    except ValueError:
        raise StorageError(
            f"the Azure account key is not base64, or the endpoint no URL: see {SETTINGS_HINT}"
        ) from None
    return AzureAccount(name, endpoint.rstrip("/"), secret, fields.get("sharedaccesssignature", "").lstrip("?"))


def _fields(connection_string: str) -> dict[str, str]:
    """Return the fields of a connection string by their names in lower case.

    UseDevelopmentStorage=true gives the fields of the emulator. Raises: StorageError if a part is not NAME=VALUE.

    >>> _fields("AccountName=a;AccountKey=b==;")
    {'accountname': 'a', 'accountkey': 'b=='}
    """
    fields = {}
    for part in filter(None, connection_string.strip().split(";")):
        name, equals, value = part.partition("=")
        if not equals:
            raise StorageError("AZURE_STORAGE_CONNECTION_STRING is not a list of NAME=VALUE;")
        fields[name.strip().lower()] = value.strip()
    if fields.get("usedevelopmentstorage", "").lower() == "true":
        return _fields(EMULATOR)
    return fields


def _signature(account: AzureAccount, method: str, address: str, headers: Mapping[str, str]) -> str:
    """Return the value of the header Authorization for a request: "SharedKey ACCOUNT:DIGEST".

    *headers*: the other headers, which are signed; *address*: the URL with its query. Source: Azure Storage
    documentation, "Authorize with Shared Key".
    """
    fields = {name.lower(): value for name, value in headers.items()}
    if fields.get("content-length") == "0":
        del fields["content-length"]
    parts = urlsplit(address)
    query: dict[str, list[str]] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True, errors="surrogateescape"):
        query.setdefault(name.lower(), []).append(value)
    lines = [method, *(fields.get(name, "") for name in SIGNED_HEADERS)]
    lines += [f"{name}:{fields[name].strip()}" for name in sorted(fields) if name.startswith("x-ms-")]
    lines.append(f"/{account.name}{parts.path}")
    lines += [f"{name}:{','.join(sorted(query[name]))}" for name in sorted(query)]
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    digest = base64.b64encode(hmac.digest(account.key, text, "sha256")).decode()
    return f"SharedKey {account.name}:{digest}"


def _token(url: str) -> str:
    """Return a token of DefaultAzureCredential: environment, workload, managed identity, az login.

    It is kept for this process until RENEWAL_SECONDS before it ends. *url* is for messages. Raises: StorageError.
    """
    with _lock[os.getpid()]:
        cached_token = _tokens(os.getpid())
        if cached_token.get("ends", 0.0) - time.time() < RENEWAL_SECONDS:
            cached_token["token"], cached_token["ends"] = _new_token(url)
        return str(cached_token["token"])


@functools.cache
def _tokens(process: int) -> dict[str, Any]:
    """Return the dict that keeps the token of the process with the pid *process*, empty at first.

    Keys: "token"; "ends", in seconds since 1970.
    """
    return {}


def _new_token(url: str) -> tuple[str, float]:
    """Return a new token, and when it ends, in seconds since 1970. *url* is for messages.

    Raises: StorageError if there are no credentials, or azure-identity is missing.
    """
    try:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import CredentialUnavailableError, DefaultAzureCredential
    except ImportError:
        install = how_to_install("azure-identity")
        raise StorageError(f"no Azure credentials: set {SETTINGS_HINT}; or {install}, and az login", url=url) from None
    logging.getLogger("azure.identity").addHandler(logging.NullHandler())  # else each source that fails is on stderr
    try:
        token = DefaultAzureCredential().get_token(AZURE_SCOPE)
    except (ClientAuthenticationError, CredentialUnavailableError):
        raise StorageError(f"no Azure credentials: az login, or set {SETTINGS_HINT}", url=url) from None
    return token.token, float(token.expires_on)


# ---- requests ----


def _address(account: AzureAccount, container: str, name: str, query: Mapping[str, str]) -> str:
    """Return the URL of the blob *name*, or of the *container* if that is "", with *query* and the account's SAS.

    Example: https://ACCOUNT.blob.core.windows.net/CONTAINER/NAME?comp=block&SAS.
    """
    path = "/".join(quote(part, safe="~", errors="surrogateescape") for part in [container, *name.split("/")] if name)
    query_text = urlencode(query, errors="surrogateescape", quote_via=quote)
    query_text = "&".join(filter(None, [query_text, account.sas]))
    return f"{account.endpoint}/{path or quote(container)}{'?' + query_text if query_text else ''}"


def _request(
    method: str,
    url: str,
    verb: str = "read",
    statuses: Collection[int] = DONE_STATUSES,
    *,
    name: str | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes | bytearray | None = None,
    pinned: bool = False,
    query: Mapping[str, str] | None = None,
) -> Response:
    """Make one request for the blob *url*, or for its container if *name* is ""; return its response.

    *name*: None for the blob of *url*. The status of the response is one of *statuses*; *verb* ("read", "write",
    "list", "remove") and *pinned* choose the error for any other (`_status_error`). *headers*, *query*: added to the
    request, by name. *body* is sent with its MD5. *pinned*: True if a version of the blob was read before, so that a
    missing blob was deleted meanwhile.

    Redirects are not followed. Raises: TransientError if there is no response, or a retry may help; StorageError for
    any other status, an untrusted certificate, and without account or credentials.
    """
    try:
        account = _account()
    except StorageError as error:
        raise StorageError(error.message, url=url) from None
    container, blob = bucket_and_name(url)
    address = _address(account, container, blob if name is None else name, query or {})
    sent = {"x-ms-version": API_VERSION, "x-ms-date": formatdate(usegmt=True), **(headers or {})}
    if body is not None:
        sent["Content-Length"] = str(len(body))
        sent["Content-MD5"] = integrity.md5_base64(body)
    if account.key:
        sent["Authorization"] = _signature(account, method, address, sent)
    elif not account.sas:
        sent["Authorization"] = f"Bearer {_token(url)}"
    payload: Any = body if body is None or not len(body) else Payload(memoryview(body))
    response = HTTP_CLIENT.request(method, address, url, headers=sent, body=payload, follow=False)
    if response.status not in statuses:
        raise _status_error(response, verb, pinned, bool(account.key))
    return response


def _status_error(response: Response, verb: str, pinned: bool, by_key: bool) -> Exception:
    """Return the error that *response* reports (Blob service error codes), and close it.

    *verb* was requested. *pinned*: True if a version of the blob was read before, so that a missing blob was deleted
    meanwhile. *by_key*: the account's key signed the request; for the message. StorageError if the container is
    missing, or the credentials are refused; to "write" ExistsError if the blob exists; NoPermissionError for other 403;
    else the error by `http.status_error`: TransientError if busy, for 404 to a "read" NotFoundError (*pinned*:
    ChangedError), …
    """
    url, code = response.url, response.headers.get("x-ms-error-code", "")
    if code == "ContainerNotFound":
        response.close()
        return StorageError(f"no such container: {bucket_and_name(url)[0]}", url=url)
    if verb == "write" and code in EXISTS_CODES:
        response.close()
        return ExistsError(url)
    if code in NOT_ACCEPTED:
        response.close()
        return StorageError(f"the server does not accept the credentials ({code}): see {SETTINGS_HINT}", url=url)
    if response.status == 403:
        response.close()
        advice = (
            "is the key right, is this machine in the network rules?" if by_key else "the role or SAS has to allow it"
        )
        return NoPermissionError(f"no permission to {verb} ({code}): {advice}", url=url)
    return http.status_error(response, verb, pinned=pinned, code=code)


# ---- reading ----


def object_at(url: str) -> Object:
    """Return the blob *url*. Raises: UsageError without container or name, or with . or .. between slashes."""
    container, name = bucket_and_name(url)
    if not container or not name:
        raise UsageError("write azure://CONTAINER/BLOB", url=url)
    if {".", ".."} & set(name.split("/")):
        raise UsageError("the name of a blob can't have . or .. between slashes", url=url)
    return _Blob(url)


class _Blob:
    """The blob *url* in Azure Storage: reads, removes and makes it, as a `contract.Object`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Request the bytes *start* to *end* (exclusive; None: to the last), of the ETag *version* unless it is "".

        For a range behind the end the body is empty. If a response has no size, size and version are taken from `head`,
        if the blob exists. Raises: TransientError; StorageError.
        """
        headers = http.range_header(start, end) | ({"If-Match": version} if version else {})
        response = _request("GET", self.url, "read", RANGE_STATUSES, headers=headers, pinned=bool(version))
        about = response.headers
        reply = http.make_reply(response.status, about, response, self.url, start, about.get("ETag", ""))
        if reply.size is None and (blob := self.head()):  # the range begins behind the end
            return reply._replace(size=blob.size, version=blob.version)
        return reply

    def head(self) -> ListedObject | None:
        """Return size, time and ETag of the blob; None if it does not exist.

        Size and time are None, the ETag "" if the server does not tell them. Raises: TransientError; StorageError, also
        if the container does not exist.
        """
        try:
            response = _request("HEAD", self.url)
        except NotFoundError:
            return None
        response.drain()
        about = response.headers
        modified = parse_date(about.get("Last-Modified", ""))
        return ListedObject(self.url, content_length(about), modified, about.get("ETag", ""))

    def remove(self) -> None:
        """Remove the blob; no failure if it or its container does not exist. Raises: TransientError; StorageError."""
        _request("DELETE", self.url, "remove", (202, *DONE_STATUSES, 404)).drain()

    def output(self, force: bool) -> Upload:
        """Return an upload that makes the blob at `commit`; unless *force*, that fails if the blob exists."""
        return Upload(_Blocks(self, force))


def page(prefix: str, token: str, flat: bool) -> Page:
    """Return a page of the blobs whose URLs begin with *prefix*, in the order of the store.

    *token*: `Page.next` of the page before, "" for the first page. *flat*: only blobs without a slash behind *prefix*.
    Directories of a hierarchical account are left out. Raises: TransientError; StorageError.
    """
    container, start = bucket_and_name(prefix)
    query = {"restype": "container", "comp": "list", "prefix": start, "maxresults": str(PAGE_OBJECTS), "marker": token}
    if flat:
        query["delimiter"] = "/"
    chosen = {name: value for name, value in query.items() if value}
    response = _request("GET", prefix, "list", name="", query=chosen)
    data = http.read_all(response, prefix)
    try:
        tree = ET.fromstring(data)  # noqa: S314  # the server that the user names; expat limits what entities expand to
    except ET.ParseError:
        raise StorageError("the server's response is not the XML of this API", url=prefix) from None
    listed = [_entry_of_blob(container, blob) for blob in tree.iterfind("Blobs/Blob")]
    return Page([entry for entry in listed if entry is not None], tree.findtext("NextMarker") or "")


def _entry_of_blob(container: str, blob: ET.Element) -> ListedObject | None:
    """Return a blob of a listing of *container*; None for a directory, which a hierarchical account lists like one.

    Its version is the ETag in double quotes, as the header ETag has it; "" if it is missing. Size and time: None if
    missing or invalid.
    """
    if blob.findtext("Properties/ResourceType") == "directory":
        return None
    name = blob.findtext("Name") or ""
    if (element := blob.find("Name")) is not None and element.get("Encoded") == "true":  # XML has no such letters
        name = unquote(name)
    size, tag = blob.findtext("Properties/Content-Length") or "", blob.findtext("Properties/Etag") or ""
    quoted = tag if not tag or tag.startswith('"') else f'"{tag}"'  # as the header ETag has it
    modified = parse_date(blob.findtext("Properties/Last-Modified") or "")
    return ListedObject(f"azure://{container}/{name}", int(size) if size.isdecimal() else None, modified, quoted)


# ---- writing ----


class _Blocks:
    """The requests of an upload of *target* to Azure, as an `uploads.Target`: `put`; or `part`, `complete`.

    It sends blocks in any order, then a list of them, which makes the blob appear (Put Block, Put Block List). Blocks
    have names of this upload, so those of two writers never mix. Azure drops what is not listed after a week. *force*:
    replace an existing blob.
    """

    workers = 4  # blocks that are sent at once

    def __init__(self, target: _Blob, force: bool) -> None:
        self.url = target.url
        self._target = target
        self._condition = {} if force else {"If-None-Match": "*"}
        self._upload = os.urandom(6).hex()
        self._numbers: set[int] = set()
        self._is_doubtful = False  # the blob may have appeared without a response

    def put(self, data: bytearray) -> None:
        """Make the blob of *data* by one request; no error if an earlier attempt without a response has made it.

        Raises: ExistsError; TransientError; StorageError.
        """
        headers = {"x-ms-blob-type": "BlockBlob", **self._condition}
        self._finish(0, data, lambda: _request("PUT", self.url, "write", headers=headers, body=data))

    def begin(self) -> None:
        """Do nothing: the first block begins the upload."""

    def part(self, number: int, offset: int, data: bytearray) -> None:
        """Send *data* as block *number* (from 1); *offset* is not used. Raises: TransientError; StorageError."""
        _request("PUT", self.url, "write", body=data, query={"comp": "block", "blockid": self._block(number)}).drain()
        self._numbers.add(number)

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        """Send the last block if no earlier attempt has sent it, and the list of blocks, which makes the blob appear.

        *number*, *offset*, *data*: of the last block. No error if an earlier attempt without a response has made the
        blob. Raises: ExistsError; TransientError; StorageError.
        """
        if number not in self._numbers:
            self.part(number, offset, data)
        blocks = "".join(f"<Latest>{escape(self._block(n))}</Latest>" for n in sorted(self._numbers))
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'.encode()
        make = functools.partial(_request, "PUT", self.url, "write", headers=self._condition, body=body)
        self._finish(offset, data, lambda: make(query={"comp": "blocklist"}))

    def _block(self, number: int) -> str:
        """Return the id of block *number*: base64, of one length for all blocks of a blob."""
        return base64.b64encode(f"{number:05d}-{self._upload}".encode()).decode()

    def _finish(self, offset: int, data: bytearray, make: Callable[[], Response]) -> None:
        """Call *make*, one request that makes the blob; drop its ExistsError if an earlier attempt has made the blob.

        It counts as made by an earlier attempt, if there was one, if the blob ends at the end of *data*, which begins
        at byte *offset*, and has these bytes there. Raises: ExistsError; TransientError; StorageError.
        """
        is_doubtful, self._is_doubtful = self._is_doubtful, True
        try:
            make().drain()
        except ExistsError:
            if not is_doubtful:
                raise
            reply = self._target.get(offset, offset + len(data) + 1, "")
            with closing(reply.body) as body:
                if reply.size != offset + len(data) or body.read(len(data)) != data:
                    raise

    def abort(self) -> None:
        """Do nothing: no request drops blocks, and they are invisible."""
