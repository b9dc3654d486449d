"""The broker on an event loop: listens, serves each client's requests in turn, stops cleanly."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import replace

from forebay_kafka.devbroker import protocol
from forebay_kafka.devbroker.apis import API_VERSIONS, APIS, FLEXIBLE_FROM, Api, versions_answer
from forebay_kafka.devbroker.codes import Code
from forebay_kafka.devbroker.controls import Controls
from forebay_kafka.devbroker.protocol import Head, Message, Records
from forebay_kafka.devbroker.state import State
from forebay_kafka.devbroker.topics import Topics
from forebay_kafka.devbroker.transactions import Cancel, Transactions
from forebay_kafka.devbroker.wire import BadFrame, CutOff, Wire

DEFAULT_RETENTION_BYTES = 1 << 30
BACKLOG = 128
ACCEPT_AGAIN_SECONDS = 0.1
ALL_ADDRESSES = ("", "0.0.0.0", "::")

log = logging.getLogger(__name__)


class DevBrokerError(Exception):
    """The dev broker could not start, is not running, or could not obey a command."""


class Broker:
    """One node, data in memory; made, used and stopped on one running event loop."""

    def __init__(
        self,
        *,
        auto_create_partitions: int = 0,
        retention_bytes: int = DEFAULT_RETENTION_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        topics = Topics(
            retention_bytes=retention_bytes, auto_create_partitions=auto_create_partitions
        )
        self.state = State("", 0, topics, Transactions(topics, self._later))
        self.controls = Controls(self.state, self.drop_connections)
        self._listener: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def listen(self, host: str, port: int) -> str:
        """Start accepting; returns `host:port`. DevBrokerError where the address is not free."""
        listener = _listener(host, port)
        listener.setblocking(False)
        self._listener = listener
        self.state.host, self.state.port = host, listener.getsockname()[1]
        self._open(listener)
        return f"[{host}]:{self.state.port}" if ":" in host else f"{host}:{self.state.port}"

    async def stop(self) -> None:
        """Close every socket and wait for the tasks that used them."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener)
            listener.close()
        self.drop_connections()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def drop_connections(self) -> int:
        """Cut all client connections; returns how many there were."""
        for task in self._connections:
            task.cancel()
        return len(self._connections)

    def _later(self, seconds: float, action: Cancel) -> Cancel:
        def act() -> None:
            action()
            self.state.bell.ring()

        return self._loop.call_later(seconds, act).cancel

    def _accept(self, listener: socket.socket) -> None:
        """Take on one client. Not a task: cancelling one could lose a socket it had accepted."""
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            log.warning("cannot accept a connection: %s", error)
            self._loop.remove_reader(listener)
            self._loop.call_later(ACCEPT_AGAIN_SECONDS, self._open, listener)
            return
        self._take_on(Wire(sock))

    def _open(self, listener: socket.socket) -> None:
        if self._listener is listener:
            self._loop.add_reader(listener, self._accept, listener)

    def _take_on(self, wire: Wire) -> None:
        def done(task: asyncio.Task[None]) -> None:
            self._connections.discard(task)
            wire.close()  # here, because a task that is cancelled before it ran closes nothing

        task = self._loop.create_task(self._serve(wire))
        self._connections.add(task)
        task.add_done_callback(done)

    async def _serve(self, wire: Wire) -> None:
        """One request after the other, as Kafka does: a long poll holds up its own connection."""
        try:
            state = self._seen_by(wire)
            while (frame := await wire.receive()) is not None:
                pieces = await self._answer(frame, state)
                await self.controls.until_running()
                if pieces is not None:
                    await wire.send(pieces)
        except BadFrame as error:
            log.warning("closing a connection: %s", error)
        except (CutOff, ConnectionError):
            log.debug("a connection ended", exc_info=True)
        except Exception:
            log.exception("closing a connection after a failed request")

    def _seen_by(self, wire: Wire) -> State:
        """The state with an address that this client can reach, also if we listen on all."""
        if self.state.host not in ALL_ADDRESSES:
            return self.state
        return replace(self.state, host=wire.local_host)

    async def _answer(self, frame: bytearray, state: State) -> list[bytes | bytearray] | None:
        head = protocol.head(frame, FLEXIBLE_FROM)
        api = APIS.get(head.api_key)
        if api is None or not api.oldest <= head.version <= api.newest:
            return _unsupported(head)
        await self.controls.hold(api)
        response, records = await self._response(api, head, frame, state)
        if self.controls.take_drop(api):
            raise CutOff
        if response is None:
            return None
        return protocol.encode(response, head.version, head.correlation_id, records)

    async def _response(
        self, api: Api, head: Head, frame: bytearray, state: State
    ) -> tuple[Message | None, Records | None]:
        request = api.request.decode(memoryview(frame)[head.body_at :], version=head.version)
        error = self.controls.take_error(api)
        reply = await api.handler(state if error is None else self._nothing(), request)
        response, records = reply if isinstance(reply, tuple) else (reply, None)
        if error is not None and response is not None:
            protocol.put_error(response, error)
        return response, records

    def _nothing(self) -> State:
        """A broker without data: its answers have the right form, and are then made errors."""
        topics = Topics(retention_bytes=0)
        transactions = Transactions(topics, lambda seconds, action: lambda: None)
        return State(self.state.host, self.state.port, topics, transactions)


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as cause:
        raise DevBrokerError(f"cannot listen on {host!r}: there is no such host") from cause
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as cause:
        reason = os.strerror(cause.errno) if isinstance(cause, OSError) and cause.errno else cause
        raise DevBrokerError(
            f"cannot listen on {host}:{port}: {reason}; another port may do, and 0 takes a free one"
        ) from cause


def _unsupported(head: Head) -> list[bytes | bytearray]:
    if head.api_key != API_VERSIONS:
        raise BadFrame(f"request {head.api_key} version {head.version} is not supported")
    return protocol.encode(versions_answer(Code.UNSUPPORTED_VERSION), 0, head.correlation_id)
