"""An FTP server in this process: the commands of RFC 959 that clients send to read and to write one file."""

from __future__ import annotations

import socket
import threading
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Self

CHUNK_BYTES = 64 << 10


class FtpServer(ThreadingTCPServer):
    """Has `files`, by path, for whoever is in `passwords`; "" is any password."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.files: dict[str, bytes] = {}
        self.passwords = {"anonymous": ""}
        self.cut: int | None = None  # bytes of a download, after which it breaks off
        self.read_only = False
        self.logins: list[tuple[str, str]] = []

    def url(self, path: str, user: str = "", scheme: str = "ftp") -> str:
        """Return the URL of a file."""
        return f"{scheme}://{user}127.0.0.1:{self.server_address[1]}{path}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Session(StreamRequestHandler):
    server: FtpServer

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def handle(self) -> None:
        self._user, self._has_access = "", False
        try:
            self.say("220 ready")
            while line := self.rfile.readline().decode().strip():
                word, _, argument = line.partition(" ")
                if word == "QUIT":
                    self.say("221 bye")
                    return
                getattr(self, f"do_{word}", self.do_unknown)(argument)
        except OSError:
            pass  # the client has hung up

    def do_unknown(self, argument: str) -> None:
        self.say("502 not implemented")

    def do_USER(self, argument: str) -> None:
        self._user = argument
        self.say("331 and the password?")

    def do_PASS(self, argument: str) -> None:
        self.server.logins.append((self._user, argument))
        password = self.server.passwords.get(self._user)
        self._has_access = password is not None and password in ("", argument)
        self.say("230 welcome" if self._has_access else "530 Login incorrect.")

    def do_TYPE(self, argument: str) -> None:
        self.say("200 as you like")

    def do_PASV(self, argument: str) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.say(f"227 Entering Passive Mode (127,0,0,1,{port >> 8},{port & 255})")

    def do_RETR(self, argument: str) -> None:
        if not self._has_access or argument not in self.server.files:
            self._refuse(f"550 {argument}: No such file or directory")
            return
        data = self.server.files[argument][: self.server.cut]
        with self._listening, self._data() as connection:
            for begin in range(0, len(data), CHUNK_BYTES):
                connection.sendall(data[begin : begin + CHUNK_BYTES])
        self.say("226 complete" if self.server.cut is None else "426 Data connection closed, file transfer aborted")

    def do_STOR(self, argument: str) -> None:
        if self.server.read_only or not self._has_access:
            self._refuse(f"550 {argument}: Permission denied")
            return
        with self._listening, self._data() as connection:
            data = b"".join(iter(lambda: connection.recv(CHUNK_BYTES), b""))
        self.server.files[argument] = data
        self.say("226 complete")

    def _data(self) -> socket.socket:
        self.say("150 here it comes")
        return self._listening.accept()[0]

    def _refuse(self, reply: str) -> None:
        self._listening.close()
        self.say(reply)
