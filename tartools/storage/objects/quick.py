"""Ranges of a known version by urllib3 alone: half the processor time of `requests`, which counts for small objects."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any
from urllib.request import getproxies

import urllib3
from urllib3 import exceptions

from tartools.storage.objects.http import CONNECTIONS, connection_error
from tartools.storage.objects.retry import timeouts

_PROXIES = tuple(name for kind in ("http", "https", "all") for name in (f"{kind}_proxy", f"{kind}_PROXY".upper()))
_HEADERS = {"User-Agent": "tartools", "Accept-Encoding": "identity"}


class Answer:
    """A response of urllib3, as `http.reply` and `http.status_error` take one of `requests`."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.headers = raw.headers
        self.status_code: int = raw.status

    def close(self) -> None:
        """Release the connection."""
        self.raw.close()


def answer(address: str, url: str, headers: dict[str, str]) -> Any:
    """Return the response to a GET of *address*, whatever its status; None if `requests` has to make the request.

    That is for proxies, redirects, credentials in .netrc, and certificates that only it trusts.

    Raises: as `http.request`, where there is no response.
    """
    if any(map(os.environ.get, _PROXIES)) or (sys.platform == "darwin" and getproxies()):
        return None
    times = timeouts()
    try:
        raw = _pool_of(os.getpid()).request(
            "GET",
            address,
            headers=_HEADERS | headers,
            preload_content=False,
            decode_content=False,
            redirect=False,
            timeout=urllib3.Timeout(connect=times.connect, read=times.idle),
        )
    except (exceptions.SSLError, exceptions.LocationValueError, UnicodeError):
        return None
    except (exceptions.HTTPError, OSError) as error:
        raise connection_error(error, url, times.connect) from None
    if 300 <= raw.status < 400 or raw.status in (401, 407):
        raw.close()
        return None
    return Answer(raw)


@functools.cache
def _pool_of(process: int) -> urllib3.PoolManager:
    return urllib3.PoolManager(num_pools=CONNECTIONS, maxsize=CONNECTIONS, retries=False)
