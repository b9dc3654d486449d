"""Which settings of a loader are tried: one changed at a time, then the promising ones in turns.

A first look at each setting finds those that may be better. Whether they are is measured after
that: the loader as it is and the candidates one after the other, several times over, so that what
slows down the machine for a while slows down all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.cpus import cpu_share
from forebay.diagnose.foreign.child import Description, Failure
from forebay.diagnose.foreign.laboratory import Laboratory
from forebay.diagnose.foreign.memory import growth_of
from forebay.diagnose.foreign.seen import WORTH, Seen
from forebay.diagnose.foreign.setting import FACTORS, Factor, Setting
from forebay.diagnose.foreign.window import Request, Window
from forebay.training import Stop

_STEP_UP = 1.15
_MOST_WORKERS, _PER_CPU = 64, 8
_BUSY = 0.7
_MANY_CPUS = 1.2
_MOST_CANDIDATES, _MOST_REPEATS, _STEP_REPEATS = 2, 3, 3
_OF_THE_BEST = 0.25
"""A candidate that gains less than this share of what the best one gains is not measured again."""
_MEMORY_LONGER, _MEMORY_AGAIN = 4.0, 2.0
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
ONE_THREAD = "OMP_NUM_THREADS=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is tried."""

    steps: int = 50
    """Batches in a stretch that is measured, if there is time for them."""
    seconds: float = 1.0
    """How long such a stretch is, about."""
    repeats: int = 3
    """How often the candidates are measured in turns, at least; up to three times as often while
    that may show a difference."""
    patience: float = 30.0
    """Seconds in which nothing comes and nobody computes: then it hangs."""
    step_seconds: float | None = None
    """How long a simulated training step takes; None: the factory's own, if it has one."""
    vary: Collection[Factor] = FACTORS


def experiments(
    lab: Laboratory, spec: str, plan: Plan, tell: Callable[[str], None] = lambda _: None
) -> Seen:
    """Find out. Takes about half a minute to two minutes.

    Args:
        tell: is told what is tried next.

    Raises:
        Stop: it was ended before anything was found. Later that ends it with what there is.
    """
    return _Experiments(lab, plan, tell, Seen(spec=spec, cpus=cpu_share())).run()


class _Experiments:
    """The experiments on one loader, in their order."""

    def __init__(
        self, lab: Laboratory, plan: Plan, tell: Callable[[str], None], seen: Seen
    ) -> None:
        self._lab, self._plan, self._tell, self._seen = lab, plan, tell, seen

    def run(self) -> Seen:
        """All of them, or those before a signal."""
        try:
            return self._run()
        except Stop:
            if self._seen.base is None:
                raise
            self._seen.interrupted = True
            return self._seen

    def _run(self) -> Seen:
        seen = self._seen
        self._tell(f"loading {seen.spec}")
        described = self._lab.describe()
        if isinstance(described, Failure):
            seen.base = described
            return seen
        seen.description = described
        self._tell(f"{described.kind} of {described.dataset} as it is")
        seen.base = self._look(described.setting)
        if isinstance(seen.base, Failure):
            self._find_way_out(described.setting)
            return seen
        if described.iterable:
            self._compare_workers(described)
        self._with_step(described)
        if not described.rebuilds and not seen.fed:
            for setting in self._settings(described):
                self._first_look(setting)
            self._in_turns(described.setting)
        self._watch_memory(described)
        return seen

    def _settings(self, described: Description) -> Iterator[Setting]:
        """One changed at a time; what comes next depends on what was seen."""
        base, vary = described.setting, self._plan.vary
        if "num_workers" in vary and not self._seen.same_in_workers:
            yield from self._workers(base)
        if base.num_workers == 0:
            return  # the other settings are about workers
        if "persistent_workers" in vary and not base.persistent_workers:
            yield base.with_(persistent_workers=True)
        if "prefetch_factor" in vary:
            yield base.with_(prefetch_factor=base.prefetch_factor * 4)
        if "in_order" in vary and described.has_order and base.in_order:
            yield base.with_(in_order=False)
        if "multiprocessing_context" in vary:
            other = "fork" if base.multiprocessing_context != "fork" else "forkserver"
            yield base.with_(multiprocessing_context=other)

    def _workers(self, base: Setting) -> Iterator[Setting]:
        """None, half of them, and twice as many for as long as that helps."""
        if base.num_workers > 1:
            yield base.with_(num_workers=base.num_workers // 2)
        if base.num_workers > 0:
            yield base.with_(num_workers=0)
        rate, workers = self._rate(base), max(base.num_workers, 1)
        if base.num_workers > 0:
            workers *= 2
        most = min(_MOST_WORKERS, max(int(_PER_CPU * self._seen.cpus), base.num_workers))
        while workers <= most and not self._seen.feeds(rate):
            setting = base.with_(num_workers=workers)
            yield setting
            # One worker is no faster than none, and the way to two leads over it.
            if self._rate(setting) < rate * _STEP_UP and workers > 1:
                return
            if workers >= self._seen.cpus and self._busy(setting) > _BUSY:
                return
            rate, workers = self._rate(setting), workers * 2

    def _first_look(self, setting: Setting) -> None:
        assert self._seen.description is not None
        self._tell(setting.said(self._seen.description.setting))
        self._seen.looks[setting] = self._look(setting, step=self._seen.plenty)

    def _in_turns(self, base: Setting) -> None:
        """Measure the candidates, and what they come to together, against the present setting."""
        seen, repeats = self._seen, self._plan.repeats
        candidates = [base, *self._candidates(base)]
        candidates = list(dict.fromkeys([*candidates, _together(base, candidates)]))
        one_thread = self._pools_are_large(base)
        if len(candidates) == 1 and not one_thread:
            return
        seen.turns = {setting: [] for setting in candidates}
        for turn in range(repeats * _MOST_REPEATS):
            if turn >= repeats and not seen.undecided:
                return
            self._tell(f"{len(candidates)} settings in turns, {turn + 1}")
            self._turn(base, one_thread)

    def _turn(self, base: Setting, one_thread: bool) -> None:
        seen = self._seen
        found = {setting: self._look(setting, step=seen.plenty) for setting in seen.turns}
        for setting, window in found.items():
            if isinstance(window, Window):
                seen.turns[setting].append(window)
            else:  # now and then it fails: no setting to advise, and no pair for the others
                del seen.turns[setting]
        if isinstance(found[base], Failure):
            seen.turns.clear()
        if one_thread and seen.turns:
            request = self._request(base, step=seen.plenty)
            single = self._lab.window(request, _ONE_THREAD)
            seen.one_thread += [single] if isinstance(single, Window) else []

    def _candidates(self, base: Setting) -> list[Setting]:
        rates, present = {s: self._rate(s) for s in self._seen.looks}, self._rate(base)
        most = max(rates.values(), default=0.0)
        least = max(present * WORTH, present + (most - present) * _OF_THE_BEST)
        better = [s for s, rate in rates.items() if rate > least]
        better.sort(key=lambda s: -rates[s])
        if better and (fewest := self._fewest_workers(base, better)) is not None:
            better = [s for s in better if s.num_workers == base.num_workers or s == fewest]
        return better[:_MOST_CANDIDATES]

    def _fewest_workers(self, base: Setting, better: Sequence[Setting]) -> Setting | None:
        """Of the settings with other numbers of workers, the least that is about as fast as any."""
        others = [s for s in better if s.num_workers != base.num_workers]
        best = max(map(self._rate, others), default=0.0)
        enough = [
            s for s in others if self._seen.feeds(self._rate(s)) or self._rate(s) * WORTH >= best
        ]
        return min(enough, key=lambda s: s.num_workers, default=None)

    def _rate(self, setting: Setting) -> float:
        """Batches per second at the first look; 0 if it failed."""
        window = self._seen.looks.get(setting, self._seen.present)
        return window.rate if isinstance(window, Window) else 0.0

    def _busy(self, setting: Setting) -> float:
        """The share of the CPUs that it kept busy."""
        window = self._seen.looks[setting]
        if isinstance(window, Failure):
            return 0.0
        return window.cpu_seconds / window.seconds / self._seen.cpus

    def _pools_are_large(self, base: Setting) -> bool:
        """Whether each worker computes on more than one CPU."""
        window = self._seen.base
        assert isinstance(window, Window)
        workers = max(base.num_workers, 1)
        return window.cpu_seconds > _MANY_CPUS * workers * window.seconds and workers > 1

    def _with_step(self, described: Description) -> None:
        plan, seen = self._plan, self._seen
        if plan.step_seconds is not None:
            seen.ceiling = plan.step_seconds
        elif described.has_step:
            self._tell("the training step alone, on one batch")
            ceiling = self._lab.ceiling(max(plan.steps // 2, 5))
            seen.ceiling = ceiling if isinstance(ceiling, float) else None
        if seen.ceiling is not None:
            self._tell("the loader as it is, with the training step")
            repeats = min(plan.repeats, _STEP_REPEATS)
            looks = [self._look(described.setting, step=True) for _ in range(repeats)]
            seen.stepped = [look for look in looks if isinstance(look, Window)]
        if described.cuda and described.has_step and not described.rebuilds and not seen.fed:
            self._try_pinning(described.setting)

    def _try_pinning(self, base: Setting) -> None:
        """Only the training step's copies tell what it is worth: by itself it is one copy more."""
        if base.pin_memory or "pin_memory" not in self._plan.vary:
            return
        for turn in range(self._plan.repeats):
            self._tell(f"pin_memory=True in turns, {turn + 1} of {self._plan.repeats}")
            pair = [self._look(s, step=True) for s in (base, base.with_(pin_memory=True))]
            if isinstance(pair[0], Window) and isinstance(pair[1], Window):
                self._seen.pinned.append((pair[0], pair[1]))

    def _compare_workers(self, described: Description) -> None:
        """Whether the first batches of two workers are the same, and those of one are not."""
        self._tell("whether the workers share the data out among them")
        workers = max(described.setting.num_workers, 2)
        several = self._digests(described.setting.with_(num_workers=workers, in_order=True))
        alone = self._digests(described.setting.with_(num_workers=0))
        if several is None or alone is None or len(several) < workers:
            return
        same = len(set(several[:workers])) == 1
        self._seen.same_in_workers = same and len(set(alone[:2])) == min(len(alone), 2)

    def _digests(self, setting: Setting) -> tuple[str, ...] | None:
        window = self._lab.window(self._request(setting, digests=2 * max(setting.num_workers, 1)))
        return window.digests if isinstance(window, Window) else None

    def _watch_memory(self, described: Description) -> None:
        """If it grows, whether it still does when it is watched for longer."""
        self._tell("memory over a longer stretch")
        seconds = self._plan.seconds * _MEMORY_LONGER
        window = self._look(described.setting, memory=True, seconds=seconds)
        if isinstance(window, Window) and growth_of(window, described.length) is not None:
            self._tell("it grows: memory over a stretch that is longer still")
            seconds *= _MEMORY_AGAIN
            window = self._look(described.setting, memory=True, seconds=seconds)
        self._seen.memory = window if isinstance(window, Window) else None

    def _find_way_out(self, base: Setting) -> None:
        """It fails as it is: does it without workers? If so, with workers started another way?"""
        if base.num_workers == 0:
            return
        other = "forkserver" if base.multiprocessing_context != "forkserver" else "spawn"
        for setting in (base.with_(num_workers=0), base.with_(multiprocessing_context=other)):
            self._tell(f"it fails as it is; {setting.said(base)}")
            self._seen.ways_out[setting] = self._look(setting)
            if isinstance(self._seen.ways_out[setting], Failure):
                return  # the workers are not the reason

    def _look(self, setting: Setting, **more: Any) -> Window | Failure:
        return self._lab.window(self._request(setting, **more))

    def _request(self, setting: Setting, **more: Any) -> Request:
        values = {"batches": self._plan.steps, "seconds": self._plan.seconds, **more}
        return Request(setting=setting, **values)


def _together(base: Setting, candidates: Sequence[Setting]) -> Setting:
    """All that the candidates change; of each argument the first, which was the fastest."""
    changes: dict[str, Any] = {}
    for setting in candidates:
        changes = {**setting.changes(base), **changes}
    return base.with_(**changes)
