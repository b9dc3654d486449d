"""Records that are gone: found by comparing a position with the log, handled by ``on_gap``.

Gaps between the offsets of a log are normal (compaction, transaction markers). Loss is only
this: the log now begins after the position, ends before it, or is another log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from forebay.errors import DataLossError
from forebay.slice import Token
from forebay.state import Position
from forebay_kafka.positions import Identity

OnGap: TypeAlias = Literal["fail", "earliest", "latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a partition is now, as the brokers say."""

    identity: Identity
    low: int
    """The first offset still held."""
    high: int
    """One past the last record, of open transactions too."""
    end: int
    """One past the last record that may be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records between a position and the log that can no longer be read."""

    split: str
    start: int
    stop: int | None
    """One past the last lost offset; None where it cannot be known."""
    lost: int
    """Records that were not delivered and never will be: at most, for logs have holes."""
    why: str
    earliest: int
    """Where ``on_gap='earliest'`` goes on."""
    latest: int
    """Where ``on_gap='latest'`` goes on."""
    resets: bool
    """The log is another one from here on: its offsets name other records."""
    advice: str

    def error(self) -> DataLossError:
        """The error of ``on_gap='fail'``."""
        return DataLossError(self.split, self.start, self.stop, self.why, self.advice)

    def resume(self, policy: OnGap) -> int:
        """The offset at which reading goes on.

        Raises:
            DataLossError: the policy is to fail.
        """
        if policy == "fail":
            raise self.error()
        return self.earliest if policy == "earliest" else self.latest

    def skipped(self, policy: OnGap) -> int:
        """Records that are lost under a policy: skipping to the end loses those before it, too."""
        beyond = self.latest - self.earliest if policy == "latest" else 0
        return self.lost + max(beyond, 0)


def find_gap(
    split: str,
    position: Position,
    log: Log,
    *,
    divergence: int | None = None,
    refused: bool = False,
) -> Gap | None:
    """What is lost between a position and a log, or None.

    ``divergence``: the offset from which on the client found the log to differ from the one
    that was read, by its leader epochs. ``refused``: the brokers have no such offset, or are not
    going to be asked for it.

    A position beyond the end is left to the client where it can check it by leader epoch: only
    that tells where the log was cut. It checks where reading begins, so not with pending ranges.
    """
    if (gap := find_recreation(split, position, log)) is not None:
        return gap
    if position.low < log.low:
        return _overtaken(split, position, log)
    if divergence is not None and divergence < position.offset:
        return _truncated(split, position, log, divergence)
    checked_by_client = "epoch" in (position.token or {}) and not position.pending and not refused
    if position.offset > log.high and not checked_by_client:
        return _truncated(split, position, log, None)
    return None


def find_recreation(split: str, position: Position, log: Log) -> Gap | None:
    """The gap if the log is another one than the position was saved on, or None."""
    why = _other_log(position.token or {}, log.identity)
    if why is None:
        return None
    return Gap(
        split=split,
        start=position.low,
        stop=None,
        lost=0,
        why=why,
        earliest=log.low,
        latest=log.end,
        resets=True,
        advice=(
            "To read the topic that is there now, from its first record, set on_gap='earliest'; "
            "to begin at its end, on_gap='latest'."
        ),
    )


def _other_log(saved: Token, now: Identity) -> str | None:
    """Why the log is not the one the position was saved on, or None."""
    topic = saved.get("id")
    cluster = saved.get("at")
    moved = cluster is not None and now.cluster is not None and cluster != now.cluster
    if topic is not None and now.topic_id is not None and topic != now.topic_id:
        if moved:
            return "the position was saved on another Kafka cluster"
        return f"the topic was deleted and re-created (its id was {topic}, it is {now.topic_id})"
    if topic is None and moved:
        return "the position was saved on another Kafka cluster"
    return None


def _overtaken(split: str, position: Position, log: Log) -> Gap:
    ranges = [(r.start, min(r.stop, log.low)) for r in position.undelivered()]
    return Gap(
        split=split,
        start=position.low,
        stop=log.low,
        lost=sum(max(b - a, 0) for a, b in ranges),
        why=f"retention passed the position {position.low}: the log begins at {log.low} now",
        earliest=log.low,
        latest=log.end,
        resets=False,
        advice=(
            "To go on without them, set on_gap='earliest' (at the oldest record there is) or "
            "on_gap='latest'; to keep records longer, raise the topic's retention."
        ),
    )


def _truncated(split: str, position: Position, log: Log, divergence: int | None) -> Gap:
    # A reset voids the whole position, so ranges that are still pending are read again, too.
    at = log.low if divergence is None else max(min(divergence, position.low), log.low)
    since = log.high if divergence is None else divergence
    return Gap(
        split=split,
        start=since,
        stop=position.offset,
        lost=0,
        why=(
            f"the log was cut at offset {since}, before the position {position.offset} (an "
            "unclean leader election); others may stand in the place of records that were read"
        ),
        earliest=at,
        latest=log.end,
        resets=True,
        advice=f"To go on at {at}, set on_gap='earliest'; at the end, on_gap='latest'.",
    )
