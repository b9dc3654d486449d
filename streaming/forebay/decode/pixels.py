"""Pixels: one image file to an array HWC, right for every kind of file the formats allow."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forebay.decode.headers import Header
from forebay.decode.image_libs import cv2, simplejpeg
from forebay.decode.payloads import BadPayload, Payload
from forebay.decode.sizing import Size

Pixels: TypeAlias = "NDArray[Any]"
Channels: TypeAlias = Literal["rgb", "gray"]
Colour: TypeAlias = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

# Warnings of libjpeg about files of common cameras whose pixels are whole.
# simplejpeg cannot be told to overlook those in a header.
_HARMLESS = ("extraneous bytes before marker", "unknown JFIF revision")
# By orientation: whether to transpose, then how to flip (1 left-right, 0 upside down, -1 both).
_TURNS: dict[int, tuple[bool, int | None]] = {
    1: (False, None),
    2: (False, 1),
    3: (False, -1),
    4: (False, 0),
    5: (True, None),
    6: (True, 1),
    7: (True, -1),
    8: (True, 0),
}


def decode_jpeg(data: Payload, channels: Channels, shrunk: Size | None) -> Pixels:
    """Decode at full size, or at the size ``shrunk``: a half, a quarter or an eighth.

    Raises:
        BadPayload: the file is truncated or corrupt. libjpeg would warn, and fill what is
            missing with grey.
    """
    options: dict[str, Any] = {"colorspace": "GRAY" if channels == "gray" else "RGB"}
    if shrunk is not None:
        options |= {"min_height": shrunk[0], "min_width": shrunk[1], "min_factor": 2}
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, **options)
    except ValueError as e:
        return _in_spite_of(str(e), data, channels)
    return pixels


def decode_other(
    data: Payload, header: Header, channels: Channels, background: Colour | None
) -> Pixels:
    """Decode a file of another format, in 8 or 16 bits as it is stored.

    Raises:
        BadPayload: the file is truncated or corrupt.
    """
    image = _opencv(data, header.format, cv2.IMREAD_UNCHANGED)
    return _with_channels(image, channels, background)


def upright(image: Pixels, orientation: int) -> Pixels:
    """The picture as a viewer shows it, by its EXIF orientation."""
    transpose, flip = _TURNS[orientation]
    turned: Pixels = cv2.transpose(image) if transpose else image
    turned = turned if flip is None else cv2.flip(turned, flip)
    return _hwc(turned)


def convert_into(image: Pixels, out: Pixels) -> None:
    """Write ``image`` in the depth of ``out``, scaled by the largest value of each type."""
    if out.dtype == np.float32:
        np.divide(image, np.float32(np.iinfo(image.dtype).max), out=out)
    elif out.dtype == np.uint16:
        np.multiply(image, 257, out=out, dtype=np.uint16)
    else:
        cv2.convertScaleAbs(image, dst=out, alpha=1 / 257)


def _in_spite_of(warning: str, data: Payload, channels: Channels) -> Pixels:
    """Decode a JPEG that libjpeg warns about, if its pixels are known to be whole.

    libjpeg tells its first warning only, so the end marker must be there, too: behind the last
    start of scan, since a thumbnail in front has markers of its own.
    """
    raw = bytes(data)
    whole = raw.rfind(b"\xff\xd9") > raw.rfind(b"\xff\xda")
    if not whole or not any(known in warning for known in _HARMLESS):
        kind = "corrupt" if whole and "remature end" not in warning else "truncated"
        raise BadPayload(f"{kind} jpeg image: {warning}")
    flags = cv2.IMREAD_GRAYSCALE if channels == "gray" else cv2.IMREAD_COLOR
    image = _opencv(raw, "jpeg", flags | cv2.IMREAD_IGNORE_ORIENTATION)
    return _with_channels(image, channels, None)


def _opencv(data: Payload, format: str, flags: int) -> Pixels:
    """Gray, BGR or BGRA, of 8 or 16 bits."""
    try:
        image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as e:
        raise BadPayload(f"corrupt {format} image: {e.err}") from e
    if image is None:
        raise BadPayload(f"truncated or corrupt {format} image: it cannot be decoded")
    pixels: Pixels = image
    return pixels


def _with_channels(image: Pixels, channels: Channels, background: Colour | None) -> Pixels:
    """From what OpenCV gives (gray, BGR or BGRA) to HWC with the channels asked for."""
    if image.ndim == 3:
        to = cv2.COLOR_BGR2GRAY if channels == "gray" else cv2.COLOR_BGR2RGB
        image = cv2.cvtColor(_opaque(image, background), to)
    elif channels == "rgb":
        image = cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)
    return _hwc(image)


def _opaque(image: Pixels, background: Colour | None) -> Pixels:
    """The picture (BGR or BGRA) laid over the background; exact where it is opaque."""
    if image.shape[2] == 3:
        return image
    colour = image[..., :3]
    if background is None:
        return np.ascontiguousarray(colour)
    top = np.iinfo(image.dtype).max
    alpha = image[..., 3:].astype(np.float32) / np.float32(top)
    behind = np.array(background[::-1], np.float32) * np.float32(top / 255)
    mixed = np.rint(colour * alpha + behind * (1 - alpha))
    opaque: Pixels = mixed.astype(image.dtype)
    return opaque


def _hwc(image: Pixels) -> Pixels:
    return image if image.ndim == 3 else image[..., None]
