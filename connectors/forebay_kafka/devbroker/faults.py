"""Faults on demand: what a test asks of a running dev broker, from any thread or process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Command = dict[str, Any]


class Faults:
    """The remote control of one broker; every method returns once the broker has obeyed.

    APIs are named as in Kafka's protocol guide: "Produce", "Fetch", "Metadata", ...
    """

    def __init__(self, send: Callable[[Command], Any]) -> None:
        self._send = send

    def fail(self, api: str, error_code: int, times: int = 1) -> None:
        """Answer the next `times` requests of an API with an error, and do nothing else."""
        self._send({"do": "fail", "api": api, "error_code": int(error_code), "times": times})

    def delay(self, api: str, seconds: float) -> None:
        """Let every request of an API wait before it is looked at; 0 ends that."""
        self._send({"do": "delay", "api": api, "seconds": seconds})

    def drop_after(self, api: str, times: int = 1) -> None:
        """Carry out the next `times` requests of an API, then cut the connection, not answering."""
        self._send({"do": "drop_after", "api": api, "times": times})

    def drop_connections(self) -> int:
        """Cut all client connections; clients may connect again. Returns how many there were."""
        return int(self._send({"do": "drop_connections"}))

    def pause(self) -> None:
        """Stop answering: connections stay open and silent, as with a stopped process."""
        self._send({"do": "pause"})

    def resume(self) -> None:
        self._send({"do": "resume"})

    def truncate(self, topic: str, partition: int, to_offset: int) -> None:
        """Lose the records from `to_offset` on and raise the leader epoch (unclean election)."""
        self._send(
            {"do": "truncate", "topic": topic, "partition": partition, "to_offset": to_offset}
        )

    def recreate_topic(self, topic: str) -> str:
        """Put an empty topic in its place; returns the new id, as confluent-kafka shows it."""
        return str(self._send({"do": "recreate_topic", "topic": topic}))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Lose the records before an offset, as when retention overtakes a reader."""
        self._send(
            {"do": "delete_records", "topic": topic, "partition": partition, "before": before}
        )

    def requests(self) -> dict[str, int]:
        """How many requests of each API have arrived since the broker started."""
        return dict(self._send({"do": "requests"}))

    def clear(self) -> None:
        """Forget failures and delays that have not struck yet, and resume."""
        self._send({"do": "clear"})
