"""A Delta table as a source: a snapshot, then its commits, positions in the training checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args
from urllib.parse import urlparse

from forebay.cpus import cpu_share
from forebay.errors import ConfigError
from forebay.source import Owns, Split
from forebay.state import Position
from forebay_delta.changes import Changes, ChangeType, check_types
from forebay_delta.errors import TableReplaced, VersionGone
from forebay_delta.evolution import SchemaPolicy
from forebay_delta.lanes import Lane, Wanted
from forebay_delta.log import DeltaLog
from forebay_delta.opening import Schema, Start, parse_start, parse_until, saved_places, schema_of
from forebay_delta.positions import Place
from forebay_delta.reader import DeltaReader, OnGap, Pace
from forebay_delta.snapshot import Snapshot
from forebay_delta.store import StorageOptions, Store, open_store
from forebay_delta.tail import Rules, Tail, View, replaced

_GIVEN: tuple[ChangeType, ...] = ("insert", "update_postimage")


@dataclass(frozen=True, slots=True)
class DeltaSource:
    """Reads a table's rows in commit order, each exactly once for what it follows.

    Holds configuration only: it opens nothing and can be pickled. Positions are physical rows of
    files, so a resume neither reads nor gives again what was delivered.

    Raises:
        ConfigError: an argument is wrong; names it, its value and the way out.
    """

    uri: str
    """A local folder, or an address of an object store: ``s3://bucket/table``."""
    storage_options: StorageOptions = field(default=None, kw_only=True, repr=False)
    """Options of the object store under the names that deltalake uses, or a function that gives
    fresh ones, asked again when the store says that credentials have expired."""
    start: str | Mapping[str, Any] = field(default="snapshot", kw_only=True)
    """Where a run without a saved position begins: ``"snapshot"`` (the whole newest version, then
    the commits after it), ``{"snapshot": N}``, ``"latest"`` (commits from now on), ``{"version":
    N}`` (the commits from N on), ``{"timestamp": ms or aware datetime}`` (commits from then on)."""
    until: str | Mapping[str, Any] | None = field(default=None, kw_only=True)
    """Where reading ends: ``None`` (never), ``"latest"`` (the newest version at the moment of
    opening), or ``{"version": N}`` (N included, waited for if it is not there yet)."""
    columns: Sequence[str] | None = field(default=None, kw_only=True)
    """The columns to read; those left out cost nothing."""
    filter: Sequence[Any] | None = field(default=None, kw_only=True)
    """Which rows to give: ``[("country", "==", "DE"), ("x", ">", 3)]``, see ``Filter``. Files that
    cannot hold such rows are not opened."""
    changes: Changes = field(default="error", kw_only=True)
    """What to do with commits that delete, update or replace rows, see ``docs/delta.md``: stop
    with ``"error"``, ``"ignore_deletes"``, ``"skip"`` or ``"reemit"`` them, give only rows
    ``"unseen"`` so far, or read the change feed (``"cdf"``, column ``_change_type``)."""
    change_types: Sequence[ChangeType] = field(default=("insert", "update_postimage"), kw_only=True)
    """The kinds of rows of the change feed to give."""
    accept_change: int | None = field(default=None, kw_only=True)
    """Go past commits up to this version that ``changes`` refuses: nothing of them is given. A
    ``ChangeRefused`` names the version."""
    schema: SchemaPolicy = field(default="keep", kw_only=True)
    """What to do when columns are added or widened: ``"keep"`` the schema that reading began with,
    ``"evolve"``, or ``"stop"``. Dropped, renamed and re-typed columns always stop."""
    accept_schema: int | None = field(default=None, kw_only=True)
    """Go past schema changes up to this version, which a ``SchemaChanged`` named."""
    on_gap: OnGap = field(default="fail", kw_only=True)
    """What to do when commits or files that were not delivered are gone: raise, ``"skip"`` them
    and count what is lost, or begin anew with the whole table as it is (``"snapshot"``)."""
    shards: int = field(default=1, kw_only=True)
    """Splits of the table, by file; as many ranks can share it. Fixed for the life of a run."""
    lineage: bool = field(default=False, kw_only=True)
    """Add the columns ``_delta_version``, ``_delta_file`` and ``_delta_row``."""
    lengths: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    """Columns of number lists that all have one length: they come as arrays ``[rows, length]``."""
    event_time: str | None = field(default=None, kw_only=True)
    """The column that says when a row came to be: a timestamp, or milliseconds."""
    name: str | None = field(default=None, kw_only=True)
    """What splits are called by, ``delta:<name>/0``; None: the last part of the address."""
    poll_seconds: float = field(default=0.5, kw_only=True)
    """How often the log of an idle table is asked for a new commit: one request."""
    threads: int | None = field(default=None, kw_only=True)
    """Files read at a time; None: as many as this process has CPUs."""
    readahead_bytes: int = field(default=64 << 20, kw_only=True)
    """Most bytes read ahead; comes on top of the loader's ``max_bytes``."""
    readahead_files: int | None = field(default=None, kw_only=True)
    """Most files open at a time; None: one more than threads."""
    slice_rows: int = field(default=1 << 16, kw_only=True)
    """Most rows in a slice."""
    slice_bytes: int = field(default=4 << 20, kw_only=True)
    """Most bytes of rows in a slice, about."""

    def __post_init__(self) -> None:
        self._set("uri", str(self.uri))
        if not self.uri:
            raise ConfigError("DeltaSource: name a table: DeltaSource('s3://bucket/table')")
        for name in ("columns", "change_types"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise ConfigError(f"{self._where}: {name} must be a list of names, not {given!r}")
            self._set(name, None if given is None else tuple(given))
        if self.columns == ():
            raise ConfigError(f"{self._where}: columns must name at least one")
        start, until = parse_start(self.start, self._where), parse_until(self.until, self._where)
        _check_range(start, until, self._where)
        self._check_choices()
        self._check_numbers()

    @property
    def bounded(self) -> bool:
        """Whether reading ends by itself."""
        return self.until is not None

    def splits(self) -> Sequence[Split]:
        group = f"delta:{self._name}"
        return [Split(id=f"{group}/{i}", group=group, number=i) for i in range(self.shards)]

    def resolved(self) -> DeltaSource:
        """The source with ``start`` and ``until`` fixed to the versions they mean now.

        For runs of several ranks: make it on one rank and give it to all, so that they begin with
        the same version.
        """
        log = DeltaLog(open_store(self.uri, self.storage_options))
        latest = log.latest_version()
        until = self._until(latest)
        origin = parse_start(self.start, self._where).origin(log, latest, until)
        kind = "snapshot" if origin.snapshot else "version"
        end = None if until is None else {"version": until}
        return replace(self, start={kind: origin.version}, until=end)

    def open(self, positions: Mapping[str, Position], owns: Owns) -> DeltaReader:
        """Open a reader.

        Raises:
            ConfigError: columns or filter do not fit the table, or ranks would begin apart.
            StateError, DataLossError, SourceError: see ``forebay.source.Source.open``.
        """
        splits = self.splits()
        places = saved_places(positions, splits, self.shards, self._where)
        store = open_store(self.uri, self.storage_options)
        log = DeltaLog(store)
        latest = log.latest_version()
        newest: Schema = (latest, *log.metadata(latest))
        table = newest[2].id
        failure = None
        for name, place in places.items():
            if place.table != table:
                failure = replaced(name, place.table, table)
        if failure is not None and self.on_gap != "snapshot":
            raise failure
        owned = [s for s in splits if owns(s)]
        new = self._new_place(log, latest, table, places, all_owned=len(owned) == len(splits))
        lanes = []
        for split in owned:
            place = places.get(split.id, new)
            lanes.append(Lane(split, place, positions.get(split.id), self._wanted()))
        return self._reader(store, newest, lanes, failure)

    def _reader(
        self, store: Store, newest: Schema, lanes: list[Lane], failure: TableReplaced | None
    ) -> DeltaReader:
        log, rules, until = DeltaLog(store), self._rules(), self._until(newest[0])
        first = min((lane.place for lane in lanes), key=lambda p: p.version)
        schema = first.schema if failure is None else newest[0]
        commits = min(lane.commits_from for lane in lanes)
        before = max(commits - 1, 0)
        # Retention may have taken the log of then: the later, the more was changed since.
        rising = (schema, max(schema, before), max(schema, commits))
        view = View.of(*schema_of(log, rising, newest, self._where), rules)
        configuration = view.metadata.configuration
        if self.changes == "cdf":
            configuration = schema_of(log, (before, commits), newest, self._where)[2].configuration
        known = max(lane.read_before for lane in lanes) if failure is None else -1
        tail = Tail(store, rules, lanes[0].split.id, view, commits, until, configuration, known)
        snapshots: list[tuple[Snapshot, View]] = []
        gap: TableReplaced | VersionGone | None = failure
        if gap is None:
            try:
                snapshots = _snapshots(log, lanes, rules)
            except VersionGone as e:
                gap = e
        reader = DeltaReader(
            store=store,
            rules=rules,
            pace=self._pace(),
            lanes=lanes,
            shards=self.shards,
            snapshots=snapshots,
            tail=tail,
            on_gap=self.on_gap,
            bounded=self.bounded,
        )
        reader.begin(gap)
        return reader

    def _new_place(
        self,
        log: DeltaLog,
        latest: int,
        table: str,
        places: Mapping[str, Place],
        *,
        all_owned: bool,
    ) -> Place:
        """Where splits begin that have no saved position: where the others began, if any have."""
        if places:
            return next(iter(places.values())).beginning()
        start = parse_start(self.start, self._where)
        if start == Start("snapshot") and not all_owned:
            raise ConfigError(
                f"{self._where}: start='snapshot' would be another version on each rank if a "
                "commit comes between. Make one source on one rank with source.resolved() and "
                f"give it to all, or set start={{'snapshot': {latest}}}."
            )
        until = self._until(latest)
        origin = start.origin(log, latest, until)
        if (
            start.kind == "version"
            and until is not None
            and origin.version > max(until, latest + 1)
        ):
            raise ConfigError(
                f"{self._where}: start names version {origin.version}, and reading ends with "
                f"version {until}, the newest: there is nothing between"
            )
        return Place(
            table=table,
            shards=self.shards,
            origin=origin,
            schema=min(origin.version, latest),
            version=origin.version,
        )

    def _until(self, latest: int) -> int | None:
        until = parse_until(self.until, self._where)
        if until is None:
            return None
        return latest if until.value is None else until.value

    @property
    def _name(self) -> str:
        if self.name is not None:
            return self.name
        return urlparse(self.uri).path.rstrip("/").rsplit("/", 1)[-1] or self.uri

    @property
    def _where(self) -> str:
        return f"DeltaSource({self.uri!r})"

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _rules(self) -> Rules:
        types = check_types(self.change_types)
        assert types is not None
        return Rules(
            uri=self.uri,
            changes=self.changes,
            change_types=types,
            schema=self.schema,
            accept_schema=self.accept_schema,
            accept_change=self.accept_change,
            columns=None if self.columns is None else tuple(self.columns),
            filter=self.filter,
            lengths=self.lengths,
            event_time=self.event_time,
        )

    def _wanted(self) -> Wanted:
        types = frozenset(self.change_types) if self.changes == "cdf" else None
        return Wanted(lineage=self.lineage, event_time=self.event_time, change_types=types)

    def _pace(self) -> Pace:
        threads = self.threads or max(1, math.ceil(cpu_share()))
        return Pace(
            poll_seconds=self.poll_seconds,
            threads=threads,
            readahead_bytes=self.readahead_bytes,
            readahead_files=self.readahead_files or threads + 1,
            slice_bytes=self.slice_bytes,
            slice_rows=self.slice_rows,
        )

    def _check_choices(self) -> None:
        choices = {
            "changes": get_args(Changes),
            "schema": get_args(SchemaPolicy),
            "on_gap": get_args(OnGap),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{self._where}: {name} must be one of {', '.join(map(repr, allowed))}, not "
                    f"{getattr(self, name)!r}"
                )
        if check_types(self.change_types) is None:
            raise ConfigError(
                f"{self._where}: change_types must be some of "
                f"{', '.join(map(repr, get_args(ChangeType)))}, not {self.change_types!r}"
            )
        if self.event_time is not None and self.columns and self.event_time not in self.columns:
            raise ConfigError(
                f"{self._where}: the event_time column {self.event_time!r} is not in columns"
            )

    def _check_numbers(self) -> None:
        least = {"shards": 1, "slice_rows": 1, "slice_bytes": 1, "readahead_bytes": 1}
        optional = {"threads": 1, "readahead_files": 1, "accept_schema": 0, "accept_change": 0}
        for name, low in (least | optional).items():
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ConfigError(
                    f"{self._where}: {name} must be a whole number >= {low}, not {value!r}"
                )
        seconds = self.poll_seconds
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or seconds <= 0:
            raise ConfigError(f"{self._where}: poll_seconds must be more than 0 s, not {seconds!r}")


def _check_range(start: Start, until: Start | None, where: str) -> None:
    """Refuse a beginning that lies behind the end."""
    if until is None or until.value is None or start.value is None or start.kind == "timestamp":
        return
    if start.value > until.value:
        raise ConfigError(
            f"{where}: start names version {start.value} and until version {until.value}: there "
            "is nothing between"
        )


def _snapshots(log: DeltaLog, lanes: list[Lane], rules: Rules) -> list[tuple[Snapshot, View]]:
    """The whole versions that lanes are still in.

    Raises:
        VersionGone: log retention removed one.
    """
    versions = sorted({lane.begin.version for lane in lanes if lane.begin.snapshot})
    snapshots = [log.snapshot(v) for v in versions]
    return [(s, View.of(s.version, s.protocol, s.metadata, rules)) for s in snapshots]
