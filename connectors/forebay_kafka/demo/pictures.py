"""The demo's pictures: one of a few shapes each, in a random place, size and colour."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from forebay.demo.task import SHAPES

_HEIGHT, _WIDTH = 384, 512


def picture(rng: np.random.Generator) -> tuple[bytes, int]:
    """A JPEG of 384 x 512 pixels, about 30 kB, and the number of its shape in ``SHAPES``."""
    label = int(rng.integers(len(SHAPES)))
    canvas = _background(rng)
    colour = tuple(int(c) for c in rng.integers(0, 256, 3))
    radius = int(rng.integers(60, 150))
    x = int(rng.integers(radius, _WIDTH - radius))
    y = int(rng.integers(radius, _HEIGHT - radius))
    _draw(canvas, SHAPES[label], (x, y), radius, colour)
    ok, encoded = cv2.imencode(".jpg", canvas, [cv2.IMWRITE_JPEG_QUALITY, 72])
    if not ok:
        raise RuntimeError("OpenCV could not write a JPEG")
    return encoded.tobytes(), label


def broken(jpeg: bytes) -> bytes:
    """The first third of a picture, as an upload that broke off leaves it."""
    return jpeg[: len(jpeg) // 3]


def _background(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Soft clouds of colour with grain, so that the JPEG has the size of a photograph."""
    clouds = rng.integers(40, 216, (6, 8, 3)).astype(np.uint8)
    smooth = cv2.resize(clouds, (_WIDTH, _HEIGHT), interpolation=cv2.INTER_CUBIC)
    grain = rng.normal(0, 9, (_HEIGHT, _WIDTH, 1))
    return np.clip(smooth + grain, 0, 255).astype(np.uint8)


def _draw(
    canvas: NDArray[np.uint8],
    shape: str,
    centre: tuple[int, int],
    radius: int,
    colour: tuple[int, ...],
) -> None:
    x, y = centre
    if shape == "circle":
        cv2.circle(canvas, centre, radius, colour, -1)
    elif shape == "square":
        cv2.rectangle(canvas, (x - radius, y - radius), (x + radius, y + radius), colour, -1)
    elif shape == "triangle":
        corners = np.array([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)])
        cv2.fillPoly(canvas, [corners.astype(np.int32)], colour)
    else:
        cv2.line(canvas, (x - radius, y), (x + radius, y), colour, radius // 2)
        cv2.line(canvas, (x, y - radius), (x, y + radius), colour, radius // 2)
