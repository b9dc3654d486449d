"""One Kafka request at a time on a plain socket, for what a client library hides."""

from __future__ import annotations

import socket
import struct
from typing import Any

from forebay_kafka.devbroker.schemas import (
    FetchRequest,
    FetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceResponse,
)

SECONDS = 20.0


class RawKafka:
    """A connection to one broker; requests are answered in turn."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=SECONDS)

    def close(self) -> None:
        self._socket.close()

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        min_bytes: int = 0,
        max_wait_ms: int = 0,
        max_bytes: int = 1 << 20,
        leader_epoch: int = -1,
    ) -> Any:
        """The answer for partition 0 of a topic."""
        part = {
            "partition": 0,
            "current_leader_epoch": leader_epoch,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": max_bytes,
        }
        kind = FetchRequest.FetchTopic
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 30,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[kind(topic=topic, partitions=[kind.FetchPartition(**part)])],
            forgotten_topics_data=[],
            rack_id="",
        )
        return self._ask(request, FetchResponse, version=12).responses[0].partitions[0]

    def produce(self, topic: str, batch: bytes) -> int:
        """Write one batch to partition 0 of a topic; returns the error code."""
        kind = ProduceRequest.TopicProduceData
        part = kind.PartitionProduceData(index=0, records=batch)
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=int(SECONDS * 1000),
            topic_data=[kind(name=topic, partition_data=[part])],
        )
        answer = self._ask(request, ProduceResponse, version=9)
        return int(answer.responses[0].partition_responses[0].error_code)

    def end_of_epoch(self, topic: str, epoch: int) -> tuple[int, int, int]:
        """(error code, leader epoch, end offset) for partition 0 of a topic."""
        kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        part = kind.OffsetForLeaderPartition(
            partition=0, current_leader_epoch=-1, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[kind(topic=topic, partitions=[part])]
        )
        answer = self._ask(request, OffsetForLeaderEpochResponse, version=4)
        end = answer.topics[0].partitions[0]
        return end.error_code, end.leader_epoch, end.end_offset

    def _ask(self, request: Any, response: Any, *, version: int) -> Any:
        request.API_VERSION = version
        request.with_header(correlation_id=1)
        self._socket.sendall(request.encode(header=True, framed=True))
        size = struct.unpack(">i", self._exactly(4))[0]
        return response.decode(self._exactly(size), version=version, header=True)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            got = self._socket.recv(count - len(data))
            assert got, "the broker closed the connection"
            data += got
        return bytes(data)
