"""Reads a Delta table: plans the files of each version, reads them ahead, gives their slices."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, TypeAlias
from zlib import crc32

import numpy as np

from forebay.errors import DataLossError, SourceError
from forebay.slice import Slice
from forebay.state import Position
from forebay_delta.actions import DataFile
from forebay_delta.changes import Scan
from forebay_delta.datafile import FileScan
from forebay_delta.errors import (
    BrokenTable,
    DataFileGone,
    SchemaChanged,
    TableReplaced,
    UnsupportedTable,
    VersionGone,
)
from forebay_delta.lanes import Lane, Step
from forebay_delta.log import DeltaLog
from forebay_delta.positions import Origin, Place
from forebay_delta.readahead import Ahead, Readahead
from forebay_delta.selection import AllBut, Only
from forebay_delta.snapshot import Snapshot
from forebay_delta.store import Store
from forebay_delta.tail import Planned, Rules, Tail, View, planned_snapshot
from forebay_delta.vectors import load_deletion_vector

_log = logging.getLogger("forebay.delta")

OnGap: TypeAlias = Literal["fail", "skip", "snapshot"]

# Files that are planned for each split: enough that reading never waits for the log.
_PLANNED = 16


_VACUUMED = (
    " (VACUUM removes files that the newest version does not use, once they are older than "
    "delta.deletedFileRetentionDuration)",
    "To go on without its rows, set on_gap='skip'; to begin anew with the whole table as it is, "
    "on_gap='snapshot' (rows that were trained come again). To keep files longer, raise the "
    "retention of VACUUM above the reader's lag.",
)
_DAMAGED = " though version {newest}, the newest, still has it: the table is damaged"
_REPAIR = (
    "Restore the file, or take it out of the table (deltalake: DeltaTable(uri).repair()); "
    "on_gap='skip' reads the rest and counts what is lost."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast, and with how much memory."""

    poll_seconds: float
    threads: int
    readahead_bytes: int
    readahead_files: int
    slice_bytes: int
    slice_rows: int


@dataclass(slots=True, kw_only=True)
class DeltaStats:
    """What a reader has done since it was opened."""

    rows: int = 0
    """Rows given."""
    files: int = 0
    versions: int = 0
    """Versions planned."""
    pruned_files: int = 0
    """Files passed over because the filter excludes all their rows."""
    lost_rows: int = 0
    """Rows of files that were gone, as far as the log told their number."""
    lost_files: int = 0
    lost_versions: int = 0
    """Commits that were gone before they could be read."""
    resets: int = 0
    """How often the reading began anew with the whole table (``on_gap="snapshot"``)."""


class DeltaReader:
    """Reads the lanes it was opened with. ``poll`` plans; threads of its own read files."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        pace: Pace,
        lanes: Sequence[Lane],
        shards: int,
        snapshots: Sequence[tuple[Snapshot, View]],
        tail: Tail,
        on_gap: OnGap,
        bounded: bool,
    ) -> None:
        self._store, self._log = store, DeltaLog(store)
        self._rules, self._pace = rules, pace
        self._lanes = list(lanes)
        self._by_shard = {lane.split.number: lane for lane in lanes}
        self._shards, self._on_gap, self._bounded = shards, on_gap, bounded
        self._positions = {lane.split.id: lane.position for lane in lanes}
        self._snapshots = list(snapshots)
        self._lacks_snapshot = any(x.begin.snapshot for x in lanes) and not snapshots
        self._plans = deque(planned_snapshot(s, view, rules) for s, view in snapshots)
        self._current: Planned | None = None
        self._tail = tail
        self._readahead = Readahead(pace.threads, pace.readahead_bytes)
        self._out: deque[Slice] = deque()
        self._paused: frozenset[str] = frozenset()
        self._failure: SourceError | None = None
        self._poll_at = 0.0
        self._snapshot_ends: Mapping[str, int] | None = None
        self._newest_paths: tuple[int, frozenset[str]] | None = None
        self._stats = DeltaStats()
        self._closed = False

    def begin(self, gap: DataLossError | None) -> None:
        """Look whether all that is to be read is still there; called once, when opening.

        Args:
            gap: what was found missing already.

        Raises:
            DataLossError: something is gone, and the policy is to fail.
            BrokenTable: the log ends before the position.
        """
        if gap is None and not self._tail.ended:
            try:
                self._tail.check_log()
            except DataLossError as e:
                gap = e
        if gap is not None and (self._on_gap == "fail" or not self._can_go_on(gap)):
            raise gap
        self._failure = gap

    def positions(self) -> Mapping[str, Position]:
        return self._positions

    def poll(self, timeout: float) -> Slice | None:
        deadline = time.monotonic() + timeout
        while True:
            s = self._next()
            if s is None:
                self._plan(deadline)
                s = self._next()
            if s is not None:
                self._stats.rows += len(s)
                return s
            now = time.monotonic()
            if now >= deadline or self._over():
                return None
            due = self._poll_at - now if self._tail.idle else deadline - now
            self._readahead.wait(self._awaited(), max(0.0, min(deadline - now, due)))

    def pause(self, splits: Collection[str]) -> None:
        self._paused = frozenset(splits)

    def finished_splits(self) -> Collection[str]:
        if not self._bounded or not self._all_planned() or self._out:
            return ()
        return [lane.split.id for lane in self._lanes if not lane.planned]

    def ends(self) -> Mapping[str, int]:
        """The end offset of each split that is known: in physical rows, deleted ones included.

        While a whole version is read, its end; then the end of the log as last polled. Absent
        while commits wait that were not looked at yet.
        """
        if self._plans or (self._current and self._current.snapshot):
            if self._snapshot_ends is None:
                self._snapshot_ends = self._ends_of_snapshots()
            return self._snapshot_ends
        if not self._tail.idle and not self._tail.ended:
            return {}
        lanes = self._by_shard.values()  # the list changes while slices are given, in turn
        return {lane.split.id: lane.end for lane in lanes if lane.end is not None}

    def stats(self) -> DeltaStats:
        """What was read, pruned and lost so far. Any thread."""
        return self._stats

    def counts(self) -> Mapping[str, float]:
        """The same as plain numbers."""
        return asdict(self._stats)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._readahead.close()

    # -- giving ---------------------------------------------------------------------------------

    def _next(self) -> Slice | None:
        if self._out:
            return self._out.popleft()
        for lane in list(self._lanes):
            if lane.split.id in self._paused:
                continue
            s = self._next_of(lane)
            if s is not None:
                if len(self._lanes) > 1:
                    self._lanes.remove(lane)
                    self._lanes.append(lane)
                return s
        return None

    def _next_of(self, lane: Lane) -> Slice | None:
        """The next slice of a lane; None while its file is read, or if nothing is planned."""
        while lane.steps:
            step = lane.steps[0]
            if step.scan is None:
                return lane.news()
            ahead = step.ahead or self._read_ahead(lane, step)
            piece = self._readahead.next(ahead)
            if piece is not None:
                assert ahead.num_rows is not None
                return lane.slice_of(piece, ahead.num_rows)
            if not self._readahead.ended(ahead):
                return None
            self._readahead.remove(ahead)
            step.ahead = None
            if ahead.error is not None:
                return self._failed(lane, step, ahead.error)
            self._stats.files += 1
            assert ahead.num_rows is not None
            s = lane.finish(ahead.num_rows)
            self._open_ahead()
            if s is not None:
                return s
        return None

    def _awaited(self) -> list[Ahead]:
        """The files whose pieces come next."""
        lanes = [lane for lane in self._lanes if lane.split.id not in self._paused and lane.steps]
        return [ahead for lane in lanes if (ahead := lane.steps[0].ahead) is not None]

    def _failed(self, lane: Lane, step: Step, error: BaseException) -> Slice | None:
        """What becomes of a file that cannot be read."""
        if isinstance(error, (BrokenTable, SchemaChanged, UnsupportedTable)):
            where = f"{self._rules.uri}, version {step.version}"
            raise type(error)(f"{where}: {error}") from error
        if not isinstance(error, FileNotFoundError):
            raise error
        try:
            self._tail.check_id()
        except TableReplaced as replaced:  # what is gone then is not only this file
            return self._restarted(replaced)
        newest = self._newest_with(step)
        gone = self._file_gone(lane, step, newest)
        if self._on_gap == "fail" or (self._on_gap == "snapshot" and newest is not None):
            raise gone from error
        self._stats.lost_files += 1
        self._stats.lost_rows += lane.left(step) or 0
        _log.warning("%s", gone)
        if self._on_gap == "skip":
            return lane.pass_over()
        self._restart()
        return self._out.popleft()

    def _restarted(self, replaced: TableReplaced) -> Slice:
        """Begin anew with another table, if the policy is to."""
        if not self._can_go_on(replaced):
            raise replaced
        _log.warning("%s", replaced)
        self._restart()
        return self._out.popleft()

    def _newest_with(self, step: Step) -> int | None:
        """The newest version if it still has the file: then beginning anew meets the same gap."""
        assert step.scan is not None
        newest = self._log.latest_version()
        if self._newest_paths is None or self._newest_paths[0] != newest:
            # Kept, for where one file was vacuumed mostly many were.
            files = self._log.snapshot(newest).files
            self._newest_paths = newest, frozenset(f.path for f in files)
        return newest if step.scan.file.path in self._newest_paths[1] else None

    def _file_gone(self, lane: Lane, step: Step, newest: int | None) -> DataFileGone:
        assert step.scan is not None
        file = step.scan.file
        left = lane.left(step)
        why, hint = _VACUUMED
        if newest is not None:
            why, hint = _DAMAGED.format(newest=newest), _REPAIR
        return DataFileGone(
            lane.split.id,
            lane.offset,
            None if left is None else lane.offset + left,
            f"version {step.version}: the data file {file.path}{_age(file)} is gone{why}",
            hint,
        )

    # -- reading --------------------------------------------------------------------------------

    def _open_ahead(self) -> None:
        """Begin to read the files that come next, of all lanes in turn."""
        most = max(self._pace.readahead_files, len(self._lanes))
        for depth in range(_PLANNED):
            for lane in self._lanes:
                if len(self._readahead) >= most:
                    return
                if depth < len(lane.steps):
                    step = lane.steps[depth]
                    if step.scan is not None and step.ahead is None:
                        self._read_ahead(lane, step)

    def _read_ahead(self, lane: Lane, step: Step) -> Ahead:
        assert step.scan is not None
        step.ahead = Ahead(lane.split.id, partial(self._open, step.scan, step.view, step.start_row))
        self._readahead.add(step.ahead)
        return step.ahead

    def _open(self, scan: Scan, view: View, start_row: int) -> FileScan:
        """Runs in a thread of the readahead."""
        projection = view.projection
        if scan.from_cdc:
            assert view.feed is not None
            projection = view.feed
        return FileScan(
            self._store,
            scan.file,
            projection,
            selection=self._selection(scan),
            start_row=start_row,
            piece_bytes=self._pace.slice_bytes,
            piece_rows=self._pace.slice_rows,
        )

    def _selection(self, scan: Scan) -> Only | AllBut | None:
        store = self._store
        if scan.only is not None:
            assert scan.only.of is not None
            rows = load_deletion_vector(store, scan.only.of)
            if scan.only.but is not None:
                but = load_deletion_vector(store, scan.only.but)
                rows = np.setdiff1d(rows, but, assume_unique=True)
            return Only(rows)
        hidden = scan.file.deletion_vector
        return None if hidden is None else AllBut(load_deletion_vector(store, hidden))

    # -- planning -------------------------------------------------------------------------------

    def _plan(self, deadline: float) -> None:
        """Plan files until every lane has some; raise what stopped the planning once all before
        it was given. Where much gives no rows, only until the deadline."""
        while self._failure is None and any(lane.planned < _PLANNED for lane in self._lanes):
            if self._current is None and not self._next_version():
                break
            self._plan_version(deadline)
            if time.monotonic() >= deadline:
                break
        self._open_ahead()
        if self._failure is not None and not any(lane.planned for lane in self._lanes):
            self._stopped(self._failure)

    def _next_version(self) -> bool:
        """Make the next version the current one; False if there is none now."""
        if self._plans:
            self._current = self._plans.popleft()
            return True
        if self._tail.ended or (self._tail.idle and time.monotonic() < self._poll_at):
            return False
        try:
            self._current = self._tail.poll()
        except SourceError as e:
            self._failure = e
            return False
        if self._current is None:
            # Spread the polls of many readers.
            self._poll_at = time.monotonic() + self._pace.poll_seconds * random.uniform(0.9, 1.1)
        return self._current is not None

    def _plan_version(self, deadline: float) -> None:
        """Give the current version's files to their lanes, as many as are wanted."""
        planned = self._current
        assert planned is not None
        readers = [lane for lane in self._lanes if _reads(lane, planned)]
        for scan in planned.scans:
            lane = self._by_shard.get(_shard(scan.file, self._shards))
            if lane is None or lane not in readers:
                continue
            if planned.view.wants(scan):
                lane.add(scan, planned.view)
            else:
                self._stats.pruned_files += 1
                if time.monotonic() >= deadline:
                    return
            if all(lane.planned >= _PLANNED for lane in readers):
                return
        for lane in readers:
            lane.end_of(planned.version, planned.view)
        self._stats.versions += 1
        self._current = None

    def _stopped(self, failure: SourceError) -> None:
        """Raise what stopped the planning, or go on by the policy for gaps."""
        if not self._can_go_on(failure):
            raise failure
        _log.warning("%s", failure)
        if self._on_gap == "snapshot":
            self._restart()
        else:
            self._skip_versions()
        self._failure = None

    def _can_go_on(self, failure: SourceError) -> bool:
        """Whether the policy for gaps says how to go on; nothing to skip is left of a table that
        was replaced, or of a whole version that is gone."""
        if self._on_gap == "skip":
            return isinstance(failure, VersionGone) and not self._lacks_snapshot
        return self._on_gap == "snapshot" and isinstance(failure, DataLossError)

    def _skip_versions(self) -> None:
        """Go on at the oldest commit there is behind the missing ones."""
        at = max(self._log.versions().start, self._tail.version)
        lost = at - self._tail.version
        self._tail.skip_to(at)
        self._stats.lost_versions += lost
        for lane in self._lanes:
            lane.end_of(at - 1, self._tail.view)

    def _restart(self) -> None:
        """Begin anew with the whole table as it is now."""
        snapshot = self._log.snapshot()
        view = View.of(snapshot.version, snapshot.protocol, snapshot.metadata, self._rules)
        for lane in self._lanes:
            for step in lane.steps:
                if step.ahead is not None:
                    self._readahead.remove(step.ahead)
            origin = Origin(version=snapshot.version, snapshot=True, offset=lane.offset)
            place = Place(
                table=snapshot.metadata.id,
                shards=self._shards,
                origin=origin,
                schema=snapshot.version,
                version=snapshot.version,
                first=lane.offset,
            )
            self._out.append(lane.restart(place))
        self._snapshots, self._lacks_snapshot = [(snapshot, view)], False
        self._plans = deque([planned_snapshot(snapshot, view, self._rules)])
        self._current, self._snapshot_ends = None, None
        self._tail = self._tail.behind(view, snapshot.version + 1)
        self._stats.resets += 1

    def _all_planned(self) -> bool:
        return self._tail.ended and self._current is None and not self._plans

    def _over(self) -> bool:
        done = self._all_planned() and not self._out
        return done and not any(lane.planned for lane in self._lanes)

    def _ends_of_snapshots(self) -> Mapping[str, int]:
        ends: dict[str, int] = {}
        for snapshot, view in self._snapshots:
            planned = planned_snapshot(snapshot, view, self._rules)
            lanes = {k: x for k, x in self._by_shard.items() if _reads(x, planned)}
            for lane in lanes.values():
                ends[lane.split.id] = lane.begin.first
            for scan in planned.scans:
                lane_of = lanes.get(_shard(scan.file, self._shards))
                if lane_of is None or scan.index < lane_of.begin.index or not view.wants(scan):
                    continue
                rows = scan.file.num_records
                if rows is None:
                    return {}
                ends[lane_of.split.id] += rows
        return ends


def _reads(lane: Lane, planned: Planned) -> bool:
    """Whether the version is one that this lane reads in this way."""
    if planned.snapshot:
        return lane.begin.snapshot and lane.begin.version == planned.version
    return planned.version >= lane.commits_from


def _shard(file: DataFile, shards: int) -> int:
    """By the path, so that all ranks agree and compaction decides nothing."""
    return 0 if shards == 1 else crc32(file.path.encode()) % shards


def _age(file: DataFile) -> str:
    """When the file was written, in words."""
    if not file.modified_ms:
        return ""
    hours = max(time.time() - file.modified_ms / 1000, 0) / 3600
    ago = f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"
    return f", written {ago} ago,"
