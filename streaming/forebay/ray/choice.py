"""Which way parcels are run: fed live where the installed Ray is known, by leases where not."""

from __future__ import annotations

import importlib
import logging
from typing import Any, Literal, TypeAlias

import ray

from forebay.errors import ConfigError
from forebay.ray import _compat

LeaseUse: TypeAlias = Literal["auto", "always", "never"]
"""When leases are used: where the installed Ray is not known, or always, or never."""
Scheduler: TypeAlias = Literal["actor", "trainer"]
"""Where the scheduling loop of Ray Data runs."""
_FED_LIVE: dict[Scheduler, tuple[str, str]] = {
    "actor": ("forebay.ray.host", "Hosts"),
    "trainer": ("forebay.ray.execution", "Execution"),
}
_WAY_OUT = "Install a version it was tested with: pip install 'forebay[ray]'"
_log = logging.getLogger("forebay")


def by_leases(use: LeaseUse) -> bool:
    """Whether parcels are run by leases; says what that costs where nobody asked for it.

    Raises:
        ConfigError: the installed Ray is not known, and leases are not to be used.
    """
    if use == "always":
        return True
    if not (changed := _compat.probe()):
        return False
    why = f"the ray engine does not know Ray {ray.__version__}: {', '.join(changed)} changed"
    if use == "never":
        raise ConfigError(f"{why}. {_WAY_OUT}, or let it use leases='auto'.")
    _log.warning(
        "%s. It runs by leases instead, on public names of Ray only: nothing is lost or repeated, "
        "but batches come up to a second later, Ray's scheduling loop runs in this process, and "
        "another number of workers takes a new pool, some seconds each time. %s.",
        why,
        _WAY_OUT,
    )
    return True


def fed_live(scheduler: Scheduler) -> Any:
    """What makes executors that are fed while they run.

    Its module is made of names that may be gone, so it is imported once it is known that they are
    there, and not before.
    """
    module, name = _FED_LIVE[scheduler]
    return getattr(importlib.import_module(module), name)
