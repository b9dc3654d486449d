"""A parcel: slices on their way through Ray, as an Arrow table of one row.

The row holds a number, which the feed knows the parcel by, and a cell of bytes: what was packed,
with every array as a buffer of its own. Reading a parcel copies none of these buffers; the arrays
lie in Ray's object store, are read-only, and keep their parcel there while they live.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.columns import Column, Columns
from forebay.slice import Slice

_ALIGNMENT = 64


def to_table(number: int, content: Any) -> pa.Table:
    """A table of one row; ``content`` is whatever pickles. Slices go through ``packed`` first."""
    cell = _framed(content)
    offsets = pa.py_buffer(struct.pack("<qq", 0, cell.size))
    cells = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, cell])
    return pa.table({"number": pa.array([number], pa.int64()), "content": cells})


def number_of(table: pa.Table) -> int:
    """The number of the parcel."""
    number: int = table["number"][0].as_py()
    return number


def content_of(table: pa.Table) -> Any:
    """What ``to_table`` was given; its buffers are views of the table's."""
    view = memoryview(cell_of(table)).cast("B")
    (count,) = struct.unpack_from("<q", view)
    sizes = struct.unpack_from(f"<{count}q", view, 8)
    at, parts = _aligned(8 + 8 * count), []
    for size in sizes:
        parts.append(view[at : at + size])
        at = _aligned(at + size)
    return pickle.loads(parts[0], buffers=parts[1:])


def cell_of(table: pa.Table) -> pa.Buffer:
    """The bytes of the content, where they are: a scalar of Arrow's would be a copy."""
    cells: Any = table["content"].chunk(0)
    _, offsets, data = cells.buffers()
    start, stop = struct.unpack_from("<qq", offsets, 8 * cells.offset)
    cell: pa.Buffer = data.slice(start, stop - start)
    return cell


def _framed(content: Any) -> pa.Buffer:
    """One buffer: how many parts, their sizes, the parts, each at a multiple of 64 bytes."""
    arrays: list[pickle.PickleBuffer] = []
    head = pickle.dumps(content, protocol=5, buffer_callback=arrays.append)
    parts = [memoryview(head), *(a.raw() for a in arrays)]
    sizes = [len(p) for p in parts]
    start = _aligned(8 + 8 * len(parts))
    whole = pa.allocate_buffer(start + sum(map(_aligned, sizes)))
    into = memoryview(whole).cast("B")
    struct.pack_into(f"<{1 + len(sizes)}q", into, 0, len(sizes), *sizes)
    at = start
    for part in parts:
        into[at : at + len(part)] = part
        at += _aligned(len(part))
    return whole


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class PackedSlice:
    """A slice whose Arrow columns are an IPC stream, so that a cut array takes no more than its
    own rows along."""

    bare: Slice
    """The slice, with its failures, without rows."""
    offsets: Any
    event_times: Any
    names: tuple[str, ...]
    arrays: dict[str, Any]
    """The NumPy columns that travel as they are."""
    objects: frozenset[str]
    """Columns of the stream that were NumPy arrays of objects."""
    stream: pa.Buffer | None


def packed(s: Slice) -> PackedSlice:
    """Make a slice ready for ``to_table``."""
    arrays, arrow, objects = {}, {}, set()
    for name, column in s.columns.items():
        if isinstance(column, pa.Array):
            arrow[name] = column
        elif column.dtype == object and (as_arrow := _as_arrow(column)) is not None:
            arrow[name] = as_arrow
            objects.add(name)
        else:
            arrays[name] = column
    bare = replace(s.bare(), failures=s.failures)
    names = tuple(s.columns)
    stream = _stream(arrow) if arrow else None
    return PackedSlice(bare, s.offsets, s.event_times, names, arrays, frozenset(objects), stream)


def unpacked(p: PackedSlice) -> Slice:
    """The inverse of ``packed``: the same columns, of the same kinds."""
    arrow: Columns = {} if p.stream is None else _read_stream(p.stream)
    both: dict[str, Column] = {**p.arrays, **arrow}
    columns = {n: _objects(both[n]) if n in p.objects else both[n] for n in p.names}
    return replace(p.bare, columns=columns, offsets=p.offsets, event_times=p.event_times)


def _as_arrow(column: Any) -> pa.Array[Any] | None:
    """Payloads or texts as one Arrow array; None for objects of other or of mixed types."""
    types = set(map(type, column)) - {type(None)}
    if types == {bytes}:
        return pa.array(column, pa.large_binary())
    return pa.array(column, pa.large_string()) if types == {str} else None


def _objects(column: Column) -> Column:
    values: Sequence[Any] = (
        column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
    )
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _stream(columns: dict[str, pa.Array[Any]]) -> pa.Buffer:
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _read_stream(stream: pa.Buffer) -> Columns:
    with pa.ipc.open_stream(stream) as reader:
        batch = reader.read_next_batch()
    return dict(zip(batch.schema.names, batch.columns, strict=True))
