"""A dev broker in a child process, so that it does not share the GIL with the code under test."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any

from forebay_kafka.devbroker.broker import DEFAULT_RETENTION_BYTES, DevBrokerError
from forebay_kafka.devbroker.faults import Faults

STOP_SECONDS = 5.0


class DevBrokerProcess:
    """Starts `python -m forebay_kafka.devbroker` and talks to it over its stdin and stdout.

    The child ends when its stdin closes, so it cannot outlive this process, however that dies.
    Methods may be called from any thread; one control command runs at a time.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        auto_create_partitions: int = 0,
        retention_bytes: int = DEFAULT_RETENTION_BYTES,
    ) -> None:
        self._settings = {
            "host": host,
            "port": port,
            "auto_create_partitions": auto_create_partitions,
            "retention_bytes": retention_bytes,
        }
        self._child: subprocess.Popen[str] | None = None
        self._bootstrap = ""
        self._turn = threading.Lock()
        self.faults = Faults(self._command)

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`; the port is known once the broker has started."""
        if not self._bootstrap:
            raise DevBrokerError("the dev broker is not running: call start(), or use `with`")
        return self._bootstrap

    @property
    def pid(self) -> int:
        """The child's process id, for tests that stop it with signals."""
        return self._running().pid

    def start(self) -> DevBrokerProcess:
        """Return once the broker accepts connections; DevBrokerError where it cannot listen."""
        if self._child is not None:
            raise DevBrokerError("the dev broker was started twice")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "forebay_kafka.devbroker", json.dumps(self._settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._bootstrap = str(self._answer())
        except DevBrokerError:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """End the child in good order; by force after five seconds. Harmless when repeated."""
        child, self._child, self._bootstrap = self._child, None, ""
        if child is None:
            return
        if child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # a command that a dead child did not read
                child.stdin.close()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()

    def kill(self) -> None:
        """SIGKILL the broker, as a crash would."""
        if self._child is not None:
            self._child.kill()
        self.stop()

    def _command(self, command: dict[str, Any]) -> Any:
        with self._turn:
            stdin = self._running().stdin
            assert stdin is not None
            try:
                stdin.write(json.dumps(command) + "\n")
                stdin.flush()
            except BrokenPipeError as cause:
                raise DevBrokerError(self._death()) from cause
            return self._answer()

    def _answer(self) -> Any:
        stdout = self._running().stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise DevBrokerError(self._death())
        answer = json.loads(line)
        if "error" in answer:
            raise DevBrokerError(answer["error"])
        return answer["result"]

    def _death(self) -> str:
        code = self._running().wait()
        return f"the dev broker's process ended with code {code}; its stderr says why"

    def _running(self) -> subprocess.Popen[str]:
        if self._child is None:
            raise DevBrokerError("the dev broker is not running: call start(), or use `with`")
        return self._child

    def __enter__(self) -> DevBrokerProcess:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
