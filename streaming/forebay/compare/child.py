"""The other end of ``Worker``: does what it is asked for on standard input, line by line.

python -m forebay.compare.child FD      # answers go to the file descriptor FD
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from typing import Any

import msgspec

from forebay.compare.measuring import measure, scout
from forebay.compare.orders import Inputs, Order, Run
from forebay.errors import ForebayError

_GRACE_SECONDS = 8.0  # less than the other end waits before it kills


def main(answers: int) -> None:
    """Until standard input ends, as it does when who holds the other end of it dies."""
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    idle = threading.Event()
    threading.Thread(target=_read, args=(lines, idle), name="orders", daemon=True).start()
    with os.fdopen(answers, "wb", buffering=0) as out:
        while True:
            idle.set()
            line = lines.get()
            idle.clear()
            if line is None:
                break
            out.write(msgspec.json.encode(_answer(json.loads(line))) + b"\n")


def _read(lines: queue.SimpleQueue[bytes | None], idle: threading.Event) -> None:
    """Hand on what is asked for; once nobody can ask any more, end what still runs."""
    rest = b""
    while read := os.read(0, 1 << 16):
        *whole, rest = (rest + read).split(b"\n")
        for line in whole:
            lines.put(line)
    waits = idle.is_set()
    lines.put(None)
    time.sleep(_GRACE_SECONDS if waits else 0)
    os._exit(1)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": _done(asked)}
    except ForebayError as e:
        return {"error": f"{type(e).__name__}: {e}"}
    except Exception as e:  # the topology's functions can raise anything
        traceback.print_exc()
        at = traceback.extract_tb(e.__traceback__)[-1]
        return {"error": f"{type(e).__name__}: {e} (line {at.lineno} of {at.filename})"}


def _done(asked: dict[str, Any]) -> Inputs | Run:
    order = msgspec.convert(asked["order"], Order)
    return scout(order, asked["scout"]) if "scout" in asked else measure(order)


if __name__ == "__main__":
    main(int(sys.argv[1]))
