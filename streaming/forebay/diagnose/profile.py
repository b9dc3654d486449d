"""torch.profiler on demand, for a few steps: it slows them down, so never longer.

with StepProfiler("profile") as profiler:
    for batch in loader:
        train(batch)
        if profiler.step():
            break
print(profiler.summary().sentence)
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from forebay.diagnose.trace import ProfileSummary, summarise

_BEFORE = 2
"""Steps before those that are recorded: one without the profiler, one to warm it up."""


class StepProfiler:
    """Records ``steps`` steps after two others, once. Used by the thread that trains.

    Args:
        folder: where ``trace.json`` is written; made if it is not there.
        steps: how many to record.
    """

    def __init__(self, folder: str | os.PathLike[str], steps: int = 3) -> None:
        self.trace = Path(folder) / "trace.json"
        """The file, once it is recorded."""
        self._done = self._running = False
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=1, warmup=_BEFORE - 1, active=steps, repeat=1),
            on_trace_ready=self._save,
        )

    def __enter__(self) -> StepProfiler:
        self._profile.start()
        self._running = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._stop()

    def step(self) -> bool:
        """A step has ended. Whether all that were asked for are recorded: the profiler is off."""
        if self._running:
            self._profile.step()
            if self._done:
                self._stop()
        return self._done

    def summary(self) -> ProfileSummary | None:
        """What the steps went to; None if the loop ended before they were recorded."""
        return summarise(self.trace) if self._done else None

    def _stop(self) -> None:
        if self._running:
            self._running = False
            self._profile.stop()

    def _save(self, recorded: profile) -> None:
        # A loop that ends early is saved, too, on the way out: a part of the steps is no answer.
        if self._running:
            self.trace.parent.mkdir(parents=True, exist_ok=True)
            recorded.export_chrome_trace(str(self.trace))
            self._done = True
