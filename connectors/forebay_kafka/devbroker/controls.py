"""The broker's end of `Faults`: obeys commands, and meddles with requests as told."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Callable
from typing import Any

from forebay_kafka.devbroker.apis import APIS, Api
from forebay_kafka.devbroker.codes import Refusal
from forebay_kafka.devbroker.state import State

API_NAMES = {api.name for api in APIS.values()}


class Controls:
    """What is to go wrong; used on the broker's event loop only."""

    def __init__(self, state: State, drop_connections: Callable[[], int]) -> None:
        self._state = state
        self._drop_connections = drop_connections
        self._errors: dict[str, tuple[int, int]] = {}
        self._delays: dict[str, float] = {}
        self._drops: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._running = asyncio.Event()
        self._running.set()

    # On the way of a request

    async def hold(self, api: Api) -> None:
        """Before a request is looked at: count it, and wait as long as told."""
        self._requests[api.name] += 1
        if delay := self._delays.get(api.name):
            await asyncio.sleep(delay)
        await self._running.wait()

    async def until_running(self) -> None:
        """Before an answer is sent: a paused broker stays silent."""
        await self._running.wait()

    def take_error(self, api: Api) -> int | None:
        """The error to answer with instead of obeying, if one is due."""
        error, left = self._errors.get(api.name, (0, 0))
        if left == 0:
            return None
        self._errors[api.name] = (error, left - 1)
        return error

    def take_drop(self, api: Api) -> bool:
        """Whether the connection is to be cut instead of answering."""
        if self._drops[api.name] == 0:
            return False
        self._drops[api.name] -= 1
        return True

    # On command

    def obey(self, command: dict[str, Any]) -> Any:
        """Carry out one command of `Faults`; ValueError or Refusal where that cannot be done."""
        arguments = dict(command)
        verb = arguments.pop("do", None)
        obeyed: dict[str | None, Callable[..., Any]] = {
            "fail": self._fail,
            "delay": self._delay,
            "drop_after": self._drop_after,
            "drop_connections": self._drop_connections,
            "pause": self._running.clear,
            "resume": self._running.set,
            "truncate": self._truncate,
            "recreate_topic": self._recreate_topic,
            "delete_records": self._delete_records,
            "requests": lambda: dict(self._requests),
            "clear": self._clear,
        }
        if verb not in obeyed:
            raise ValueError(f"unknown command {verb!r}")
        result = obeyed[verb](**arguments)
        self._state.bell.ring()
        return result

    def _fail(self, api: str, error_code: int, times: int) -> None:
        self._errors[_checked(api)] = (error_code, times)

    def _delay(self, api: str, seconds: float) -> None:
        self._delays[_checked(api)] = seconds

    def _drop_after(self, api: str, times: int) -> None:
        self._drops[_checked(api)] = times

    def _truncate(self, topic: str, partition: int, to_offset: int) -> None:
        self._state.topics.partition(topic, partition).truncate(to_offset)

    def _recreate_topic(self, topic: str) -> str:
        topic_id = self._state.topics.recreate(topic).id
        return base64.b64encode(topic_id.bytes).decode().rstrip("=")

    def _delete_records(self, topic: str, partition: int, before: int) -> None:
        self._state.topics.partition(topic, partition).delete_before(before)

    def _clear(self) -> None:
        self._errors.clear()
        self._delays.clear()
        self._drops.clear()
        self._running.set()


def _checked(api: str) -> str:
    if api not in API_NAMES:
        raise ValueError(f"unknown API {api!r}; this broker has {', '.join(sorted(API_NAMES))}")
    return api


def in_words(error: ValueError | Refusal) -> str:
    """What to tell the caller whose command failed."""
    return f"{error.code.name}: {error}" if isinstance(error, Refusal) else str(error)
