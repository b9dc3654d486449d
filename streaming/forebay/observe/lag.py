"""How far each split is behind, and whether it keeps up: by what was seen in the last minutes."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.observe.snapshot import SplitSeen
from forebay.options import SplitStats


class LagWatch:
    """Looks at the splits now and then, and tells what that means. One thread."""

    def look(
        self, at: float, splits: Mapping[str, SplitStats], batches: int
    ) -> dict[str, SplitSeen]:
        """The splits as seen at the wall-clock time ``at``, after so many batches."""
        return {name: _seen(name, s) for name, s in splits.items()}


def _seen(name: str, s: SplitStats) -> SplitSeen:
    return SplitSeen(
        source=name.rpartition("/")[0] or name,
        position=s.delivered,
        end=s.end,
        lag_records=None if s.end is None else max(0, s.end - s.delivered) + s.pending,
        lag_fetched=_behind(s.end, s.fetched, 0),
        lag_checkpointed=_behind(s.end, s.saved, s.saved_pending),
    )


def _behind(end: int | None, at: int | None, pending: int) -> int | None:
    return None if end is None or at is None else max(0, end - at) + pending
