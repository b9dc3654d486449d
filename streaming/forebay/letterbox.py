"""A folder of dead letters: Parquet or JSON lines, each file whole or absent.

    sink = FolderSink("run/dead-letters")
    for letter in read_letters("run/dead-letters"): ...

The record's bytes are kept exactly. What a Kafka record has (topic, partition, timestamp, key,
value, headers) is a column of its own, for other tools to query; all other columns are JSON.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from forebay.deadletter import Letter
from forebay.errors import ConfigError, SourceError
from forebay.slice import Failure

Format: TypeAlias = Literal["parquet", "jsonl"]
Key: TypeAlias = tuple[str, int, str]
Record: TypeAlias = dict[str, Any]

# A temporary file this old was left by a process that was killed: no write takes as long.
_STALE_SECONDS = 3600.0

_HEADERS: pa.DataType = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TYPES: dict[str, pa.DataType] = {
    "split": pa.string(),
    "offset": pa.int64(),
    "stage": pa.string(),
    "reason": pa.string(),
    "time": pa.float64(),
    "columns": pa.list_(pa.string()),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.int64(),
    "timestamp_type": pa.int8(),
    "key": pa.large_binary(),
    "value": pa.large_binary(),
    "headers": _HEADERS,
    "other": pa.string(),
}
_SCHEMA = pa.schema(_TYPES)
_ORIGINAL = ("topic", "partition", "timestamp", "timestamp_type", "key", "value", "headers")
ORIGINAL_TYPES: Mapping[str, pa.DataType] = {name: _TYPES[name] for name in _ORIGINAL}
"""The columns of a Kafka record that are kept as they are, with their Arrow types."""


class FolderSink:
    """Writes dead letters into files of a folder; several processes may share the folder.

    ``write`` buffers; a full file, and whatever is there at ``flush``, becomes a new file by way
    of a temporary one. A kill loses only letters that were not flushed, and the state that is
    saved after ``flush`` alone says that their records are done.

    Args:
        path: the folder; made at the first write.
        format: ``parquet``, or ``jsonl`` with bytes as base64.
        max_file_bytes: about how many bytes of records one file holds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: Format = "parquet",
        max_file_bytes: int = 64 << 20,
    ) -> None:
        if format not in _WRITERS:
            raise ConfigError(f"dead letters: format must be 'parquet' or 'jsonl', not {format!r}")
        if max_file_bytes < 1:
            raise ConfigError(
                f"dead letters: max_file_bytes must be positive, not {max_file_bytes}"
            )
        self.path, self.format, self.max_file_bytes = Path(path), format, max_file_bytes
        self._records: list[Record] = []
        self._bytes = 0
        self._run: str | None = None
        self._files = 0

    def __repr__(self) -> str:
        return f"FolderSink({str(self.path)!r}, format={self.format!r})"

    def write(self, letters: Sequence[Letter]) -> None:
        """Take the letters; a full file is written at once.

        Raises:
            SourceError: the folder cannot be written.
        """
        for letter in letters:
            record = to_record(letter)
            self._records.append(record)
            self._bytes += _size(record)
            if self._bytes >= self.max_file_bytes:
                self.flush()

    def flush(self) -> None:
        """Return once all letters are on the disk.

        Raises:
            SourceError: they could not be written; they are kept, to be tried again.
        """
        if not self._records:
            return
        name = f"{self._begin()}-{self._files:06d}.{self.format}"
        try:
            _write_file(self.path / name, self._records)
        except OSError as e:
            raise SourceError(
                f"{len(self._records)} dead letters cannot be written to {self.path}: "
                f"{e.strerror or e}. Make room, or give another folder; the position is not "
                "moved past them."
            ) from e
        self._files += 1
        self._records, self._bytes = [], 0

    def files(self) -> Sequence[Path]:
        """The files of dead letters in the folder, oldest first."""
        return _files(self.path)

    def letters(self) -> Iterator[Letter]:
        """The letters in the folder, as ``read_letters``."""
        return read_letters(self.path)

    def remove(self, keys: Collection[Key]) -> int:
        """Take letters out of the folder, as ``remove_letters``."""
        return remove_letters(self.path, keys)

    def close(self) -> None:
        """Flush. Nothing stays open between writes."""
        self.flush()

    def _begin(self) -> str:
        """The part of the file names that no other process and no other run has."""
        if self._run is None:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as e:
                raise SourceError(
                    f"the folder for dead letters {self.path} cannot be made: {e.strerror or e}"
                ) from e
            _remove_stale(self.path)
            self._run = _unique_name()
        return self._run


def key(letter: Letter) -> Key:
    """What identifies a letter, however often it was written."""
    return letter.split, letter.failure.offset, letter.failure.stage


def read_letters(path: str | os.PathLike[str]) -> Iterator[Letter]:
    """The letters of a folder, oldest file first, repeats left out. May run beside a writer.

    Bytes come back as they were; numbers as Python's; headers as dicts of ``key`` and ``value``.

    Raises:
        ConfigError: there is no such folder.
        SourceError: a file cannot be read; names it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(f"there is no folder of dead letters at {folder}")
    seen: set[Key] = set()
    for file in _files(folder):
        for letter in _read_file(file):
            if key(letter) not in seen:
                seen.add(key(letter))
                yield letter


def remove_letters(path: str | os.PathLike[str], keys: Collection[Key]) -> int:
    """Take the letters with these keys out of a folder; returns how many there were.

    A file is replaced by one with what is left of it, which is on the disk before the old one
    goes: a kill in between leaves repeats, never a loss.
    """
    folder, removed = Path(path), set[Key]()
    for file in _files(folder):
        letters = list(_read_file(file))
        kept = [letter for letter in letters if key(letter) not in keys]
        if len(kept) == len(letters):
            continue
        if kept:
            name = f"{_unique_name()}-000000{file.suffix}"
            _write_file(folder / name, [to_record(letter) for letter in kept])
        file.unlink()
        removed.update(key(letter) for letter in letters)
    return len(removed.intersection(keys))


def to_record(letter: Letter) -> Record:
    """The letter as one flat row: bytes as they are, columns that no field has in ``other``."""
    failure, original = letter.failure, dict(letter.failure.original)
    record: Record = {
        "split": letter.split,
        "offset": failure.offset,
        "stage": _text(failure.stage),
        "reason": _text(failure.reason),
        "time": letter.time,
        "columns": list(original),
    }
    if original.get("offset") == failure.offset:
        del original["offset"]
    for name, fits in _FIELDS.items():
        known = name in original and fits(original[name])
        record[name] = _python(original.pop(name)) if known else None
    if record["headers"] is not None:
        record["headers"] = [_pair(h) for h in record["headers"]]
    record["other"] = json.dumps(_to_json(original)) if original else None
    return record


def from_record(record: Mapping[str, Any]) -> Letter:
    """The inverse of ``to_record``."""
    other = _from_json(json.loads(record["other"])) if record["other"] else {}
    known = {"offset": record["offset"]} | {name: record[name] for name in _FIELDS}
    original = {name: other[name] if name in other else known[name] for name in record["columns"]}
    return Letter(
        split=record["split"],
        time=record["time"],
        failure=Failure(
            offset=record["offset"],
            stage=record["stage"],
            reason=record["reason"],
            original=original,
        ),
    )


def to_json_row(record: Record) -> Record:
    """A record of ``to_record`` as plain JSON: bytes as base64, headers as pairs."""
    record = dict(record)
    for name in ("key", "value"):
        record[name] = _to_base64(record[name])
    if record["headers"] is not None:
        record["headers"] = [[h["key"], _to_base64(h["value"])] for h in record["headers"]]
    if record["other"] is not None:
        record["other"] = json.loads(record["other"])
    return record


def _from_json_row(row: Record) -> Letter:
    for name in ("key", "value"):
        row[name] = _from_base64(row[name])
    if row["headers"] is not None:
        row["headers"] = [{"key": k, "value": _from_base64(v)} for k, v in row["headers"]]
    if row["other"] is not None:
        row["other"] = json.dumps(row["other"])
    return from_record(row)


def _write_file(path: Path, records: Sequence[Record]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("xb") as f:
            _WRITERS[path.suffix[1:]](f, records)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_parquet(f: BinaryIO, records: Sequence[Record]) -> None:
    table = pa.Table.from_pylist(list(records), schema=_SCHEMA)
    pq.write_table(table, f, compression="zstd")


def _write_jsonl(f: BinaryIO, records: Sequence[Record]) -> None:
    for record in records:
        f.write(json.dumps(to_json_row(record), separators=(",", ":")).encode() + b"\n")


_WRITERS: dict[str, Callable[[BinaryIO, Sequence[Record]], None]] = {
    "parquet": _write_parquet,
    "jsonl": _write_jsonl,
}


def _read_file(file: Path) -> Iterator[Letter]:
    try:
        if file.suffix == ".jsonl":
            with file.open("rb") as f:
                yield from (_from_json_row(json.loads(line)) for line in f)
        else:
            with pq.ParquetFile(file) as parquet:
                for batch in parquet.iter_batches(batch_size=1024):
                    yield from map(from_record, batch.to_pylist())
    except FileNotFoundError:
        return  # removed by another process since the folder was listed
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as e:
        raise SourceError(
            f"{file} is no file of dead letters, or damaged: {e}. Move it out of the folder to "
            "read the others."
        ) from e


def _files(folder: Path) -> list[Path]:
    return sorted(p for suffix in _WRITERS for p in folder.glob(f"letters-*.{suffix}"))


def _unique_name() -> str:
    began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return f"letters-{began}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def _remove_stale(folder: Path) -> None:
    for file in folder.glob(".letters-*.tmp"):
        with suppress(FileNotFoundError):  # its process finished it, or another one removed it
            if file.stat().st_mtime < time.time() - _STALE_SECONDS:
                file.unlink()


def _size(record: Record) -> int:
    payload = sum(len(record[name] or b"") for name in ("key", "value", "reason", "other"))
    return payload + sum(len(h["value"] or b"") for h in record["headers"] or ()) + 100


def _text(s: str) -> str:
    """Text that can be stored as UTF-8: a lone surrogate in a message must lose no letter."""
    return s.encode("utf-8", "backslashreplace").decode()


def _is_text(v: Any) -> bool:
    return isinstance(v, str) and _text(v) == v


def _is_bytes(v: Any) -> bool:
    return v is None or isinstance(v, bytes)


def _is_integer(bits: int) -> Callable[[Any], bool]:
    def fits(v: Any) -> bool:
        number = isinstance(v, (int, np.integer)) and not isinstance(v, bool)
        return number and -(1 << bits - 1) <= v < 1 << bits - 1

    return fits


def _is_headers(v: Any) -> bool:
    if not isinstance(v, (list, tuple)):
        return v is None
    pairs = [_pair(h) for h in v]
    return all(p is not None and _is_text(p["key"]) and _is_bytes(p["value"]) for p in pairs)


def _pair(header: Any) -> Record | None:
    """A header as a dict of ``key`` and ``value``; None if it is none."""
    if isinstance(header, dict) and header.keys() == {"key", "value"}:
        return header
    if isinstance(header, tuple) and len(header) == 2:
        return {"key": header[0], "value": header[1]}
    return None


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "topic": _is_text,
    "partition": _is_integer(32),
    "timestamp": _is_integer(64),
    "timestamp_type": _is_integer(8),
    "key": _is_bytes,
    "value": _is_bytes,
    "headers": _is_headers,
}


def _to_base64(v: bytes | None) -> str | None:
    return None if v is None else base64.b64encode(v).decode()


def _from_base64(v: str | None) -> bytes | None:
    return None if v is None else base64.b64decode(v, validate=True)


def _python(v: Any) -> Any:
    return v.item() if isinstance(v, np.generic) else v


def _to_json(v: Any) -> Any:
    """Plain JSON; what JSON lacks is a dict whose only key begins with ``$``."""
    v = _python(v)
    if v is None or isinstance(v, (bool, int, str)):
        return v
    if isinstance(v, float):
        return v if np.isfinite(v) else {"$float": str(v)}
    if isinstance(v, bytes):
        return {"$bytes": _to_base64(v)}
    if isinstance(v, np.ndarray) and v.dtype != object:
        raw = np.ascontiguousarray(v).tobytes()
        return {"$array": [v.dtype.str, list(v.shape), _to_base64(raw)]}
    if isinstance(v, (list, tuple, np.ndarray)):
        return [_to_json(item) for item in v]
    if isinstance(v, Mapping) and all(isinstance(k, str) and k[:1] != "$" for k in v):
        return {k: _to_json(item) for k, item in v.items()}
    if isinstance(v, Mapping):
        return {"$dict": [[_to_json(k), _to_json(item)] for k, item in v.items()]}
    return {"$text": str(v)}


def _from_json(v: Any) -> Any:
    if isinstance(v, list):
        return [_from_json(item) for item in v]
    if not isinstance(v, dict):
        return v
    if v.keys() == {"$float"}:
        return float(v["$float"])
    if v.keys() == {"$bytes"}:
        return _from_base64(v["$bytes"])
    if v.keys() == {"$array"}:
        dtype, shape, raw = v["$array"]
        return np.frombuffer(base64.b64decode(raw), np.dtype(dtype)).reshape(shape)
    if v.keys() == {"$dict"}:
        return {_from_json(k): _from_json(item) for k, item in v["$dict"]}
    if v.keys() == {"$text"}:
        return v["$text"]
    return {k: _from_json(item) for k, item in v.items()}
