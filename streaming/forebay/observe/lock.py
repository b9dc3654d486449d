"""Which stages hold the interpreter's lock, as far as their CPU time tells."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.observe.window import PoolIn, Window

LOCKED = 0.5
"""Of the time that the lock is taken: from here on threads stand in line for it."""
SHARED = 0.3
"""From here on it may be what threads wait for that are neither on a CPU nor in line for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """The stages that may hold the lock most of the time that it is taken."""

    stages: tuple[str, ...]
    """Those that spend most of their own time on a CPU come first: who waits for the lock does
    not. Several where CPU time does not tell: a decoder that released the lock uses it, too."""

    def said(self) -> str:
        """The half of a sentence that names them."""
        if len(self.stages) == 1:
            return f"stage {self.stages[0]!r} holds the interpreter's lock"
        names = ", ".join(map(repr, self.stages))
        return f"one of the stages {names} holds the interpreter's lock"


def holders(w: Window, pool: PoolIn) -> Holders | None:
    """Who among the stages holds the lock; None if it is not taken much, or by others.

    A thread holds the lock while it runs, or while it was to run and lost its CPU. So a stage
    that used less CPU time than half of the time that the lock was taken, or than half of what
    the process got, is not the one, however long its rows took: it waited. If all stages together
    used less than that, others hold it, such as the training loop.
    """
    if w.gil is None or w.gil < LOCKED or not w.stages:
        return None
    used = cpu_of_stages(w, pool)
    if used is None:
        return Holders(stages=tuple(sorted(w.stages, key=lambda k: -w.stages[k])))
    all_, got = sum(used.values()), w.cpu
    half = min(w.gil, all_ if got is None else max(got, all_)) / 2
    if all_ < half:
        return None
    able = [k for k in used if used[k] >= half] or [k for k in used if used[k] > 0]
    return Holders(
        stages=tuple(sorted(able, key=lambda k: -w.stages_cpu[k] / max(w.stages[k], 1e-9)))
    )


def cpu_of_stages(w: Window, pool: PoolIn) -> dict[str, float] | None:
    """CPUs' worth of time that each stage used, with what is under way; None if unknown."""
    done = sum(w.stages.values())
    if not done or any(k not in w.stages_cpu for k in w.stages):
        return None
    return {k: w.stages_cpu[k] * pool.busy * pool.workers / done for k in w.stages}
