"""From what was seen of a user's loader to one sentence; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from forebay.diagnose.environment import size
from forebay.diagnose.foreign.advice import FOREBAY, FREES, SENTENCES, Broken, broken
from forebay.diagnose.foreign.experiments import ONE_THREAD
from forebay.diagnose.foreign.findings import Cause, ForeignFindings, Trial
from forebay.diagnose.foreign.memory import Growth, growth_of
from forebay.diagnose.foreign.notes import evidence_of, guesses_of
from forebay.diagnose.foreign.seen import SURE, WORTH, Seen
from forebay.diagnose.foreign.setting import Setting, arguments
from forebay.diagnose.foreign.window import Window
from forebay.observe.limits import percent
from forebay.statistics import Estimate

_AS_GOOD = 0.95
_CPUS_BUSY = 0.85


def judge(seen: Seen) -> ForeignFindings:
    """The verdict."""
    if not isinstance(seen.base, Window) or seen.description is None:
        return _broken(seen)
    growth = growth_of(seen.memory, seen.description.length)
    cause, facts = _verdict(seen, growth)
    sentence, advice = SENTENCES[cause](seen.base, facts, seen)
    return ForeignFindings(
        spec=seen.spec,
        cause=cause,
        sentence=_whole(sentence, seen, cause, growth),
        evidence=(*evidence_of(seen, growth), *_end(seen)),
        guesses=tuple(guesses_of(seen)),
        advice=advice,
        arguments=facts.get("changes", {}),
        forebay=FOREBAY.get(cause, ""),
        starved=seen.starved,
        trials=tuple(_trials(seen)),
        interrupted=seen.interrupted,
    )


def _end(seen: Seen) -> Iterator[str]:
    if seen.interrupted:
        yield "It was interrupted: not everything was tried."


def _verdict(seen: Seen, growth: Growth | None) -> tuple[Cause, Mapping[str, Any]]:
    """What limits a loader that runs, and what its sentence needs to know."""
    assert seen.description is not None
    workers = seen.description.setting.num_workers
    if seen.same_in_workers and workers > 1:
        return "duplicates", {"workers": workers}
    if not seen.fed and (faster := _faster(seen)) is not None:
        return faster
    if growth is not None:
        return "memory", {"growth": growth}
    if seen.fed:
        return "healthy", {}
    return _last_resort(seen)


def _faster(seen: Seen) -> tuple[Cause, Mapping[str, Any]] | None:
    """What was shown to make the loader faster, if anything was."""
    if (best := _best(seen)) is not None:
        setting, gain = best
        changes = setting.changes(seen.present.setting)
        return _cause(seen, setting), {"gain": gain, "said": arguments(changes), "changes": changes}
    single, pinned = seen.gain_of_one_thread, seen.gain_of_pinning
    if single is not None and single.low > SURE:
        return "threads", {"gain": single, "said": ONE_THREAD}
    if pinned is not None and pinned.low > SURE:
        changes = {"pin_memory": True}
        return "pinning", {"gain": pinned, "said": arguments(changes), "changes": changes}
    return None


def _last_resort(seen: Seen) -> tuple[Cause, Mapping[str, Any]]:
    """No setting helps: what is the limit then?"""
    if seen.interrupted:
        return "unfinished", {}
    base = seen.base
    assert isinstance(base, Window)
    busy = base.cpu_seconds / base.seconds / seen.cpus
    if seen.starved is None:
        return "no_better", {}
    if busy > _CPUS_BUSY:
        return "cpu", {"busy": busy}
    if not seen.plenty:
        return "dataset", {"busy": busy}
    usual = median(w.usual_wait / w.per_batch for w in seen.stepped)
    return ("fetching" if usual > seen.starved / 2 else "irregular"), {}


def _whole(sentence: str, seen: Seen, cause: Cause, growth: Growth | None) -> str:
    """With how long the step waits before it, and what else is the matter behind it."""
    if seen.starved is not None and cause != "duplicates":
        waits = f"The training step waits for data {percent(seen.starved)} of the time"
        sentence = f"{waits}: {sentence[0].lower()}{sentence[1:]}"
    if growth is not None and cause != "memory":
        much = size(int(growth.per_batch.value * 1000))
        sentence += f" Beside that, its memory grows by {much} per 1,000 batches."
    return sentence


def _broken(seen: Seen) -> ForeignFindings:
    """It gives no batches as it is."""
    assert not isinstance(seen.base, Window) and seen.base is not None
    told: Broken = broken(seen)
    return ForeignFindings(
        spec=seen.spec,
        cause=told.cause,
        sentence=told.sentence,
        evidence=(*told.evidence, *_end(seen)),
        guesses=tuple(guesses_of(seen)),
        advice=told.advice,
        arguments=told.arguments,
        # Of a loader that nobody has seen yet there is nothing to compare with.
        forebay=FOREBAY.get(told.cause, "") if seen.description is not None else "",
        interrupted=seen.interrupted,
    )


def _best(seen: Seen) -> tuple[Setting, Estimate] | None:
    """The setting with the fewest changes among those that feed the step or are about the fastest;
    None if none was shown to be faster."""
    present = seen.present.setting
    gains = {s: gain for s in seen.turns if (gain := seen.gain(s)) is not None}
    shown = {s: g for s, g in gains.items() if g.value >= WORTH and g.low > SURE}
    if not shown:
        return None
    fastest = max(g.value for g in shown.values())
    rate = seen.present.rate
    enough = [
        s for s, g in shown.items() if g.value >= _AS_GOOD * fastest or seen.feeds(g.value * rate)
    ]
    best = min(enough, key=lambda s: (len(s.changes(present)), -shown[s].value))
    return best, shown[best]


def _cause(seen: Seen, best: Setting) -> Cause:
    """By the one change of it that gained the most alone."""
    present = seen.present.setting
    changes = best.changes(present)
    alone = {
        next(iter(s.changes(present))): gain.value
        for s in seen.turns
        if len(s.changes(present)) == 1 and (gain := seen.gain(s)) is not None
    }
    name = max(changes, key=lambda n: alone.get(n, 0.0))
    if name == "num_workers":
        return "workers" if best.num_workers > present.num_workers else "handover"
    return FREES[name]


def _trials(seen: Seen) -> Iterator[Trial]:
    """The present setting first, then the others in the order in which they were tried."""
    present = seen.present.setting
    yield _trial(seen, present, seen.present)
    for setting, window in seen.looks.items():
        yield _trial(seen, setting, window)
    for setting, windows in seen.turns.items():
        if setting not in seen.looks and setting != present:
            yield _trial(seen, setting, windows[0])


def _trial(seen: Seen, setting: Setting, window: Any) -> Trial:
    said = setting.said(seen.present.setting)
    if not isinstance(window, Window):
        return Trial(setting=said, rate=None, trouble=window.what)
    return Trial(
        setting=said,
        rate=window.rate,
        gain=seen.gain(setting),
        first_seconds=window.first_seconds,
        cpu_per_batch=window.cpu_seconds / window.batches,
    )
