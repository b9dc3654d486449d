"""Records a stream into a Delta table, every row once, so that it can be read again.

    Pipeline(source).record(DeltaRecorder("s3://bucket/clicks"))
    Pipeline(DeltaSource("s3://bucket/clicks"))               # the same rows, as they came

How far each split is recorded stands in the table itself, as a transaction that is committed
together with the rows: ``txn(appId="<app_id>:<split>:<log>", version=<next offset>)``. So whoever
writes, after whatever crash, leaves out what is there, and of two that write the same split at
once one commit fails, looks again, and leaves it out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from forebay.columns import Column
from forebay.errors import ConfigError, SourceError
from forebay.recording import Place, Portion, log_of, place_after
from forebay.slice import Slice
from forebay_delta.writing import Compression, DeltaWriter, Rival, storable

SPLIT, OFFSET, TOKEN = "_split", "_offset", "_token"
"""The columns beside those of the source."""

_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class DeltaRecorder:
    """Stores rows in a Delta table, which is made with the first ones. Holds configuration only.

    The table has the source's columns, and ``_split``, ``_offset`` and ``_token``: the address of
    each row. Its columns are fixed by what is written first.

    Raises:
        ConfigError: an argument is wrong; names it.
    """

    uri: str
    """A folder, or an address such as ``s3://bucket/table``."""
    app_id: str = field(default="forebay", kw_only=True)
    """Who records. All ranks and all restarts of a job have the same one."""
    storage_options: Mapping[str, str] | None = field(default=None, kw_only=True, repr=False)
    """As ``deltalake`` takes them, under their own names."""
    flush_rows: int = field(default=100_000, kw_only=True)
    flush_bytes: int = field(default=64 << 20, kw_only=True)
    """One commit holds about as much; up to twice as much waits in memory."""
    flush_seconds: float = field(default=10.0, kw_only=True)
    """How old a row gets before it is committed. A state waits for a commit, too."""
    columns: Sequence[str] | None = field(default=None, kw_only=True)
    """The columns to store; None: all that the source gives."""
    compression: Compression = field(default="none", kw_only=True)
    """Images and the like do not get smaller; for text ``"zstd"`` pays."""

    def __post_init__(self) -> None:
        if not isinstance(self.uri, str) or not self.uri:
            raise ConfigError(f"DeltaRecorder: uri must be an address, not {self.uri!r}")
        if not self.app_id:
            raise ConfigError("DeltaRecorder: app_id must not be empty")
        if self.compression not in ("none", "snappy", "zstd", "lz4"):
            raise ConfigError(
                "DeltaRecorder: compression must be one of none, snappy, zstd, lz4, not "
                f"{self.compression!r}"
            )
        for name in ("flush_rows", "flush_bytes", "flush_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(
                    f"DeltaRecorder: {name} must be positive, not {getattr(self, name)!r}"
                )

    @property
    def portion(self) -> Portion:
        return Portion(rows=self.flush_rows, nbytes=self.flush_bytes, seconds=self.flush_seconds)

    def open(self) -> DeltaRecording:
        return DeltaRecording(self)


class DeltaRecording:
    """An open ``DeltaRecorder``: a ``Recording``. Looks at the table first when it writes."""

    def __init__(self, recorder: DeltaRecorder) -> None:
        self._recorder = recorder
        self._table = DeltaWriter(recorder.uri, recorder.storage_options, "recorded rows")
        self._places: dict[str, Place | None] = {}
        self._places_at = -1

    def write(self, slices: Sequence[Slice]) -> None:
        """Commit the rows that are not recorded yet, all at once.

        Raises:
            ConfigError: they have other columns than the table.
            SourceError: the table cannot be written.
        """
        for _ in range(_ATTEMPTS):
            rival = self._try(slices)
            if rival is None:
                return
        raise SourceError(
            f"recorded rows: the table {self._recorder.uri} could not be written in {_ATTEMPTS} "
            f"attempts, since others change it all the time ({rival}). Let fewer processes write "
            "to it, or gather more rows for each commit (flush_seconds, flush_bytes)."
        )

    def close(self) -> None:
        """Nothing stays open between writes."""

    def _try(self, slices: Sequence[Slice]) -> Rival | None:
        """Write once; what came in between if that did not work, and nothing was written."""
        try:
            self._write_new(slices)
        except Rival as e:
            return e
        return None

    def _write_new(self, slices: Sequence[Slice]) -> None:
        if not self._table.refresh():
            # Perhaps somebody else makes it now, and records: what is in it is looked at below.
            self._table.create(_rows(slices[:1], self._recorder.columns).schema)
        self._forget_places()
        reached: dict[str, Place] = {}
        new = []
        for s in slices:
            app_id = self._app_id(s)
            at = reached.get(app_id) or self._place(app_id)
            left = s if at is None else at.remaining(s)
            if len(left):
                new.append(left)
                reached[app_id] = place_after(s)
        if new:
            self._append(new, reached)

    def _append(self, new: Sequence[Slice], reached: Mapping[str, Place]) -> None:
        rows = _rows(new, self._recorder.columns)
        self._table.check(rows.schema)
        before = self._table.version
        self._table.append(
            rows, transactions=_transactions(reached), compression=self._recorder.compression
        )
        if self._table.version == before + 1:  # else others have committed, too: look again
            self._places.update(reached)
            self._places_at = self._table.version

    def _app_id(self, s: Slice) -> str:
        log = log_of(s.token)
        return f"{self._recorder.app_id}:{s.split}" + (f":{log}" if log else "")

    def _place(self, app_id: str) -> Place | None:
        """How far a log is recorded, as of the version last looked at; None: not at all."""
        if app_id not in self._places:
            offset = self._table.recorded(app_id)
            epoch = self._table.recorded(_epoch_id(app_id))
            at = None if offset is None else Place(-1 if epoch is None else epoch, offset)
            self._places[app_id] = at
        return self._places[app_id]

    def _forget_places(self) -> None:
        if self._places_at != self._table.version:
            self._places.clear()
            self._places_at = self._table.version


def _epoch_id(app_id: str) -> str:
    return f"{app_id}:epoch"


def _transactions(reached: Mapping[str, Place]) -> dict[str, int]:
    offsets = {app_id: at.offset for app_id, at in reached.items()}
    return offsets | {_epoch_id(k): at.epoch for k, at in reached.items() if at.epoch >= 0}


def _rows(slices: Sequence[Slice], columns: Sequence[str] | None) -> pa.Table:
    """The rows of the slices with their addresses.

    Raises:
        ConfigError: a column is missing, or the slices have different ones.
    """
    tables = [storable(_columns(s, columns)) for s in slices]
    for s, table in zip(slices, tables, strict=True):
        if table.schema != tables[0].schema:
            raise ConfigError(
                f"recorded rows: {s.split}@{s.start} has other columns than {slices[0].split}@"
                f"{slices[0].start}: {_described(table)}, not {_described(tables[0])}. Record the "
                "splits in recordings of their own, or give the recorder columns= they share."
            )
    return pa.concat_tables(tables)


def _columns(s: Slice, wanted: Sequence[str] | None) -> dict[str, Column]:
    if taken := sorted({SPLIT, OFFSET, TOKEN} & s.columns.keys()):
        raise ConfigError(
            f"recorded rows: the source has a column {taken[0]!r}, which is a recording's own. "
            "Record the stream that this one was recorded from, or leave the column out."
        )
    if missing := [name for name in wanted or () if name not in s.columns]:
        raise ConfigError(
            f"recorded rows: {s.split} has no column {missing[0]!r}; it has {', '.join(s.columns)}"
        )
    token = None if s.token is None else json.dumps(s.token, sort_keys=True)
    return {
        **{name: s.columns[name] for name in wanted or s.columns},
        SPLIT: pa.repeat(pa.scalar(s.split, pa.string()), len(s)),
        OFFSET: s.offsets,
        TOKEN: pa.repeat(pa.scalar(token, pa.string()), len(s)),
    }


def _described(table: pa.Table) -> str:
    return ", ".join(f"{f.name}: {f.type}" for f in table.schema)
