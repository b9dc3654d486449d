"""The dashboard's server: one page, its data as a stream of events, JSON, and Prometheus' metrics.

    with Server(OwnRanks(monitor.history), "127.0.0.1", 9464) as server:
        print(server.url)

A thread for each connection. A viewer that is slow or gone holds up his own thread, for a bounded
time; nothing here runs on the trainer's thread or on the monitor's.
"""

from __future__ import annotations

import errno
import logging
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from forebay.errors import ConfigError
from forebay.observe.access import Access
from forebay.observe.board import Board
from forebay.observe.events import Events
from forebay.observe.prometheus import exposition
from forebay.observe.snapshot import Snapshot
from forebay.observe.verdict import judge

_log = logging.getLogger("forebay.observe")
DEFAULT_PORT = 9464
"""The usual one of exporters of OpenTelemetry's metrics for Prometheus."""
SECONDS_BETWEEN_EVENTS = 1.0
MOST_CONNECTIONS = 64
MOST_SPLITS_OF_HISTORY = 100_000
"""Each in each snapshot, of one answer: some 20 MB."""
_SEND_SECONDS = 10.0
"""So long a viewer may take what was sent, and a client to say what it wants."""
_LAST_WORD_SECONDS, _JOIN_SECONDS = 1.0, 2.0
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_JSON = "application/json"
_FULL = b"HTTP/1.1 503 Too Many Viewers\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_HEADERS = {
    # Nothing from elsewhere, no script or style within the page, no frame around it.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server:
    """Serves a board from ``start`` to ``close``.

    Args:
        board: whose ranks are shown.
        host: the address to listen on.
        port: 0: any that is free; see ``port`` once it is started.
        token: what a viewer must bring; needed for any address but loopback.

    Raises:
        ConfigError: the address needs a token, or is none of this machine, or is in use.
    """

    def __init__(
        self,
        board: Board,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        token: str | None = None,
    ) -> None:
        access = Access(host, token)
        try:
            self._http = _Http(host, port, board, access)
        except OSError as e:
            why = str(e)
            if e.errno == errno.EADDRINUSE:
                why = "the port is in use. Take another one, or port 0 for any that is free"
            raise ConfigError(f"the dashboard cannot listen on {host}:{port}: {why}") from e
        self._host, self._needs_token = host, token is not None
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.1,), name="forebay-dashboard", daemon=True
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """What to open in a browser of this machine; without the token."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """End every connection and thread, within seconds."""
        self._http.stopping.set()
        if self._thread.ident is not None:
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()
        self._http.end_all()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Http(ThreadingHTTPServer):
    """Knows its connections, so that there are not too many, and that all of them end."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, host: str, port: int, board: Board, access: Access) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.board, self.access, self.events = board, access, Events(board)
        self.assets = _assets()
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # The base of this asks DNS for our own name, which may take long.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self.process_request_thread,
            args=(request, client_address),
            name="forebay-viewer",
            daemon=True,
        )
        with self._lock:
            full = len(self._open) >= MOST_CONNECTIONS
            if not full:
                self._open[request] = thread
        if full:
            with suppress(OSError):
                request.sendall(_FULL)
            self.shutdown_request(request)
        else:
            thread.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if isinstance(sys.exc_info()[1], OSError):
            _log.debug("a viewer is gone", exc_info=True)
        else:
            _log.exception("a request to the dashboard failed")

    def end_all(self) -> None:
        """Let every viewer have what is being sent to him, then cut the connections that are left,
        and wait for their threads."""
        self._join_all(_LAST_WORD_SECONDS)
        with self._lock:
            still = list(self._open)
        for connection in still:
            with suppress(OSError):  # its client was faster
                connection.shutdown(socket.SHUT_RDWR)
        self._join_all(_JOIN_SECONDS)

    def _join_all(self, seconds: float) -> None:
        with self._lock:
            threads = list(self._open.values())
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class _Handler(BaseHTTPRequestHandler):
    """One request, then its connection ends."""

    server: _Http
    timeout = _SEND_SECONDS
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer, if the client may know."""
        self.close_connection = True
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if not self.server.access.names_us(self.headers.get("Host")):
            self._refuse(403, "this name is none of this machine's: open http://127.0.0.1 instead")
        elif url.path == "/healthz":
            self._send(b'{"status": "ok"}\n', _JSON)
        elif url.path == "/" and self.server.access.is_token(query.get("token", [""])[0]):
            self._take_token()
        elif not self.server.access.allows(self.headers, self.server.server_port):
            self._refuse(
                401, "a token is needed: open /?token=TOKEN, or send Authorization: Bearer TOKEN"
            )
        else:
            self._answer(url.path, query)

    def _answer(self, path: str, query: Mapping[str, Sequence[str]]) -> None:
        asset = self.server.assets.get("/page/index.html" if path == "/" else path)
        if asset is not None:
            self._send(*asset)
        elif path == "/metrics":
            self._send(*exposition(self.server.board.histories(), self.headers.get("Accept", "")))
        elif path == "/api/state":
            self._send(msgspec.json.encode(_state(self.server.board)), _JSON)
        elif path == "/api/history":
            self._history(query)
        elif path == "/events":
            self._events()
        else:
            self._refuse(404, "there is no such page: see /, /metrics, /api/state, /api/history")

    def _history(self, query: Mapping[str, Sequence[str]]) -> None:
        try:
            since = float(query.get("since", ["0"])[0])
        except ValueError:
            self._refuse(400, "since must be seconds since the epoch")
            return
        found = [_thinned(h, since) for h in self.server.board.histories()]
        self._send(_histories(found), _JSON)

    def _events(self) -> None:
        """Send the newest picture each second until the client is gone, or the server ends.

        The last one comes as the server ends, and tells how the run did.
        """
        self._head(200, "text/event-stream", length=None)
        last, ends = self.headers.get("Last-Event-ID"), False
        while True:
            self.server.events.look(max_age=0.0 if ends else SECONDS_BETWEEN_EVENTS / 2)
            last, events = self.server.events.since(last)
            try:
                self.wfile.write(events)
            except OSError:  # gone, or too slow
                return
            if ends:
                return
            ends = self.server.stopping.wait(SECONDS_BETWEEN_EVENTS)

    def _take_token(self) -> None:
        """Give a cookie for the token, and a clean address: the token stays in no history."""
        cookie = self.server.access.cookie(self.server.server_port)
        self._head(303, "text/plain", 0, {"Location": "/", "Set-Cookie": cookie})

    def _refuse(self, status: int, why: str) -> None:
        more = {"WWW-Authenticate": 'Bearer realm="forebay"'} if status == 401 else {}
        self._send(f"{why}\n".encode(), "text/plain; charset=utf-8", status, more)

    def _send(
        self,
        body: bytes,
        kind: str,
        status: int = 200,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self._head(status, kind, len(body), more)
        self.wfile.write(body)

    def _head(
        self, status: int, kind: str, length: int | None, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **(more or {}), "Content-Type": kind}.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()

    def _only_get(self) -> None:
        self.close_connection = True
        self._head(405, "text/plain", 0, {"Allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _only_get

    def version_string(self) -> str:
        """Without versions, which would only tell whom to attack how."""
        return "forebay"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests are many, and the first one has the token in its address."""


def _assets() -> dict[str, tuple[bytes, str]]:
    """The page's files by path: what is not listed here is not served."""
    found: dict[str, tuple[bytes, str]] = {}
    for file in (files("forebay.observe") / "page").iterdir():
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            found[f"/page/{file.name}"] = (file.read_bytes(), f"{kind}; charset=utf-8")
    return found


def _state(board: Board) -> dict[str, Any]:
    ranks = [
        {"snapshot": h[-1], "verdict": msgspec.to_builtins(judge(h))}
        for h in board.histories()
        if h
    ]
    return {"at": time.time(), "ranks": ranks, "targets": msgspec.to_builtins(board.targets())}


def _histories(found: Sequence[Sequence[Snapshot]]) -> bytes:
    # A snapshot at a time: the encoder holds the interpreter's lock, which the trainer needs.
    each = (b"[" + b",".join(map(msgspec.json.encode, h)) + b"]" for h in found)
    return b'{"histories":[' + b",".join(each) + b"]}"


def _thinned(history: Sequence[Snapshot], since: float) -> list[Snapshot]:
    """What came after ``since``; of jobs with very many splits older snapshots only now and then,
    as all of them would be too much to send. The newest are always there."""
    new = [s for s in history if s.at > since]
    splits = max((len(s.splits) for s in new), default=0)
    most = max(30, MOST_SPLITS_OF_HISTORY // max(splits, 1))
    if len(new) <= most:
        return new
    recent, older = new[-most // 2 :], new[: -most // 2]
    return older[:: -(-len(older) // (most // 2))] + recent
