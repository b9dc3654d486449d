"""A process of its own for runs, so that nothing leaks from one to the next.

It imports what the caller could import. A run writes what it likes to standard output and error;
results come back through a pipe of their own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import IO, Any, TypeVar

import msgspec

from forebay.compare.orders import Inputs, Order, Run
from forebay.errors import ForebayError
from forebay.observe.memory import family, memory_of_all

T = TypeVar("T")
_LOOK_SECONDS, _END_SECONDS = 0.5, 10.0
_LAST_WORDS = 2000


class RunFailed(ForebayError):
    """A run ended with an error, took too long, or took its process down."""


class Worker:
    """Runs one order after the other in one fresh process; one thread uses it."""

    def __init__(self, timeout: float = 600.0) -> None:
        self.timeout = timeout
        """Seconds that an answer may take; then the process is of no more use."""
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # until close()
        self._results, given = os.pipe()
        self._rest = b""
        self._busy = False
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "forebay.compare.child", str(given)],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(given,),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # Ctrl-C in a terminal goes to a whole session: whether the run ends is ours to say.
                start_new_session=True,
            )
        finally:
            os.close(given)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def scout(self, order: Order, batches: int) -> Inputs:
        """What so many batches are made of; see ``measuring.scout``.

        Raises:
            RunFailed: it did not get there; says why.
        """
        found, _ = self._asked({"scout": batches}, order, Inputs)
        return found

    def measure(self, order: Order) -> Run:
        """Run once, timed; see ``measuring.measure``.

        Raises:
            RunFailed: it did not get there; says why.
        """
        run, pss = self._asked({}, order, Run)
        seen = [p for p in (run.pss_bytes, pss) if p is not None]
        return replace(run, pss_bytes=max(seen, default=None))

    def close(self) -> None:
        """End the process and all that it started. May be called twice."""
        if self._output.closed:
            return
        try:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(_END_SECONDS if not self._busy else 0)
        except subprocess.TimeoutExpired:
            self._kill()
        finally:
            self._output.close()
            os.close(self._results)

    def _kill(self) -> None:
        for pid in reversed(family(self._process.pid)):
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _asked(self, what: Mapping[str, Any], order: Order, kind: type[T]) -> tuple[T, int | None]:
        assert self._process.stdin is not None
        line = msgspec.json.encode({**what, "order": order})
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as e:
            raise self._died() from e
        self._busy = True
        answer, pss = self._answer()
        self._busy = False
        if "error" in answer:
            raise RunFailed(answer["error"])
        return msgspec.convert(answer["result"], kind), pss

    def _answer(self) -> tuple[dict[str, Any], int | None]:
        """The next line that comes back, and the most memory that was seen until then."""
        deadline, most = time.monotonic() + self.timeout, 0
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RunFailed(f"it was stopped after {self.timeout:g} seconds (timeout)")
            if select.select([self._results], [], [], min(left, _LOOK_SECONDS))[0]:
                read = os.read(self._results, 1 << 16)
                if not read:
                    raise self._died()
                self._rest += read
            elif (seen := memory_of_all(family(self._process.pid))) is not None:
                most = max(most, seen.pss)
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer, most or None

    def _died(self) -> RunFailed:
        code = self._process.wait()
        self._output.seek(0)
        words = self._output.read().decode(errors="replace").strip()[-_LAST_WORDS:]
        return RunFailed(f"its process ended with code {code}" + (f": {words}" if words else ""))
