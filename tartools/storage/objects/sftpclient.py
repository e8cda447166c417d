"""An SFTP session through the program ssh: requests of several threads over one process, up to 2 MiB of them at once.

ssh makes the connection, so the user's ssh configuration holds: keys, agent, ports, jump hosts, host keys. It carries
the protocol over a socket, as for sftp(1). Source: draft-ietf-secsh-filexfer-02 (version 3); OpenSSH's PROTOCOL for the
extensions.

    request(body) ──> ssh ──> sftp-server      any thread writes a packet with a number of its own
    reply(number) <── ssh <── sftp-server      of the waiting threads one reads for all of them

No call waits for a thread of this module, since there is none: a program that ends with an open file does not hang.
"""

from __future__ import annotations

import os
import re
import select
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from tartools.storage.children import Child
from tartools.storage.objects.retry import timeouts
from tartools.storage.scratch import reopen_scratch, scratch_file

INIT, OPEN, CLOSE, READ, WRITE, LSTAT, FSTAT = 1, 3, 4, 5, 6, 7, 8
OPENDIR, READDIR, REMOVE, STAT, RENAME = 11, 12, 13, 17, 18
VERSION_REPLY, STATUS_REPLY, HANDLE_REPLY, DATA_REPLY = 2, 101, 102, 103
NAME_REPLY, ATTRS_REPLY, EXTENDED_REQUEST = 104, 105, 200
OK_STATUS, END_OF_FILE, NO_SUCH_FILE, NO_PERMISSION = 0, 1, 2, 3
FOR_READING, FOR_WRITING, CREATE = 0x01, 0x02, 0x08
HAS_SIZE, HAS_OWNER, HAS_MODE, HAS_TIMES, HAS_MORE = 0x01, 0x02, 0x04, 0x08, 1 << 31
REQUEST_BYTES = 32 << 10  # of a file in one request: what every server takes (section 3)
MAX_REQUESTS_IN_FLIGHT = 64  # in flight, as by sftp(1)
MAX_PACKET_BYTES = 1 << 20
SSH_OPTIONS = (  # nobody is asked anything, and nothing but the subsystem is run
    *("BatchMode=yes", "ConnectionAttempts=1", "LogLevel=ERROR", "RemoteCommand=none", "RequestTTY=no"),
    *("ForwardX11=no", "ForwardAgent=no", "ClearAllForwardings=yes", "PermitLocalCommand=no"),
)
DEATH_SECONDS = 2.0  # that ssh may take to end after the connection, to say why
CANNOT_CONNECT = re.compile(
    r"Connection (?:refused|timed out|reset)|Could not resolve|No route to host|unreachable|[Cc]losed by|"
    r"Connection to .* timed out|kex_exchange_identification"
)


class ConnectionFailedError(Exception):
    """There is no connection (any more), because of *reason*; *transient*: True if another attempt may help."""

    def __init__(self, reason: str, transient: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.transient = transient


class StatusError(Exception):
    """The server refuses a request: its status *code* (END_OF_FILE, NO_SUCH_FILE, ...), and its *message*."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Server(NamedTuple):
    """The *host*, *user* and *port* of a URL, as the user writes them; "" where ssh's configuration decides.

    All are text; *host* is not empty. An IPv6 *host* is without brackets.
    """

    host: str
    user: str = ""
    port: str = ""

    @property
    def command(self) -> list[str]:
        """The words of the command line of ssh that runs the SFTP subsystem of this server.

        With -o for each of `SSH_OPTIONS` and ConnectTimeout (the timeout to connect in whole seconds, at least 1), -p
        and -l for port and user if there are any: ssh -oBatchMode=yes … -p PORT -l USER -s -- HOST sftp.
        """
        options = [f"-o{option}" for option in (*SSH_OPTIONS, f"ConnectTimeout={max(int(timeouts().connect), 1)}")]
        options += ["-p", self.port] if self.port else []
        options += ["-l", self.user] if self.user else []
        return ["ssh", *options, "-s", "--", self.host, "sftp"]


class Attributes(NamedTuple):
    """The attributes of a file; each is None if the server does not send it.

    *size*: in bytes. *mode*: type and permissions, as in `os.stat`. *modified*: in seconds since 1970.
    """

    size: int | None
    mode: int | None
    modified: int | None


class Packet:
    """A packet of the protocol: its *kind*, a number such as STATUS_REPLY, and *data*, from which fields are taken.

    *data*: the bytes behind the kind. Each field is taken once, in order. Methods that take a field raise
    ConnectionFailedError if the packet ends before it does.
    """

    def __init__(self, kind: int, data: memoryview) -> None:
        self.kind = kind
        self._data = data

    def take_number(self) -> int:
        """Take the next field, a number of 4 bytes (big-endian, 0 or more), and return it."""
        return int.from_bytes(self._take(4))

    def take_bytes(self) -> memoryview:
        """Take the next field, a string (its length as a number, then its bytes), and return its bytes."""
        return self._take(self.take_number())

    def take_attributes(self) -> Attributes:
        """Take the next field, the attributes of a file (section 5), and return them; owner and atime are dropped."""
        size = mode = modified = None
        flags = self.take_number()
        if flags & HAS_SIZE:
            size = (self.take_number() << 32) + self.take_number()
        if flags & HAS_OWNER:
            self._take(8)
        if flags & HAS_MODE:
            mode = self.take_number()
        if flags & HAS_TIMES:
            self._take(4)
            modified = self.take_number()
        for _ in range(self.take_number() if flags & HAS_MORE else 0):
            self.take_bytes(), self.take_bytes()
        return Attributes(size, mode, modified)

    def is_empty(self) -> bool:
        """True if all fields were taken."""
        return not self._data

    def _take(self, count: int) -> memoryview:
        """Take the next *count* bytes, and return them. Raises: ConnectionFailedError if the packet has fewer."""
        if count > len(self._data):
            raise ConnectionFailedError("the server sent a packet that is too short (not SFTP version 3?)", False)
        taken, self._data = self._data[:count], self._data[count:]
        return taken


def pack_string(data: bytes) -> bytes:
    """Return *data* as a field of the protocol: its length in 4 bytes, big-endian, and the bytes."""
    return struct.pack(">I", len(data)) + data


class Session:
    """A connection to *server*, made at once, which all threads of this process share.

    `request` sends a request, and `reply` waits for its reply; `ask` does both. `extensions`: the extensions of the
    server, name -> version, as bytes.

    Methods that send or wait raise ConnectionFailedError if there is no connection (any more). Raises, when it is made:
    ConnectionFailedError; StorageError if there is no temporary file for the messages of ssh.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._owner = os.getpid()
        self._stderr = scratch_file()
        self._sending, self._changed = threading.Lock(), threading.Condition()
        self._replies: dict[int, Packet] = {}
        self._ignored: set[int] = set()  # numbers of requests whose replies nobody waits for
        self._receiving = False  # a thread reads for all that wait
        self._failure: ConnectionFailedError | None = None
        self._number = 0
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        try:
            self._child = Child(server.command, stdin=theirs, stdout=theirs, stderr=self._stderr.fileno())
        except FileNotFoundError:
            self._socket.close()
            raise ConnectionFailedError("the program ssh is missing: apt install openssh-client", False) from None
        finally:
            theirs.close()
        self.extensions = self._greet()

    def _greet(self) -> Mapping[bytes, bytes]:
        """Exchange versions; return the extensions of the server, name -> version. Raises: ConnectionFailedError.

        The server's version of the protocol is not compared.
        """
        limits = timeouts()
        with suppress(OSError):  # ssh has ended; what it has written says why
            self._socket.send(struct.pack(">IBI", 5, INIT, 3))
        packet = self._receive(limits.connect + limits.idle)
        if packet.kind != VERSION_REPLY:
            raise self._fail("the server does not speak SFTP", False)
        packet.take_number()
        extensions = {}
        while not packet.is_empty():
            name = bytes(packet.take_bytes())
            extensions[name] = bytes(packet.take_bytes())
        return extensions

    @property
    def is_open(self) -> bool:
        """True until `close` was called, or a method noticed that the connection failed."""
        return self._failure is None

    def close(self) -> None:
        """End the connection: methods that send or wait fail from now on. Does nothing in a fork."""
        self._fail("the connection was closed", True, 0.0)

    def forget(self) -> None:
        """In a fork: close the inherited socket without a message to the server; the session can't be used there."""
        self._socket.close()

    # ---- requests ----

    def request(self, kind: int, *fields: bytes | memoryview) -> int:
        """Send a request of *kind* (READ, OPEN, …) with *fields*; return its number, for `reply` or `ignore`.

        *fields*: bytes as the protocol has them, joined; strings by `pack_string`.
        """
        with self._sending:
            self._number = number = (self._number + 1) & 0xFFFFFFFF
            body = b"".join((struct.pack(">BI", kind, number), *fields))
            self._send(struct.pack(">I", len(body)) + body, timeouts().idle)
        return number

    def reply(self, number: int) -> Packet:
        """Wait for the reply to the request *number*, and return it; each reply can be waited for once.

        The request's number is already taken from it, as is the code of a status. Raises: ConnectionFailedError, also
        if no byte comes for the idle timeout, which ends the connection; StatusError for every status but OK.
        """
        with self._changed:
            while (packet := self._replies.pop(number, None)) is None:
                if self._failure is not None:
                    raise self._failure
                if self._receiving:
                    self._changed.wait()
                else:
                    self._receive_one()
        if packet.kind == STATUS_REPLY and (code := packet.take_number()) != OK_STATUS:
            raise StatusError(code, bytes(packet.take_bytes()).decode("utf-8", "replace"))
        return packet

    def ask(self, kind: int, *fields: bytes) -> Packet:
        """Send a request of *kind* with *fields*, wait for its reply, and return that.

        *fields*: bytes as the protocol has them, joined; strings by `pack_string`. The request's number is already
        taken from the reply. Raises: ConnectionFailedError; StatusError for every status but OK.
        """
        return self.reply(self.request(kind, *fields))

    def ignore(self, number: int) -> None:
        """Drop the reply to the request *number*, now or when it comes."""
        with self._changed:
            if self._replies.pop(number, None) is None:
                self._ignored.add(number)

    def open(self, path: bytes, flags: int) -> bytes:
        """Open the file *path*; return its handle, as a field for requests.

        *flags*: FOR_READING, FOR_WRITING, CREATE, joined by |. Raises: StatusError; ConnectionFailedError.
        """
        return pack_string(bytes(self.ask(OPEN, pack_string(path), struct.pack(">II", flags, 0)).take_bytes()))

    def close_soon(self, handle: bytes) -> None:
        """Close the open file *handle* (from `open`) without waiting for the reply; errors are ignored."""
        with suppress(ConnectionFailedError):
            self.ignore(self.request(CLOSE, handle))

    # ---- the wire ----

    def _receive_one(self) -> None:
        """Receive one packet, and keep it for the thread that waits for its number, unless it is to be ignored.

        The caller holds `_changed`, which is released meanwhile; all threads that wait are woken. Raises:
        ConnectionFailedError. Any other error, such as KeyboardInterrupt, ends the connection.
        """
        self._receiving = True
        self._changed.release()
        packet = None
        try:
            packet = self._receive(timeouts().idle)
            number = packet.take_number()
        except BaseException as error:
            if not isinstance(error, ConnectionFailedError):  # a signal: what comes next is the middle of a packet
                self._fail("reading was interrupted", True, 0.0)
            raise
        finally:
            self._changed.acquire()
            self._receiving = False
            self._changed.notify_all()
        if number in self._ignored:
            self._ignored.remove(number)
        else:
            self._replies[number] = packet

    def _receive(self, seconds: float) -> Packet:
        """Return the next packet, whose bytes come at most *seconds* apart.

        Raises: ConnectionFailedError, which ends the connection, also for a size that no packet has (0, over 1 MiB).
        """
        size, kind = struct.unpack(">IB", self._receive_bytes(5, seconds))
        if not 1 <= size <= MAX_PACKET_BYTES:
            raise self._fail("the server does not speak SFTP (does its shell print something at the start?)", False)
        return Packet(kind, memoryview(self._receive_bytes(size - 1, seconds)))

    def _receive_bytes(self, count: int, seconds: float) -> bytearray:
        """Return the next *count* bytes, which come at most *seconds* apart.

        Raises: ConnectionFailedError if they come later, or the connection ends; it ends the connection.
        """
        data = bytearray(count)
        buffer = memoryview(data)
        while buffer.nbytes:
            try:
                received = self._socket.recv_into(buffer)
            except BlockingIOError:
                if not self._wait(select.POLLIN, seconds):
                    raise self._fail(f"no byte came for {seconds:g} seconds", True, 0.0) from None
                continue
            except OSError:
                received = 0
            if not received:
                raise self._fail("the connection was dropped", True)
            buffer = buffer[received:]
        return data

    def _send(self, data: bytes, seconds: float) -> None:
        """Send *data*; meanwhile receive replies, if no other thread does: the server may wait for us to read.

        *seconds*: how long the server may neither take nor send a byte. The caller holds `_sending`. Raises:
        ConnectionFailedError.
        """
        remaining = memoryview(data)
        while remaining.nbytes:
            try:
                remaining = remaining[self._socket.send(remaining) :]
            except BlockingIOError:
                ready = self._wait(select.POLLIN | select.POLLOUT, seconds)
                if not ready:
                    raise self._fail(f"no byte was taken for {seconds:g} seconds", True, 0.0) from None
                if not ready & select.POLLOUT:
                    with self._changed:
                        if not self._receiving:
                            self._receive_one()
            except OSError:
                raise self._fail("the connection was dropped", True) from None

    def _wait(self, events: int, seconds: float) -> int:
        """Wait up to *seconds* for *events* (POLLIN, POLLOUT) on the socket; return events that happened, 0 if none.

        POLLERR and POLLHUP are returned, too, if they happen.
        """
        poll = select.poll()
        poll.register(self._socket, events)
        events_by_fd = poll.poll(seconds * 1000)
        return events_by_fd[0][1] if events_by_fd else 0

    def _fail(self, reason: str, transient: bool, seconds: float = DEATH_SECONDS) -> ConnectionFailedError:
        """End the connection; return its first failure, to be raised.

        Waits up to *seconds* for ssh to end. The failure is the one that ssh has reported on stderr; if it has reported
        none, it has *reason* and *transient* (True if another attempt may help). After the first call, later calls only
        return its failure; in a fork nothing is ended.
        """
        first = self._failure
        if first is None and os.getpid() == self._owner:
            self._child.has_ended(seconds)  # else what it says may not be complete
            first = self._failure = explain_failure(self._log(), self._server) or ConnectionFailedError(
                reason, transient
            )
            self._child.kill()
            self._child.wait()
            self._socket.close()
            self._stderr.close()
        return first or ConnectionFailedError(reason, transient)

    def _log(self) -> str:
        """Return the text that ssh has written to stderr."""
        with reopen_scratch(self._stderr) as file:
            return file.read().decode("utf-8", "replace")


def explain_failure(text: str, server: Server) -> ConnectionFailedError | None:
    """Return the failure that ssh reports in *text*, its stderr, with advice for *server*; None if that is blank.

    The advice is for host keys and authentication. It is transient only if the connection could not be made, or was
    closed or reset: not for host keys, authentication, a server without SFTP, or an unknown message.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    by_hand = (
        f"ssh {'-p ' + server.port + ' ' if server.port else ''}{server.user + '@' if server.user else ''}{server.host}"
    )
    if not lines:
        return None
    if "Host key verification failed" in text:
        if "HAS CHANGED" in text:
            reason = f"the server has another host key than before; if that is right, ssh-keygen -R {server.host}"
            return ConnectionFailedError(reason, False)
        reason = f"the host key of the server is not known: connect once by {by_hand}, or see StrictHostKeyChecking"
        return ConnectionFailedError(f"{reason} in ssh_config(5)", False)
    if "Permission denied (" in text or "Too many authentication failures" in text:
        ways = re.search(r"Permission denied (\(.*?\))", text)
        reason = f"authentication failed {ways[1] if ways else ''}".rstrip()
        return ConnectionFailedError(f"{reason}: {by_hand} has to work without a question (key, agent)", False)
    if "subsystem request failed" in text:
        return ConnectionFailedError("the server has no SFTP (subsystem request failed)", False)
    if CANNOT_CONNECT.search(text):
        last = re.sub(r"^ssh: ", "", lines[-1])
        return ConnectionFailedError(f"cannot connect: {last}", True)
    return ConnectionFailedError(f"ssh: {lines[-1]}", False)


# ---- the sessions of this process ----

_sessions: dict[Server, Session] = {}
_lock = threading.Lock()
_greeting: dict[Server, threading.Lock] = {}


def session_of(server: Server) -> Session:
    """Return the connection of this process to *server*; a new one if there is none, or it has failed or was closed.

    Raises: ConnectionFailedError if it can't be made; StorageError if there is no temporary file for ssh's messages.
    """
    with _lock:
        greeting = _greeting.setdefault(server, threading.Lock())
    with greeting:
        current = _sessions.get(server)
        if current is None or not current.is_open:
            current = _sessions[server] = Session(server)
        return current


def _close_all() -> None:
    """Close all connections of this process."""
    for open_session in _sessions.values():
        open_session.close()


def _forget_all() -> None:
    """In a fork: close the inherited sockets and leave the connections to the parent; `session_of` makes new ones."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _greeting.clear()
    for open_session in _sessions.values():
        open_session.forget()
    _sessions.clear()


def _register() -> None:
    """Have connections closed at the end of the program, and forgotten in forks."""
    import atexit

    atexit.register(_close_all)
    os.register_at_fork(after_in_child=_forget_all)


_register()
