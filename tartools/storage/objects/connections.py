"""Connections that are kept, and what the environment says of them: proxies, certificates, passwords in .netrc."""

from __future__ import annotations

import functools
import os
import ssl
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi
import urllib3

from tartools.errors import StorageError, how_to_install

CONNECTIONS = 64  # that are kept open: to one server, and servers
HEADERS = {"User-Agent": "tartools", "Accept-Encoding": "identity"}
_PROXIES = [name for kind in ("http", "https", "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper())]

Trust = bool | str  # the usual certificates, any at all, or those in a file or folder

_lock = threading.Lock()  # threads share connections, but may not make what holds them at the same time


def connections(address: str, trust: Trust = True) -> urllib3.PoolManager:
    """Return the connections of this process by which *address* is reached: a fork must not share them.

    They make one attempt of a request, and follow no redirect.

    Raises: StorageError for certificates that can't be read; ValueError for a proxy that is no URL.
    """
    if trust is True:
        trust = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    proxy = _proxy_of(address)
    encrypted = "https:" in (address[:6], proxy[:6])
    with _lock:
        return _connections(os.getpid(), proxy, trust if encrypted else None)


@functools.cache
def _connections(process: int, proxy: str, trust: Trust | None) -> urllib3.PoolManager:
    """Return new connections; *trust* is None if nothing is encrypted."""
    context = None if trust is None else _context(trust)
    kept: dict[str, Any] = {"num_pools": CONNECTIONS, "maxsize": CONNECTIONS, "headers": HEADERS, "retries": False}
    kept["ssl_context"] = context
    if not proxy:
        return urllib3.PoolManager(**kept)
    if proxy.startswith("socks"):
        if find_spec("socks") is None:
            raise StorageError(f"this proxy needs a library: {how_to_install('PySocks')}")
        from urllib3.contrib.socks import SOCKSProxyManager

        return SOCKSProxyManager(proxy, **kept)
    name, password = urlsplit(proxy).username, urlsplit(proxy).password or ""
    headers = urllib3.make_headers(proxy_basic_auth=unquote(f"{name}:{password}") if name else None)
    return urllib3.ProxyManager(proxy, proxy_headers=headers, proxy_ssl_context=context, **kept)


def _context(trust: Trust) -> ssl.SSLContext:
    """Return what checks certificates. The usual ones are those of the system, or `SSL_CERT_FILE`, and Mozilla's."""
    try:
        if isinstance(trust, str):
            folder = os.path.isdir(trust)
            return ssl.create_default_context(cafile=None if folder else trust, capath=trust if folder else None)
        context = ssl.create_default_context()
        if trust:
            context.load_verify_locations(certifi.where())
        else:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the user wants that
        return context
    except OSError:
        what = "cannot read the file of trusted certificates (REQUESTS_CA_BUNDLE, AIS_CLIENT_CA)"
        raise StorageError(what) from None


def _proxy_of(address: str) -> str:
    """Return the URL of the proxy for *address* (http_proxy, https_proxy, all_proxy, no_proxy), "" if there is none."""
    if sys.platform != "darwin" and not any(map(os.environ.get, _PROXIES)):
        return ""  # to make sure by `getproxies` takes as long as a small request
    known, parts = getproxies(), urlsplit(address)
    proxy = known.get(parts.scheme) or known.get("all") or ""
    server = parts.netloc.rpartition("@")[2]
    if not proxy or proxy_bypass(server) or _is_in(parts.hostname or "", known.get("no", "")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_in(host: str, networks: str) -> bool:
    """Tell whether *host* is an address in one of *networks* (10.0.0.0/8, …), which `proxy_bypass` does not know."""
    for network in networks.split(","):
        with suppress(ValueError):
            if "/" in network and ip_address(host) in ip_network(network.strip(), strict=False):
                return True
    return False


def netrc_header(address: str) -> dict[str, str]:
    """Return the header with name and password for the server of *address*, if `$NETRC` or ~/.netrc has them."""
    for name in [os.environ["NETRC"]] if "NETRC" in os.environ else ["~/.netrc", "~/_netrc"]:
        with suppress(OSError):
            path = os.path.expanduser(name)
            return _netrc(path, os.stat(path).st_mtime_ns, urlsplit(address).hostname or "")
    return {}


@functools.cache
def _netrc(path: str, changed: int, host: str) -> dict[str, str]:
    """Return the header for *host*, that of nobody if the file *path*, last *changed* then, can't be parsed."""
    from netrc import NetrcParseError, netrc

    try:
        found = netrc(path).authenticators(host)
    except NetrcParseError:
        return {}
    return urllib3.make_headers(basic_auth=f"{found[0] or found[1]}:{found[2] or ''}") if found and any(found) else {}
