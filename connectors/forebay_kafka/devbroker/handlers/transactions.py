"""Producer ids and transactions, as the client sees them."""

from __future__ import annotations

from forebay_kafka.devbroker import schemas
from forebay_kafka.devbroker.codes import Code, Refusal
from forebay_kafka.devbroker.handlers.groups import committed
from forebay_kafka.devbroker.protocol import Message
from forebay_kafka.devbroker.state import State
from forebay_kafka.devbroker.topics import CommitKey

AddedTopic = schemas.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
OffsetTopic = schemas.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
NO_ID, NO_EPOCH = -1, -1
FENCED_SINCE = 4


async def init_producer_id(state: State, request: Message) -> Message:
    producer_id, epoch, code = NO_ID, NO_EPOCH, Code.NONE
    try:
        producer_id, epoch = _producer(state, request)
    except Refusal as refusal:
        code = refusal.code
    state.bell.ring()
    return schemas.InitProducerIdResponse(
        throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=epoch
    )


def _producer(state: State, request: Message) -> tuple[int, int]:
    if request.transactional_id is None:
        return state.transactions.new_producer_id(), 0
    if request.producer_id != NO_ID:
        _check_not_fenced(state, request)
    transaction = state.transactions.start_producer(
        request.transactional_id, request.transaction_timeout_ms
    )
    return transaction.producer_id, transaction.epoch


def _check_not_fenced(state: State, request: Message) -> None:
    """A producer that asks for its next epoch must still be the current one."""
    try:
        state.transactions.checked(
            request.transactional_id, request.producer_id, request.producer_epoch
        )
    except Refusal as refusal:
        if refusal.code == Code.INVALID_PRODUCER_EPOCH and request.API_VERSION >= FENCED_SINCE:
            raise Refusal(Code.PRODUCER_FENCED) from refusal
        raise


async def add_partitions(state: State, request: Message) -> Message:
    results = [
        AddedTopic(
            name=topic.name,
            results_by_partition=[
                AddedTopic.AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=_add_partition(state, request, topic.name, index),
                )
                for index in topic.partitions
            ],
        )
        for topic in request.v3_and_below_topics
    ]
    return schemas.AddPartitionsToTxnResponse(
        throttle_time_ms=0, results_by_topic_v3_and_below=results
    )


def _add_partition(state: State, request: Message, topic: str, index: int) -> Code:
    try:
        transaction = state.transactions.checked(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        )
        state.transactions.add_partition(transaction, state.topics.partition(topic, index))
    except Refusal as refusal:
        return refusal.code
    return Code.NONE


async def add_offsets(state: State, request: Message) -> Message:
    code = Code.NONE
    try:
        transaction = state.transactions.checked(
            request.transactional_id, request.producer_id, request.producer_epoch
        )
        state.transactions.open(transaction)
    except Refusal as refusal:
        code = refusal.code
    return schemas.AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=code)


async def commit_offsets(state: State, request: Message) -> Message:
    """Offsets that count from the transaction's commit on."""
    topics = [
        OffsetTopic(
            name=topic.name,
            partitions=[
                OffsetTopic.TxnOffsetCommitResponsePartition(
                    partition_index=part.partition_index,
                    error_code=_hold_offset(state, request, topic.name, part),
                )
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return schemas.TxnOffsetCommitResponse(throttle_time_ms=0, topics=topics)


def _hold_offset(state: State, request: Message, topic: str, part: Message) -> Code:
    try:
        transaction = state.transactions.checked(
            request.transactional_id, request.producer_id, request.producer_epoch
        )
        state.topics.partition(topic, part.partition_index)
    except Refusal as refusal:
        return refusal.code
    key = CommitKey(request.group_id, topic, part.partition_index)
    transaction.offsets[key] = committed(part)
    return Code.NONE


async def end(state: State, request: Message) -> Message:
    code = Code.NONE
    try:
        transaction = state.transactions.checked(
            request.transactional_id, request.producer_id, request.producer_epoch
        )
        state.transactions.end(transaction, committed=request.committed)
    except Refusal as refusal:
        code = refusal.code
    state.bell.ring()
    return schemas.EndTxnResponse(throttle_time_ms=0, error_code=code)
