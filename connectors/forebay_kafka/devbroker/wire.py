"""A client's connection: whole frames in, pieces of bytes out, with as few copies as possible."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

MAX_FRAME_BYTES = 100 * 1024 * 1024  # Kafka's socket.request.max.bytes
MAX_PIECES = 512  # in one sendmsg call; Linux takes 1024 at most
_TLS_HANDSHAKE = b"\x16\x03"  # as a length of Kafka's it were more than 350 MB


class BadFrame(Exception):
    """What arrived is not Kafka's protocol, or is too large."""


class CutOff(Exception):
    """The connection is to be closed instead of answering."""


class Wire:
    """One accepted socket; used on the broker's event loop only."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    @property
    def local_host(self) -> str:
        """Our address as this client reached it."""
        return str(self._sock.getsockname()[0])

    async def receive(self) -> bytearray | None:
        """The next request without its length, or None where the client has hung up."""
        size = await self._exactly(4)
        if size is None:
            return None
        length = int.from_bytes(size, "big")
        if size.startswith(_TLS_HANDSHAKE):
            raise BadFrame(
                "the client seems to speak TLS, which the dev broker does not: "
                "set its security.protocol to plaintext"
            )
        if not 10 <= length <= MAX_FRAME_BYTES:
            raise BadFrame(f"a request of {length} bytes")
        return await self._exactly(length)

    async def _exactly(self, count: int) -> bytearray | None:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            got = await self._loop.sock_recv_into(self._sock, view)
            if got == 0:
                return None
            view = view[got:]
        return buffer

    async def send(self, pieces: Sequence[bytes | bytearray]) -> None:
        """Send all pieces; only what the socket does not take at once is waited for."""
        for at in range(0, len(pieces), MAX_PIECES):
            await self._send_some(pieces[at : at + MAX_PIECES])

    async def _send_some(self, pieces: Sequence[bytes | bytearray]) -> None:
        try:
            sent = self._sock.sendmsg(pieces)
        except BlockingIOError:
            sent = 0
        for piece in pieces:
            if sent >= len(piece):
                sent -= len(piece)
                continue
            await self._loop.sock_sendall(self._sock, memoryview(piece)[sent:])
            sent = 0

    def close(self) -> None:
        self._sock.close()
