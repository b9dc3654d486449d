"""Loads deletion vectors: the physical numbers of the rows of a file that are deleted."""

from __future__ import annotations

import struct
import zlib
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from forebay_delta.actions import DeletionVector
from forebay_delta.errors import BrokenTable
from forebay_delta.roaring import decode_roaring64
from forebay_delta.storage import Store

_MAGIC = 1681511377
_UUID_CHARACTERS = 20
_Z85 = {
    character: value
    for value, character in enumerate(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    )
}


def load_deletion_vector(store: Store, vector: DeletionVector) -> NDArray[np.int64]:
    """The deleted rows of a file, by physical number, ascending.

    One request for a vector in a file, none for an inline one. Size, checksum, magic number and
    count are checked: rows that come back from the dead would train unseen.

    Raises:
        FileNotFoundError: the vector's file is gone.
        BrokenTable: it contradicts what the log says of it; the message names the file.
    """
    where = f"{store.uri}: deletion vector {vector.id!r}"
    try:
        rows = _decode(_payload(store, vector))
    except (ValueError, struct.error) as error:
        raise BrokenTable(f"{where} is broken: {error}") from error
    if len(rows) != vector.cardinality:
        raise BrokenTable(f"{where} has {len(rows)} rows; the log says {vector.cardinality}")
    return rows


def vector_path(vector: DeletionVector) -> str:
    """Where a vector's file is, as a `log_path`: relative to the table, or absolute."""
    if vector.storage == "p":
        return vector.place
    prefix, encoded = vector.place[:-_UUID_CHARACTERS], vector.place[-_UUID_CHARACTERS:]
    name = f"deletion_vector_{UUID(bytes=decode_z85(encoded))}.bin"
    return f"{prefix}/{name}" if prefix else name


def decode_z85(text: str) -> bytes:
    """Four bytes for every five characters: ZeroMQ's base 85, https://rfc.zeromq.org/spec/32/.

    The last group may be filled up from the left by up to three ``#``: so many bytes are missing.
    """
    if len(text) % 5:
        raise ValueError(f"{len(text)} characters are no multiple of 5")
    out = bytearray()
    for start in range(0, len(text), 5):
        group = text[start : start + 5]
        missing = _padding(group) if start + 5 == len(text) else 0
        out += _four_bytes("0" * missing + group[missing:])[missing:]
    return bytes(out)


def _padding(group: str) -> int:
    """A whole group may begin with ``#`` too, but then its value does not fit four bytes.

    The digit ``#`` is 84, and 84 * 85**4 is more than 2**32: so it can only be padding.
    """
    return min(len(group) - len(group.lstrip("#")), 3)


def _four_bytes(group: str) -> bytes:
    value = 0
    for character in group:
        if character not in _Z85:
            raise ValueError(f"{character!r} is no character of base 85")
        value = value * 85 + _Z85[character]
    if value >= 1 << 32:
        raise ValueError(f"{group!r} is more than four bytes in base 85")
    return struct.pack(">I", value)


def _payload(store: Store, vector: DeletionVector) -> bytes:
    """The magic number and the bitmap, wherever they are kept."""
    if vector.storage == "i":
        data = decode_z85(vector.place)
        if len(data) < vector.size:
            raise ValueError(f"{len(data)} bytes instead of {vector.size}")
        return data[: vector.size]
    if vector.storage not in ("u", "p"):
        raise ValueError(f"unknown storage type {vector.storage!r}")
    owner, path = store.at(vector_path(vector))
    return _checked(owner.get_range(path, vector.offset or 0, vector.size + 8), vector.size)


def _checked(data: bytes, size: int) -> bytes:
    """In a file, a payload has its size before it and its CRC-32 behind it, big-endian."""
    if len(data) != size + 8:
        raise ValueError(f"the file ends after {len(data)} of its {size + 8} bytes")
    (stored_size,) = struct.unpack_from(">I", data)
    if stored_size != size:
        raise ValueError(f"the file says that it has {stored_size} bytes, the log says {size}")
    payload = data[4 : 4 + size]
    if zlib.crc32(payload) != struct.unpack_from(">I", data, 4 + size)[0]:
        raise ValueError("its checksum is wrong")
    return payload


def _decode(payload: bytes) -> NDArray[np.int64]:
    (magic,) = struct.unpack_from("<I", payload)
    if magic != _MAGIC:
        raise ValueError(f"unknown magic number {magic}")
    return decode_roaring64(payload[4:])
