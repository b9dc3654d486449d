"""From ``module:factory`` to the user's ``DataLoader``, and to copies of it with other settings."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from forebay.diagnose.foreign.setting import DEFAULT_PREFETCH, Setting
from forebay.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Given:
    """What the user's factory returned."""

    loader: DataLoader[Any]
    step: Callable[[Any], Any] | None
    """The training step, if it returned one, too."""


def load(spec: str) -> Given:
    """Import the module and call the factory.

    Raises:
        ConfigError: there is no such factory, or it returns no loader.
    """
    module_name, colon, name = spec.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"--loader must be module:factory, not {spec!r}")
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is None or not (module_name + ".").startswith(e.name + "."):
            raise
        raise ConfigError(
            f"there is no module {e.name!r} (of {spec!r}) in this folder or installed"
        ) from e
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"module {module_name!r} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{spec} is no function but {type(found).__name__}")
    return _checked(spec, found())


def _checked(spec: str, made: Any) -> Given:
    loader, step = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"{spec} returned {type(loader).__name__}: it must return a torch DataLoader, or "
            "(DataLoader, step function)"
        )
    if step is not None and not callable(step):
        raise ConfigError(f"{spec} returned a step that is no function but {type(step).__name__}")
    return Given(loader, step)


def setting_of(loader: DataLoader[Any]) -> Setting:
    """How the user made it."""
    context = loader.multiprocessing_context
    # Before torch 2.6 there was no choice.
    return Setting(
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor or DEFAULT_PREFETCH,
        persistent_workers=loader.persistent_workers,
        pin_memory=loader.pin_memory,
        multiprocessing_context=(context or multiprocessing).get_start_method(),
        in_order=getattr(loader, "in_order", True),
    )


def rebuilt(
    loader: DataLoader[Any], setting: Setting, worker_init_fn: Callable[[int], None] | None
) -> DataLoader[Any]:
    """A new loader like this one, with other settings; dataset, sampler and the rest are the same.

    Raises:
        Exception: whatever a class that is derived from ``DataLoader`` raises if it cannot be
            made so.
    """
    options: dict[str, Any] = {
        "collate_fn": loader.collate_fn,
        "pin_memory": setting.pin_memory,
        "num_workers": setting.num_workers,
        "worker_init_fn": worker_init_fn,
        "generator": loader.generator,
        **_batching(loader),
    }
    if setting.num_workers > 0:
        options |= {
            "timeout": loader.timeout,
            "prefetch_factor": setting.prefetch_factor,
            "persistent_workers": setting.persistent_workers,
            "multiprocessing_context": setting.multiprocessing_context,
        }
        if has_order(loader):
            options["in_order"] = setting.in_order
    return type(loader)(loader.dataset, **options)


def has_order(loader: DataLoader[Any]) -> bool:
    """Whether this version of torch knows ``in_order``."""
    return hasattr(loader, "in_order")


def _batching(loader: DataLoader[Any]) -> dict[str, Any]:
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_size is not None:
        return {
            "batch_size": loader.batch_size,
            "sampler": loader.sampler,
            "drop_last": loader.drop_last,
        }
    if loader.batch_sampler is not None:
        return {"batch_sampler": loader.batch_sampler}
    return {"batch_size": None, "sampler": loader.sampler}
