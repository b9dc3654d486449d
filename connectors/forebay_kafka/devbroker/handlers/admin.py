"""Topics made, grown, emptied and deleted; settings shown."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from forebay_kafka.devbroker import schemas
from forebay_kafka.devbroker.codes import Code, Refusal
from forebay_kafka.devbroker.log import UNDEFINED
from forebay_kafka.devbroker.protocol import Message
from forebay_kafka.devbroker.state import NODE_ID, State
from forebay_kafka.devbroker.topics import NO_ID, TOPIC_DEFAULTS

DeletedTopic = schemas.DeleteRecordsResponse.DeleteRecordsTopicResult
Described = schemas.DescribeConfigsResponse.DescribeConfigsResult
DEFAULT_COUNT = -1
DELETE_BY_ID = 6
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
FROM_TOPIC, FROM_BROKER, FROM_DEFAULT = 1, 4, 5


def _outcome(action: Callable[[], None]) -> dict[str, object]:
    """Do it, and say how it went in the fields that admin responses share."""
    try:
        action()
    except Refusal as refusal:
        return {"error_code": refusal.code, "error_message": refusal.text}
    return {"error_code": Code.NONE, "error_message": None}


async def create_topics(state: State, request: Message) -> Message:
    return schemas.CreateTopicsResponse(
        throttle_time_ms=0, topics=[_created(state, request, asked) for asked in request.topics]
    )


def _created(state: State, request: Message, asked: Message) -> Message:
    count = 1 if asked.num_partitions == DEFAULT_COUNT else asked.num_partitions
    settings = {each.name: each.value for each in asked.configs if each.value is not None}

    def create() -> None:
        _check_replicas(asked)
        if request.validate_only:
            state.topics.check_new(asked.name, count, settings)
        else:
            state.topics.create(asked.name, count, settings)

    outcome = _outcome(create)
    made = outcome["error_code"] == Code.NONE
    known = made and not request.validate_only
    return schemas.CreateTopicsResponse.CreatableTopicResult(
        name=asked.name,
        topic_id=state.topics.named(asked.name).id if known else NO_ID,
        num_partitions=count if made else UNDEFINED,
        replication_factor=1 if made else UNDEFINED,
        configs=[],
        **outcome,
    )


def _check_replicas(asked: Message) -> None:
    if asked.replication_factor not in (1, DEFAULT_COUNT):
        raise Refusal(
            Code.INVALID_REPLICATION_FACTOR,
            f"replication factor {asked.replication_factor}: this is a single broker",
        )
    if asked.assignments:
        raise Refusal(Code.INVALID_REQUEST, "replica assignments make no sense on one broker")


async def delete_topics(state: State, request: Message) -> Message:
    if request.API_VERSION >= DELETE_BY_ID:
        responses = [_gone(state, asked.name, asked.topic_id) for asked in request.topics]
    else:
        responses = [_gone(state, name, NO_ID) for name in request.topic_names]
    state.bell.ring()
    return schemas.DeleteTopicsResponse(throttle_time_ms=0, responses=responses)


def _gone(state: State, name: str | None, topic_id: UUID) -> Message:
    outcome: dict[str, object] = {"error_code": Code.NONE, "error_message": None}
    try:
        topic = state.topics.named(name) if name else state.topics.with_id(topic_id)
        state.topics.delete(topic)
        name, topic_id = topic.name, topic.id
    except Refusal as refusal:
        outcome = {"error_code": refusal.code, "error_message": refusal.text}
    return schemas.DeleteTopicsResponse.DeletableTopicResult(
        name=name, topic_id=topic_id, **outcome
    )


async def create_partitions(state: State, request: Message) -> Message:
    results = [_grown(state, request, asked) for asked in request.topics]
    return schemas.CreatePartitionsResponse(throttle_time_ms=0, results=results)


def _grown(state: State, request: Message, asked: Message) -> Message:
    outcome = _outcome(lambda: _grow(state, request, asked))
    return schemas.CreatePartitionsResponse.CreatePartitionsTopicResult(name=asked.name, **outcome)


def _grow(state: State, request: Message, asked: Message) -> None:
    topic = state.topics.named(asked.name)
    if asked.count <= len(topic.partitions):
        raise Refusal(
            Code.INVALID_PARTITIONS,
            f"topic {asked.name!r} has {len(topic.partitions)} partitions; they can only grow",
        )
    if not request.validate_only:
        topic.grow(asked.count)


async def delete_records(state: State, request: Message) -> Message:
    topics = [
        DeletedTopic(
            name=topic.name,
            partitions=[_deleted(state, topic.name, part) for part in topic.partitions],
        )
        for topic in request.topics
    ]
    state.bell.ring()
    return schemas.DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


def _deleted(state: State, topic: str, asked: Message) -> Message:
    start, code = UNDEFINED, Code.NONE
    try:
        log = state.topics.partition(topic, asked.partition_index)
        log.delete_before(asked.offset)
        start = log.start
    except Refusal as refusal:
        code = refusal.code
    return DeletedTopic.DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=start, error_code=code
    )


async def describe_configs(state: State, request: Message) -> Message:
    return schemas.DescribeConfigsResponse(
        throttle_time_ms=0, results=[_described(state, asked) for asked in request.resources]
    )


def _described(state: State, asked: Message) -> Message:
    entries: list[Message] = []
    outcome = _outcome(lambda: entries.extend(_entries(state, asked)))
    return Described(
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=entries,
        **outcome,
    )


def _entries(state: State, asked: Message) -> list[Message]:
    if asked.resource_type == TOPIC_RESOURCE:
        topic = state.topics.named(asked.resource_name)
        found = [
            (key, topic.setting(key), FROM_TOPIC if key in topic.settings else FROM_DEFAULT)
            for key in TOPIC_DEFAULTS
        ]
    elif asked.resource_type == BROKER_RESOURCE:
        count = state.topics.auto_create_partitions
        found = [
            ("auto.create.topics.enable", str(count > 0).lower(), FROM_BROKER),
            ("broker.id", str(NODE_ID), FROM_BROKER),
            ("num.partitions", str(max(count, 1)), FROM_BROKER),
        ]
    else:
        raise Refusal(Code.INVALID_REQUEST, f"resource type {asked.resource_type} has no settings")
    wanted = asked.configuration_keys
    return [
        _entry(key, value, source)
        for key, value, source in found
        if wanted is None or key in wanted
    ]


def _entry(key: str, value: str, source: int) -> Message:
    return Described.DescribeConfigsResourceResult(
        name=key,
        value=value,
        read_only=source == FROM_BROKER,
        config_source=source,
        is_default=source == FROM_DEFAULT,
        is_sensitive=False,
        synonyms=[],
        config_type=0,
        documentation=None,
    )
