"""Gives parcels to leases: who has which, and in what order a lease yields what it has.

A lease is a read task of Ray Data. When its process dies, Ray runs it again from its first line
and skips as many yields as it had seen: so what it yields is written down here, and it is given
the same again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from typing import Any, NamedTuple


class Lease(NamedTuple):
    """One read task of a data set."""

    run: int
    number: int


class Coordinator:
    """Gives parcels to leases, each to one. An asynchronous actor: one thread, so no locks."""

    def __init__(self) -> None:
        self._refs: dict[int, list[Any]] = {}
        """What is not finished, by serial number; a list, or Ray would send the parcel itself."""
        self._waiting: deque[int] = deque()
        self._given: dict[Lease, list[int]] = defaultdict(list)
        self._arrived: dict[int, set[str]] = defaultdict(set)
        self._over: set[int] = set()
        self._stopped: set[int] = set()
        self._unguarded: set[int] = set()
        self._news = asyncio.Condition()

    async def put(self, serial: int, refs: list[Any]) -> None:
        """Give a parcel to whichever lease asks next."""
        self._refs[serial] = refs
        self._waiting.append(serial)
        await self._tell()

    async def take(self, lease: Lease, index: int) -> tuple[int, list[Any]] | None:
        """What a lease yields at an index: always the same; None when it is over.

        The reference is left out once the parcel is finished: Ray will not ask for it again.
        """
        given = self._given[lease]
        async with self._news:
            # A process that died may still wait here for the same index as its successor.
            while len(given) <= index:
                if lease.run in self._over:
                    return None
                if self._waiting:
                    given.append(self._waiting.popleft())
                else:
                    await self._news.wait()
        return given[index], self._refs.get(given[index], [])

    async def finished(self, serial: int) -> None:
        """Forget a parcel."""
        self._refs.pop(serial, None)
        await self._tell()

    async def stopped(self, run: int) -> bool:
        """Wait until a data set is to stop at once (True) or has ended by itself (False)."""
        async with self._news:
            await self._news.wait_for(lambda: run in self._stopped or self._has_ended(run))
        return run in self._stopped

    async def arrive(self, run: int, worker: str) -> None:
        """Say that a worker of a data set is there."""
        self._arrived[run].add(worker)

    async def arrived(self, run: int) -> int:
        """How many workers of a data set ever came."""
        return len(self._arrived[run])

    async def end(self, run: int) -> None:
        """Give a data set no more: it ends by itself with what it has."""
        self._over.add(run)
        await self._tell()

    async def stop(self, run: int) -> None:
        """End a data set, whatever it is doing."""
        self._stopped.add(run)
        await self._tell()

    async def unguard(self, run: int) -> None:
        """Let a data set end although it owes parcels: Ray may have lost them."""
        self._unguarded.add(run)
        await self._tell()

    async def take_back(self, run: int) -> int:
        """Let others have what an ended data set was given and did not finish; how many."""
        owed = self._owed_by(run)
        for lease in [lease for lease in self._given if lease.run == run]:
            del self._given[lease]
        self._waiting.extendleft(reversed(owed))
        self._arrived.pop(run, None)
        await self._tell()
        return len(owed)

    def _has_ended(self, run: int) -> bool:
        return run in self._over and (run in self._unguarded or not self._owed_by(run))

    def _owed_by(self, run: int) -> list[int]:
        given = (serials for lease, serials in self._given.items() if lease.run == run)
        return sorted(s for s in itertools.chain(*given) if s in self._refs)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()
