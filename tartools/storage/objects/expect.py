"""Connections of botocore that are not used again after a server has refused a request without its body.

botocore sends `Expect: 100-continue` with the headers of an upload, and the body only if the server agrees. After a
refusal, the server may wait for the body nevertheless (RFC 9110, 10.1.1), and would take the next request for it:
HAProxy does. botocore uses such a connection again, and the next request waits until it times out.

Without the header, a refusal would be lost by TLS where a server closes the connection before all of the body came.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from botocore.awsrequest import AWSHTTPConnectionPool, AWSHTTPSConnectionPool


class _CloseAfterRefusal:
    """A mixin for pools of connections: it closes a connection whose request was refused before its body was sent."""

    def _put_conn(self, conn: Any) -> None:
        """Return *conn* to the pool; close it before if its request was refused before the body was sent.

        urllib3 opens a closed connection when it is used again.
        """
        if getattr(conn, "_response_received", False):  # of botocore: an answer came instead of 100 Continue
            conn.close()
        super()._put_conn(conn)  # type: ignore[misc]  # of the pool that this is a part of


class _HttpPool(_CloseAfterRefusal, AWSHTTPConnectionPool):  # type: ignore[misc]  # botocore has no types
    """Connections of botocore without TLS, closed after refusals."""

    pass


class _HttpsPool(_CloseAfterRefusal, AWSHTTPSConnectionPool):  # type: ignore[misc]
    """Connections of botocore by TLS, closed after refusals."""

    pass


def close_after_refusals(client: Any) -> None:
    """Let *client*, of botocore, close a connection whose request was refused before its body was sent.

    It holds for servers to which *client* has not connected yet. Does nothing if this version of botocore keeps its
    connections elsewhere.
    """
    with suppress(AttributeError):  # no public way leads there: another botocore keeps its own pools
        client._endpoint.http_session._pool_classes_by_scheme.update(http=_HttpPool, https=_HttpsPool)
