"""A dev broker on an event loop of its own, in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from forebay_kafka.devbroker.broker import DEFAULT_RETENTION_BYTES, Broker, DevBrokerError
from forebay_kafka.devbroker.codes import Refusal
from forebay_kafka.devbroker.controls import in_words
from forebay_kafka.devbroker.faults import Faults


class DevBroker:
    """A broker for quick starts and tests: single node, no authentication, nothing on disk.

        with DevBroker() as broker:
            Producer({"bootstrap.servers": broker.bootstrap})

    It shares the GIL with the rest of the process; where that matters, use DevBrokerProcess.
    Methods may be called from any thread. stop() leaves neither a thread nor a socket.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        auto_create_partitions: int = 0,
        retention_bytes: int = DEFAULT_RETENTION_BYTES,
    ) -> None:
        self._address = (host, port)
        self._auto_create_partitions = auto_create_partitions
        self._retention_bytes = retention_bytes
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: Broker | None = None
        self._stopping: asyncio.Event | None = None
        self._bootstrap = ""
        self.faults = Faults(self._command)

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`; the port is known once the broker has started."""
        self._running()
        return self._bootstrap

    def start(self) -> DevBroker:
        """Return once the broker accepts connections; DevBrokerError where it cannot listen."""
        if self._thread is not None:
            raise DevBrokerError("the dev broker was started twice")
        started: Future[str] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(started)), name="dev-broker"
        )
        self._thread.start()
        try:
            self._bootstrap = started.result()
        except DevBrokerError:
            self._thread.join()
            self._thread = None
            raise
        return self

    def stop(self) -> None:
        """Close all sockets and end the thread. Harmless when repeated."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stopping is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join()

    async def _main(self, started: Future[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._broker = Broker(
            auto_create_partitions=self._auto_create_partitions,
            retention_bytes=self._retention_bytes,
        )
        try:
            started.set_result(self._broker.listen(*self._address))
        except DevBrokerError as error:
            started.set_exception(error)
            return
        await self._stopping.wait()
        await self._broker.stop()

    def _command(self, command: dict[str, Any]) -> Any:
        loop, broker = self._running()

        async def obey() -> Any:
            return broker.controls.obey(command)

        try:
            return asyncio.run_coroutine_threadsafe(obey(), loop).result()
        except (ValueError, Refusal) as error:
            raise DevBrokerError(in_words(error)) from error

    def _running(self) -> tuple[asyncio.AbstractEventLoop, Broker]:
        if self._thread is None or self._loop is None or self._broker is None:
            raise DevBrokerError("the dev broker is not running: call start(), or use `with`")
        return self._loop, self._broker

    def __enter__(self) -> DevBroker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
