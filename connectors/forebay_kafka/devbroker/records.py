"""Looking into a record batch: needed for timestamps and truncation only, never to serve data."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from forebay_kafka.devbroker import batches

XERIAL_MAGIC = b"\x82SNAPPY\0"
XERIAL_HEADER_BYTES = 16


class Record(NamedTuple):
    """Where one record lies in the uncompressed records of its batch, and its address and time."""

    offset: int
    timestamp: int
    start: int
    end: int


def walk(batch: bytes | bytearray) -> Iterator[Record]:
    """The records of a batch in order, without their keys, values and headers."""
    head = batches.header(batch)
    payload = uncompressed(batch)
    appended = bool(head.attributes & batches.APPEND_TIME_BIT)
    at = 0
    for _ in range(head.record_count):
        length, body = _varint(payload, at)
        delta_ms, after = _varint(payload, body + 1)
        delta, _ = _varint(payload, after)
        timestamp = head.max_timestamp if appended else head.first_timestamp + delta_ms
        yield Record(head.base_offset + delta, timestamp, at, body + length)
        at = body + length


def keep_before(batch: bytearray, offset: int) -> bytearray:
    """The batch without its records from `offset` on, uncompressed; at least one must remain."""
    head = batches.header(batch)
    kept = [record for record in walk(batch) if record.offset < offset]
    shorter = bytearray(batch[: batches.HEADER.size])
    shorter += uncompressed(batch)[: kept[-1].end]
    struct.pack_into(">h", shorter, 21, head.attributes & ~batches.CODEC_BITS)
    struct.pack_into(">i", shorter, 23, kept[-1].offset - head.base_offset)
    struct.pack_into(">q", shorter, 35, max(record.timestamp for record in kept))
    struct.pack_into(">i", shorter, 57, len(kept))
    batches.seal(shorter)
    return shorter


def uncompressed(batch: bytes | bytearray) -> bytes:
    """The record bytes of a batch after gzip, snappy, lz4 or zstd was undone."""
    body = bytes(batch[batches.HEADER.size :])
    codec = batches.header(batch).attributes & batches.CODEC_BITS
    if codec == 0:
        return body
    if codec == 1:
        return gzip.decompress(body)
    if codec == 2:
        return _snappy(body)
    with pa.CompressedInputStream(pa.BufferReader(body), "lz4" if codec == 3 else "zstd") as stream:
        return bytes(stream.read())


def _snappy(body: bytes) -> bytes:
    if not body.startswith(XERIAL_MAGIC):
        return _snappy_block(body)
    blocks, at = [], XERIAL_HEADER_BYTES
    while at < len(body):
        size = struct.unpack_from(">i", body, at)[0]
        blocks.append(_snappy_block(body[at + 4 : at + 4 + size]))
        at += 4 + size
    return b"".join(blocks)


def _snappy_block(block: bytes) -> bytes:
    size, _ = _unsigned_varint(block, 0)
    return bytes(pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it."""
    raw, at = _unsigned_varint(data, at)
    return (raw >> 1) ^ -(raw & 1), at


def _unsigned_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
