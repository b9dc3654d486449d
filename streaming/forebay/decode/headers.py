"""Image headers: format, size and orientation, read from the first bytes without decoding.

The size is checked against a limit before a decoder is let near the file, and a file that ends
too early is found here where its container says how long it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from forebay.decode.payloads import BadPayload, Payload

_ORIENTATION_TAG = 0x0112
_EXIF = b"Exif\0\0"
_STANDALONE = {0x01, *range(0xD0, 0xD9)}  # JPEG markers without a length: TEM, RSTn, SOI
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOFn; C4, C8 and CC are tables
_START_OF_SCAN = 0xDA


@dataclass(frozen=True, slots=True)
class Header:
    """What the file says about its picture, as stored: before its orientation is applied."""

    format: str
    height: int
    width: int
    orientation: int = 1
    """As in EXIF, 1 to 8; 1 where the file says nothing or something impossible."""


def read_header(data: Payload) -> Header:
    """The header of a JPEG, PNG, WebP, GIF or BMP file.

    Raises:
        BadPayload: it is none of these, or ends before its header or before its declared end.
    """
    try:
        return _read(data)
    except (struct.error, IndexError) as e:
        raise BadPayload(f"the image ends inside its header ({len(data)} bytes)") from e


def _read(data: Payload) -> Header:
    if data[:3] == b"\xff\xd8\xff":
        return _jpeg(data)
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return _png(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    if data[:6] in (b"GIF87a", b"GIF89a"):
        width, height = struct.unpack_from("<HH", data, 6)
        return _sized("gif", height, width)
    if data[:2] == b"BM":
        return _bmp(data)
    if not len(data):
        raise BadPayload("the payload is empty (0 bytes), not an image")
    start = bytes(data[:8])
    raise BadPayload(f"not a JPEG, PNG, WebP, GIF or BMP image: it starts with {start!r}")


def _jpeg(data: Payload) -> Header:
    orientation = 1
    for marker, at in _jpeg_segments(data):
        if marker == 0xE1 and data[at + 2 : at + 8] == _EXIF:
            (length,) = struct.unpack_from(">H", data, at)
            orientation = _orientation(data[at + 8 : at + length])
        elif marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 3)
            return _sized("jpeg", height, width, orientation)
        elif marker == _START_OF_SCAN:
            break
    raise BadPayload("corrupt jpeg image: it has no frame header, so no size")


def _jpeg_segments(data: Payload) -> Iterator[tuple[int, int]]:
    """Markers, each with the place of its length field."""
    at = 2
    while True:
        if data[at] != 0xFF:
            raise BadPayload(f"corrupt jpeg image: no marker at byte {at}")
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker in _STANDALONE:
            at += 2
        else:
            yield marker, at + 2
            at += 2 + max(struct.unpack_from(">H", data, at + 2)[0], 2)


def _png(data: Payload) -> Header:
    width, height = struct.unpack_from(">II", data, 16)
    orientation, at = 1, 8
    while True:
        if at + 12 > len(data):
            raise BadPayload(f"truncated png image: {len(data)} bytes hold no end marker")
        (length,) = struct.unpack_from(">I", data, at)
        kind = data[at + 4 : at + 8]
        if kind == b"eXIf":
            orientation = _orientation(data[at + 8 : at + 8 + length])
        elif kind == b"IEND":
            return _sized("png", height, width, orientation)
        at += 12 + length


def _webp(data: Payload) -> Header:
    (size,) = struct.unpack_from("<I", data, 4)
    if len(data) < size + 8:
        raise BadPayload(f"truncated webp image: {len(data)} of {size + 8} bytes")
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(data[a : a + 3], "little") for a in (24, 27))
        return _sized("webp", height, width, _webp_orientation(data, size + 8))
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return _sized("webp", 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF))
    width, height = struct.unpack_from("<HH", data, 26)
    return _sized("webp", height & 0x3FFF, width & 0x3FFF)


def _webp_orientation(data: Payload, end: int) -> int:
    if not data[20] & 0x08:  # no EXIF chunk is announced
        return 1
    at = 12
    while at + 8 <= end:
        (length,) = struct.unpack_from("<I", data, at + 4)
        if data[at : at + 4] == b"EXIF":
            exif = data[at + 8 : at + 8 + length]
            return _orientation(exif[6:] if exif[:6] == _EXIF else exif)
        at += 8 + length + (length & 1)
    return 1


def _bmp(data: Payload) -> Header:
    (info,) = struct.unpack_from("<I", data, 14)
    if info == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return _sized("bmp", abs(height), width)


def _orientation(exif: Payload) -> int:
    """The orientation in a TIFF header's first directory; 1 if it holds none or is broken."""
    try:
        order = {b"II": "<", b"MM": ">"}[bytes(exif[:2])]
        (at,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, at)
        for entry in range(at + 2, at + 2 + 12 * entries, 12):
            tag, kind = struct.unpack_from(order + "HH", exif, entry)
            if tag == _ORIENTATION_TAG and kind == 3:
                (value,) = struct.unpack_from(order + "H", exif, entry + 8)
                return int(value) if 1 <= value <= 8 else 1
    except (struct.error, KeyError):
        return 1  # broken metadata is no reason to lose a picture
    return 1


def _sized(format: str, height: int, width: int, orientation: int = 1) -> Header:
    if height < 1 or width < 1:
        raise BadPayload(f"corrupt {format} image: its header says {width}x{height} pixels")
    return Header(format, height, width, orientation)
