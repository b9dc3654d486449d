"""What rows a run gave, in a form that two runs can be compared by, whatever their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import torch

from forebay.batcher import Origins
from forebay.errors import ConfigError
from forebay.tensors import Batch

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_EXAMPLES = 5


class IdSum:
    """The sum of the hashes of all ids: cheap enough to be made beside a measurement."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, origins: Origins) -> None:
        """Take in the rows of a batch."""
        if not len(origins):
            return
        splits = np.array([crc32(name.encode()) for name in origins.splits], np.uint64)
        keys = (splits[origins.split_index] << np.uint64(32)) ^ origins.offsets.astype(np.uint64)
        self._sum += int(_hashed(keys).sum(dtype=np.uint64))

    @property
    def hex(self) -> str:
        """The same for the same rows, in any order and in any batches."""
        return f"{self._sum & (1 << 64) - 1:016x}"


class Rows:
    """The id and the hash of the contents of every row, kept in a file for the comparison.

    Args:
        id_column: what identifies a row; None: its split and offset.
    """

    def __init__(self, id_column: str | None = None) -> None:
        self._id_column = id_column
        self._ids: list[str] = []
        self._hashes: list[bytes] = []

    def add(self, batch: Batch) -> None:
        """Take in the rows of a batch.

        Raises:
            ConfigError: it has no such column.
        """
        self._ids += _ids(batch, self._id_column)
        columns = {name: batch[name] for name in sorted(batch)}
        for i in range(batch.rows):
            digest = blake2b(digest_size=12)
            for name, column in columns.items():
                digest.update(name.encode())
                _update(digest, column[i])
            self._hashes.append(digest.digest())

    def save(self, path: Path) -> None:
        """Write them to an Arrow file."""
        ids = pa.array(self._ids, pa.string())
        hashes = pa.array(self._hashes, pa.binary(12))
        feather.write_feather(pa.table({"id": ids, "row": hashes}), str(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How the rows of a variant differ from those of the baseline."""

    missing: int
    extra: int
    changed: int
    """Rows that both have, with other contents; 0 if only ids are compared."""
    examples: Sequence[str]
    """Some of the ids, in words."""

    @property
    def same(self) -> bool:
        """Whether there is none."""
        return not (self.missing or self.extra or self.changed)

    def __str__(self) -> str:
        found = [
            f"{n:,} rows {what}"
            for n, what in (
                (self.missing, "missing"),
                (self.extra, "too many"),
                (self.changed, "with other contents"),
            )
            if n
        ]
        return f"{', '.join(found)} ({'; '.join(self.examples)})" if found else "the same rows"


def difference(baseline: Path, variant: Path, *, contents: bool) -> Difference:
    """Compare two files that ``Rows.save`` wrote."""
    before, after = _by_id(baseline), _by_id(variant)
    counts = {k: len(v) for k, v in before.items()}, {k: len(v) for k, v in after.items()}
    missing = Counter(counts[0]) - Counter(counts[1])
    extra = Counter(counts[1]) - Counter(counts[0])
    changed = [
        k
        for k in before
        if contents and k in after and len(before[k]) == len(after[k]) and before[k] != after[k]
    ]
    examples = [
        *(f"{k} is missing" for k in list(missing)[:_EXAMPLES]),
        *(f"{k} is too many" for k in list(extra)[:_EXAMPLES]),
        *(f"{k} differs" for k in changed[:_EXAMPLES]),
    ]
    return Difference(
        missing=sum(missing.values()),
        extra=sum(extra.values()),
        changed=len(changed),
        examples=examples[:_EXAMPLES],
    )


def _by_id(path: Path) -> Mapping[str, list[bytes]]:
    table = feather.read_table(str(path))
    found: dict[str, list[bytes]] = {}
    columns: list[list[Any]] = [table["id"].to_pylist(), table["row"].to_pylist()]
    for key, row in zip(*columns, strict=True):
        found.setdefault(key, []).append(row)
    return {k: sorted(v) for k, v in found.items()}


def _ids(batch: Batch, column: str | None) -> Iterator[str]:
    if column is None:
        return (f"{split}@{offset}" for split, offset in batch.origins)
    if column not in batch:
        raise ConfigError(f"ids: the batches have no column {column!r}, only {', '.join(batch)}")
    values: Any = batch[column]
    return map(str, values.tolist() if isinstance(values, torch.Tensor) else values)


def _update(digest: Any, value: Any) -> None:
    """Take in a value with its type and shape, so that no two of them look alike."""
    if isinstance(value, torch.Tensor):
        digest.update(f"|{value.dtype}{tuple(value.shape)}".encode())
        digest.update(np.ascontiguousarray(value.cpu().numpy()).data)
    elif isinstance(value, bytes):
        digest.update(b"|b%d|" % len(value))
        digest.update(value)
    else:
        text = repr(value).encode()
        digest.update(b"|r%d|" % len(text))
        digest.update(text)


def _hashed(keys: Any) -> Any:
    """Each key with its bits well mixed (the finalizer of splitmix64), so that sums differ."""
    keys = (keys ^ (keys >> np.uint64(30))) * _MIX[0]
    keys = (keys ^ (keys >> np.uint64(27))) * _MIX[1]
    return keys ^ (keys >> np.uint64(31))
