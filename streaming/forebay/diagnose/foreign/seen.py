"""What the experiments on a user's loader found out, and the figures that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from forebay.diagnose.foreign.child import Description, Failure
from forebay.diagnose.foreign.setting import Setting
from forebay.diagnose.foreign.window import Window
from forebay.statistics import Estimate, ratio

WORTH = 1.1
"""A setting that is so many times as fast as the present one is worth a word."""
SURE = 1.05
"""That it is at least so many times as fast must be certain to 95 %."""
_FED, _FED_BY_PLENTY, _PLENTY = 0.05, 0.1, 1.25


@dataclass(slots=True, kw_only=True)
class Seen:
    """All that was found out; what was not tried, or did not work, is None or not there."""

    spec: str
    cpus: float
    description: Description | None = None
    base: Window | Failure | None = None
    """The loader as it is, first look."""
    looks: dict[Setting, Window | Failure] = field(default_factory=dict)
    """The first look at each other setting."""
    turns: dict[Setting, list[Window]] = field(default_factory=dict)
    """The present setting and the candidates, measured in turns: the same number of each."""
    one_thread: list[Window] = field(default_factory=list)
    """The present setting in turns with these, with one thread for each library's pool."""
    stepped: list[Window] = field(default_factory=list)
    """The loader as it is, with the training step, several times."""
    ceiling: float | None = None
    """Seconds of the training step by itself."""
    pinned: list[tuple[Window, Window]] = field(default_factory=list)
    """With the training step, in turns: as it is, and with ``pin_memory``; only where CUDA is."""
    memory: Window | None = None
    same_in_workers: bool | None = None
    """Whether each worker of an ``IterableDataset`` gives the same."""
    ways_out: dict[Setting, Window | Failure] = field(default_factory=dict)
    """Where the loader fails as it is: what it does with other settings."""
    interrupted: bool = False
    """Whether a signal ended the experiments before they were all done."""

    @property
    def starved(self) -> float | None:
        """The share of its time that the training step waits for the loader; None without a step.

        What steps take longer than with their batch at hand; but no more than the time waited in
        the loader: a step that is slow for want of CPUs does not wait for data. Of a GPU that runs
        behind the host, the wait in the loader alone would say too much.
        """
        if not self.stepped or self.ceiling is None:
            return None
        lost = [max(1.0 - self.ceiling / w.per_batch, 0.0) for w in self.stepped]
        waited = [w.wait_seconds / w.seconds for w in self.stepped]
        return median(map(min, lost, waited))

    @property
    def fed(self) -> bool:
        """Whether the training step waits so little that it is not worth a word.

        A loader that could give more than the step takes may still cost it some milliseconds a
        batch: fetching one takes as long.
        """
        limit = _FED_BY_PLENTY if self.plenty else _FED
        return self.starved is not None and self.starved < limit

    @property
    def plenty(self) -> bool:
        """Whether the loader by itself is faster than the step: if that waits, batches come
        irregularly, or fetching them takes long. Settings are compared with the step then."""
        return isinstance(self.base, Window) and self.feeds(self.base.rate)

    def feeds(self, rate: float) -> bool:
        """Whether so many batches a second are plenty for the training step."""
        return self.ceiling is not None and rate * self.ceiling >= _PLENTY

    def gain(self, setting: Setting) -> Estimate | None:
        """How many times the batches of the present setting; None if not measured in turns."""
        present = self.turns.get(self.present.setting)
        if setting == self.present.setting or not present:
            return None
        return _gain(self.turns.get(setting, []), present)

    @property
    def gain_of_one_thread(self) -> Estimate | None:
        """How many times as many with one thread for each library's pool."""
        return _gain(self.one_thread, self.turns.get(self.present.setting, []))

    @property
    def gain_of_pinning(self) -> Estimate | None:
        """How many times as many steps with ``pin_memory``."""
        return _gain([b for _, b in self.pinned], [a for a, _ in self.pinned])

    @property
    def undecided(self) -> bool:
        """Whether the setting that looks the fastest may be shown to be, by more measurements."""
        gains = [gain for s in self.turns if (gain := self.gain(s)) is not None]
        best = max(gains, key=lambda g: g.value, default=None)
        return best is not None and best.value >= WORTH and best.low <= SURE

    @property
    def fails_alone(self) -> bool:
        """Whether a loader that fails was seen to fail without workers, too."""
        if self.description is None:
            return False
        alone = self.description.setting.with_(num_workers=0)
        return alone == self.description.setting or isinstance(self.ways_out.get(alone), Failure)

    @property
    def present(self) -> Window:
        """The loader as it is, measured as the other settings are at the first look."""
        assert isinstance(self.base, Window)
        return self.stepped[0] if self.plenty and self.stepped else self.base


def _gain(ours: Sequence[Window], present: Sequence[Window]) -> Estimate | None:
    if not ours or len(ours) != len(present):
        return None
    return ratio([w.rate for w in ours], [w.rate for w in present], paired=True)
