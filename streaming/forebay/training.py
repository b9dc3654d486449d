"""A run of a training function: its loader, its checkpoints, and an orderly end on a signal.

The position that is saved covers the batches whose step has ended. A step has ended when the
next batch is asked for, when the function asks for the state, or when it returns.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from torch.utils.data import IterableDataset

from forebay.autoscale import Taken
from forebay.checkpoint import load_torch, save_torch
from forebay.engine import PoolStats
from forebay.errors import StateError
from forebay.loader import Loader, LoaderIterator
from forebay.options import LoaderOptions, LoaderStats, SplitStats
from forebay.stepclock import StepClock
from forebay.tensors import Batch

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Ours alone: the alarm and the user signals belong to the training function and to schedulers.
_OVERDUE = signal.SIGRTMIN + 8
# One press of Ctrl-C may come twice: from the terminal to the whole group, and from a launcher that
# passes its own on (torchrun, timeout).
_ECHO_SECONDS = 0.5
_libc = ctypes.CDLL(None)
_libc.signal.argtypes, _libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p


class Stop(BaseException):
    """Ends a run in the middle of a step that takes too long, or of the wait for a batch."""


class Stopper:
    """Turns the first SIGTERM or SIGINT into an orderly stop; the second ends the process.

    What comes within half a second of the first is its echo, and does nothing. A wait for the next
    batch ends at once. A step may take ``grace`` seconds to end; then ``Stop`` is raised in it, and
    its batch counts as not trained. Main thread only.
    """

    def __init__(self, grace: float = 1.0) -> None:
        self._grace = grace
        self._waits = self._shielded = self._late = False
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None
        self._echo: threading.Timer | None = None
        self.signal: signal.Signals | None = None
        """The signal that came; None: go on."""

    def __enter__(self) -> Stopper:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        self._before[_OVERDUE] = signal.signal(_OVERDUE, self._on_overdue)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.finish()
        if self._echo is not None:
            self._echo.cancel()
            self._echo.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def finish(self) -> None:
        """Raise nothing any more: the training is over, what is left is to save and to close."""
        self._shielded = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, a signal raises ``Stop`` at once."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Inside, nothing is raised; what was due is raised at the end."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self._late:
            self._late = False
            raise Stop

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        for other in _SIGNALS:
            signal.signal(other, _ignored)
        self._echo = _started(threading.Timer(_ECHO_SECONDS, _end_by_signals))
        if self._waits:
            raise Stop
        self._timer = _started(threading.Timer(self._grace, self._interrupt))

    def _interrupt(self) -> None:
        """Interrupt the main thread, wherever it is."""
        ident = threading.main_thread().ident
        if ident is not None:
            signal.pthread_kill(ident, _OVERDUE)

    def _on_overdue(self, number: int, frame: FrameType | None) -> None:
        if not self._shielded:
            raise Stop
        self._late = True


def _started(timer: threading.Timer) -> threading.Timer:
    timer.daemon = True
    timer.start()
    return timer


def _ignored(number: int, frame: FrameType | None) -> None:
    """The echo of a signal."""


def _end_by_signals() -> None:
    """Let the next signal end the process, also while it is in native code.

    Python lets only its main thread say so, which may be there for long.
    """
    for number in _SIGNALS:
        _libc.signal(number, None)


class TrainingLoader(IterableDataset[Batch]):
    """The loader that a training function is given: it ends when the run is to stop.

    Args:
        loader: with ``state_of="committed"``, so that its state covers ended steps only.
        commits: whether the function calls ``commit()`` itself.
        after_step: called after each step that has ended, with the number of batches so far.
        limit: the most batches to give.
    """

    def __init__(
        self,
        loader: Loader,
        stopper: Stopper,
        *,
        commits: bool = False,
        after_step: Callable[[int], None] | None = None,
        limit: int | None = None,
    ) -> None:
        self._loader, self._stopper = loader, stopper
        self._commits, self._after_step, self._limit = commits, after_step, limit
        self._in_step = False
        self.batches = 0
        """Batches given so far."""
        self.error: Exception | None = None
        """What ended the loop: an error of the source, of a stage, of the loader; not of a step."""

    def __iter__(self) -> Iterator[Batch]:
        return _Batches(self, iter(self._loader))

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def stopping(self) -> bool:
        """Whether the run is to stop; the batch at hand is the last."""
        return self._stopper.signal is not None

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch at hand, whose step thereby has ended."""
        self._end_step()
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was taken."""
        self._loader.load_state_dict(state_dict)

    def commit(self, batches: int = 1) -> None:
        """Say that batches are trained, where the topology says ``state_of: committed``."""
        if not self._commits:
            raise StateError(
                "commit() is for loader.state_of: committed; without it a batch counts as trained "
                "when the next one is asked for"
            )
        self._loader.commit(batches)

    def stats(self) -> LoaderStats:
        """What happened so far. Any thread."""
        return self._loader.stats()

    def lag(self) -> Mapping[str, int]:
        """Records of each split that were not delivered yet. Any thread."""
        return self._loader.lag()

    def splits(self) -> Mapping[str, SplitStats]:
        """How far each split is. Any thread."""
        return self._loader.splits()

    def pools(self) -> Mapping[str, PoolStats]:
        """The pools of workers by name. Any thread."""
        return self._loader.pools()

    def decisions(self) -> list[Taken]:
        """What the autoscaler decided; oldest first. Any thread."""
        return self._loader.decisions()

    def reader_counts(self) -> Mapping[str, float]:
        """What the source's reader counts of itself, by name. Any thread."""
        return self._loader.reader_counts()

    @property
    def options(self) -> LoaderOptions:
        """How the loader runs."""
        return self._loader.options

    @property
    def step_clock(self) -> StepClock:
        """What measures where the trainer's time goes."""
        return self._loader.step_clock

    def pause(self, name: str) -> AbstractContextManager[None]:
        """Count the time inside as a pause of training, by its name; see ``Loader.pause``."""
        return self._loader.pause(name)

    def abandon_step(self) -> None:
        """Say that the step at hand did not end: its batch comes again after a resume."""
        self._in_step = False

    def close(self) -> None:
        """Stop every thread and client."""
        self._loader.close()

    def _next(self, batches: LoaderIterator) -> Batch:
        self._end_step()
        if self.stopping or self.batches == self._limit:
            raise StopIteration
        try:
            with self._stopper.waiting():
                batch = next(batches)
        except Stop:
            # A batch that may just have come is not committed: it comes again after a resume.
            raise StopIteration from None
        except StopIteration:
            raise
        except Exception as e:
            if _comes_of_stop(e):
                raise StopIteration from None
            self.error = e
            raise
        self._in_step = True
        self.batches += 1
        return batch

    def _end_step(self) -> None:
        if not self._in_step:
            return
        with self._stopper.shielded():
            self._in_step = False
            if not self._commits:
                self._loader.commit()
            if self._after_step is not None:
                self._after_step(self.batches)


def _comes_of_stop(error: BaseException | None) -> bool:
    """Whether a signal came while C code ran that does not let ``Stop`` through: Cython, which Ray
    is made with, raises a SystemError in its place."""
    while error is not None and not isinstance(error, Stop):
        error = error.__cause__ or error.__context__
    return error is not None


class _Batches(Iterator[Batch]):
    def __init__(self, loader: TrainingLoader, batches: LoaderIterator) -> None:
        self._loader, self._batches = loader, batches

    def __next__(self) -> Batch:
        return self._loader._next(self._batches)


class Checkpoint:
    """Model and position, saved together into one file, by the training function itself.

    def train(loader, checkpoint):
        if (saved := checkpoint.load()) is not None:
            model.load_state_dict(saved["model"])
        for batch in loader:
            train_step(batch)
            if checkpoint.due:
                checkpoint.save({"model": model.state_dict()})
        checkpoint.save({"model": model.state_dict()})
    """

    def __init__(
        self, path: Path, loader: TrainingLoader, *, every: int, run: str | None = None
    ) -> None:
        self.path = path
        self._loader, self._every, self._run = loader, every, run
        self._saved_at = 0

    @property
    def due(self) -> bool:
        """Whether to save now: ``every`` batches since the last time, or the run is to stop."""
        return self._loader.stopping or self._loader.batches - self._saved_at >= self._every

    def load(self) -> Any:
        """What was saved last, or None; the loader goes on from there.

        Raises:
            StateError: the file is damaged, and the one before, too; or of another run.
        """
        whole = load_torch(self.path)
        if whole is None:
            return None
        if not isinstance(whole, dict) or whole.keys() != {"payload", "data", "run"}:
            raise StateError(
                f"{self.path} was not saved by a run of a topology. Give this run a checkpoint "
                "path of its own."
            )
        if self._run is not None and whole["run"] not in (None, self._run):
            raise StateError(
                f"{self.path} belongs to the run {whole['run']!r}, this one is {self._run!r}. "
                "Give each run a checkpoint path of its own."
            )
        self._loader.load_state_dict(whole["data"])
        return whole["payload"]

    def save(self, payload: Any) -> None:
        """Store ``payload`` with the position after the batch at hand.

        Raises:
            StateError: it cannot be written; what was saved before is untouched.
        """
        data = self._loader.state_dict()
        with self._loader.pause("checkpoint"):
            save_torch(self.path, {"payload": payload, "data": data, "run": self._run})
        self._saved_at = self._loader.batches
