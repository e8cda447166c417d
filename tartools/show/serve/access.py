"""Who may ask: the token in the printed address, the names of this machine, and pages of this server alone."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

HOST_NAMES = frozenset(("127.0.0.1", "localhost", "::1"))
POLICY = (  # W3C, Content Security Policy Level 3
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class RefusedError(Exception):
    """A request that may not be answered: it gets the status 403, and the message, which says why, as text."""


class Access:
    """The token of a server, and its check of requests: `check` raises unless a request may be answered.

    `token`: random text, in the printed address and then in a cookie. `cookie`: the cookie's name, another one for each
    server.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self.cookie = f"tarshow-{secrets.token_hex(4)}"

    def cookie_header(self) -> str:
        """Return the value of Set-Cookie that stores the token: "NAME=TOKEN; HttpOnly; SameSite=Strict; Path=/"."""
        return f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"

    def is_token(self, text: str) -> bool:
        """True if *text* is the token."""
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())

    def check(self, headers: Mapping[str, str], query_token: str, is_opening: bool) -> None:
        """Raise RefusedError unless a request with these *headers* may be answered.

        It needs the token, a Host that is this machine (HOST_NAMES, any port), and, unless *is_opening*, a page of this
        server as its origin: if the request has these headers, Sec-Fetch-Site is "same-origin", or "none" for an
        address that the user entered, and Origin has the same host and port as Host. *query_token*: the token in its
        address, "" without one: then the cookie has to have it. *is_opening*: True for the address that is printed,
        which may be opened from anywhere.
        """
        host = headers.get("Host") or ""
        if host_name(host) not in HOST_NAMES:
            raise RefusedError("the name of the host has to be 127.0.0.1 or localhost")
        if not is_opening:
            if (headers.get("Sec-Fetch-Site") or "same-origin") not in ("same-origin", "none"):
                raise RefusedError("another page may not ask this server")
            origin = headers.get("Origin")
            if origin is not None and origin.partition("://")[2] != host:  # RFC 6454, 6.2: scheme, host and port
                raise RefusedError("another page may not ask this server")
        if not self.is_token(query_token or self._cookie_token(headers.get("Cookie") or "")):
            raise RefusedError("open the address that tarshow has printed, with its token")

    def _cookie_token(self, header: str) -> str:
        try:
            morsel = SimpleCookie(header).get(self.cookie)
        except CookieError:
            return ""
        return "" if morsel is None else morsel.value


def host_name(host: str) -> str:
    """Return the name in the header Host, in lower case, without port and brackets; "" if it is malformed.

    >>> host_name("127.0.0.1:8000"), host_name("[::1]:8000"), host_name("evil.example:80"), host_name("localhost:x")
    ('127.0.0.1', '::1', 'evil.example', '')
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?", host)
    return (match[1] or match[2]).lower() if match else ""
