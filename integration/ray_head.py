"""Ray clusters apart from the test process, of one node or two, whose head can be killed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from integration.local_ray import title

_TRIES = 3
OURS = ("ray::Reading", "ray::Host", "ray::MapWorker", "StageWorker")
"""What the processes of our actors are called."""


class RayHead:
    """A running head node."""

    def __init__(self, address: str, environment: Mapping[str, str], process: int) -> None:
        self.address = address
        self.environment = environment
        """What processes that are to attach need of it: the cluster's token."""
        self._process = process

    def kill(self) -> None:
        """SIGKILL to all that belongs to the node, as when a machine is gone."""
        os.killpg(self._process, signal.SIGKILL)

    def actors(self) -> list[str]:
        """The names of our actors that live on the node."""
        children = psutil.Process(self._process).children(recursive=True)
        return [n for n in map(title, children) if any(ours in n for ours in OURS)]


@contextmanager
def ray_head(*arguments: str) -> Iterator[RayHead]:
    """Start a head node in a process group of its own, which is killed in the end."""
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    port = _free_port()
    place = ["--head", f"--port={port}", "--node-ip-address=127.0.0.1"]
    place += ["--include-dashboard=false", *arguments]
    with _node(place, environment) as process:
        yield RayHead(f"127.0.0.1:{port}", environment, process.pid)


@contextmanager
def node_beside(head: RayHead, ip: str, *arguments: str) -> Iterator[None]:
    """Start another node, at another address of this machine, that lives on without the head."""
    place = [f"--address={head.address}", f"--node-ip-address={ip}", *arguments]
    with _node(place, head.environment):
        yield


@contextmanager
def _node(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    folder = tempfile.mkdtemp(prefix="ray-")  # short: the paths of its sockets are bounded
    process = _started(arguments, environment, Path(folder))
    try:
        yield process
    finally:
        _end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _started(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    """Its first process. Ray gives itself 30 s, which a busy machine may exceed."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *arguments]
    command += ["--num-cpus=4", f"--object-store-memory={200 << 20}", f"--temp-dir={folder}"]
    for attempt in range(_TRIES):
        log = folder / f"start-{attempt}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                command,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while process.poll() is None:
            if "Ray runtime started" in log.read_text():
                return process
            time.sleep(0.2)
        _end(process)
    raise RuntimeError(f"Ray did not start:\n{log.read_text()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a whole group: what the first process started outlives it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port
