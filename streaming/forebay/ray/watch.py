"""Notices that the head of the cluster is gone, while there is time to save the position.

Ray tries for a minute to reach its head, and then ends the whole process on the spot: no exception
is raised, nothing is saved. A head that is restarted (with fault tolerance of the GCS) is back
sooner, so half of that minute is waited.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from forebay.errors import EngineError

# Ray's own variable, by Ray's own default: after so many seconds Ray ends the process.
_RAY_GIVES_UP = "RAY_gcs_rpc_server_reconnect_timeout_s"
_RAY_GIVES_UP_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_CONNECT_SECONDS = 5.0

OnLost: TypeAlias = Callable[[EngineError], None]
"""Called once, on a thread of the watch, with what to raise."""


class HeadWatch:
    """Asks the head once a second whether it is there, until it is closed.

    Args:
        address: of the head's GCS, ``host:port``.
        patience: seconds that it may be away.
    """

    def __init__(self, address: str, on_lost: OnLost, patience: float | None = None) -> None:
        self._address, self._on_lost = address, on_lost
        self._patience = _half_of_rays() if patience is None else patience
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="forebay-head", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching; may be called twice, and from ``on_lost``."""
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        seen = time.monotonic()
        while not self._closing.wait(_LOOK_SECONDS):
            if (why := no_answer(self._address, _CONNECT_SECONDS)) is None:
                seen = time.monotonic()
            elif time.monotonic() - seen > self._patience:
                self._on_lost(EngineError(self._gone(why)))
                return

    def _gone(self, why: str) -> str:
        return (
            f"the head of the Ray cluster at {self._address} has been gone for "
            f"{self._patience:.0f} s ({why}): nothing can be read or decoded without it. Once "
            "there is a cluster again, start anew from the checkpoint; nothing is lost."
        )


def no_answer(address: str, timeout: float) -> str | None:
    """Why nobody answers at an address, ``host:port``; None if somebody does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except OSError as e:
        return str(e)
    return None


def _half_of_rays() -> float:
    return float(os.environ.get(_RAY_GIVES_UP, _RAY_GIVES_UP_SECONDS)) / 2
