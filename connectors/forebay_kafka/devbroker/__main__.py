"""The child process behind DevBrokerProcess: settings as argument, one JSON line per command.

The first line printed is the bootstrap address; then each command line gets an answer line,
`{"result": ...}` or `{"error": "..."}`. The end of stdin, or of the parent, ends the broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from forebay_kafka.devbroker.broker import Broker, DevBrokerError
from forebay_kafka.devbroker.codes import Refusal
from forebay_kafka.devbroker.controls import Controls, in_words

PARENT_CHECK_SECONDS = 1.0


async def main(settings: dict[str, Any]) -> int:
    host, port = settings.pop("host"), settings.pop("port")
    broker = Broker(**settings)
    try:
        _say({"result": broker.listen(host, port)})
    except DevBrokerError as error:
        _say({"error": str(error)})
        return 1
    await _first_of(_obey_lines(broker.controls), _outlive(os.getppid()))
    await broker.stop()
    return 0


async def _obey_lines(controls: Controls) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while line := await lines.readline():
        _say(_obeyed(controls, json.loads(line)))


def _obeyed(controls: Controls, command: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": controls.obey(command)}
    except (ValueError, Refusal) as error:
        return {"error": in_words(error)}


async def _outlive(parent: int) -> None:
    """Return when the parent is gone: a fork of it may still hold our stdin open."""
    while os.getppid() == parent:
        await asyncio.sleep(PARENT_CHECK_SECONDS)


async def _first_of(*ways: Any) -> None:
    tasks = [asyncio.ensure_future(way) for way in ways]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    # Ctrl-C in a terminal reaches the whole group; the parent decides when the broker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(asyncio.run(main(json.loads(sys.argv[1]))))
