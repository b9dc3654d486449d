"""All that a running broker is made of, as the request handlers see it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from forebay_kafka.devbroker.topics import Topics
from forebay_kafka.devbroker.transactions import Transactions

NODE_ID = 1


class Bell:
    """Wakes whoever waits for the log to grow; lives on one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Return at the next ring, or after `seconds`."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except asyncio.TimeoutError:
            return


@dataclass(slots=True)
class State:
    """The broker's data and its address; used on the broker's event loop only."""

    host: str
    port: int
    topics: Topics
    transactions: Transactions
    bell: Bell = field(default_factory=Bell)
