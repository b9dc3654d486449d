"""The requests this broker understands, and the versions of them that it answers rightly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from forebay_kafka.devbroker import schemas
from forebay_kafka.devbroker.codes import Code
from forebay_kafka.devbroker.handlers import admin, cluster, groups, records, transactions
from forebay_kafka.devbroker.protocol import Message, Records
from forebay_kafka.devbroker.state import State

Reply = Message | tuple[Message, Records] | None
Handler = Callable[[State, Message], Awaitable[Reply]]
API_VERSIONS = 18


class Api(NamedTuple):
    """One kind of request; `name` is Kafka's own."""

    name: str
    key: int
    oldest: int
    newest: int
    request: Message
    handler: Handler


async def api_versions(state: State, request: Message) -> Message:
    return versions_answer(Code.NONE)


def versions_answer(code: Code) -> Message:
    """What this broker speaks; also the answer to a client that asks in a version too new."""
    keys = [
        schemas.ApiVersionsResponse.ApiVersion(
            api_key=api.key, min_version=api.oldest, max_version=api.newest
        )
        for api in APIS.values()
    ]
    return schemas.ApiVersionsResponse(error_code=code, throttle_time_ms=0, api_keys=keys)


def _api(request: Message, oldest: int, newest: int, handler: Handler) -> Api:
    name = request.name.removesuffix("Request")
    return Api(name, request.API_KEY, oldest, newest, request, handler)


APIS = {
    api.key: api
    for api in (
        _api(schemas.ApiVersionsRequest, 0, 3, api_versions),
        _api(schemas.MetadataRequest, 0, 12, cluster.metadata),
        _api(schemas.DescribeClusterRequest, 0, 1, cluster.describe_cluster),
        _api(schemas.FindCoordinatorRequest, 0, 4, cluster.find_coordinator),
        _api(schemas.ProduceRequest, 3, 9, records.produce),
        _api(schemas.FetchRequest, 4, 13, records.fetch),
        _api(schemas.ListOffsetsRequest, 1, 7, records.list_offsets),
        _api(schemas.OffsetForLeaderEpochRequest, 2, 4, records.offset_for_leader_epoch),
        _api(schemas.OffsetCommitRequest, 2, 8, groups.offset_commit),
        _api(schemas.OffsetFetchRequest, 1, 8, groups.offset_fetch),
        _api(schemas.JoinGroupRequest, 0, 5, groups.join_group),
        _api(schemas.InitProducerIdRequest, 0, 4, transactions.init_producer_id),
        _api(schemas.AddPartitionsToTxnRequest, 0, 3, transactions.add_partitions),
        _api(schemas.AddOffsetsToTxnRequest, 0, 3, transactions.add_offsets),
        _api(schemas.TxnOffsetCommitRequest, 0, 3, transactions.commit_offsets),
        _api(schemas.EndTxnRequest, 0, 3, transactions.end),
        _api(schemas.CreateTopicsRequest, 2, 7, admin.create_topics),
        _api(schemas.DeleteTopicsRequest, 1, 6, admin.delete_topics),
        _api(schemas.CreatePartitionsRequest, 0, 3, admin.create_partitions),
        _api(schemas.DeleteRecordsRequest, 0, 2, admin.delete_records),
        _api(schemas.DescribeConfigsRequest, 1, 4, admin.describe_configs),
    )
}


def _flexible_from(request: Message) -> int | None:
    """The first version whose head ends with tagged fields."""
    versions = range(request.max_version + 1)
    return next((version for version in versions if request.flexible_version_q(version)), None)


FLEXIBLE_FROM = {
    key: first for key, api in APIS.items() if (first := _flexible_from(api.request)) is not None
}
