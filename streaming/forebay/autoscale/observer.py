"""From counts that only grow to rates: an observation is the difference of samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay.autoscale.observation import Observation, PoolSeen, SourceSeen, TrainerSeen
from forebay.engine import PoolStats

# In samples. Waiting shows at once; arrivals and service times are steadier over more of them.
_SHORT, _MIDDLE, _LONG = 3, 6, 12
# How fast a trainer is, from its last steps: so many, or what there was in the longest window.
_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Counts at one moment, from the beginning of the run; None where nothing is known."""

    at: float
    """Seconds of a monotonic clock."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """The end of each split, as the source itself told."""
    behind: Mapping[str, int] = field(default_factory=dict)
    """Rows of each split that were not delivered."""
    pools: Mapping[str, PoolStats] = field(default_factory=dict)
    batches: int = 0
    rows: int = 0
    """Rows that the trainer was given."""
    starved_seconds: float | None = None
    ready: float | None = None
    device_busy: float | None = None
    cpus: float | None = None
    gil: float | None = None


class Observer:
    """Keeps the last samples, and tells the rates between them."""

    def __init__(self, price: float = 0.0) -> None:
        self._price = price
        self._samples: deque[Sample] = deque(maxlen=_LONG + 1)
        self._demand: float | None = None
        self._rates: dict[str, float] = {}

    def observe(self, sample: Sample) -> Observation:
        """What is to be seen with this sample as the newest."""
        self._samples.append(sample)
        self._demand = self._seen_demand() or self._demand
        return Observation(
            at=sample.at,
            sources=self._sources(),
            pools={name: self._pool(name) for name in sample.pools},
            trainer=self._trainer(),
            cpus=sample.cpus,
            gil=sample.gil,
            price=self._price,
        )

    def _since(self, samples: int) -> tuple[Sample, Sample]:
        """A sample of before, and the newest."""
        return self._samples[max(-1 - samples, -len(self._samples))], self._samples[-1]

    def _sources(self) -> dict[str, SourceSeen]:
        now = self._samples[-1]
        return {
            name: SourceSeen(lag=_sum(splits, now.behind), arrival=self._arrival(splits))
            for name, splits in _by_source(now).items()
        }

    def _arrival(self, splits: list[str]) -> float | None:
        """By the oldest sample of the window that knows the ends, too."""
        now = self._samples[-1]
        for before in list(self._samples)[-1 - _MIDDLE : -1]:
            known = [k for k in splits if k in before.ends]
            if known and now.at > before.at:
                more = sum(now.ends[k] - before.ends[k] for k in known)
                return max(more, 0) / (now.at - before.at)
        return None

    def _pool(self, name: str) -> PoolSeen:
        now = self._samples[-1].pools[name]
        short, long = self._between(name, _SHORT), self._between(name, _LONG)
        rate = long.rows / long.busy if long is not None and long.busy > 0 and long.rows else None
        if rate is not None:
            self._rates[name] = rate
        return PoolSeen(
            workers=now.workers,
            starting=now.starting,
            queued=now.queued_slices,
            busy=None if short is None else short.busy_share,
            rate=self._rates.get(name),
            throughput=None if short is None else short.rows / short.seconds,
            cpu=None if long is None else long.cpu,
            least=now.least,
            most=now.most,
        )

    def _between(self, name: str, samples: int) -> _Between | None:
        before, now = self._since(samples)
        if name not in before.pools or now.at <= before.at:
            return None
        return _Between(now.at - before.at, before.pools[name], now.pools[name])

    def _trainer(self) -> TrainerSeen:
        last = list(self._samples)[-_SHORT:]
        return TrainerSeen(
            demand=self._demand,
            starved=self._starved(),
            ready=_mean([s.ready for s in last]),
            device_busy=_mean([s.device_busy for s in last]),
        )

    def _starved(self) -> float | None:
        before, now = self._since(_SHORT)
        if before.starved_seconds is None or now.starved_seconds is None or now.at <= before.at:
            return None
        share = (now.starved_seconds - before.starved_seconds) / (now.at - before.at)
        return min(max(share, 0.0), 1.0)

    def _seen_demand(self) -> float | None:
        """Rows of the source a second while the trainer does not wait; None if it took nothing."""
        now = self._samples[-1]
        for before in list(self._samples)[-2::-1]:
            if now.batches - before.batches >= _STEPS or before is self._samples[0]:
                return _demand(before, now)
        return None


@dataclass(frozen=True, slots=True)
class _Between:
    """A pool between two samples."""

    seconds: float
    before: PoolStats
    now: PoolStats

    @property
    def rows(self) -> int:
        return self.now.rows - self.before.rows

    @property
    def busy(self) -> float:
        return self.now.busy_seconds - self.before.busy_seconds

    @property
    def busy_share(self) -> float:
        workers = (self.before.workers + self.now.workers) / 2
        return min(max(self.busy / self.seconds / max(workers, 1), 0.0), 1.0)

    @property
    def cpu(self) -> float | None:
        before, now = self.before.cpu_seconds, self.now.cpu_seconds
        if before is None or now is None or self.busy <= 0:
            return None
        return min(max((now - before) / self.busy, 0.01), 1.0)


def _demand(before: Sample, now: Sample) -> float | None:
    if before.starved_seconds is None or now.starved_seconds is None:
        return None
    working = (now.at - before.at) - (now.starved_seconds - before.starved_seconds)
    rows = _delivered(before, now)
    return rows / max(working, 1e-3) if rows > 0 else None


def _delivered(before: Sample, now: Sample) -> float:
    """Rows of the source that reached the trainer, dropped ones included, if that is known."""
    common = [k for k in now.ends if k in before.ends and k in now.behind and k in before.behind]
    if not common or len(common) < len(now.ends):
        return now.rows - before.rows
    reached = _reached(now, common) - _reached(before, common)
    return reached if reached > 0 else now.rows - before.rows


def _reached(s: Sample, splits: list[str]) -> float:
    return sum(s.ends[k] - s.behind[k] for k in splits)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _by_source(s: Sample) -> dict[str, list[str]]:
    """The splits whose end is known, by what they are a part of: ``kafka:clicks``."""
    out: dict[str, list[str]] = {}
    for split in s.ends:
        out.setdefault(split.rpartition("/")[0] or split, []).append(split)
    return out


def _sum(splits: list[str], values: Mapping[str, int]) -> float | None:
    """Of the splits that are known; None if none is."""
    known = [values[k] for k in splits if k in values]
    return sum(known) if known else None
