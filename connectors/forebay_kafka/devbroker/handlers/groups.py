"""Committed offsets; group membership is refused in words that a client shows."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from forebay_kafka.devbroker import schemas
from forebay_kafka.devbroker.codes import Code, Refusal
from forebay_kafka.devbroker.protocol import Message
from forebay_kafka.devbroker.state import State
from forebay_kafka.devbroker.topics import NOT_COMMITTED, CommitKey, Committed

CommittedTopic = schemas.OffsetCommitResponse.OffsetCommitResponseTopic
GroupOfOffsets = schemas.OffsetFetchResponse.OffsetFetchResponseGroup
FETCH_MANY_GROUPS = 8
NO_GENERATION = -1

log = logging.getLogger(__name__)


async def join_group(state: State, request: Message) -> Message:
    """Refused: this broker has no consumer groups; clients assign partitions themselves."""
    log.warning(
        "a client asked to join group %r: this broker has no consumer groups; "
        "assign() partitions instead of subscribe(), or use Apache Kafka",
        request.group_id,
    )
    return schemas.JoinGroupResponse(
        throttle_time_ms=0,
        error_code=Code.UNSUPPORTED_VERSION,
        generation_id=NO_GENERATION,
        protocol_type=None,
        protocol_name="",
        leader="",
        member_id=request.member_id,
        members=[],
    )


async def offset_commit(state: State, request: Message) -> Message:
    topics = [
        CommittedTopic(
            name=topic.name,
            partitions=[
                CommittedTopic.OffsetCommitResponsePartition(
                    partition_index=part.partition_index,
                    error_code=_commit(state, request.group_id, topic.name, part),
                )
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return schemas.OffsetCommitResponse(throttle_time_ms=0, topics=topics)


def _commit(state: State, group: str, topic: str, part: Message) -> Code:
    try:
        state.topics.partition(topic, part.partition_index)
    except Refusal as refusal:
        return refusal.code
    key = CommitKey(group, topic, part.partition_index)
    state.topics.committed[key] = committed(part)
    return Code.NONE


def committed(part: Message) -> Committed:
    return Committed(
        part.committed_offset, part.committed_leader_epoch, part.committed_metadata or ""
    )


async def offset_fetch(state: State, request: Message) -> Message:
    if request.API_VERSION >= FETCH_MANY_GROUPS:
        return schemas.OffsetFetchResponse(
            throttle_time_ms=0, groups=[_group(state, asked) for asked in request.groups]
        )
    topic_kind = schemas.OffsetFetchResponse.OffsetFetchResponseTopic
    topics = [
        topic_kind(
            name=name,
            partitions=[
                topic_kind.OffsetFetchResponsePartition(**_offset(state, request.group_id, name, i))
                for i in indexes
            ],
        )
        for name, indexes in _asked(state, request.group_id, request.topics)
    ]
    return schemas.OffsetFetchResponse(throttle_time_ms=0, error_code=Code.NONE, topics=topics)


def _group(state: State, asked: Message) -> Message:
    topic_kind = GroupOfOffsets.OffsetFetchResponseTopics
    topics = [
        topic_kind(
            name=name,
            partitions=[
                topic_kind.OffsetFetchResponsePartitions(**_offset(state, asked.group_id, name, i))
                for i in indexes
            ],
        )
        for name, indexes in _asked(state, asked.group_id, asked.topics)
    ]
    return GroupOfOffsets(group_id=asked.group_id, error_code=Code.NONE, topics=topics)


def _asked(
    state: State, group: str, topics: list[Message] | None
) -> Iterable[tuple[str, list[int]]]:
    """Topic names with partition indexes; everything the group has committed if none are named."""
    if topics is not None:
        return [(topic.name, topic.partition_indexes) for topic in topics]
    found: dict[str, list[int]] = {}
    for key in sorted(state.topics.committed):
        if key.group == group:
            found.setdefault(key.topic, []).append(key.partition)
    return found.items()


def _offset(state: State, group: str, topic: str, index: int) -> dict[str, object]:
    known = state.topics.committed.get(CommitKey(group, topic, index), NOT_COMMITTED)
    return {
        "partition_index": index,
        "committed_offset": known.offset,
        "committed_leader_epoch": known.leader_epoch,
        "metadata": known.metadata,
        "error_code": Code.NONE,
    }
