"""Factories of DataLoaders for ``forebay doctor --loader``: healthy ones, and ones with a fault.

Their items take time by sleeping: what is right about them holds on a busy machine, too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

ITEM_SECONDS = 0.005


class Sleepy(Dataset[torch.Tensor]):
    """Each item takes a while, as from a slow disk."""

    def __init__(self, length: int = 100_000, seconds: float = ITEM_SECONDS) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((8,), i)


class Hanging(Sleepy):
    """One item never comes."""

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == 6:
            time.sleep(3600)
        return super().__getitem__(i)


class Locked(Sleepy):
    """One item needs a lock that another thread holds while workers are forked."""

    lock = threading.Lock()

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == 6:
            with_lock(self.lock)
        return super().__getitem__(i)


def with_lock(lock: threading.Lock) -> None:
    lock.acquire()
    lock.release()


class Leaking(Sleepy):
    """Keeps something of each item."""

    kept: list[bytes] = []

    def __getitem__(self, i: int) -> torch.Tensor:
        self.kept.append(b"x" * (1 << 18))
        return super().__getitem__(i)


class Indexed(Dataset[torch.Tensor]):
    """Keeps Python objects of which each item looks at some, 8 pages apart from the next item's."""

    def __init__(self) -> None:
        self.index = [float(i) for i in range(2_000_000)]

    def __len__(self) -> int:
        return len(self.index) // 1024

    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.tensor(self.index[i * 1024 : (i + 1) * 1024 : 128])


class Dying(Sleepy):
    """No item can be read."""

    def __getitem__(self, i: int) -> torch.Tensor:
        raise KeyError(f"no item {i} in the index")


class Vanishing(Sleepy):
    """Ends its process."""

    def __getitem__(self, i: int) -> torch.Tensor:
        os._exit(3)


class Unpicklable(Sleepy):
    """Can be forked only."""

    def __init__(self) -> None:
        super().__init__()
        self.key = lambda i: i


class SameInEach(IterableDataset[torch.Tensor]):
    """Each worker gives all of it."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(1000):
            yield torch.full((8,), i)


class OwnLoader(DataLoader[torch.Tensor]):
    """Cannot be made from the arguments of a DataLoader."""

    def __init__(self, path: str) -> None:
        super().__init__(Sleepy(seconds=0.001), batch_size=2)


def slow() -> DataLoader[Any]:
    return DataLoader(Sleepy(), batch_size=4, num_workers=1)


def healthy() -> tuple[DataLoader[Any], Any]:
    """5 ms a batch for a step of 50 ms."""
    return DataLoader(Sleepy(), batch_size=2, num_workers=2), lambda batch: time.sleep(0.05)


def restarting() -> DataLoader[Any]:
    return DataLoader(
        Sleepy(16), batch_size=4, num_workers=2, worker_init_fn=slow_start, shuffle=True
    )


def slow_start(worker_id: int) -> None:
    time.sleep(0.15)


def copying() -> DataLoader[Any]:
    """Forked workers copy the pages that they look at."""
    return DataLoader(Indexed(), batch_size=2, num_workers=1)


def hanging() -> DataLoader[Any]:
    return DataLoader(Hanging(), batch_size=2)


def locked() -> DataLoader[Any]:
    dataset = Locked()
    dataset.lock.acquire()
    threading.Timer(0.2, dataset.lock.release).start()
    return DataLoader(dataset, batch_size=2, num_workers=2)


def leaking() -> DataLoader[Any]:
    return DataLoader(Leaking(seconds=0.001), batch_size=2, num_workers=1)


def dying() -> DataLoader[Any]:
    return DataLoader(Dying(), batch_size=2, num_workers=1)


def vanishing() -> DataLoader[Any]:
    return DataLoader(Vanishing(), batch_size=2)


def unpicklable() -> DataLoader[Any]:
    return DataLoader(Unpicklable(), batch_size=2, num_workers=1)


def same_in_each() -> DataLoader[Any]:
    return DataLoader(SameInEach(), batch_size=4, num_workers=2)


def own_class() -> DataLoader[Any]:
    return OwnLoader("x")


def failing() -> DataLoader[Any]:
    return DataLoader(Sleepy(), batches=4)  # type: ignore[call-arg]


def no_loader() -> list[int]:
    return [1, 2, 3]
