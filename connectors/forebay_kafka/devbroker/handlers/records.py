"""Records in and out: produce, fetch, and the questions about offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from forebay_kafka.devbroker import batches, schemas
from forebay_kafka.devbroker.codes import Code, Refusal
from forebay_kafka.devbroker.log import UNDEFINED, Appended, PartitionLog
from forebay_kafka.devbroker.protocol import Message, Records
from forebay_kafka.devbroker.state import State
from forebay_kafka.devbroker.topics import Topic, partition_of

ProducedTopic = schemas.ProduceResponse.TopicProduceResponse
FetchedTopic = schemas.FetchResponse.FetchableTopicResponse
FetchedPartition = FetchedTopic.PartitionData
ListedTopic = schemas.ListOffsetsResponse.ListOffsetsTopicResponse
EpochTopic = schemas.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult

FETCH_BY_ID = 13
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


async def produce(state: State, request: Message) -> Message | None:
    """Append; no answer at all for acks=0, as the protocol has it."""
    topics = [
        ProducedTopic(
            name=topic.name,
            partition_responses=[
                _produced(state, request, topic.name, part) for part in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    state.bell.ring()
    return schemas.ProduceResponse(responses=topics, throttle_time_ms=0) if request.acks else None


def _produced(state: State, request: Message, name: str, part: Message) -> Message:
    log_start = UNDEFINED
    appended, code, text = Appended(UNDEFINED, UNDEFINED), Code.NONE, None
    try:
        topic = state.topics.named(name)
        log = partition_of(topic, part.index)
        log_start = log.start
        appended = _append(state, request, topic, log, part.records or b"")
    except Refusal as refusal:
        code, text = refusal.code, refusal.text
    return ProducedTopic.PartitionProduceResponse(
        index=part.index,
        error_code=code,
        base_offset=appended.base,
        log_append_time_ms=appended.timestamp,
        log_start_offset=log_start,
        record_errors=[],
        error_message=text,
    )


def _append(
    state: State, request: Message, topic: Topic, log: PartitionLog, data: bytes
) -> Appended:
    parts = list(batches.cut(data))
    for batch in parts:
        _check_transaction(state, request.transactional_id, log, batches.header(batch))
    return log.append(parts, max_batch_bytes=topic.max_batch_bytes, append_time=topic.append_time)


def _check_transaction(
    state: State, transactional_id: str | None, log: PartitionLog, head: batches.Header
) -> None:
    if not head.is_transactional:
        return
    transaction = state.transactions.checked(
        transactional_id, head.producer_id, head.producer_epoch
    )
    if log not in transaction.partitions:
        raise Refusal(Code.INVALID_TXN_STATE, "the partition was not added to the transaction")


# Fetch


class Answer(NamedTuple):
    """A fetch response, its records, and whether it is worth sending before the time is up."""

    response: Message
    records: Records
    enough: bool


@dataclass(slots=True)
class Budget:
    """Bytes a fetch may still return; the first batch of all is exempt, or it could get stuck."""

    left: int
    used: int = 0
    urgent: bool = False

    def spend(self, size: int) -> None:
        self.left -= size
        self.used += size


async def fetch(state: State, request: Message) -> tuple[Message, Records]:
    """Answer at once with `min_bytes` or an error; else when they arrive, or after max_wait_ms."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + request.max_wait_ms / 1000
    while True:
        answer = _fetched(state, request)
        left = deadline - clock()
        if answer.enough or left <= 0:
            return answer.response, answer.records
        await state.bell.wait(left)


def _fetched(state: State, request: Message) -> Answer:
    budget = Budget(request.max_bytes)
    records = Records()
    topics = []
    for asked in request.topics:
        find = _finder(state, request, asked)
        parts = [_fetched_part(find, request, part, budget, records) for part in asked.partitions]
        topics.append(FetchedTopic(topic=asked.topic, topic_id=asked.topic_id, partitions=parts))
    response = schemas.FetchResponse(
        throttle_time_ms=0, error_code=Code.NONE, session_id=0, responses=topics
    )
    return Answer(response, records, budget.urgent or budget.used >= request.min_bytes)


def _finder(state: State, request: Message, asked: Message) -> Callable[[int], PartitionLog]:
    def find(index: int) -> PartitionLog:
        if request.API_VERSION >= FETCH_BY_ID:
            return partition_of(state.topics.with_id(asked.topic_id), index)
        return state.topics.partition(asked.topic, index)

    return find


def _fetched_part(
    find: Callable[[int], PartitionLog],
    request: Message,
    asked: Message,
    budget: Budget,
    records: Records,
) -> Message:
    try:
        log = find(asked.partition)
        log.check_epoch(asked.current_leader_epoch)
        diverging = _divergence(log, asked)
        if diverging is None and not log.start <= asked.fetch_offset <= log.end:
            raise Refusal(Code.OFFSET_OUT_OF_RANGE)
    except Refusal as refusal:
        budget.urgent = True
        return _empty_part(asked.partition, refusal.code)
    part = _empty_part(asked.partition, Code.NONE)
    part.high_watermark = log.end
    part.last_stable_offset = log.stable_end
    part.log_start_offset = log.start
    if diverging is not None:
        budget.urgent = True
        part.diverging_epoch = diverging
        part.tags = {"diverging_epoch"}
        return part
    _fill(part, log, request, asked, budget, records)
    return part


def _fill(
    part: Message,
    log: PartitionLog,
    request: Message,
    asked: Message,
    budget: Budget,
    records: Records,
) -> None:
    committed_only = bool(request.isolation_level)
    end = log.readable_end(committed_only=committed_only)
    chunk = log.read(
        asked.fetch_offset,
        max_bytes=min(asked.partition_max_bytes, budget.left),
        before=end,
        at_least_one=budget.used == 0,
    )
    budget.spend(chunk.size)
    part.records = records.add(chunk.data)
    if committed_only:
        part.aborted_transactions = [
            FetchedPartition.AbortedTransaction(
                producer_id=gone.producer_id, first_offset=gone.first
            )
            for gone in (log.aborted_between(asked.fetch_offset, end) if chunk.data else ())
        ]


def _empty_part(index: int, code: Code) -> Message:
    return FetchedPartition(
        partition_index=index,
        error_code=code,
        high_watermark=UNDEFINED,
        last_stable_offset=UNDEFINED,
        log_start_offset=UNDEFINED,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=b"",
    )


def _divergence(log: PartitionLog, asked: Message) -> Message | None:
    """Where the log left the epoch that the reader last saw, if that is before its position."""
    if asked.last_fetched_epoch == UNDEFINED:
        return None
    left = log.end_of_epoch(asked.last_fetched_epoch)
    if left.epoch >= asked.last_fetched_epoch and left.start >= asked.fetch_offset:
        return None
    return FetchedPartition.EpochEndOffset(epoch=left.epoch, end_offset=left.start)


# Questions about offsets


async def list_offsets(state: State, request: Message) -> Message:
    topics = [
        ListedTopic(
            name=topic.name,
            partitions=[_listed(state, request, topic.name, part) for part in topic.partitions],
        )
        for topic in request.topics
    ]
    return schemas.ListOffsetsResponse(throttle_time_ms=0, topics=topics)


def _listed(state: State, request: Message, name: str, asked: Message) -> Message:
    offset, timestamp, epoch, code = UNDEFINED, UNDEFINED, UNDEFINED, Code.NONE
    try:
        log = state.topics.partition(name, asked.partition_index)
        log.check_epoch(asked.current_leader_epoch)
        committed_only = bool(request.isolation_level)
        offset, timestamp = _offset_at(log, asked.timestamp, committed_only=committed_only)
        epoch = log.epoch
    except Refusal as refusal:
        code = refusal.code
    return ListedTopic.ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=code,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


def _offset_at(log: PartitionLog, timestamp: int, *, committed_only: bool) -> tuple[int, int]:
    end = log.readable_end(committed_only=committed_only)
    if timestamp == LATEST:
        return end, UNDEFINED
    if timestamp == EARLIEST:
        return log.start, UNDEFINED
    if timestamp < MAX_TIMESTAMP:
        raise Refusal(Code.UNSUPPORTED_VERSION)
    found = log.newest() if timestamp == MAX_TIMESTAMP else log.first_at(timestamp)
    return found if found[0] < end else (UNDEFINED, UNDEFINED)


async def offset_for_leader_epoch(state: State, request: Message) -> Message:
    topics = [
        EpochTopic(
            topic=topic.topic,
            partitions=[_epoch_end(state, topic.topic, part) for part in topic.partitions],
        )
        for topic in request.topics
    ]
    return schemas.OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


def _epoch_end(state: State, name: str, asked: Message) -> Message:
    epoch, end, code = UNDEFINED, UNDEFINED, Code.NONE
    try:
        log = state.topics.partition(name, asked.partition)
        log.check_epoch(asked.current_leader_epoch)
        epoch, end = log.end_of_epoch(asked.leader_epoch)
    except Refusal as refusal:
        code = refusal.code
    return EpochTopic.EpochEndOffset(
        error_code=code, partition=asked.partition, leader_epoch=epoch, end_offset=end
    )
