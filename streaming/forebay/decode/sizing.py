"""Sizing: which part of a picture goes where, and how it is resampled."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forebay.decode.image_libs import cv2

Size: TypeAlias = tuple[int, int]
"""Height and width in pixels."""
Fit: TypeAlias = Literal["stretch", "crop", "pad"]
"""``stretch``: the whole picture, its aspect changed. ``crop``: the largest part of the target's
aspect, from the centre. ``pad``: the whole picture with its aspect kept, centred on black."""


def least_size(height: int, width: int, size: Size, fit: Fit) -> Size:
    """The size the whole picture would get; decoding it any smaller would lose detail."""
    if fit == "stretch":
        return size
    scales = size[0] / height, size[1] / width
    scale = max(scales) if fit == "crop" else min(scales)
    return max(round(height * scale), 1), max(round(width * scale), 1)


def resize_into(image: NDArray[Any], out: NDArray[Any], fit: Fit) -> None:
    """Write ``image`` (HWC) resized into ``out`` (HWC, same dtype and channels)."""
    size = out.shape[0], out.shape[1]
    if fit == "pad":
        least = least_size(image.shape[0], image.shape[1], size, fit)
        y, x = (size[0] - least[0]) // 2, (size[1] - least[1]) // 2
        out[...] = 0
        out = out[y : y + least[0], x : x + least[1]]
    elif fit == "crop":
        image = _centre(image, size)
    _resample(image, out)


def _centre(image: NDArray[Any], size: Size) -> NDArray[Any]:
    """The largest part of the aspect of ``size``, from the centre; a view."""
    height, width = image.shape[:2]
    scale = min(height / size[0], width / size[1])
    h = min(max(round(size[0] * scale), 1), height)
    w = min(max(round(size[1] * scale), 1), width)
    y, x = (height - h) // 2, (width - w) // 2
    return image[y : y + h, x : x + w]


def _resample(image: NDArray[Any], out: NDArray[Any]) -> None:
    """Bilinear, which reads four pixels for each that it writes; averaging where there are more.

    Averaging costs twice as much, so it is left to shrinking to less than a quarter of the
    pixels, where bilinear would skip some and show moiré.
    """
    if image.shape[:2] == out.shape[:2]:
        np.copyto(out, image)
        return
    pixels = image.shape[0] * image.shape[1]
    shrinks = pixels > 4 * out.shape[0] * out.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    cv2.resize(image, (out.shape[1], out.shape[0]), dst=out, interpolation=method)
