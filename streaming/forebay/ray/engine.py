"""The Ray Data engine: stages run in a pool of actors, on as many machines as the cluster has."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

import ray
from ray import cloudpickle

from forebay.engine import Plan
from forebay.errors import ConfigError
from forebay.ray import cluster
from forebay.ray.attempts import prefix_of
from forebay.ray.carried import Carried
from forebay.ray.choice import LeaseUse, Scheduler, by_leases, fed_live
from forebay.ray.executor import Executor, OnEnd, OnFinished, Pool
from forebay.ray.feed import RayFeed, Setup
from forebay.ray.leases import LeaseExecution
from forebay.ray.nodes import Nodes
from forebay.ray.placement import Placement, check_actor, check_init, check_runtime_env, placed
from forebay.ray.reading import ActorReading, LocalReading, SourceLost, SourceReading
from forebay.ray.store import window_bytes
from forebay.ray.watch import HeadWatch
from forebay.recording import RecordedSource

_READER_CPUS = 0.1
_WITHOUT_END = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RayEngine:
    """Runs stages in actors of a Ray cluster: right when one machine is not enough.

    Each rank of a training job has an engine of its own, attached to the same cluster, and reads
    the splits it owns.
    """

    address: str | None = None
    """Of the cluster; None: the one this process is attached to, else RAY_ADDRESS, else one that
    is started on this machine and stopped with the loader."""
    num_cpus: float = 1.0
    """Of each worker, as the other resources."""
    num_gpus: float = 0.0
    memory: int | None = None
    """Bytes."""
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes that workers may run on, as Ray takes them:
    ``{"ray.io/node-group": "decoders"}``."""
    placement: Placement = "spread"
    """Where workers run among the nodes that they may run on: ``spread`` over all, ``pack`` on few,
    so that an autoscaler can take the others away, ``near`` on the trainer's node while that has
    room."""
    max_restarts: int = -1
    """How often Ray starts a worker that died; then the whole pool is started anew, which ends in
    an error if it is of no use. -1: without end, since a record that kills is found out and left
    out."""
    runtime_env: Mapping[str, Any] | None = None
    """What the nodes need to import the stages, by Ray's names."""
    reader: Mapping[str, Any] = field(default_factory=dict)
    """How the actor that reads is placed, as Ray's ``ActorClass.options`` takes it."""
    scheduler: Scheduler = "actor"
    """Where the scheduling loop of Ray Data runs: in an actor of its own, the host, or in this
    process, where it takes the GIL from the training loop."""
    host: Mapping[str, Any] = field(default_factory=dict)
    """How the host is placed, as ``reader``; on this node unless it says otherwise."""
    leases: LeaseUse = "auto"
    """Whether to run with public names of Ray only, by leases: where the installed Ray is not
    known, or always, or never. It is slower, and takes no ``scheduler`` and no ``host``."""
    most_cpus: float | None = None
    """CPUs to which the cluster may grow, if it has an autoscaler, which is asked for room for all
    workers that are wanted. None: workers make do with the nodes that there are."""
    hung_seconds: float = 30.0
    """A worker that is busy for so long and gives nothing, while its peers give theirs, is replaced
    and its parcel run once more, record by record, with ten times the patience. A record at which
    two workers ended so becomes a dead letter."""
    roll_hours: float = 12.0
    """After so long the Ray Data execution is followed by a new one: Ray keeps a little of every
    task for ever."""
    init: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``ray.init``, if this process is not attached yet."""

    def __post_init__(self) -> None:
        check_init(self.init)
        check_runtime_env(self.runtime_env or {})
        check_actor("", self._options())
        check_actor("reader", self.reader)
        check_actor("host", self.host)
        for name, kind in (
            ("placement", Placement),
            ("scheduler", Scheduler),
            ("leases", LeaseUse),
        ):
            if getattr(self, name) not in get_args(kind):
                choices = ", ".join(get_args(kind))
                raise ConfigError(f"{name} must be one of {choices}, not {getattr(self, name)!r}")
        for name in ("hung_seconds", "roll_hours", "most_cpus"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")
        if self.address is not None:
            cluster.check_address(self.address)

    def start(self, plan: Plan) -> RayFeed:
        """Open the source and begin reading.

        Raises:
            EngineError, ConfigError, ProcessError: the cluster cannot be used.
            SourceError, StateError: as ``Source.open``; nothing was started.
        """
        leases = by_leases(self.leases)
        disconnect = cluster.connect(self.address, self.init)
        plan = replace(plan, max_bytes=window_bytes(plan.max_bytes))
        reading = self._reading(plan)
        try:
            setup = self._setup(plan, disconnect, leases=leases)
            return RayFeed(plan, reading, _opened(reading, plan), setup)
        except BaseException:
            reading.close()
            disconnect()
            raise

    def _reading(self, plan: Plan) -> SourceReading:
        if isinstance(plan.source, RecordedSource):
            # Its flush() must find what was read in this very process.
            return LocalReading(plan.source, plan.owns)
        return ActorReading(
            plan.source, plan.owns, {"num_cpus": _READER_CPUS, **self._placed(self.reader)}
        )

    def _setup(self, plan: Plan, disconnect: Callable[[], None], *, leases: bool) -> Setup:
        attempts, bounds = prefix_of(uuid.uuid4().hex), self._workers(plan)
        pool = Pool(
            least=bounds[0],
            most=bounds[1],
            arguments=(cloudpickle.dumps((tuple(plan.stages), plan.run)), attempts),
            options={**self._options(), **placed(self.placement)},
        )
        return Setup(
            make=self._executor(pool, leases=leases, ahead=bool(plan.stages)),
            attempts=attempts,
            bounds=bounds,
            asks=pool.options,
            roll_seconds=self.roll_hours * 3600,
            hung_seconds=self.hung_seconds,
            nodes=Nodes(self._takes(), self.most_cpus),
            watch=partial(HeadWatch, ray.get_runtime_context().gcs_address),
            on_close=disconnect,
        )

    def _executor(
        self, pool: Pool, *, leases: bool, ahead: bool
    ) -> Callable[[OnFinished, OnEnd], Executor]:
        if leases:
            return partial(LeaseExecution, pool)
        live = fed_live(self.scheduler)
        if self.scheduler == "trainer":
            return partial(live, pool)
        make: Callable[[OnFinished, OnEnd], Executor]
        make = live(pool, {**cluster.near(), **self._placed(self.host)}, ahead=ahead)
        return make

    def _placed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of an actor that is not a worker; it imports what workers import."""
        return {**({"runtime_env": self.runtime_env} if self.runtime_env else {}), **options}

    def _workers(self, plan: Plan) -> tuple[int, int]:
        if plan.workers is not None:
            return plan.workers
        cpus = ray.cluster_resources().get("CPU", 1.0)
        return 1, max(1, math.floor((cpus - _READER_CPUS) / max(self.num_cpus, 0.01)))

    def _takes(self) -> dict[str, float]:
        """What a worker takes of a node, by Ray's names of resources."""
        takes = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": self.memory or 0}
        return {k: amount for k, amount in {**takes, **self.resources}.items() if amount}

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"num_cpus": self.num_cpus}
        if self.num_gpus:
            options["num_gpus"] = self.num_gpus
        if self.memory is not None:
            options["memory"] = self.memory
        if self.resources:
            options["resources"] = dict(self.resources)
        if self.label_selector:
            options["label_selector"] = dict(self.label_selector)
        if self.max_restarts != _WITHOUT_END:
            options["max_restarts"] = self.max_restarts
        if self.runtime_env is not None:
            options["runtime_env"] = dict(self.runtime_env)
        return options


def _opened(reading: SourceReading, plan: Plan) -> Mapping[str, Any]:
    try:
        opened = reading.open(plan.positions, {})
    except SourceLost as e:
        raise ConfigError(
            f"the actor that reads the source did not start: {e}. Its placement is "
            "RayEngine(reader=...); what the source needs must be installed on the cluster "
            "(runtime_env)."
        ) from e
    if isinstance(opened, Carried):
        raise opened.error()
    return opened
