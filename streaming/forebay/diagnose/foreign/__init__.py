"""Why is this DataLoader slow? Experiments on copies of any torch DataLoader, and one sentence.

findings = examine("train:make_loader")
print(findings.sentence, findings.call)
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from forebay.diagnose.foreign.child import Failure
from forebay.diagnose.foreign.experiments import Plan, experiments
from forebay.diagnose.foreign.findings import Cause, ForeignFindings, Trial
from forebay.diagnose.foreign.judging import judge
from forebay.diagnose.foreign.laboratory import Laboratory
from forebay.diagnose.foreign.setting import FACTORS, Factor
from forebay.errors import ConfigError
from forebay.training import Stopper

__all__ = ["FACTORS", "Cause", "Factor", "ForeignFindings", "Trial", "examine"]


def examine(
    spec: str,
    *,
    steps: int = 50,
    step_seconds: float | None = None,
    seconds: float = 1.0,
    repeats: int = 3,
    patience: float = 30.0,
    vary: Collection[Factor] = FACTORS,
    stopper: Stopper | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> ForeignFindings:
    """Examine the loader that ``module:factory`` returns, in a process of its own.

    The factory returns a ``DataLoader``, or it and the training step, which is called with a batch.
    It never hangs itself, whatever the loader does; nothing is written, but what the dataset
    writes.

    Args:
        steps: batches in each stretch that is measured, if there is time for them.
        step_seconds: simulate a training step that takes so long, in place of the factory's.
        seconds: how long such a stretch is, about.
        repeats: how often the promising settings are measured in turns, at least.
        patience: seconds in which nothing comes and nobody computes: then the loader hangs.
        vary: the arguments that are tried.
        stopper: ends it early; what was found until then counts.
        tell: is told what is tried next, a line each.

    Raises:
        ConfigError: there is no such factory, or it fails, or it returns no ``DataLoader``.
        Stop: it was ended before anything was found.
    """
    plan = Plan(
        steps=steps,
        seconds=seconds,
        repeats=repeats,
        patience=patience,
        step_seconds=step_seconds,
        vary=vary,
    )
    if ":" not in spec:
        raise ConfigError(f"--loader must be module:factory, not {spec!r}")
    stopper = stopper or Stopper()
    with Laboratory(spec, patience, step_seconds) as lab:
        with stopper.waiting():
            seen = experiments(lab, spec, plan, tell)
        stopper.finish()
    if isinstance(seen.base, Failure) and seen.base.kind == "spec":
        raise ConfigError(seen.base.what)
    if isinstance(seen.base, Failure) and seen.base.kind == "factory":
        # The last line is the error once more.
        at = "".join(f"\n  {line}" for line in seen.base.details[:-1])
        raise ConfigError(f"the factory {spec} fails: {seen.base.what}{at}")
    return judge(seen)
