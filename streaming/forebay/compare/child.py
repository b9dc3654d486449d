"""The other end of ``Worker``: does what it is asked for on standard input, line by line.

python -m forebay.compare.child FD      # answers go to the file descriptor FD
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import msgspec

from forebay.compare.measuring import measure, scout
from forebay.compare.orders import Inputs, Order, Run
from forebay.errors import ForebayError


def main(answers: int) -> None:
    """Until standard input ends."""
    with os.fdopen(answers, "wb", buffering=0) as out:
        for line in sys.stdin.buffer:
            out.write(msgspec.json.encode(_answer(json.loads(line))) + b"\n")


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
