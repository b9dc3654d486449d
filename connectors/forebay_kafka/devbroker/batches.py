"""Record batches (format 2) as bytes: cut, stamped and marked without reading the records."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from forebay_kafka.devbroker.codes import Code, Refusal
from forebay_kafka.devbroker.schemas import calc_crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
LENGTH_END = 12  # base offset (8) and length (4) precede what the length counts
CHECKED_FROM = 21  # the checksum covers everything behind itself
MAGIC = 2

CODEC_BITS = 0x07
APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20

NO_PRODUCER = -1


class Header(NamedTuple):
    """The fixed part of a batch, field for field as on the wire."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)


def header(batch: bytes | bytearray) -> Header:
    return Header._make(HEADER.unpack_from(batch))


def cut(buffer: bytes) -> Iterator[bytearray]:
    """The batches of a produce request, each writable; Refusal(CORRUPT_MESSAGE) for anything else.

    Checksums are not verified: that costs 0.1 s per MB in Python, and the reader verifies them.
    """
    at = 0
    while at < len(buffer):
        if at + HEADER.size > len(buffer):
            raise Refusal(Code.CORRUPT_MESSAGE, "a record batch is shorter than its header")
        length = struct.unpack_from(">i", buffer, at + 8)[0]
        end = at + LENGTH_END + length
        if buffer[at + 16] != MAGIC or length < HEADER.size - LENGTH_END or end > len(buffer):
            raise Refusal(Code.CORRUPT_MESSAGE, "not a record batch of format 2")
        yield bytearray(buffer[at:end])
        at = end


def stamp(batch: bytearray, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in the log; neither field is covered by the checksum."""
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, LENGTH_END, leader_epoch)


def stamp_append_time(batch: bytearray, now_ms: int) -> None:
    """Make `now_ms` the timestamp of every record (message.timestamp.type=LogAppendTime)."""
    attributes = struct.unpack_from(">h", batch, 21)[0]
    struct.pack_into(">h", batch, 21, attributes | APPEND_TIME_BIT)
    struct.pack_into(">q", batch, 35, now_ms)
    seal(batch)


def seal(batch: bytearray) -> None:
    """Write the length and the checksum that belong to the batch's bytes."""
    struct.pack_into(">i", batch, 8, len(batch) - LENGTH_END)
    struct.pack_into(">I", batch, 17, calc_crc32c(bytes(batch[CHECKED_FROM:])))


def transaction_marker(
    producer_id: int, producer_epoch: int, *, committed: bool, now_ms: int
) -> bytearray:
    """The control batch that ends a transaction in a partition; it takes one offset."""
    key = struct.pack(">hh", 0, 1 if committed else 0)
    value = struct.pack(">hi", 0, 0)
    body = b"\0\0\0" + _signed_varint(len(key)) + key + _signed_varint(len(value)) + value + b"\0"
    record = _signed_varint(len(body)) + body
    head = Header(
        base_offset=0,
        length=0,
        leader_epoch=0,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        first_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        record_count=1,
    )
    batch = bytearray(HEADER.pack(*head) + record)
    seal(batch)
    return batch


def _signed_varint(small: int) -> bytes:
    """Zigzag varint of a number below 64, which is all that a marker needs."""
    return bytes([small << 1])
