"""The names of Ray Data that are not public, all of them, and whether they are what they were.

An unbounded stream cannot be run with Ray's public interface without losing records or seconds;
what is used instead is small, and it is checked before anything starts. Tested with the versions
that ``forebay[ray]`` allows; with another one this module can be imported all the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import ray
from ray.data import ActorPoolStrategy, DataContext

_gone = ""
try:
    from ray.data._internal.actor_autoscaler import ActorAutoscaler, ActorPoolScalingRequest
    from ray.data._internal.execution import streaming_executor_state
    from ray.data._internal.execution.backpressure_policy import (
        ENABLED_BACKPRESSURE_POLICIES,
        ENABLED_BACKPRESSURE_POLICIES_CONFIG_KEY,
        BackpressurePolicy,
    )
    from ray.data._internal.execution.execution_callback import ExecutionCallback
    from ray.data._internal.execution.interfaces import BlockEntry, RefBundle
    from ray.data._internal.execution.operators.actor_pool_map_operator import (
        _ActorPool,
        _ActorState,
    )
    from ray.data._internal.execution.operators.input_data_buffer import InputDataBuffer
    from ray.data._internal.execution.streaming_executor import StreamingExecutor
    from ray.data.block import BlockMetadata
except ImportError as e:  # ``probe`` tells; until it is clean nothing here is to be used
    _gone = str(e)

__all__ = [
    "ENABLED_BACKPRESSURE_POLICIES",
    "ENABLED_BACKPRESSURE_POLICIES_CONFIG_KEY",
    "ActorAutoscaler",
    "ActorPoolScalingRequest",
    "ActorPoolStrategy",
    "BackpressurePolicy",
    "DataContext",
    "ExecutionCallback",
    "InputDataBuffer",
    "PoolWorker",
    "StreamingExecutor",
    "bundle_of",
    "probe",
    "quicken",
    "trim",
    "workers_of",
]

_SETTINGS = {
    "custom_execution_callback_classes",
    "enable_progress_bars",
    "execution_no_progress_timeout_s",
    "memory_usage_poll_interval_s",
    "print_on_execution_start",
    "target_max_block_size",
}


def probe() -> list[str]:
    """What of Ray Data is not as this module thinks; nothing, if the module can be used."""
    if _gone:
        return [_gone]
    missing = [*_missing_parameters(), *_missing_methods()]
    return missing + [f"DataContext.{n}" for n in sorted(_SETTINGS - _fields(DataContext))]


def _parameters() -> list[tuple[Callable[..., Any], set[str]]]:
    return [
        (ActorPoolScalingRequest, {"delta", "force", "reason"}),
        (ActorPoolStrategy, {"min_size", "max_size", "max_tasks_in_flight_per_actor"}),
        (BlockMetadata, {"num_rows", "size_bytes", "exec_stats", "input_files"}),
        (RefBundle, {"blocks", "schema", "owns_blocks"}),
        (BlockEntry, {"ref", "metadata"}),
        (ActorAutoscaler.__init__, {"topology", "resource_manager"}),
        (StreamingExecutor.shutdown, {"force"}),
    ]


def _methods() -> list[tuple[type, set[str]]]:
    return [
        (ExecutionCallback, {"before_execution_starts", "on_execution_step"}),
        (ActorAutoscaler, {"try_trigger_scaling"}),
        (BackpressurePolicy, {"can_add_input"}),
        (InputDataBuffer, {"has_next", "_get_next_inner", "has_completed", "num_outputs_total"}),
        (InputDataBuffer, {"num_active_tasks", "get_autoscaling_actor_pools"}),
        (ray.data.Dataset, {"map_batches", "iter_internal_ref_bundles"}),
    ]


def _fields(kind: Any) -> set[str]:
    return set(kind.__dataclass_fields__)


def _missing_parameters() -> list[str]:
    return [
        f"{function.__qualname__}({name})"
        for function, names in _parameters()
        for name in sorted(names - inspect.signature(function).parameters.keys())
    ]


def _missing_methods() -> list[str]:
    fields = {"num_tasks_in_flight", "is_restarting"} - _fields(_ActorState)
    missing = [f"_ActorState.{name}" for name in sorted(fields)]
    if "_running_actors" not in _ActorPool.__init__.__code__.co_names:
        missing.append("_ActorPool._running_actors")
    return missing + [
        f"{kind.__name__}.{name}"
        for kind, names in _methods()
        for name in sorted(names)
        if not callable(getattr(kind, name, None))
    ]


def bundle_of(ref: Any, nbytes: int) -> Any:
    """One parcel as the input of an execution."""
    metadata = BlockMetadata(num_rows=1, size_bytes=nbytes, exec_stats=None, input_files=None)
    return RefBundle((BlockEntry(ref, metadata),), owns_blocks=True, schema=None)


class PoolWorker(NamedTuple):
    """A worker of a pool, as Ray knows it."""

    name: str
    """As it calls itself; the same one after a restart."""
    handle: Any
    working: bool
    """Whether it has parcels, and is not being restarted."""


def workers_of(pool: Any) -> list[PoolWorker]:
    """The workers of a pool. On the scheduling thread only."""
    return [
        PoolWorker(
            name=handle._actor_id.hex(),
            handle=handle,
            working=state.num_tasks_in_flight > 0 and not state.is_restarting,
        )
        for handle, state in pool._running_actors.items()
    ]


def quicken(seconds: float) -> None:
    """Let the scheduling loop look around more often than ten times a second.

    It waits for all running tasks or this long: a quick one waits for a slow one. Only a matter
    of latency, so a version that has no such constant is as good.
    """
    if hasattr(streaming_executor_state, "WAIT_FOR_TASK_COMPLETION_TIMEOUT_S"):
        streaming_executor_state.WAIT_FOR_TASK_COMPLETION_TIMEOUT_S = seconds


def trim(operator: Any, most: int = 500, kept: int = 100) -> None:
    """Forget old statistics of an operator: Ray keeps a kilobyte of every block for ever."""
    stats = getattr(operator, "_output_blocks_stats", None)
    if isinstance(stats, list) and len(stats) > most:
        del stats[:-kept]
