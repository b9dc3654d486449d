"""The decisions of the past: every change, and what held in between."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from forebay.autoscale.decision import Decision

_log = logging.getLogger("forebay.autoscale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A decision, or a row of equal ones to hold."""

    at: float
    """Wall-clock seconds since the epoch of the last one."""
    since: float
    """Of the first one."""
    times: int
    pool: str
    before: int
    """Workers when it was taken."""
    workers: int
    reason: str
    applied: bool
    """Whether it was done: not in a dry run, and not where nothing changes."""

    @property
    def holds(self) -> bool:
        """Whether it leaves the pool as it is."""
        return self.workers == self.before


class DecisionLog:
    """Keeps the last decisions, and logs each change with its reason.

    One thread adds, any may read: what is kept is never changed, only replaced.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._kept: tuple[Taken, ...] = ()
        self._counts: dict[tuple[str, str], int] = {}

    def list(self) -> list[Taken]:
        """The last decisions, oldest first."""
        return list(self._kept)

    def counts(self) -> Mapping[tuple[str, str], int]:
        """All decisions so far, by pool and by what they were for: ``up``, ``down`` or ``hold``."""
        return self._counts.copy()

    def add(self, at: float, before: int, d: Decision, *, applied: bool) -> None:
        """Remember a decision; one to hold for the same reason as before counts up that one."""
        taken = Taken(
            at=at,
            since=at,
            times=1,
            pool=d.pool,
            before=before,
            workers=d.workers,
            reason=d.reason,
            applied=applied,
        )
        counted = (d.pool, _action(taken))
        self._counts[counted] = self._counts.get(counted, 0) + 1
        kept = self._kept
        last = next((t for t in reversed(kept) if t.pool == d.pool), None)
        if last is not None and _same(last, taken):
            kept = tuple(t for t in kept if t is not last)
            taken = replace(taken, since=last.since, times=last.times + 1)
        self._kept = (*kept, taken)[-self._keep :]
        if not taken.holds:
            done = "" if applied else " (dry run)"
            _log.info("%s: %d to %d workers%s: %s", d.pool, before, d.workers, done, d.reason)
        elif taken.times == 1:
            _log.debug("%s: %d workers, %s", d.pool, before, d.reason)


def _action(taken: Taken) -> str:
    if taken.holds:
        return "hold"
    return "up" if taken.workers > taken.before else "down"


def _same(a: Taken, b: Taken) -> bool:
    return a.holds and b.holds and a.before == b.before and _words(a.reason) == _words(b.reason)


def _words(reason: str) -> str:
    """The reason less its figures, which change every second."""
    return re.sub(r"[\d.,]+", "#", reason)
