"""The demo's pictures: one of a few shapes each, in a random place, size and colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forebay.demo.task import SHAPES
from forebay_delta.demo.task import SIZE

Grid: TypeAlias = NDArray[np.float64]


def pictures(rng: np.random.Generator, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Pictures ``[count, SIZE, SIZE, 3]``, and the number of each one's shape in ``SHAPES``."""
    labels = rng.integers(len(SHAPES), size=count, dtype=np.int32)
    return np.stack([_picture(rng, int(label)) for label in labels]), labels


def _picture(rng: np.random.Generator, label: int) -> NDArray[np.uint8]:
    radius = rng.uniform(6, 12)
    x, y = rng.uniform(radius, SIZE - radius, 2)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    inside = _INSIDE[label](columns - x, rows - y, radius)
    background, colour = rng.uniform(40, 216, 3), rng.uniform(0, 256, 3)
    canvas = np.where(inside[..., None], colour, background) + rng.normal(0, 9, (SIZE, SIZE, 1))
    return np.clip(canvas, 0, 255).astype(np.uint8)


# Which points a shape of radius r covers, by their distance from its centre; as in SHAPES.
_INSIDE: Sequence[Callable[[Grid, Grid, float], NDArray[np.bool_]]] = (
    lambda x, y, r: np.hypot(x, y) < r,
    lambda x, y, r: np.maximum(abs(x), abs(y)) < r,
    lambda x, y, r: (abs(y) < r) & (abs(x) < (y + r) / 2),
    lambda x, y, r: (np.maximum(abs(x), abs(y)) < r) & (np.minimum(abs(x), abs(y)) < r / 3),
)
