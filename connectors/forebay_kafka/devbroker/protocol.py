"""Kafka's wire format: request heads, answers as pieces of bytes, and errors put into answers."""

from __future__ import annotations

import struct
import uuid
from typing import Any, NamedTuple

HEAD = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id
FRAME = struct.Struct(">i")

Message = Any
"""A request or a response of kafka-python's schemas; attributes are the fields in snake case."""


class Head(NamedTuple):
    """What stands before every request's body."""

    api_key: int
    version: int
    correlation_id: int
    body_at: int


def head(frame: bytearray, flexible_from: dict[int, int]) -> Head:
    """Read a request's head; `flexible_from` tells from which version on it ends with tags."""
    api_key, version, correlation_id, client_length = HEAD.unpack_from(frame)
    at = HEAD.size + max(client_length, 0)
    if version >= flexible_from.get(api_key, version + 1):
        at = _after_tags(frame, at)
    return Head(api_key, version, correlation_id, at)


def _after_tags(frame: bytearray, at: int) -> int:
    count, at = _unsigned_varint(frame, at)
    for _ in range(count):
        _, at = _unsigned_varint(frame, at)
        size, at = _unsigned_varint(frame, at)
        at += size
    return at


class Records:
    """Record batches on their way into an answer, without joining them to it.

    The schema's encoder copies what it is given three times. It is given a 16-byte stand-in, and
    `encode` puts the batches where the stand-in went.
    """

    def __init__(self) -> None:
        self.stand_in = uuid.uuid4().bytes
        self.batches: list[list[bytearray]] = []

    def add(self, data: list[bytearray]) -> bytes:
        """The stand-in for these batches; as nothing for none of them."""
        if not data:
            return b""
        self.batches.append(data)
        return self.stand_in


def encode(
    response: Message, version: int, correlation_id: int, records: Records | None = None
) -> list[bytes | bytearray]:
    """The frame of a response, in pieces to be sent one after the other."""
    response.API_VERSION = version
    response.with_header(correlation_id=correlation_id)
    body = response.encode(header=True)
    pieces: list[bytes | bytearray] = [b"", body]
    if records is not None and records.batches:
        compact = response.flexible_version_q(version)
        pieces[1:] = _with_records(body, records, compact=compact)
    pieces[0] = FRAME.pack(sum(map(len, pieces)))
    return pieces


def _with_records(body: bytearray, records: Records, *, compact: bool) -> list[bytes | bytearray]:
    """Put the batches, and their length, where the stand-ins and the stand-ins' length were."""
    length_bytes = 1 if compact else 4
    texts = body.split(records.stand_in)
    pieces: list[bytes | bytearray] = []
    for text, data in zip(texts[:-1], records.batches, strict=True):
        size = sum(map(len, data))
        length = _varint(size + 1) if compact else FRAME.pack(size)
        pieces.append(text[:-length_bytes] + length)
        pieces += data
    pieces.append(texts[-1])
    return pieces


def put_error(part: Message, code: int) -> bool:
    """Set the innermost error codes of a response: the partitions' rather than the request's.

    Returns whether there was one to set.
    """
    arrays = [name for name, spec in part.fields.items() if spec.is_struct_array()]
    inner = [put_error(each, code) for name in arrays for each in getattr(part, name) or ()]
    if any(inner):
        return True
    for name in ("error_code", "partition_error_code"):
        if name in part.fields:
            setattr(part, name, code)
            return True
    return False


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _unsigned_varint(data: bytearray, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
