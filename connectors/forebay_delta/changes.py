"""What a commit gives under a change policy: the files to read, and which of their rows.

| commit                    | error  | ignore_deletes | skip    | reemit    | unseen     | cdf   |
|---------------------------|--------|----------------|---------|-----------|------------|-------|
| adds only                 | rows   | rows           | rows    | rows      | rows       | exact |
| RESTORE                   | raise  | raise (2)      | -       | all again | raise (2)  | exact |
| dataChange=false          | -      | -              | -       | -         | -          | -     |
| removes only              | raise  | -              | -       | -         | -          | exact |
| deletion vectors changed  | raise  | raise          | -       | all again | -          | exact |
| files rewritten           | raise  | raise          | -       | all again | raise (1)  | exact |

(1) rows, where the commit says that it copied none, or that it overwrote all.
(2) nothing where it only removes files, or only changes deletion vectors (``unseen``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from forebay_delta.actions import Commit, DataFile, DeletionVector
from forebay_delta.errors import ChangeRefused

Changes: TypeAlias = Literal["error", "ignore_deletes", "skip", "reemit", "unseen", "cdf"]
ChangeType: TypeAlias = Literal["insert", "update_preimage", "update_postimage", "delete"]

_WAYS: Mapping[Changes, str] = {
    "ignore_deletes": "deletes change nothing",
    "cdf": "the change feed: exact",
    "unseen": "only rows not given before",
    "skip": "nothing of such commits, nor of their new rows",
    "reemit": "rewritten files again, whole",
}
_COPIED = ("numcopiedrows", "num_copied_rows", "numtargetrowscopied", "num_target_rows_copied")
_OVERWRITES = (
    "WRITE",
    "CREATE OR REPLACE TABLE",
    "REPLACE TABLE",
    "CREATE OR REPLACE TABLE AS SELECT",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The rows that ``of`` hides and ``but`` does not."""

    of: DeletionVector | None
    but: DeletionVector | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A file to read."""

    version: int
    index: int
    file: DataFile
    """Its own deletion vector hides rows, unless ``only`` says otherwise."""
    only: Difference | None = None
    change: ChangeType | None = None
    """What happened to all its rows; None where nobody asks, or the file says it itself."""
    from_cdc: bool = False
    """The file is of the change feed: it has a column ``_change_type``."""


def snapshot_scan(version: int, index: int, file: DataFile, policy: Changes) -> Scan:
    """A file of a whole version; in a change feed its rows are inserts."""
    change: ChangeType | None = "insert" if policy == "cdf" else None
    return Scan(version=version, index=index, file=file, change=change)


def scans_of(
    commit: Commit,
    policy: Changes,
    types: Collection[ChangeType],
    uri: str,
    *,
    writes_feed: bool,
) -> list[Scan]:
    """The files that a commit gives, in the order of its actions.

    Args:
        writes_feed: whether writers of the table must write the change feed of a commit that
            copies rows (``delta.enableChangeDataFeed``). Else a rewritten file cannot be told
            from new rows.

    Raises:
        ChangeRefused: the policy does not allow the commit; names it and the way out.
    """
    try:
        return _scans(commit, policy, types, writes_feed)
    except _Refused as refused:
        ways = [
            f"changes={other!r} ({words})"
            for other, words in _WAYS.items()
            if other != policy and _passes(commit, other, types, writes_feed)
        ]
        raise ChangeRefused(
            f"{uri}: version {commit.version} ({_name(commit)}) {refused}, and changes={policy!r} "
            "stops there. Everything before it was delivered. To go on, resume with accept_change="
            f"{commit.version} (past this commit alone, giving nothing of it), or with another "
            f"policy: {', '.join(ways)}."
        ) from None


class _Refused(Exception):
    """A policy does not allow a commit; says what the commit does, as a clause."""


def _scans(
    commit: Commit, policy: Changes, types: Collection[ChangeType], writes_feed: bool
) -> list[Scan]:
    if policy == "cdf":
        if not writes_feed:
            _check_copied_nothing(commit)
        return _change_feed(commit, types)
    adds = _changing(commit, "add")
    removes = _changing(commit, "remove")
    if policy == "reemit" or (not removes and commit.operation != "RESTORE"):
        return [_whole(commit, i, f) for i, f in adds.items()]
    if policy == "skip" or (not adds and policy in ("ignore_deletes", "unseen")):
        return []
    if policy == "unseen":
        return _unseen(commit, adds, removes)
    raise _Refused(
        f"removes {len(removes)} files and adds {len(adds)}: rows that were given before are "
        "changed or deleted"
    )


def _passes(
    commit: Commit, policy: Changes, types: Collection[ChangeType], writes_feed: bool
) -> bool:
    try:
        _scans(commit, policy, types, writes_feed)
    except _Refused:
        return False
    return True


def _changing(commit: Commit, kind: str) -> dict[int, DataFile]:
    """The files of one kind of action that change data, by index."""
    return {
        i: a.file
        for i, a in enumerate(commit.files)
        if a.kind == kind and (a.file.data_change or kind == "cdc")
    }


def _whole(commit: Commit, index: int, file: DataFile) -> Scan:
    return Scan(version=commit.version, index=index, file=file)


def _unseen(
    commit: Commit, adds: Mapping[int, DataFile], removes: Mapping[int, DataFile]
) -> list[Scan]:
    """The rows of new files; a file that only got another deletion vector has none.

    A new file beside a removed one may hold copies of rows that were given before. Only where
    the commit says that it copied none, or that it replaced all, its rows are new.
    """
    removed = {f.path for f in removes.values()}
    added = {f.path for f in adds.values()}
    new = {i: f for i, f in adds.items() if f.path not in removed}
    rewritten = removed - added
    again = commit.operation == "RESTORE"
    if new and (again or (rewritten and not _copied_nothing(commit))):
        raise _Refused(
            "adds whole files beside removed or restored ones and does not say that it copied no "
            "rows, so that new rows cannot be told from old ones"
        )
    return [_whole(commit, i, f) for i, f in new.items()]


def _check_copied_nothing(commit: Commit) -> None:
    """Refuse a commit without a feed whose new files may hold copies of rows given before."""
    adds, removes = _changing(commit, "add"), _changing(commit, "remove")
    paired = {f.path for f in adds.values()} & {f.path for f in removes.values()}
    rewrites = any(f.path not in paired for f in adds.values()) and any(
        f.path not in paired for f in removes.values()
    )
    moved = commit.operation == "RESTORE"  # files come back or go as they were: nothing is copied
    if rewrites and not moved and not _changing(commit, "cdc") and not _copied_nothing(commit):
        raise _Refused(
            "rewrites whole files while the table's change feed is off and does not say that it "
            "copied no rows, so that copied rows would come as inserts (turn on "
            "delta.enableChangeDataFeed for the commits to come)"
        )


def _copied_nothing(commit: Commit) -> bool:
    said = {str(k).lower(): v for k, v in commit.metrics.items()}
    counts = [str(said[k]) for k in _COPIED if k in said]
    if counts:
        return all(c == "0" for c in counts)
    # With a predicate, rows that stay are copied out of files that hold others, too; deltalake
    # does not count them.
    partly = commit.parameters.get("predicate") not in (None, "", "[]")
    return commit.operation in _OVERWRITES and not partly


def _change_feed(commit: Commit, types: Collection[ChangeType]) -> list[Scan]:
    """The change feed of a commit, written by it or told from its actions."""
    if written := _changing(commit, "cdc"):
        return [
            Scan(version=commit.version, index=i, file=f, from_cdc=True) for i, f in written.items()
        ]
    adds, removes = _changing(commit, "add"), _changing(commit, "remove")
    old = {f.path: f for f in removes.values()}
    new = {f.path: f for f in adds.values()}
    scans = []
    for i, f in sorted((adds | removes).items()):
        change: ChangeType = "insert" if i in adds else "delete"
        only = None
        if f.path in old and f.path in new:
            before, after = old[f.path].deletion_vector, new[f.path].deletion_vector
            hidden = (before, after) if change == "insert" else (after, before)
            only = Difference(of=hidden[0], but=hidden[1])
            if only.of is None:
                continue
        if change in types:
            scans.append(Scan(version=commit.version, index=i, file=f, only=only, change=change))
    return scans


def _name(commit: Commit) -> str:
    return commit.operation or "no operation named"


def check_types(types: Any) -> tuple[ChangeType, ...] | None:
    """The change types if they are some; None if they are not."""
    known = ("insert", "update_preimage", "update_postimage", "delete")
    listed = tuple(types)
    return listed if listed and all(t in known for t in listed) else None
