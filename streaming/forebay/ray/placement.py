"""What the workers of a pool take and where they run, checked before anything starts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import ray
from ray.runtime_env import RuntimeEnv

from forebay.errors import ConfigError
from forebay.ray.cluster import near

Placement: TypeAlias = Literal["spread", "pack", "near"]
"""Among the nodes that have what a worker takes: over all of them, on few of them, so that an
autoscaler can take the others away, or on the trainer's own node as long as that has room."""

# Ray's own variable: plug-ins that know more names.
_PLUGINS = "RAY_RUNTIME_ENV_PLUGINS"


def placed(placement: Placement) -> dict[str, Any]:
    """Options of a worker that is to be placed so; none for what Ray Data does by itself.

    This process is attached to the cluster.
    """
    if placement == "spread":
        return {}
    return {"scheduling_strategy": "DEFAULT"} if placement == "pack" else near()


def check_actor(setting: str, options: Mapping[str, Any]) -> None:
    """Check options of an actor as Ray does. Ray need not run.

    Args:
        setting: what they are called in messages; empty for options that are settings themselves.

    Raises:
        ConfigError: Ray would refuse them.
    """
    try:
        ray.remote(**options)(_Actor) if options else None
    except (TypeError, ValueError) as e:
        where = f"{setting}: " if setting else ""
        raise ConfigError(f"{where}{e}") from e


def check_runtime_env(runtime_env: Mapping[str, Any]) -> None:
    """Check a runtime environment as Ray does, and its names, which Ray does not.

    Raises:
        ConfigError: a name is none of Ray's, or Ray would refuse the value.
    """
    known = RuntimeEnv.known_fields
    unknown = sorted(set(runtime_env) - known)
    if unknown and not os.environ.get(_PLUGINS):
        listed = ", ".join(sorted(n for n in known if not n.startswith("_")))
        raise ConfigError(f"runtime_env has no {unknown[0]!r}; known to Ray are {listed}")
    try:
        RuntimeEnv(**runtime_env)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"runtime_env: {e}") from e


def check_init(options: Mapping[str, Any]) -> None:
    """Check the names of further arguments of ``ray.init``.

    Raises:
        ConfigError: it has no such argument.
    """
    if "address" in options:
        raise ConfigError("init: 'address' is a setting of the engine itself")
    known = inspect.signature(ray.init).parameters
    for name in options:
        if name not in known and not name.startswith("_"):
            raise ConfigError(f"init: ray.init has no argument {name!r}")


class _Actor:
    """Stands for any actor; never started."""
