"""From columns to what a training step eats: tensors or lists of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from forebay.batcher import Origins
from forebay.columns import Column, Columns, as_numpy, joined
from forebay.errors import ConfigError
from forebay.options import Ragged


class Batch(dict[str, Any]):
    """The columns of one training step by name; the position it completes is in the loader.

    A column of fixed-shape numbers is a ``torch.Tensor`` of shape ``[rows, ...]``; text, bytes,
    nested values and integers with nulls are lists of Python values, one for each row.
    """

    rows: int = 0
    origins: Origins = Origins(
        splits=(), split_index=np.zeros(0, np.int32), offsets=np.zeros(0, np.int64)
    )
    """The split and offset of each row."""

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory, for asynchronous copies to a CUDA device."""
        return self._map(lambda t: t.pin_memory())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The batch with its tensors on ``device``."""
        return self._map(lambda t: t.to(device, non_blocking=non_blocking))

    def _map(self, fn: Any) -> Batch:
        out = Batch({name: _mapped(value, fn) for name, value in self.items()})
        out.rows, out.origins = self.rows, self.origins
        return out


def to_batch(parts: Sequence[Columns], rows: int, origins: Origins, ragged: Ragged) -> Batch:
    """Join the parts of a batch and turn its columns into tensors.

    Raises:
        ConfigError: the parts have different columns or types; the message says which.
    """
    texts = [name for name in parts[0] if len(parts) > 1 and _are_texts(parts, name)]
    columns = joined([{k: c for k, c in part.items() if k not in texts} for part in parts])
    batch = Batch()
    for name in parts[0]:
        if name in texts:
            batch[name] = [value for part in parts for value in part[name].tolist()]
        else:
            batch.update(_tensor(name, columns[name], ragged))
    batch.rows, batch.origins = rows, origins
    return batch


def _are_texts(parts: Sequence[Columns], name: str) -> bool:
    """Whether a column is Arrow texts or bytes of one type in all parts.

    They become lists of values, so to join them before would be to copy every byte once more.
    """
    types = {c.type if isinstance(c := part.get(name), pa.Array) else None for part in parts}
    return len(types) == 1 and _is_text(types.pop())


def _tensor(name: str, column: Column, ragged: Ragged) -> Mapping[str, Any]:
    if isinstance(column, pa.Array):
        if pa.types.is_fixed_size_list(column.type) and _is_number(column.type.value_type):
            column = _fixed_lists(column)
        elif pa.types.is_list(column.type) and _is_number(column.type.value_type):
            column = _objects([_row_array(v) for v in column])
    values = as_numpy(column)
    if values.dtype.kind in "mM":
        values = values.view(np.int64)
    if values.dtype.kind in "USV":  # text, bytes and records of a fixed width
        return {name: values.tolist()}
    if values.dtype != object:
        return {name: torch.from_numpy(_writable(values))}
    rows = values.tolist()
    if not rows or not all(isinstance(v, np.ndarray) for v in rows):
        return {name: rows}
    return _ragged(name, rows, ragged)


def _ragged(name: str, rows: list[NDArray[Any]], ragged: Ragged) -> Mapping[str, Any]:
    if ragged == "list":
        return {name: [torch.from_numpy(_writable(v)) for v in rows]}
    if len({(v.ndim, v.dtype) for v in rows}) > 1:
        raise ConfigError(f"column {name!r}: rows of different rank or dtype cannot be padded")
    shape = np.max([v.shape for v in rows], axis=0)
    padded = np.zeros((len(rows), *shape), dtype=rows[0].dtype)
    mask = np.zeros((len(rows), *shape), dtype=np.bool_)
    for i, value in enumerate(rows):
        inside: tuple[Any, ...] = (i, *(slice(0, n) for n in value.shape))
        padded[inside] = value
        mask[inside] = True
    return {name: torch.from_numpy(padded), f"{name}_mask": torch.from_numpy(mask)}


def _fixed_lists(column: pa.Array[Any]) -> Column:
    """Shape ``[rows, length]`` of a fixed-size list column without nulls; else as it was."""
    lists: Any = column  # the stubs lack what this kind of array has
    flat = lists.flatten()
    if column.null_count or flat.null_count:
        return column
    values: Column = as_numpy(flat).reshape(len(column), lists.type.list_size)
    return values


def _row_array(value: Any) -> NDArray[Any] | None:
    if not value.is_valid:
        return None
    return as_numpy(value.values)


def _objects(values: list[Any]) -> Column:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _writable(values: NDArray[Any]) -> NDArray[Any]:
    """Itself if it may be written to; memory shared with the source is copied first."""
    return values if values.flags.writeable and values.flags.c_contiguous else values.copy()


def _is_text(t: pa.DataType | None) -> bool:
    return t is not None and (
        pa.types.is_binary(t)
        or pa.types.is_large_binary(t)
        or pa.types.is_string(t)
        or pa.types.is_large_string(t)
    )


def _is_number(t: pa.DataType) -> bool:
    return pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_boolean(t)


def _mapped(value: Any, fn: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, list):
        return [_mapped(v, fn) for v in value]
    return value
