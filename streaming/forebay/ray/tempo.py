"""How fast the stages are: what the pool did, and how many rows make a parcel worth its while."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.engine import StageCounts
from forebay.ray.working import Finished
from forebay.stage import Stage

# Ray takes 25 to 60 ms of CPU time for each parcel: one should be worth it.
_PARCEL_SECONDS = 0.2
_FIRST_ROWS = 64


class Tempo:
    """Counts finished parcels. The feed's lock guards it."""

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        self.stages = StageCounts(stages)
        self.busy_seconds, self.cpu_seconds, self.rows = 0.0, 0.0, 0
        self.row_seconds: float | None = None
        """Of one worker for one row; None until a parcel was finished."""

    def count(self, finished: Finished) -> None:
        """A parcel came back."""
        self.busy_seconds += finished.seconds
        self.cpu_seconds += finished.cpu_seconds
        self.rows += finished.rows
        self.stages.add(finished.stages)
        if finished.rows:
            took = max(finished.seconds / finished.rows, 1e-7)
            before = took if self.row_seconds is None else self.row_seconds
            self.row_seconds = 0.8 * before + 0.2 * took

    @property
    def parcel_rows(self) -> int:
        """Rows of the next parcel."""
        if self.row_seconds is None:
            return _FIRST_ROWS
        return max(1, int(_PARCEL_SECONDS / self.row_seconds))
