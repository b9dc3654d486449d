"""The trainer's end: an iterable of batches whose state is part of the model's checkpoint."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from forebay.autoscale import DecisionLog, Taken
from forebay.batcher import Batching
from forebay.counts import Counts
from forebay.cudaclock import cuda_clock
from forebay.deadletter import ErrorBudget, Letter, Sink
from forebay.engine import Plan, PoolStats
from forebay.errors import ConfigError, ProcessError, StateError
from forebay.options import LoaderOptions, LoaderStats, SplitStats, StateOf, check_rank
from forebay.prefetch import Ready
from forebay.recording import RecordedSource
from forebay.rng import Run
from forebay.scaling import behind
from forebay.session import Session, based, is_cuda
from forebay.shuffle import Shuffle
from forebay.source import Owns, Source, Split, added
from forebay.stage import BatchFn, Stage
from forebay.state import Position, State
from forebay.stepclock import HostClock, StepClock
from forebay.supply import Failures, Progress
from forebay.tensors import Batch

_log = logging.getLogger("forebay")

Step: TypeAlias = Callable[[State], State]
"""How a delivery changes the state."""


class Loader(IterableDataset[Batch]):
    """Iterates over batches; ``state_dict`` says which records the trainer was given.

    One process, one thread uses it. Threads and clients start at the first ``next()``; they end
    with ``close()``, at the end of the data, or when the loop over it is left and forgotten.
    """

    def __init__(
        self,
        source: Source,
        stages: Sequence[Stage],
        batching: Batching,
        options: LoaderOptions,
        *,
        shuffle: Shuffle | None = None,
        batch_fns: Sequence[BatchFn] = (),
        sink: Sink | None = None,
        budget: ErrorBudget | None = None,
    ) -> None:
        self._source, self._stages, self._batching = source, tuple(stages), batching
        self._options, self._shuffle, self._batch_fns = options, shuffle, tuple(batch_fns)
        self._sink, self._budget = sink, budget or ErrorBudget()
        self._state = State()
        self._uncommitted: deque[list[Step]] = deque()
        self._session: Session | None = None
        self._finalizer: weakref.finalize[..., Loader] | None = None
        self._loops = 0
        self._counts = Counts(_clock_of(options))
        settings = options.autoscaling()
        self._decisions = DecisionLog(settings.keep if settings is not None else 1)

    def __iter__(self) -> LoaderIterator:
        if get_worker_info() is not None:
            raise ProcessError(
                "a Forebay loader cannot run inside a DataLoader worker: each worker would read "
                "every record, and the position would stay in the worker. Use the loader itself, "
                "or DataLoader(loader, batch_size=None, num_workers=0): it has threads of its own "
                "(workers=)."
            )
        return LoaderIterator(self, self._options.steps_per_epoch)

    def __len__(self) -> int:
        """Batches of one epoch.

        Raises:
            TypeError: ``steps_per_epoch`` was not given.
        """
        if self._options.steps_per_epoch is None:
            raise TypeError("a stream has no length; give the loader steps_per_epoch")
        return self._options.steps_per_epoch

    def state_dict(self) -> dict[str, Any]:
        """Which records were delivered, as plain JSON. Valid at any time, also before the start.

        Of a pipeline that is recorded, only once everything that was read so far is stored.

        Raises:
            SourceError: dead letters or recorded rows that it covers could not be stored.
        """
        if isinstance(self._source, RecordedSource):
            self._source.flush()
        self._flush_letters()
        self._counts.saved = self._state.splits
        return self._state.to_json()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken, on any number of ranks (see ``merge_states``).

        Raises:
            StateError: it is no state of this version, or iteration has begun already.
        """
        if self._session is not None:
            raise StateError(
                "load_state_dict() after iteration has begun would lose its place: load the state "
                "before the first next(), or close() the loader first"
            )
        self._state = State.from_json(state_dict)
        self._counts.saved = self._state.splits
        self._uncommitted.clear()

    def commit(self, batches: int = 1) -> None:
        """Say that the next ``batches`` yielded batches are trained (``state_of="committed"``).

        Raises:
            StateError: fewer batches than that were yielded and not committed.
        """
        if batches > len(self._uncommitted):
            raise StateError(
                f"commit({batches}), but {len(self._uncommitted)} yielded batches are not "
                "committed yet" + _commit_hint(self._options.state_of)
            )
        for _ in range(batches):
            for step in self._uncommitted.popleft():
                self._advance(step)

    def stats(self) -> LoaderStats:
        """What happened so far. Any thread."""
        session, counts = self._session, self._counts
        return LoaderStats(
            batches=counts.batches,
            rows=counts.rows,
            dead_letters=counts.dead_letters,
            wait_seconds=counts.clock.waited_seconds(),
            seconds=counts.seconds(),
            ready_batches=session.prefetcher.batches if session else 0,
            bytes_in_flight=session.feed.bytes_in_flight() if session else 0,
            freshness_seconds=counts.freshness_seconds,
            workers=sum(p.workers for p in self.pools().values()),
            passes=self._state.pass_index,
            steps=counts.clock.times(),
            step_durations=counts.step_durations.taken(),
            wait_durations=counts.wait_durations.taken(),
            freshness=counts.freshness.taken(),
            stages=counts.past.stages_with(session.feed.stages() if session else {}),
            letters=counts.letters_of.copy(),
            last_letters=tuple(counts.last_letters),
            source_wait_seconds=counts.past.source_wait_seconds
            + (session.source_wait_seconds() if session else 0.0),
            room_wait_seconds=counts.past.room_wait_seconds
            + (session.prefetcher.waited_for_room_seconds if session else 0.0),
            decided=self._decisions.counts(),
        )

    def splits(self) -> Mapping[str, SplitStats]:
        """How far each split is; none before the first ``next()``. Any thread."""
        session, counts, saved = self._session, self._counts, self._counts.saved
        ends = counts.past.ends if session is None else session.feed.ends()
        fetched = counts.past.fetched if session is None else session.feed.fetched()
        return {
            name: SplitStats(
                delivered=p.offset,
                pending=_pending(p),
                low=p.low,
                end=ends.get(name),
                fetched=fetched.get(name),
                saved=saved[name].offset if name in saved else None,
                saved_pending=_pending(saved[name]) if name in saved else 0,
                event_time=counts.newest.get(name),
            )
            for name, p in counts.splits.items()
        }

    @property
    def step_clock(self) -> StepClock:
        """What measures where the trainer's time goes."""
        return self._counts.clock

    @contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Count the time inside as a pause of training, by its name: a checkpoint, an evaluation.

        On the trainer's thread, between two batches.
        """
        self._counts.clock.pause_begins(name)
        try:
            yield
        finally:
            self._counts.clock.pause_ends()

    def lag(self) -> Mapping[str, int]:
        """Records of each split that were not delivered yet; splits of unknown end are absent."""
        session = self._session
        if session is None:
            return {}
        at = self._state.splits
        return {k: behind(end, at[k]) for k, end in session.feed.ends().items() if k in at}

    def pools(self) -> Mapping[str, PoolStats]:
        """The pools of workers by name; none before the first ``next()``. Any thread."""
        session = self._session
        return {} if session is None else self._counts.past.pools_with(session.feed.pools())

    def reader_counts(self) -> Mapping[str, float]:
        """What the source's reader counts of itself, by name; none before the start. Any thread."""
        session, past = self._session, self._counts.past.reader_counts
        return past if session is None else added(past, session.feed.reader_counts())

    @property
    def options(self) -> LoaderOptions:
        """How it runs."""
        return self._options

    def decisions(self) -> list[Taken]:
        """What the autoscaler decided, and why; oldest first. Any thread."""
        return self._decisions.list()

    def close(self) -> None:
        """Stop every thread and client, and make the dead letters durable. May be called twice."""
        self._stop()
        if self._sink is not None and self._counts.letters:
            self._sink.close()
            self._counts.letters = self._counts.letters_to_flush = False

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._session is not None:
            raise ProcessError(
                "a running loader cannot be pickled: start workers before its first next()"
            )
        return self.__dict__.copy()

    # -- used by the iterator ------------------------------------------------------------------

    def _next(self) -> Batch | None:
        """The next batch, or None at the end of the pass."""
        passes = self._options.passes
        if passes is not None and self._state.pass_index >= max(passes, 2):
            return None
        session = self._running()
        self._counts.start(time.monotonic())
        self._counts.clock.wait_begins()
        try:
            try:
                ready = self._next_ready(session)
            finally:
                self._counts.clock.wait_ends()
            batch = None if ready is None else self._on_device(ready)
        except Exception:
            self._stop()
            raise
        if ready is None or batch is None:
            self._end_pass(session)
            self._flush_letters()
            return None
        assert ready.progress is not None
        session.prefetcher.drop()
        self._deliver(ready.progress)
        self._counts.count(batch, ready)
        return batch

    def _next_ready(self, session: Session) -> Ready | None:
        """The next ready batch, applying the progress that comes without one.

        The batch is dropped where it is delivered: an interrupt before that loses no rows.
        """
        while (ready := session.get()) is not None:
            self._bury(ready.failures)
            ready.release()
            if ready.batch is not None:
                return ready
            session.prefetcher.drop()
            if ready.progress is not None:
                self._then(partial(_moved, ready.progress))
        return None

    def _on_device(self, ready: Ready) -> Batch | None:
        batch, device = ready.batch, self._options.device
        if batch is None or device is None:
            return batch
        self._counts.clock.copy_begins()
        copied = batch.to(device, non_blocking=True)
        self._counts.clock.copy_ends()
        return copied

    def _end_pass(self, session: Session) -> None:
        if self._session is not session:
            return  # closed while waiting: this is not the end of the data
        self._stop()
        if self._options.passes != 1:
            self._then(_next_pass)

    def _begin_loop(self) -> int:
        """The number of a loop that takes its first batch."""
        self._loops += 1
        return self._loops

    def _abandon(self, loop: int) -> None:
        """The loop was left: nothing stays running unless an epoch may follow, or a later loop
        has begun."""
        if loop == self._loops and self._options.steps_per_epoch is None:
            self._stop()

    def _running(self) -> Session:
        if self._session is None:
            self._uncommitted.clear()
            self._session = self._start()
            self._finalizer = weakref.finalize(self, self._session.close)
            at = {k: based(p) for k, p in self._session.feed.positions.items()}
            self._advance(lambda state: replace(state, splits={**state.splits, **at}))
            try:
                self._session.scale(self._counts, self._decisions)
            except ConfigError:
                self._stop()
                raise
        return self._session

    def _start(self) -> Session:
        rank, world_size = _rank_of(self._options)

        def owns(split: Split) -> bool:
            return split.owner(world_size) == rank

        known = {s.id: s for s in self._source.splits()}
        _check_each_owns(known.values(), rank, world_size)
        self._state = self._state.only(lambda k: k not in known or owns(known[k]))
        if self._state.splits:
            at = ", ".join(f"{k}@{p.low}" for k, p in sorted(self._state.splits.items()))
            _log.info("resumed at %s", at)
        return Session(
            self._options,
            self._plan(owns),
            self._state,
            self._batching,
            self._shuffle,
            self._batch_fns,
            self._budget,
        )

    def _plan(self, owns: Owns) -> Plan:
        options = self._options
        return Plan(
            source=self._source,
            stages=self._stages,
            positions=self._state.splits,
            owns=owns,
            run=Run(options.seed, self._state.pass_index),
            order=options.order,
            max_bytes=options.max_bytes,
            workers=options.worker_bounds(),
            batch_rows=self._batching.size if self._shuffle is None else None,
        )

    def _stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            if session.is_here:
                self._counts.past.keep(
                    session.feed,
                    source_wait_seconds=session.source_wait_seconds(),
                    room_wait_seconds=session.prefetcher.waited_for_room_seconds,
                )
            if self._finalizer is not None:
                self._finalizer.detach()
            session.close()

    def _deliver(self, progress: Progress) -> None:
        if self._options.state_of == "committed":
            self._uncommitted.append([partial(_trained, progress)])
        else:
            self._advance(partial(_trained, progress))

    def _advance(self, step: Step) -> None:
        self._state = step(self._state)
        self._counts.splits = self._state.splits

    def _then(self, step: Step) -> None:
        """Change the state once every batch before is part of it."""
        if self._uncommitted:
            self._uncommitted[-1].append(step)
        else:
            self._advance(step)

    def _bury(self, failures: Failures) -> None:
        if not failures:
            return
        letters = [Letter(split=split, failure=f) for split, f in failures]
        self._counts.bury(letters)
        if self._sink is not None:
            self._sink.write(letters)
            self._counts.letters = self._counts.letters_to_flush = True

    def _flush_letters(self) -> None:
        if self._counts.letters_to_flush and self._sink is not None:
            self._sink.flush()
            self._counts.letters_to_flush = False


class LoaderIterator(Iterator[Batch]):
    """One ``for`` loop over a loader: to the end of the pass, or of the epoch."""

    def __init__(self, loader: Loader, steps: int | None) -> None:
        self._loader: Loader | None = loader
        self._steps = steps
        self._loop = 0

    def __next__(self) -> Batch:
        if self._loader is None or self._steps == 0:
            raise StopIteration
        self._loop = self._loop or self._loader._begin_loop()
        batch = self._loader._next()
        if batch is None:
            self._loader = None
            raise StopIteration
        if self._steps is not None:
            self._steps -= 1
        return batch

    def __del__(self) -> None:
        if self._loader is not None and self._loop:
            self._loader._abandon(self._loop)


def _pending(p: Position) -> int:
    return sum(r.stop - r.start for r in p.pending)


def _commit_hint(state_of: StateOf) -> str:
    return "" if state_of == "committed" else ': give the loader state_of="committed"'


def _moved(progress: Progress, state: State) -> State:
    return replace(
        state,
        splits={**state.splits, **progress.splits},
        windows=progress.windows,
        open_windows=progress.open_windows,
        mixture=progress.mixture,
    )


def _trained(progress: Progress, state: State) -> State:
    return replace(_moved(progress, state), batches=state.batches + 1)


def _next_pass(state: State) -> State:
    """The state at the start of the next pass: every split from the first offset ever read."""
    splits = {
        k: Position(p.low if p.base is None else p.base, token=p.token, base=p.base)
        for k, p in state.splits.items()
    }
    return State(splits=splits, pass_index=state.pass_index + 1, batches=state.batches)


def _clock_of(options: LoaderOptions) -> StepClock:
    if options.step_clock is not None:
        return options.step_clock()
    return cuda_clock(options.device) if is_cuda(options.device) else HostClock()


def _rank_of(options: LoaderOptions) -> tuple[int, int]:
    if options.rank is not None and options.world_size is not None:
        rank, world_size = options.rank, options.world_size
    elif dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    else:
        rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    check_rank(rank, world_size)
    return rank, world_size


def _check_each_owns(splits: Collection[Split], rank: int, world_size: int) -> None:
    """Refuse a job in which some rank would own nothing, on every rank alike: were it refused on
    that rank alone, the others would go on and train without it.

    Raises:
        ConfigError: names a rank that would own nothing, and ways out.
    """
    idle = set(range(world_size)) - {s.owner(world_size) for s in splits}
    if not idle:
        return
    first = rank if rank in idle else min(idle)
    ids = [s.id for s in splits]
    named = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
    raise ConfigError(
        f"rank {first} of {world_size} would own none of the source's {len(ids)} splits "
        f"({named}). Use at most as many ranks as splits, or make more splits: for a Delta table, "
        f"shards={world_size}; for a topic, more partitions."
    )
