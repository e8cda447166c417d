"""A network in between, for measurements by hand: round trips that take their time, connections that are no faster.

    python -m tests.storage.objects.servers http DIR             # the server; says where it listens
    python -m tests.storage.objects.delay --to 127.0.0.1:8080 --delay 0.03 --rate 85e6
    time tarcat http://127.0.0.1:PORT/big.tar >/dev/null   # PORT is what the proxy says

For S3 and GCS put the proxy's address into `AWS_ENDPOINT_URL` or `STORAGE_EMULATOR_HOST`. moto and the emulator are too
slow to measure with: nginx with a directory `bucket` does for reading S3 (that it has no bucket, nobody notices). A
redirect of AIStore leads past this proxy.

What it models:
 - Each connection costs one delay before its first byte, for the handshake of TCP.
 - Each turn costs one delay: the client's first bytes after the server has spoken (or at the start) wait that long, as
   a request waits for its answer. Bytes that follow in the same direction do not wait again, so a long body comes
   after one delay, and `Expect: 100-continue` costs a second one.
 - Each direction of each connection passes on at most *rate* bytes a second, after a burst of 256 KiB.
What it does not: slow start and lost packets, TLS, a limit that all connections share. Bytes wait in the buffers of the
sockets, a few MB, so a client may have sent a body before it has arrived.

It moves pages, not bytes (splice(2), Linux): of two cores, shared with client and server, it takes a small part.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import socket
import sys
import threading
import time

PIPE = 1 << 20  # bytes
BURST = 256 << 10  # bytes


class Pace:
    """Seconds to wait so that no more than *rate* bytes a second pass."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0  # when all that has passed would have passed at that rate

    def wait(self, count: int) -> None:
        """Wait as long as *count* bytes that have just passed take."""
        now = time.monotonic()
        self._free = max(self._free, now - BURST / self._rate) + count / self._rate
        if self._free > now:
            time.sleep(self._free - now)


class Line:
    """A connection through the proxy: two threads, which are over when both ends have hung up."""

    def __init__(self, client: socket.socket, to: tuple[str, int], delay: float, rate: float) -> None:
        self._client = client
        self._to = to
        self._delay = delay
        self._rate = rate
        self._answering = True  # the next bytes of the client begin a turn

    def run(self) -> None:
        """Connect, and pass on until the end."""
        with self._client, socket.socket() as server:
            time.sleep(self._delay)
            try:
                server.connect(self._to)
            except OSError:
                return
            for end in (self._client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._pass, args=(server, self._client, False), daemon=True)
            back.start()
            self._pass(self._client, server, True)
            back.join()

    def _pass(self, source: socket.socket, sink: socket.socket, asking: bool) -> None:
        """Pass on all that comes from *source*, then its end."""
        reading, writing = os.pipe()
        try:
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE)
        except OSError:
            pass  # the user's share of pipe memory is used up: 64 KiB then
        pace = Pace(self._rate)
        try:
            while count := os.splice(source.fileno(), writing, PIPE):
                if asking and self._answering:
                    time.sleep(self._delay)
                self._answering = not asking
                left = count
                while left:
                    left -= os.splice(reading, sink.fileno(), left)
                pace.wait(count)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one end has gone: so shall the other
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        finally:
            os.close(reading)
            os.close(writing)


def serve(listening: socket.socket, to: tuple[str, int], delay: float, rate: float) -> None:
    """Pass on the connections to *listening*, until it is closed."""
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=Line(client, to, delay, rate).run, daemon=True).start()


def main(arguments: list[str]) -> None:
    """Run a proxy until it is interrupted, or its stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.storage.objects.delay")
    parser.add_argument("--listen", type=int, default=0, help="port of 127.0.0.1; 0: one that is free")
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--delay", type=float, default=0.03, help="seconds of a round trip")
    parser.add_argument("--rate", type=float, default=85e6, help="bytes a second of one connection")
    options = parser.parse_args(arguments)
    host, _, port = options.to.removeprefix("http://").rpartition(":")
    with socket.create_server(("127.0.0.1", options.listen), backlog=256) as listening:
        print("http://127.0.0.1:{1}".format(*listening.getsockname()), flush=True)  # noqa: T201
        place = (host, int(port))
        threading.Thread(target=serve, args=(listening, place, options.delay, options.rate), daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
