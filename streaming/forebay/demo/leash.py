"""A child of the demo ends with its parent, however that ended."""

from __future__ import annotations

import os
import threading


def end_with_parent() -> None:
    """Leave the process once standard input, which the parent holds open, is at its end."""
    threading.Thread(target=_wait, name="leash", daemon=True).start()


def _wait() -> None:
    # Not through sys.stdin: its lock, held here at the interpreter's end, is a fatal error there.
    while os.read(0, 1):
        pass
    os._exit(1)
