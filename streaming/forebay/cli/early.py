"""A signal to ``forebay run`` in its first seconds, while torch and the topology are loaded.

Nothing is open then and nothing was read, so the process just ends, with the promised code 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType


class EarlyStop:
    """Ends the process on SIGTERM and SIGINT, in order, until others take the signals over."""

    def __init__(self) -> None:
        self._on, self._as_json = False, False

    def arm(self, *, as_json: bool) -> None:
        """Take the signals. Main thread only."""
        self._on, self._as_json = True, as_json
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def hand_over(self) -> None:
        """From now on a signal that comes here, as none should, does what it does by itself."""
        self._on = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._on:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            return
        name = signal.Signals(number).name
        event = {"event": "stopped", "signal": name}
        text = json.dumps(event) if self._as_json else f"stopped by {name} before anything was read"
        # No exception: it would come up in the midst of an import, where anybody may catch it.
        os.write(sys.__stdout__.fileno() if sys.__stdout__ else 1, f"{text}\n".encode())
        os._exit(0)


EARLY = EarlyStop()
