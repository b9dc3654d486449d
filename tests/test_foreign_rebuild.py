"""A loader made anew with other settings gives what the user's own gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
)

from forebay.diagnose.foreign.contents import digest
from forebay.diagnose.foreign.loading import rebuilt, setting_of
from forebay.diagnose.foreign.stacks import StackInit


class Numbers(Dataset[int]):
    """Eleven of them, by their number."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, i: int) -> int:
        return i


NUMBERS = Numbers()


class Counting(IterableDataset[int]):
    """Ten numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def doubled(rows: list[int]) -> list[int]:
    return [2 * row for row in rows]


LOADERS: list[Callable[[], DataLoader[Any]]] = [
    lambda: DataLoader(NUMBERS, batch_size=4),
    lambda: DataLoader(NUMBERS, batch_size=4, drop_last=True),
    lambda: DataLoader(NUMBERS, batch_size=None),
    lambda: DataLoader(NUMBERS, batch_size=3, collate_fn=doubled),
    lambda: DataLoader(
        NUMBERS,
        batch_sampler=BatchSampler(SequentialSampler(range(7)), 2, False),
    ),
    lambda: DataLoader(
        NUMBERS,
        batch_size=2,
        shuffle=True,
        generator=torch.Generator().manual_seed(3),
    ),
    lambda: DataLoader(Counting(), batch_size=4, drop_last=True),
    lambda: DataLoader(Counting(), batch_size=None),
]


@pytest.mark.parametrize("make", LOADERS)
def test_the_batches_are_the_same(make: Callable[[], DataLoader[Any]]) -> None:
    before, again = make(), make()
    copy = rebuilt(again, setting_of(again), None)
    assert [digest(b) for b in copy] == [digest(b) for b in before]


@pytest.mark.parametrize("make", LOADERS)
def test_they_are_the_same_with_a_worker(make: Callable[[], DataLoader[Any]]) -> None:
    before, again = make(), make()
    copy = rebuilt(again, setting_of(again).with_(num_workers=1, prefetch_factor=3), None)
    assert (copy.num_workers, copy.prefetch_factor) == (1, 3)
    assert [digest(b) for b in copy] == [digest(b) for b in before]


def test_a_users_sampler_and_init_function_are_kept(tmp_path: Path) -> None:
    called: list[int] = []
    sampler = SubsetRandomSampler(range(7))
    loader: DataLoader[int] = DataLoader(NUMBERS, sampler=sampler, worker_init_fn=called.append)
    init = StackInit(str(tmp_path), loader.worker_init_fn)
    copy = rebuilt(loader, setting_of(loader), init)
    assert copy.sampler is sampler
    init(7)
    assert called == [7]
    assert [f.name.endswith(".7") for f in tmp_path.iterdir()] == [True]


def test_batches_with_the_same_contents_have_the_same_digest_and_others_do_not() -> None:
    batch = {"x": torch.tensor([1.0, 2.0]), "y": [b"a", "b"], "half": torch.ones(2).bfloat16()}
    assert digest(batch) == digest({**batch})
    assert digest(batch) != digest({**batch, "y": [b"a", "c"]})
    assert digest(torch.zeros(0)) != digest(torch.ones(1))
    assert digest(torch.eye(2).to_sparse()) != digest(torch.zeros(2, 2).to_sparse())
