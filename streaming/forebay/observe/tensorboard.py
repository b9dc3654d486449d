"""Scalars for TensorBoard, in event files that we make: needs neither TensorBoard nor TensorFlow.

An event file is a row of records, each framed by its length and by checksums of both; a record is
an ``Event`` message of protobuf, of which three fields are needed. Steps are batches.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from forebay.errors import ConfigError
from forebay.observe.points import PARTS, WINDOW_SECONDS, before, point, quantiles
from forebay.observe.snapshot import Snapshot

_files = itertools.count()
_POLYNOMIAL, _ALL_BITS, _MASK_DELTA = 0x82F63B78, 0xFFFFFFFF, 0xA282EAD8


class TensorBoard:
    """An output of a ``Monitor``: one event a snapshot, with a value for each scalar that is known.

    Args:
        folder: for the event files; of several ranks each has ``rank-N`` in it. TensorBoard takes
            it for one run: give the model's own writer another.

    Raises:
        ConfigError: the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._file: BinaryIO | None = None
        self._recent: list[Snapshot] = []
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise ConfigError(f"the TensorBoard folder {folder} cannot be made: {e}") from e
        if not os.access(self._folder, os.W_OK):
            raise ConfigError(f"the TensorBoard folder {folder} cannot be written")

    def write(self, snapshot: Snapshot) -> None:
        """Append its scalars; a reader has them at once."""
        if self._file is None:
            self._file = _new_file(self._folder, snapshot)
        values = scalars(self._recent, snapshot)
        needed = [s for s in self._recent if s.at > snapshot.at - 2 * WINDOW_SECONDS]
        self._recent = [*needed, snapshot]
        self._file.write(record(_event(snapshot.at, snapshot.batches, _summary(values))))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def scalars(history: Sequence[Snapshot], now: Snapshot) -> dict[str, float]:
    """What is known of ``now`` by TensorBoard's tags; rates and quantiles are of the last seconds.

    Args:
        history: the snapshots before it, oldest first.
    """
    return {tag: float(value) for tag, value in _tagged(history, now) if value is not None}


def _tagged(history: Sequence[Snapshot], now: Snapshot) -> Iterator[tuple[str, float | None]]:
    p, then = point(history, now), before(history, now, WINDOW_SECONDS) or now
    yield "throughput/rows_per_second", p.rows
    yield "throughput/rows", now.rows
    for part in PARTS:
        yield f"time/{part}", getattr(p, part)
    yield "wait/p95_seconds", quantiles(then.wait_seconds, now.wait_seconds, 0.95)[0]
    yield "step/p50_seconds", quantiles(then.step_seconds, now.step_seconds, 0.5)[0]
    yield "freshness/p50_seconds", p.fresh_p50
    yield "freshness/p95_seconds", p.fresh_p95
    yield "lag/records", p.lag_records
    yield "lag/seconds", p.lag_seconds
    for name, pool in now.pools.items():
        yield f"workers/{name}", pool.workers
        yield f"queued_slices/{name}", pool.queued_slices
    yield "buffer/bytes", now.buffer.bytes_in_flight
    yield "buffer/ready_batches", now.buffer.ready_batches
    yield "dead_letters/rows", now.letters.total
    yield "process/resident_bytes", now.process.rss_bytes
    yield "process/interpreter_lock", now.process.gil
    for i, gpu in enumerate(now.gpus):
        yield f"gpu_{i}/any_kernel_ran", gpu.busy
        yield f"gpu_{i}/sm_active", gpu.sm_active
        yield f"gpu_{i}/memory_bytes", gpu.memory_used
        yield f"gpu_{i}/watts", gpu.watts


def _new_file(folder: Path, snapshot: Snapshot) -> BinaryIO:
    job = snapshot.job
    own = folder / f"rank-{job.rank}" if job.world_size > 1 else folder
    own.mkdir(exist_ok=True)
    made = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_files)}"
    file = (own / f"events.out.tfevents.{made}").open("xb")
    file.write(record(_event(snapshot.at, 0, _bytes(3, b"brain.Event:2"))))
    return file


def record(data: bytes) -> bytes:
    """A record of an event file (TFRecord)."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked(length), data, _masked(data)))


def _event(at: float, step: int, what: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", at) + b"\x10" + _varint(step) + what


def _summary(values: Mapping[str, float]) -> bytes:
    return _bytes(5, b"".join(_bytes(1, _value(tag, v)) for tag, v in values.items()))


def _value(tag: str, value: float) -> bytes:
    return _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _masked(data: bytes) -> bytes:
    """The checksum, turned and shifted so that one of data with checksums in it differs."""
    crc = crc32c(data)
    turned = (crc >> 15 | crc << 17) & _ALL_BITS
    return struct.pack("<I", (turned + _MASK_DELTA) & _ALL_BITS)


def crc32c(data: bytes) -> int:
    """The CRC-32 with Castagnoli's polynomial; some 0.1 ms for an event."""
    crc, table = _ALL_BITS, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ _ALL_BITS


def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_remainder, range(256)))
