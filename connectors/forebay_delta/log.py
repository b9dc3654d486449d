"""The log of a Delta table: which versions there are, and what the table was at one of them."""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from forebay.errors import SourceError
from forebay_delta.actions import Commit, Metadata, Protocol, digest_of
from forebay_delta.checkpoints import (
    LOG,
    Checkpoint,
    CheckpointFiles,
    read_checkpoint,
    read_checkpoint_head,
    whole_checkpoints,
)
from forebay_delta.commits import commit_time, parse_commit
from forebay_delta.errors import BrokenTable, VersionGone
from forebay_delta.snapshot import Replay, Snapshot
from forebay_delta.storage import Entry, Store
from forebay_delta.support import check_supported

logger = logging.getLogger(__name__)
T = TypeVar("T")

_COMMIT = re.compile(r"(\d{20})\.json")


def commit_path(version: int) -> str:
    """The file of a commit, relative to the table's root."""
    return f"{LOG}/{version:020d}.json"


@dataclass(frozen=True)
class _Listing:
    """What is in the log's folder: one LIST."""

    commits: dict[int, Entry]
    checkpoints: list[CheckpointFiles]
    """Whole ones, the newest first."""

    @property
    def latest(self) -> int:
        return max([*self.commits, *(each.version for each in self.checkpoints[:1])])

    @property
    def versions(self) -> range:
        """Commits up to the newest version without a gap; empty if only a checkpoint is left."""
        first = self.latest + 1
        while first - 1 in self.commits:
            first -= 1
        return range(first, self.latest + 1)

    def missing(self, start: int, stop: int) -> range | None:
        """The first gap in the commits from `start` to `stop`, exclusive."""
        gone = [v for v in range(start, stop) if v not in self.commits]
        if not gone:
            return None
        end = gone[0]
        while end < stop and end not in self.commits:
            end += 1
        return range(gone[0], end)


class DeltaLog:
    """Reads the log of the table in a store. Keeps nothing: every call sees the log as it is.

    Checkpoints that are broken or lack parts are passed over with a warning, as an older one and
    the commits since say the same. Compacted commits, checksums and hints are not read.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def latest_version(self) -> int:
        """The newest version: one LIST.

        Raises:
            SourceError: there is no table.
        """
        return self._listing().latest

    def versions(self) -> range:
        """The versions whose commits can still be read, up to the newest: one LIST.

        It starts behind the last gap; it is empty if there is only a checkpoint.
        """
        return self._listing().versions

    def has_commit(self, version: int) -> bool:
        """Whether the commit is there: one HEAD."""
        return self._store.exists(commit_path(version))

    def commit(self, version: int) -> Commit | None:
        """The commit, or None if it is not there (not yet, or not any more): one GET.

        A commit may bring a protocol that is not known here: see ``check_supported``.

        Raises:
            BrokenTable: names the file and the line that cannot be read.
        """
        try:
            data = self._store.get(commit_path(version))
        except FileNotFoundError:
            return None
        return replace(parse_commit(version, data, self._where(version)), digest=digest_of(data))

    def snapshot(self, version: int | None = None) -> Snapshot:
        """The table at `version`, or at the newest one.

        Raises:
            SourceError: there is no table, or no such version yet.
            VersionGone: the log does not reach back to `version` any more, or has a gap.
            UnsupportedTable: it needs what is not known here.
            BrokenTable: the log contradicts itself, or has no protocol, metadata or schema.
        """
        listing = self._listing()
        at = self._known(version, listing)
        base, start = self._base(listing, at, read_checkpoint)
        replay = Replay(base)
        for commit in self._commits(range(start, at + 1)):
            replay.apply(commit)
        protocol, metadata = self._complete(replay.protocol, replay.metadata, at)
        return Snapshot(
            version=at,
            protocol=protocol,
            metadata=metadata,
            files=replay.files(),
            transactions=replay.transactions,
        )

    def metadata(self, version: int) -> tuple[Protocol, Metadata]:
        """Protocol and metadata as of `version`, without its files.

        Commits are read backwards only until both are known; a checkpoint only if they are not.
        Raises what ``snapshot`` raises.
        """
        listing = self._listing()
        at = self._known(version, listing)
        protocol, metadata = self._backwards(listing, at)
        if protocol is None or metadata is None:
            base, start = self._base(listing, at, read_checkpoint_head)
            replay = Replay(base)
            for commit in self._commits(range(start, at + 1)):
                replay.apply(commit)
            protocol, metadata = replay.protocol, replay.metadata
        return self._complete(protocol, metadata, at)

    def version_at(self, timestamp_ms: int) -> int:
        """The first version made at `timestamp_ms` (since the epoch) or later.

        One past the newest if all are older. The time of a commit is its in-commit timestamp;
        else that of its writer; else, with a warning, that of its file, which a copy changes.
        Where clocks ran backwards, a commit counts as one millisecond newer than the one before.

        Raises:
            VersionGone: commits that may be as new are not in the log any more.
        """
        listing = self._listing()
        versions = listing.versions
        times = _Times(self._store, listing)
        exact = self._exact_from(versions)
        if exact < versions.stop and times.of(exact) < timestamp_ms:
            known = range(exact, versions.stop)
            return exact + bisect_left(known, timestamp_ms, key=times.of)
        found = _first_at(times.rising(versions), timestamp_ms)
        if found is None and versions:
            return versions.stop
        first, time = found or (versions.start, timestamp_ms + 1)
        if first == versions.start > 0 and time > timestamp_ms:
            raise self._gone(range(first), f"timestamp {timestamp_ms} is before version {first}")
        return first

    def _exact_from(self, versions: range) -> int:
        """The first version from which every commit has an in-commit timestamp."""
        if not versions:
            return versions.stop
        properties = self.metadata(versions.stop - 1)[1].configuration
        if properties.get("delta.enableInCommitTimestamps", "false").lower() != "true":
            return versions.stop
        enabled = int(properties.get("delta.inCommitTimestampEnablementVersion", 0))
        return max(enabled, versions.start)

    def _listing(self) -> _Listing:
        entries = self._store.list(LOG)
        commits = {int(name[1]): e for e in entries if (name := _COMMIT.fullmatch(e.name))}
        checkpoints = whole_checkpoints(entries)
        if not commits and not checkpoints:
            raise SourceError(
                f"{self._store.uri} is no Delta table: it has no commits in {LOG}/. "
                "Check the path; create the table before it is read."
            )
        return _Listing(commits, checkpoints)

    def _known(self, version: int | None, listing: _Listing) -> int:
        if version is None:
            return listing.latest
        if not 0 <= version <= listing.latest:
            raise SourceError(
                f"{self._store.uri} has no version {version}: the newest is {listing.latest}."
            )
        return version

    def _base(
        self,
        listing: _Listing,
        version: int,
        read: Callable[[Store, CheckpointFiles], Checkpoint],
    ) -> tuple[Checkpoint | None, int]:
        """The newest checkpoint that can be read, and the first version to apply to it."""
        broken: BrokenTable | None = None
        for files in [each for each in listing.checkpoints if each.version <= version]:
            self._check_gap(listing, files.version + 1, version + 1, broken)
            try:
                return read(self._store, files), files.version + 1
            except BrokenTable as error:
                logger.warning("%s; an older state and the commits since are used instead", error)
                broken = broken or error
        self._check_gap(listing, 0, version + 1, broken)
        return None, 0

    def _check_gap(
        self, listing: _Listing, start: int, stop: int, broken: BrokenTable | None
    ) -> None:
        missing = listing.missing(start, stop)
        if missing is None:
            return
        if broken is not None:
            raise BrokenTable(
                f"{broken}; and {_named(missing)}, which could replace it, are gone. "
                "Restore the checkpoint, or write a new one with another reader of the table."
            ) from broken
        raise self._gone(missing, f"version {stop - 1} cannot be built")

    def _commits(self, versions: range) -> Iterator[Commit]:
        """The commits, oldest first; they are known to have been there."""
        for version, data in zip(versions, self._many(versions), strict=True):
            yield parse_commit(version, data, self._where(version))

    def _many(self, versions: Sequence[int]) -> Iterator[bytes]:
        read = 0
        try:
            for data in self._store.get_many(map(commit_path, versions)):
                yield data
                read += 1
        except FileNotFoundError:
            gone = range(versions[read], versions[read] + 1)
            raise self._gone(gone, "removed while the log was being read") from None

    def _backwards(
        self, listing: _Listing, version: int
    ) -> tuple[Protocol | None, Metadata | None]:
        """What the commits from `version` back to the next checkpoint say; the newest wins."""
        newest = next((c.version for c in listing.checkpoints if c.version <= version), -1)
        if listing.missing(newest + 1, version + 1):
            return None, None
        protocol, metadata = None, None
        back = range(version, newest, -1)
        for number, data in zip(back, self._many(back), strict=False):
            if b'"metaData"' in data or b'"protocol"' in data:
                commit = parse_commit(number, data, self._where(number))
                protocol, metadata = protocol or commit.protocol, metadata or commit.metadata
            if protocol and metadata:
                break
        return protocol, metadata

    def _complete(
        self, protocol: Protocol | None, metadata: Metadata | None, version: int
    ) -> tuple[Protocol, Metadata]:
        if protocol is None or metadata is None:
            lacks = "protocol" if protocol is None else "metadata"
            raise BrokenTable(f"{self._store.uri} has no {lacks} at version {version}.")
        check_supported(protocol, metadata, self._store.uri)
        if not metadata.schema:
            raise BrokenTable(
                f"{self._store.uri} has no schema at version {version}: its metadata has no "
                "schemaString. Read it once its writer has set one."
            )
        return protocol, metadata

    def _gone(self, versions: range, why: str) -> VersionGone:
        return VersionGone(
            self._store.uri,
            None,  # the rows of missing commits cannot be counted
            None,
            f"{_named(versions)} {'is' if len(versions) == 1 else 'are'} gone from the log ({why})",
            "The log keeps them for 'delta.logRetentionDuration'. Begin with a newer version, or, "
            "if that cannot be built either, have the table's writer make a checkpoint.",
        )

    def _where(self, version: int) -> str:
        return f"{self._store.uri}/{commit_path(version)}"


class _Times:
    """When commits were made."""

    def __init__(self, store: Store, listing: _Listing) -> None:
        self._store, self._listing = store, listing
        self._warned = False

    def of(self, version: int) -> int:
        """The time that the commit, or else its file, has."""
        return self._time(version, self._store.get(commit_path(version)))

    def rising(self, versions: range) -> Iterator[tuple[int, int]]:
        """Versions and their times, each at least a millisecond after the one before."""
        previous = -1
        for version, data in zip(
            versions, self._store.get_many(map(commit_path, versions)), strict=True
        ):
            previous = max(self._time(version, data), previous + 1)
            yield version, previous

    def _time(self, version: int, data: bytes) -> int:
        path = commit_path(version)
        time = commit_time(data, f"{self._store.uri}/{path}")
        if time is not None:
            return time
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s/%s does not say when it was made: the time of the file is taken, which is "
                "wrong if the table was copied",
                self._store.uri,
                path,
            )
        return self._listing.commits[version].modified_ms


def _first_at(times: Iterator[tuple[int, int]], timestamp_ms: int) -> tuple[int, int] | None:
    return next(((version, time) for version, time in times if time >= timestamp_ms), None)


def _named(versions: range) -> str:
    if len(versions) == 1:
        return f"version {versions.start}"
    return f"versions {versions.start} to {versions.stop - 1}"
