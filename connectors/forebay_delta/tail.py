"""Follows the log of a table: the files of a whole version, then those of each commit after it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zlib import crc32

import pyarrow as pa

from forebay.errors import ConfigError, SourceError
from forebay_delta.actions import Commit, Metadata, Protocol, digest_of
from forebay_delta.changes import Changes, ChangeType, Scan, scans_of, snapshot_scan
from forebay_delta.errors import BrokenTable, ChangeRefused, TableReplaced, VersionGone
from forebay_delta.evolution import SchemaPolicy, schema_after
from forebay_delta.filters import Filter
from forebay_delta.log import DeltaLog, commit_path
from forebay_delta.projection import Projection
from forebay_delta.snapshot import Snapshot
from forebay_delta.store import Store
from forebay_delta.support import check_supported

# A commit that is not there may have been removed by log retention, or the whole table replaced.
# Only a listing tells; one in so many polls keeps an idle table at one request a poll.
_LISTING_EVERY = 25

# A reader that is behind reads commit after commit; after so long a pause it looks first whether
# they are of the same table still, which is one more request.
_STALE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What to read of a table, and what to do about changes."""

    uri: str
    changes: Changes
    change_types: tuple[ChangeType, ...]
    schema: SchemaPolicy
    accept_schema: int | None
    accept_change: int | None
    columns: tuple[str, ...] | None
    filter: Any
    """As ``Filter.parse`` takes it; None for all rows."""
    lengths: Mapping[str, int]
    event_time: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How rows are read: the schema of a version, and what is wanted of it."""

    version: int
    protocol: Protocol
    metadata: Metadata
    filter: Filter | None
    projection: Projection
    feed: Projection | None
    """For files of the change feed."""
    schema_number: int
    """The same for views that give the same columns."""

    @classmethod
    def of(cls, version: int, protocol: Protocol, metadata: Metadata, rules: Rules) -> View:
        """The view of a version's schema.

        Raises:
            ConfigError: a column or the filter does not fit the schema.
        """
        try:
            rows = None if rules.filter is None else Filter.parse(rules.filter, metadata)
            given = partial(
                Projection, metadata, columns=rules.columns, filter=rows, lengths=rules.lengths
            )
            projection = given()
            _check_event_time(rules.event_time, projection)
        except ConfigError as e:
            raise ConfigError(f"{rules.uri}: {e}") from e
        return cls(
            version=version,
            protocol=protocol,
            metadata=metadata,
            filter=rows,
            projection=projection,
            schema_number=crc32(projection.schema.to_string().encode()),
            feed=given(change_type=True) if rules.changes == "cdf" else None,
        )

    def columns(self, rules: Rules) -> Collection[str] | None:
        """The columns that are read, those of the filter included; None for all."""
        if rules.columns is None:
            return None
        return {*rules.columns, *(self.filter.columns if self.filter else ())}

    def wants(self, scan: Scan) -> bool:
        """Whether the file can have rows that pass the filter."""
        return self.filter is None or self.filter.may_match(scan.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A version that is to be read."""

    version: int
    snapshot: bool
    """Whether it is read whole, or only what its commit changed."""
    view: View
    scans: Iterator[Scan]


def planned_snapshot(snapshot: Snapshot, view: View, rules: Rules) -> Planned:
    """All files of a version, in their order."""
    scans = (
        snapshot_scan(snapshot.version, i, f, rules.changes) for i, f in enumerate(snapshot.files)
    )
    return Planned(version=snapshot.version, snapshot=True, view=view, scans=scans)


class Tail:
    """The commits of a table from ``version`` on. Used by one thread.

    Args:
        split: named in errors.
        until: the last version to read; None follows for ever.
        configuration: the table's properties just before ``version``; those of ``view`` may be
            older, for it keeps the schema that reading began with.
        known: a version that the table had already, -1 for none: a log that ends before it was
            truncated.
    """

    def __init__(
        self,
        store: Store,
        rules: Rules,
        split: str,
        view: View,
        version: int,
        until: int | None,
        configuration: Mapping[str, str],
        known: int,
    ) -> None:
        self._configuration, self._known = configuration, known
        self._store, self._log = store, DeltaLog(store)
        self._rules, self._split = rules, split
        self.view, self.version, self._until = view, version, until
        self._misses = 0
        self._digest: bytes | None = None
        self._found_at = time.monotonic()

    @property
    def ended(self) -> bool:
        """Whether the last version was planned."""
        return self._until is not None and self.version > self._until

    @property
    def idle(self) -> bool:
        """Whether the last poll found nothing."""
        return self._misses > 0

    def poll(self) -> Planned | None:
        """The next commit, or None if there is none yet: one request.

        Raises:
            VersionGone: the commit was there, and is gone.
            TableReplaced: another table stands in its place.
            ChangeRefused, SchemaChanged, UnsupportedTable: the commit cannot be read on. The
                next poll raises the same.
        """
        commit = self._log.commit(self.version)
        if commit is None:
            self._misses += 1
            if self._misses % _LISTING_EVERY == 0:
                self.check_log()
            return None
        if self._misses or time.monotonic() - self._found_at > _STALE_SECONDS:
            self._check_same_table()
        if commit.protocol is not None or commit.metadata is not None:
            self._adopt(commit.protocol, commit.metadata)
        scans = self._scans(commit)
        planned = Planned(version=self.version, snapshot=False, view=self.view, scans=iter(scans))
        self._misses = 0
        self._known = self.version
        self.version += 1
        self._digest, self._found_at = commit.digest, time.monotonic()
        return planned

    def _scans(self, commit: Commit) -> Sequence[Scan]:
        """The files that a commit gives; none where the user chose to go past it."""
        rules = self._rules
        try:
            return scans_of(
                commit,
                rules.changes,
                rules.change_types,
                rules.uri,
                writes_feed=_writes_feed(self._configuration),
            )
        except ChangeRefused:
            if rules.accept_change is None or commit.version > rules.accept_change:
                raise
            return ()

    def skip_to(self, version: int) -> None:
        """Go on at this version; what the commits before it said of the schema counts.

        Raises:
            SchemaChanged: as ``poll`` does.
        """
        protocol, metadata = self._schema_at(version)
        skipped, self.version = self.version, version
        try:
            self._adopt(protocol, metadata)
        except SourceError:
            self.version = skipped
            raise
        self._misses, self._digest, self._known = 0, None, version

    def behind(self, view: View, version: int) -> Tail:
        """The tail from another version on, under the same rules."""
        configuration = view.metadata.configuration
        return Tail(
            self._store,
            self._rules,
            self._split,
            view,
            version,
            self._until,
            configuration,
            version - 1,
        )

    def _adopt(self, protocol: Protocol | None, metadata: Metadata | None) -> None:
        """Go on with a new protocol or metadata, as far as the policy says so."""
        self.view = self._view_after(protocol or self.view.protocol, metadata or self.view.metadata)
        if metadata is not None:
            self._configuration = metadata.configuration

    def _schema_at(self, version: int) -> tuple[Protocol | None, Metadata | None]:
        """What is known of the schema: nothing, if the log has no checkpoint to tell it by."""
        try:
            return self._log.metadata(version)
        except VersionGone:
            return None, None

    def _view_after(self, protocol: Protocol, metadata: Metadata) -> View:
        view, rules = self.view, self._rules
        check_supported(protocol, metadata, rules.uri)
        if metadata.id != view.metadata.id:
            raise self._replaced(metadata.id)
        after = schema_after(
            view.metadata,
            metadata,
            self.version,
            policy=rules.schema,
            accepted=rules.accept_schema,
            columns=view.columns(rules),
            uri=rules.uri,
        )
        if after is view.metadata:
            return replace(view, protocol=protocol)
        return View.of(self.version, protocol, after, rules)

    def check_log(self) -> None:
        """Tell a commit that is not there yet from one that is there no more."""
        held = self._log.versions()
        if self.version < held.start:
            raise gone(self._split, self.version, held.start - 1)
        newest = held.stop - 1
        if newest < self._known:
            self.check_id(newest)
            raise BrokenTable(
                f"{self._rules.uri}: the log ends at version {newest}, and version "
                f"{self._known} was read before: commits were removed from its end. "
                "Restore them, or start without a state."
            )

    def check_id(self, version: int | None = None) -> None:
        """Whether it is the same table still, at its newest version or another.

        Raises:
            TableReplaced: it is not.
        """
        newest = self._log.latest_version() if version is None else version
        found = self._log.metadata(newest)[1].id
        if found != self.view.metadata.id:
            raise self._replaced(found)

    def _check_same_table(self) -> None:
        """A table that was replaced has another commit where the last one was."""
        if self._digest is not None and self._digest_of_last() not in (None, self._digest):
            raise self._replaced(self._log.metadata(self.version)[1].id)

    def _digest_of_last(self) -> bytes | None:
        """Of the last commit's bytes; None if log retention removed it."""
        try:
            content = self._store.get(commit_path(self.version - 1))
        except FileNotFoundError:
            return None
        return digest_of(content)

    def _replaced(self, found: str) -> TableReplaced:
        return replaced(self._split, self.view.metadata.id, found)


def _check_event_time(name: str | None, projection: Projection) -> None:
    """Refuse a column of event times that is none."""
    if name is None:
        return
    if name not in projection.schema.names:
        listed = ", ".join(projection.schema.names)
        raise ConfigError(f"event_time: there is no column {name!r}. The columns are: {listed}")
    kind = projection.schema.field(name).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
        raise ConfigError(
            f"event_time: column {name!r} is {kind}; a timestamp, or whole milliseconds since the "
            "epoch, is needed"
        )


def _writes_feed(configuration: Mapping[str, str]) -> bool:
    return configuration.get("delta.enableChangeDataFeed", "false").lower() == "true"


def gone(split: str, first: int, last: int) -> VersionGone:
    """The error for commits that log retention removed before they were read."""
    which = f"version {first} is" if first == last else f"versions {first} to {last} are"
    return VersionGone(
        split,
        None,
        None,
        f"{which} gone from the log: its retention passed the reader",
        "To go on at the oldest commit there is, set on_gap='skip'; to begin anew with the whole "
        "table as it is, on_gap='snapshot' (rows that were trained come again); to keep commits "
        "longer, raise delta.logRetentionDuration.",
    )


def replaced(split: str, saved: str, found: str) -> TableReplaced:
    """The error for a table that is another one than before."""
    return TableReplaced(
        split,
        None,
        None,
        f"the table was dropped and another one stands there (its id was {saved}, it is {found})",
        "To read the table that is there now, whole, set on_gap='snapshot', or start without a "
        "state.",
    )
