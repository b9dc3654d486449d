"""The loop around a policy: look, decide, apply, remember. One thread, and a clock to turn."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from forebay.autoscale.decision import Decision
from forebay.autoscale.gil import LockProbe
from forebay.autoscale.governor import Governor
from forebay.autoscale.log import DecisionLog
from forebay.autoscale.observation import Observation
from forebay.autoscale.observer import Observer, Sample
from forebay.autoscale.settings import Autoscaling
from forebay.autoscale.trace import TraceFile

_log = logging.getLogger("forebay.autoscale")
# Between two decisions the thread looks so often whether the interpreter's lock is taken.
_NAPS = 10
_JOIN_SECONDS = 5.0
# Samples until rates show a change whole.
_SETTLE_SAMPLES = 4


class Resizable(Protocol):
    """What a loop changes: a feed."""

    def resize(self, pool: str, workers: int) -> None:
        """Change the number of workers of a pool. Any thread."""


class Scaler:
    """A policy with what it needs between two decisions: rates, patience, a memory.

    Has no thread and no clock: the sample says when it is. The simulator runs the same one.
    """

    def __init__(self, settings: Autoscaling) -> None:
        self._policy = settings.chosen()
        self._observer = Observer(settings.price)
        self._governor = Governor(settings.guards, _SETTLE_SAMPLES * settings.interval)
        self._complained = False

    def decide(self, sample: Sample) -> tuple[Observation, list[Decision]]:
        """What is seen, and the steps to take."""
        seen = self._observer.observe(sample)
        return seen, self._governor.settle(seen, self._decisions(seen))

    def _decisions(self, seen: Observation) -> Sequence[Decision]:
        try:
            return self._policy.decide(seen)
        except Exception as e:  # a user's policy; training need not end for it
            if not self._complained:
                _log.exception("the autoscale policy failed: sizes stay as they are")
            self._complained = True
            reason = f"hold: the policy raised {type(e).__name__}: {e}"
            return [Decision(k, p.size, reason) for k, p in seen.pools.items()]


class AutoscaleLoop:
    """Decides every ``interval`` seconds on a thread of its own, until ``stop``.

    Args:
        feed: whose pools are resized.
        look: the counts of now; called on the loop's thread.
        settings: how it decides.
        log: where the decisions are kept.
        probe: whether stages share this process's interpreter lock.
        trace: gets every observation.
        clock: wall-clock seconds for the decisions.
    """

    def __init__(
        self,
        feed: Resizable,
        look: Callable[[], Sample],
        settings: Autoscaling,
        log: DecisionLog,
        *,
        probe: LockProbe | None = None,
        trace: TraceFile | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._feed, self._look, self._settings, self._log = feed, look, settings, log
        self._scaler = Scaler(settings)
        self._probe, self._trace, self._clock = probe, trace, clock
        self._failed = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-autoscale", daemon=True)

    def start(self) -> None:
        """Begin to decide."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for the thread's end after ``stop``, but not for ever.

        It may be asking a cluster that is gone, or a policy that does not return.
        """
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)
            if self._thread.is_alive():
                _log.warning("the autoscaler does not end: it waits for an answer")

    def tick(self) -> None:
        """Decide once, now."""
        seen, decisions = self._scaler.decide(self._look())
        if self._trace is not None:
            self._trace.write(seen)
        for d in decisions:
            before = seen.pools[d.pool].size
            applies = d.workers != before and not self._settings.dry_run
            if applies:
                self._feed.resize(d.pool, d.workers)
            self._log.add(self._clock(), before, d, applied=applies)

    def _run(self) -> None:
        while self._wait():
            self._tick_or_hold()

    def _tick_or_hold(self) -> None:
        try:
            self.tick()
        except Exception:  # training goes on with the sizes that there are
            if not self._failed:
                _log.exception("the autoscaler could not look or act: sizes stay as they are")
            self._failed = True
        else:
            self._failed = False

    def _wait(self) -> bool:
        """Wait until the next decision, looking at the interpreter's lock; False to stop."""
        naps = _NAPS if self._probe is not None else 1
        for _ in range(naps):
            if self._stopped.wait(self._settings.interval / naps):
                return False
            if self._probe is not None:
                self._probe.nap()
        return True
