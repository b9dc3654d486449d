"""JPEG files like photographs, and the function that every contender decodes them with.

Needs NumPy, OpenCV and simplejpeg only, so that it runs in a peer's environment, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

HEIGHT, WIDTH, QUALITY = 375, 500, 68
SIDE, BATCH, WARM_UP = 224, 64, 12


def write_files(path: Path, count: int) -> float:
    """Write ``count`` files into one archive; returns their mean size in bytes."""
    made = [
        cv2.imencode(".jpg", _photo(i), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1]
        for i in range(count)
    ]
    np.savez(path, *made)
    return float(np.mean([len(file) for file in made]))


def read_files(path: Path) -> list[bytes]:
    """The files of an archive."""
    with np.load(path) as archive:
        return [archive[name].tobytes() for name in archive.files]


def decode_into(data: bytes, out: NDArray[np.uint8]) -> None:
    """Decode and resize one picture."""
    pixels = simplejpeg.decode_jpeg(data)
    cv2.resize(pixels, (SIDE, SIDE), dst=out, interpolation=cv2.INTER_LINEAR)


def decode_one(data: bytes) -> NDArray[np.uint8]:
    """The same into an array of its own."""
    out = np.empty((SIDE, SIDE, 3), np.uint8)
    decode_into(data, out)
    return out


def decode_batch(files: Sequence[bytes]) -> NDArray[np.uint8]:
    """The same for many pictures, into one array."""
    out = np.empty((len(files), SIDE, SIDE, 3), np.uint8)
    for data, row in zip(files, out, strict=True):
        decode_into(data, row)
    return out


def measured(batches: Iterable[Any], count: int, cpu: Any = time.process_time) -> dict[str, float]:
    """CPU and wall milliseconds for each picture over ``count`` batches, after a warm-up.

    ``cpu`` tells the CPU seconds so far of all processes that work.
    """
    steps = iter(batches)
    for _ in range(WARM_UP):
        next(steps)
    cpu_began, began = cpu(), time.perf_counter()
    for _ in range(count):
        next(steps)
    wall, used = time.perf_counter() - began, cpu() - cpu_began
    return {"cpu_ms": used / (count * BATCH) * 1000, "wall_ms": wall / (count * BATCH) * 1000}


def _photo(seed: int) -> NDArray[np.uint8]:
    """Smooth colours, fine detail and some edges."""
    random = np.random.default_rng(seed)
    colours = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    smooth = cv2.resize(colours, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    grain = random.normal(0, 22, (HEIGHT // 2, WIDTH // 2, 3)).astype(np.float32)
    detail = cv2.resize(grain, (WIDTH, HEIGHT), interpolation=cv2.INTER_LINEAR)
    picture: NDArray[np.uint8] = np.clip(smooth + detail, 0, 255).astype(np.uint8)
    for _ in range(8):
        y, x, radius, *colour = (int(v) for v in random.integers(10, 256, 6))
        cv2.circle(picture, (x * 2 % WIDTH, y % HEIGHT), radius % 50 + 10, colour, -1)
    return picture
