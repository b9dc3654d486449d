"""Ranks tell each other where their time goes, over the store by which the job found together.

One rank that starves keeps all others waiting in the all-reduce, where it looks like slow
communication. A collective for telling would hang as soon as one rank ends before the others: each
rank writes what it knows under its own key, reads what is there, and waits for nobody.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import msgspec
import torch.distributed as dist

from forebay.observe.monitor import Exchange
from forebay.observe.points import WINDOW_SECONDS, before, shares
from forebay.observe.snapshot import RankSeen, Snapshot

_log = logging.getLogger("forebay.observe")
_dist: Any = dist  # parts of it have no types
_GONE = b"gone"
_STORE_SECONDS = timedelta(seconds=5)
_RANKS_A_SECOND = 32
"""Each rank reads all others: of many ranks less often, so that their store is not the limit."""
_SILENT_PERIODS, _SILENT_SECONDS = 4, 10.0
_ASKED_ONE_BY_ONE = 64
_KEPT = 64


class Store(Protocol):
    """What is asked of a store of ``torch.distributed``."""

    def set(self, key: str, value: bytes) -> None:
        """Write."""

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""

    def get(self, key: str) -> bytes:
        """Read; waits for a key that is not there."""

    def has_extended_api(self) -> bool:
        """Whether it has ``multi_get``."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read several at once."""


def of_job() -> Exchange | None:
    """The ranks of this process's job; None where PyTorch has no distributed part.

    May be made before ``init_process_group``: until then, and in a job of one, nobody tells.
    """
    return JobRanks() if dist.is_available() else None


class JobRanks:
    """The ranks of the default process group, as soon as there is one."""

    def __init__(self) -> None:
        self._ranks: StoreRanks | None = None

    def exchange(self, snapshot: Snapshot) -> tuple[RankSeen, ...]:
        """See ``Exchange``.

        Raises:
            RuntimeError: the store is gone, as when the rank that keeps it has ended.
        """
        if self._ranks is None and dist.is_initialized() and dist.get_world_size() > 1:
            self._ranks = StoreRanks(own_store(), dist.get_rank(), dist.get_world_size())
        return () if self._ranks is None else self._ranks.exchange(snapshot)


def own_store() -> Store:
    """The default process group's store by a connection of our own.

    A store takes one question at a time: over the job's own connection ours would wait for as long
    as the trainer's thread waits there for another rank. A new attempt of an elastic job, which may
    find the old one's store, has keys of its own.
    """
    store = _dist.distributed_c10d._get_default_store()
    while isinstance(store, _dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, _dist.TCPStore):
        # Not a clone: that would keep the server, and its port, for as long as we live.
        store = _dist.TCPStore(
            store.host, store.port, timeout=_STORE_SECONDS, wait_for_workers=False
        )
    elif isinstance(store, _dist.FileStore):
        store = _dist.FileStore(store.path)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
    mine: Store = _dist.PrefixStore(f"forebay/{attempt}", store)
    return mine


@dataclass(slots=True)
class _Heard:
    """What another rank told last."""

    value: bytes
    since: float


class StoreRanks:
    """Ranks that share a store. On one thread.

    Args:
        store: of all ranks, over a connection that nobody else uses.
        clock: monotonic seconds; moments of other ranks' clocks are not compared with it.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._rank, self._others = store, rank, set(range(world_size)) - {rank}
        self._clock = clock
        self._period = max(1.0, world_size / _RANKS_A_SECOND)
        self._silent = max(_SILENT_SECONDS, _SILENT_PERIODS * self._period)
        self._history: deque[Snapshot] = deque(maxlen=_KEPT)
        self._mine: RankSeen | None = None
        self._heard: dict[int, _Heard] = {}
        self._next = float("-inf")

    def exchange(self, snapshot: Snapshot) -> tuple[RankSeen, ...]:
        """See ``Exchange``. A rank that ended, or was silent for long, is absent.

        Raises:
            RuntimeError: the store is gone.
        """
        self._mine = self._shares(snapshot) or self._mine
        self._history.append(snapshot)
        now = self._clock()
        if snapshot.ended is not None:
            self._leave()
        elif now >= self._next:
            self._next = now + self._period
            self._tell()
            self._listen(now)
        seen = [self._mine, *self._told(now)]
        return tuple(sorted((r for r in seen if r is not None), key=lambda r: r.rank))

    def _shares(self, snapshot: Snapshot) -> RankSeen | None:
        then = before(list(self._history), snapshot, WINDOW_SECONDS)
        known = {} if then is None else shares(then.steps, snapshot.steps)
        if not known:
            return None
        return RankSeen(
            rank=self._rank,
            starved=known.get("starved"),
            copy=known.get("copy"),
            compute=known.get("compute"),
            communication=known.get("communication"),
            other=known.get("other"),
            at=snapshot.at,
        )

    def _tell(self) -> None:
        if self._mine is not None:
            self._store.set(str(self._rank), msgspec.json.encode(self._mine))

    def _leave(self) -> None:
        try:
            self._store.set(str(self._rank), _GONE)
        except RuntimeError as e:  # the rank that keeps the store has ended before this one
            _log.debug("the other ranks were not told of the end: %s", e)

    def _listen(self, now: float) -> None:
        """Ask only for what is there: to ask for more is to wait for it."""
        new = self._others - self._heard.keys()
        ranks = sorted({*self._heard, *self._there(new)})
        for rank, value in zip(ranks, self._values(ranks), strict=True):
            heard = self._heard.get(rank)
            if heard is None or heard.value != value:
                self._heard[rank] = _Heard(value, now)

    def _there(self, ranks: Iterable[int]) -> list[int]:
        keys = [str(r) for r in ranks]
        if not keys or self._store.check(keys):
            return [int(k) for k in keys]
        return [int(k) for k in keys[:_ASKED_ONE_BY_ONE] if self._store.check([k])]

    def _values(self, ranks: Sequence[int]) -> list[bytes]:
        keys = [str(r) for r in ranks]
        if keys and self._store.has_extended_api():
            return self._store.multi_get(keys)
        return [self._store.get(k) for k in keys]

    def _told(self, now: float) -> Iterable[RankSeen]:
        for heard in self._heard.values():
            if heard.value != _GONE and now - heard.since < self._silent:
                yield msgspec.json.decode(heard.value, type=RankSeen)
