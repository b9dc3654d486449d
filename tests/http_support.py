"""For tests of the dashboard's server: requests as a browser or a script makes them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from forebay.observe.board import OwnRanks
from forebay.observe.serving import Server
from forebay.observe.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def board(*histories: Sequence[Snapshot]) -> OwnRanks:
    """A board of ranks with these histories; a list may grow later."""
    return OwnRanks(*(lambda h=h: list(h) for h in histories))


@contextmanager
def served(*histories: Sequence[Snapshot], **more: Any) -> Iterator[Server]:
    """A server of a board of them."""
    with Server(board(*histories), port=0, **more) as server:
        yield server


def ask(
    server: Server, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
) -> Answer:
    """Send one request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event."""

    name: str
    data: Any
    id: str | None


class Stream:
    """The events that a viewer gets."""

    def __init__(self, server: Server, last_id: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        self._connection.request("GET", "/events", headers=headers)
        self._answer = self._connection.getresponse()

    def next(self, name: str) -> Event:
        """The next event of this name."""
        return next(e for e in self.events() if e.name == name)

    def events(self) -> Iterator[Event]:
        """All that come until the server ends the stream."""
        fields: dict[str, str] = {}
        while line := self._answer.readline().decode():
            key, _, value = line.rstrip("\n").partition(": ")
            if key:
                fields[key] = value
            elif fields:
                yield Event(fields["event"], json.loads(fields["data"]), fields.get("id"))
                fields = {}

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()
        self._connection.close()
