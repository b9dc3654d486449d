"""Tries a user's loader in a process of its own, and looks in from outside when nothing comes.

Whatever the loader does, each question is answered: by a measurement, or by what went wrong.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from forebay.diagnose.foreign.child import Description, Failure
from forebay.diagnose.foreign.stacks import ProcessState, cpu_seconds, states
from forebay.diagnose.foreign.window import CLOSING, Request, Window
from forebay.observe.memory import family

_POLL_SECONDS = 0.2
_STILL_AT_WORK = 6.0
"""A loader that computes may be silent so many times longer than one that sleeps, and so may a
factory, and workers that end."""
_BUSY = 0.05
_STARTING = "starting"
_SLOW_PHASES = (_STARTING, CLOSING)
_LOG_LINES = 12
_CLOSE_SECONDS = 10.0
_MODULE = "forebay.diagnose.foreign.child"


class Laboratory:
    """Answers questions about the loader of ``spec``; used by one thread.

    Args:
        spec: ``module:factory``.
        patience: seconds without a word and without work after which a loader hangs.
        step_seconds: how long a simulated training step takes; None: the factory's step is taken.
    """

    def __init__(self, spec: str, patience: float, step_seconds: float | None) -> None:
        self._spec, self._patience, self._step_seconds = spec, patience, step_seconds
        self._folder = Path(tempfile.mkdtemp(prefix="forebay-doctor-"))
        self._running: dict[tuple[tuple[str, str], ...], _Process] = {}

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for process in self._running.values():
            process.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def describe(self) -> Description | Failure:
        """What the factory gave."""
        return self._process({}).description

    def window(
        self, request: Request, variables: Mapping[str, str] | None = None
    ) -> Window | Failure:
        """One measurement; with ``variables`` in a process with these in its environment."""
        order = {"window": msgspec.to_builtins(request), "step_seconds": self._step_seconds}
        answer: Window | Failure = self._ask(order, variables or {})
        return answer

    def ceiling(self, steps: int) -> float | Failure:
        """Seconds of the training step by itself."""
        answer: float | Failure = self._ask({"ceiling": steps}, {})
        return answer

    def _ask(self, order: Mapping[str, Any], variables: Mapping[str, str]) -> Any:
        process = self._process(variables)
        if isinstance(process.description, Failure):
            return process.description
        answer = process.ask(order)
        if process.ended:
            self._running.pop(tuple(sorted(variables.items())), None)
        return answer

    def _process(self, variables: Mapping[str, str]) -> _Process:
        """One for each environment; a new one if the last hung or died."""
        key = tuple(sorted(variables.items()))
        if key not in self._running:
            self._running[key] = _Process(self._spec, self._folder, self._patience, variables)
        return self._running[key]


class _Process:
    """One child, from its start to its end."""

    def __init__(
        self, spec: str, parent: Path, patience: float, variables: Mapping[str, str]
    ) -> None:
        self._patience = patience
        self._folder = Path(tempfile.mkdtemp(dir=parent))
        self._log = (parent / f"{self._folder.name}.log").open("w+")
        ours, theirs = Pipe(duplex=False), Pipe(duplex=False)
        self._answers, self._requests = ours[0], theirs[1]
        fds = (theirs[0].fileno(), ours[1].fileno())
        path = os.pathsep.join(p for p in sys.path if p)
        self._child = subprocess.Popen(
            [sys.executable, "-m", _MODULE, *map(str, fds), str(self._folder), spec],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=fds,
            env={**os.environ, "PYTHONPATH": path, **variables},
            start_new_session=True,
        )
        ours[1].close()
        theirs[0].close()
        self.ended = False
        try:
            self.description: Description | Failure = self._answer()
        except BaseException:  # a signal: nobody knows of the process yet, to end it
            self.end()
            raise

    def ask(self, order: Mapping[str, Any]) -> Any:
        """Its answer, or what went wrong."""
        try:
            self._requests.send_bytes(json.dumps(order).encode())
        except OSError:
            return self._died()
        return self._answer()

    def end(self) -> None:
        """End it and all that it started."""
        if self.ended:
            return
        self.ended = True
        for connection in (self._requests, self._answers):
            connection.close()
        # Its own session, which nobody else is in: its workers and theirs end with it.
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(_CLOSE_SECONDS)
        self._log.close()

    def _answer(self) -> Any:
        heard, doing, work = time.monotonic(), _STARTING, -1.0
        while True:
            message = self._message()
            if message is not None and "told" in message:
                heard, doing, work = time.monotonic(), message["told"], -1.0
                continue
            if message is not None:
                return self._converted(message)
            if self._child.poll() is not None:
                return self._died()
            # Only looked up when it is silent: a look takes CPU time that is being measured.
            now = self._cpu_seconds()
            work, silent = now if work < 0 else work, time.monotonic() - heard
            slow = doing in _SLOW_PHASES or now - work > _BUSY * silent
            if silent > self._patience * (_STILL_AT_WORK if slow else 1):
                return self._hangs(doing, silent)

    def _message(self) -> dict[str, Any] | None:
        """The next message; None if none comes for a moment."""
        try:
            if self._answers.poll(_POLL_SECONDS):
                message: dict[str, Any] = json.loads(self._answers.recv_bytes())
                return message
        except (EOFError, OSError):
            self._child.wait(_CLOSE_SECONDS)
        return None

    def _converted(self, message: Mapping[str, Any]) -> Any:
        kinds: dict[str, Any] = {
            "Description": Description,
            "Failure": Failure,
            "Window": Window,
            "float": float,
        }
        answer = msgspec.convert(message["value"], kinds[message["answer"]])
        if isinstance(answer, Failure):
            self.end()  # what it left behind (workers, half an epoch) must not be in the next one
        return answer

    def _died(self) -> Failure:
        code = self._child.wait(_CLOSE_SECONDS)
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        details = self._said()
        self.end()
        return Failure(
            kind="died", what=f"the process with the loader ended {how}", details=details
        )

    def _hangs(self, doing: str, silent: float) -> Failure:
        seen = states(self._folder, family(self._child.pid))
        self.end()
        what = f"for {silent:.0f} s nothing came after {doing}"
        return Failure(kind="hang", what=what, details=tuple(told(seen)))

    def _cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, family(self._child.pid)))

    def _said(self) -> tuple[str, ...]:
        self._log.flush()
        self._log.seek(0)
        return tuple(self._log.read().splitlines()[-_LOG_LINES:])


def told(seen: Sequence[ProcessState]) -> list[str]:
    """Each process in words, those first that have something to do."""
    lines: list[str] = []
    for process in sorted(seen, key=lambda p: (p.worker is None, p.idle, p.worker or 0)):
        who = "the main process" if process.worker is None else f"worker {process.worker}"
        if process.idle:
            does = "waits for the workers" if process.worker is None else "has nothing to do"
            lines.append(f"{who} (pid {process.pid}) {does}")
            continue
        using = f", uses {process.cpu:.1f} CPUs" if process.cpu >= _BUSY else ""
        lines.append(f"{who} (pid {process.pid}) {process.state}{using}, at {process.place}")
    return lines
