"""A process of a demo: started with one argument, prints JSON lines, and never outlives it."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from typing import Any

import msgspec

from forebay.errors import ForebayError


class DemoFailed(ForebayError):
    """A process of the demo ended in a way it should not."""


class Child:
    """Runs a module, which is to call ``end_with_parent``; killed on exit, if it still runs.

    Args:
        module: as after ``python -m``; its last part is what messages call it.
        argument: what it finds as JSON in ``sys.argv[1]``.
    """

    def __init__(self, module: str, argument: msgspec.Struct) -> None:
        self._name = module.rpartition(".")[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, msgspec.json.encode(argument).decode()],
            stdin=subprocess.PIPE,  # never written to: its end is the parent's
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._lines: queue.Queue[Any] = queue.Queue()
        self._errors: list[bytes] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def line(self, timeout: float) -> Any:
        """The next line it printed, or None if none came in time."""
        try:
            return self._lines.get(timeout=timeout) if timeout else self._lines.get_nowait()
        except queue.Empty:
            return None

    def check(self) -> None:
        """Fail if it ended with an error.

        Raises:
            DemoFailed: with the last lines that it said.
        """
        code = self._process.poll()
        if code:
            self._readers[1].join()
            said = b"".join(self._errors).decode(errors="replace").strip().splitlines()
            raise DemoFailed(
                f"the demo's {self._name} ended with code {code}: " + " / ".join(said[-3:])
            )

    def kill(self) -> None:
        """SIGKILL: no handler, no flush, no good-bye."""
        if self.running:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                self._lines.put(msgspec.json.decode(line))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)
