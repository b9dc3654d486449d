"""Who is there: metadata, cluster description, coordinators."""

from __future__ import annotations

from forebay_kafka.devbroker import schemas
from forebay_kafka.devbroker.codes import Code, Refusal
from forebay_kafka.devbroker.protocol import Message
from forebay_kafka.devbroker.state import NODE_ID, State
from forebay_kafka.devbroker.topics import NO_ID, Topic

MetadataTopic = schemas.MetadataResponse.MetadataResponseTopic
MetadataPartition = MetadataTopic.MetadataResponsePartition


async def metadata(state: State, request: Message) -> Message:
    """Topics by name or id; names that do not exist are created where that is switched on."""
    broker = schemas.MetadataResponse.MetadataResponseBroker(
        node_id=NODE_ID, host=state.host, port=state.port, rack=None
    )
    return schemas.MetadataResponse(
        throttle_time_ms=0,
        brokers=[broker],
        cluster_id=state.topics.cluster_id,
        controller_id=NODE_ID,
        topics=_asked_topics(state, request),
    )


def _asked_topics(state: State, request: Message) -> list[Message]:
    everything = request.topics is None or (request.API_VERSION == 0 and not request.topics)
    if everything:
        return [_described(state.topics.named(name)) for name in state.topics.names()]
    return [_asked_topic(state, asked, request) for asked in request.topics]


def _asked_topic(state: State, asked: Message, request: Message) -> Message:
    by_id = not asked.name
    try:
        if by_id:
            return _described(state.topics.with_id(asked.topic_id))
        if request.allow_auto_topic_creation:
            return _described(state.topics.named_or_created(asked.name))
        return _described(state.topics.named(asked.name))
    except Refusal as refusal:
        return MetadataTopic(
            error_code=refusal.code,
            name=None if by_id and request.API_VERSION >= 12 else asked.name or "",
            topic_id=asked.topic_id if by_id else NO_ID,
            is_internal=False,
            partitions=[],
        )


def _described(topic: Topic) -> Message:
    partitions = [
        MetadataPartition(
            error_code=Code.NONE,
            partition_index=index,
            leader_id=NODE_ID,
            leader_epoch=log.epoch,
            replica_nodes=[NODE_ID],
            isr_nodes=[NODE_ID],
            offline_replicas=[],
        )
        for index, log in enumerate(topic.partitions)
    ]
    return MetadataTopic(
        error_code=Code.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=False,
        partitions=partitions,
    )


async def describe_cluster(state: State, request: Message) -> Message:
    broker = schemas.DescribeClusterResponse.DescribeClusterBroker(
        broker_id=NODE_ID, host=state.host, port=state.port, rack=None
    )
    return schemas.DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=Code.NONE,
        error_message=None,
        endpoint_type=request.endpoint_type,
        cluster_id=state.topics.cluster_id,
        controller_id=NODE_ID,
        brokers=[broker],
    )


async def find_coordinator(state: State, request: Message) -> Message:
    """This broker, for every group and every transaction."""
    address = {"node_id": NODE_ID, "host": state.host, "port": state.port}
    result = {"error_code": Code.NONE, "error_message": None}
    coordinators = [
        schemas.FindCoordinatorResponse.Coordinator(key=key, **address, **result)
        for key in request.coordinator_keys or ()
    ]
    return schemas.FindCoordinatorResponse(
        throttle_time_ms=0, coordinators=coordinators, **address, **result
    )
