"""What is in a batch of a user's loader, whatever it is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch


def digest(batch: Any) -> str:
    """The same for the same contents."""
    made = hashlib.blake2b(digest_size=12)
    for part in contents(batch):
        made.update(part)
    return made.hexdigest()


def contents(batch: Any) -> Iterator[memoryview | bytes]:
    """The bytes of all that is in a batch."""
    for leaf in _leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            flat = leaf.detach().cpu().contiguous().reshape(-1)
            yield memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b""
        elif isinstance(leaf, np.ndarray):
            yield np.ascontiguousarray(leaf).tobytes()
        elif isinstance(leaf, (bytes, bytearray)):
            yield bytes(leaf)
        else:
            yield repr(leaf).encode()


def _leaves(item: Any) -> Iterable[Any]:
    if isinstance(item, Mapping):
        for value in item.values():
            yield from _leaves(value)
    elif isinstance(item, (list, tuple)):
        for value in item:
            yield from _leaves(value)
    elif is_dataclass(item) and not isinstance(item, type):
        for f in fields(item):
            yield from _leaves(getattr(item, f.name))
    else:
        yield item


def rows(batch: Any) -> int:
    """How many there are: the first dimension of the first tensor; 0 if there is none."""
    for leaf in _leaves(batch):
        if isinstance(leaf, (torch.Tensor, np.ndarray)) and leaf.ndim:
            return int(leaf.shape[0])
    return len(batch) if isinstance(batch, (list, tuple)) else 0
