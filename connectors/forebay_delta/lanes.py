"""One split of a table on its way: the files it is to give, and the slices made of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.columns import Column, as_arrow, take
from forebay.slice import Slice
from forebay.source import Split
from forebay.state import Position
from forebay_delta.changes import ChangeType, Scan
from forebay_delta.datafile import Piece
from forebay_delta.positions import Place
from forebay_delta.readahead import Ahead
from forebay_delta.tail import View

CHANGE_TYPE = "_change_type"
LINEAGE = ("_delta_version", "_delta_file", "_delta_row")


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A file that is to be read, or, without a scan, the news that a version is over."""

    view: View
    version: int
    scan: Scan | None = None
    last: bool = False
    start_row: int = 0
    expected: int | None = None
    """Physical rows of the file, as the log has it."""
    ahead: Ahead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What every slice is to have."""

    lineage: bool
    event_time: str | None
    change_types: frozenset[ChangeType] | None
    """None where no change feed is read."""


class Lane:
    """The steps of one split, in order. Used by one thread, but for ``end``."""

    def __init__(
        self, split: Split, place: Place, position: Position | None, wanted: Wanted
    ) -> None:
        offset = place.first if position is None else position.low
        self.split, self.place, self.offset = split, place, offset
        self.position = position or Position(offset, token=place.token(), base=place.origin.offset)
        """What was delivered when it was opened."""
        self.begin = place
        """Where this run began to read."""
        self.end: int | None = offset
        """The offset behind all that was planned; None once a file did not say its rows."""
        self.steps: deque[Step] = deque()
        self._wanted, self._begin_row = wanted, offset - place.first
        self._held: Step | None = None

    @property
    def commits_from(self) -> int:
        """The first version that it reads as a commit."""
        return self.begin.version + 1 if self.begin.snapshot else self.begin.version

    @property
    def read_before(self) -> int:
        """A version that the table had when the position was saved; -1 if none is known."""
        origin, at = self.begin.origin, self.begin.version
        return at - 1 if at > origin.version else at if origin.snapshot else -1

    @property
    def planned(self) -> int:
        """Steps that wait."""
        return len(self.steps) + (self._held is not None)

    def add(self, scan: Scan, view: View) -> None:
        """A file of this split is to be read, unless it was before this run."""
        at, began = (scan.version, scan.index), (self.begin.version, self.begin.index)
        if at < began:
            return
        start = self._begin_row if at == began else 0
        rows = scan.file.num_records
        self._expect(None if rows is None else rows - start)
        self._release()
        self._held = Step(
            view=view, version=scan.version, scan=scan, start_row=start, expected=rows
        )

    def end_of(self, version: int, view: View) -> None:
        """No more files of this version come: the position may go on to the next."""
        if self._held is not None:
            self._held.last = True
            self._release()
        elif self.steps and self.steps[-1].scan is None:
            self.steps[-1].version, self.steps[-1].view = version, view
        else:
            self.steps.append(Step(view=view, version=version))

    def restart(self, place: Place) -> Slice:
        """Forget all steps and begin anew; the slice that says so."""
        self.steps.clear()
        self._held = None
        self.place = self.begin = place
        self.end, self._begin_row = self.offset, 0
        return self._slice(place, self.offset, self.offset, resets=True)

    def news(self) -> Slice:
        """The slice without rows of a version that is over (the first step)."""
        step = self.steps.popleft()
        return self._moved(step)

    def slice_of(self, piece: Piece, num_rows: int) -> Slice:
        """The rows of a piece of the first step's file."""
        step = self.steps[0]
        assert step.scan is not None
        first = self._first(step)
        self.place = self._at(step, first, num_rows)
        s = self._slice(self.place, first + piece.first, first + piece.stop)
        self.offset = s.next_offset
        columns, rows = self._columns(piece, step.scan)
        rows += first  # in place: they are the piece's own, and as large as two float32 columns
        return replace(
            s,
            columns=columns,
            offsets=rows,
            event_times=self._times(columns),
            edition=(self.split.group, step.view.schema_number),
        )

    def finish(self, num_rows: int) -> Slice | None:
        """The first step's file was read: a slice if that alone moves the position."""
        step = self.steps.popleft()
        if step.expected is not None:
            self._expect(num_rows - step.expected)
        return self._moved(step) if num_rows == 0 and step.last else None

    def pass_over(self) -> Slice:
        """The first step's file cannot be read: the slice that answers for its rows."""
        step = self.steps.popleft()
        first = self._first(step)
        stop = max(self.offset, first + (step.expected or 0))
        self.place = self._at(step, first, stop - first)
        s = self._slice(self.place, self.offset, stop)
        self.offset = stop
        return s

    def left(self, step: Step) -> int | None:
        """Physical rows of the first step's file that were not given; None if nobody knows."""
        return None if step.expected is None else self._first(step) + step.expected - self.offset

    def _first(self, step: Step) -> int:
        """The offset of row 0 of the first step's file."""
        at = (step.version, step.scan.index if step.scan else 0)
        return self.place.first if at == (self.place.version, self.place.index) else self.offset

    def _at(self, step: Step, first: int, rows: int) -> Place:
        assert step.scan is not None
        return replace(
            self.place,
            schema=step.view.version,
            version=step.version,
            index=step.scan.index,
            first=first,
            rows=rows,
            last=step.last,
        )

    def _expect(self, rows: int | None) -> None:
        self.end = None if self.end is None or rows is None else self.end + rows

    def _release(self) -> None:
        if self._held is not None:
            self.steps.append(self._held)
            self._held = None

    def _moved(self, step: Step) -> Slice:
        """To the beginning of the next version."""
        self.place = replace(
            self.place,
            schema=step.view.version,
            version=step.version + 1,
            index=0,
            first=self.offset,
            rows=None,
            last=False,
        )
        return self._slice(self.place, self.offset, self.offset)

    def _slice(self, place: Place, start: int, stop: int, resets: bool = False) -> Slice:
        return Slice(
            split=self.split.id,
            columns={},
            offsets=np.zeros(0, np.int64),
            start=start,
            next_offset=stop,
            token=place.token(),
            resets=resets,
        )

    def _columns(self, piece: Piece, scan: Scan) -> tuple[dict[str, Column], Any]:
        columns: dict[str, Column] = dict(piece.columns)
        rows = piece.rows
        types = self._wanted.change_types
        if types is not None and scan.from_cdc:
            listed = pa.array(sorted(types), pa.string())
            wanted = pc.is_in(as_arrow(columns[CHANGE_TYPE]), value_set=listed)
            kept = np.flatnonzero(wanted.to_numpy(zero_copy_only=False))
            if len(kept) < len(rows):
                columns, rows = take(columns, kept), rows[kept]
        elif types is not None:
            columns[CHANGE_TYPE] = pa.repeat(scan.change, len(rows))
        if self._wanted.lineage:
            version, file, row = LINEAGE
            columns[version] = np.full(len(rows), scan.version, np.int64)
            columns[file] = pa.repeat(scan.file.path, len(rows))
            columns[row] = rows.copy()
        return columns, rows

    def _times(self, columns: dict[str, Column]) -> Any:
        name = self._wanted.event_time
        if name is None or not columns:
            return None
        times = as_arrow(columns[name])
        if pa.types.is_timestamp(times.type):
            times = times.cast(pa.timestamp("ms"), safe=False)
        values = times.cast(pa.int64())
        return np.asarray(values.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
