"""The connection to a Ray cluster: one that is there, one at an address, or one of our own."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay.errors import ConfigError, EngineError, ProcessError
from forebay.ray.watch import no_answer

_CONNECT_SECONDS = 5.0
_log = logging.getLogger("forebay")
_SOME = (None, "auto", "local")


def connect(address: str | None, options: Mapping[str, Any]) -> Callable[[], None]:
    """Attach this process to a cluster; gives what is to be called when it is not needed any more.

    A cluster that was started for this stops then, others are left as they were.

    Args:
        address: None for the one that this process is attached to, or ``RAY_ADDRESS``, or a new
            one on this machine.
        options: further arguments of ``ray.init``.

    Raises:
        EngineError: the cluster cannot be reached, or does not let us in.
        ConfigError: this process is attached to another cluster than ``address``.
        ProcessError: this process was forked off one that is attached.
    """
    _refuse_fork()
    if ray.is_initialized():
        _check_same(address)
        return _keep
    address = address or os.environ.get("RAY_ADDRESS")
    _check_answers(address)
    if address is None:
        _log.info("starting a Ray of this machine, which takes some seconds")
    else:
        _log.info("attaching to the Ray cluster at %s", address)
    try:
        with _signals_kept():
            ray.init(address=address, **{"logging_level": logging.WARNING, **options})
    except Exception as e:  # Ray raises many kinds of errors for the same few causes
        raise EngineError(_refused(address, e)) from e
    return _stop


def near() -> dict[str, Any]:
    """Options of an actor that is to run on the node of this process, if that has room."""
    node = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}


def _refuse_fork() -> None:
    if _forked:
        raise ProcessError(
            "this process was forked off one that is attached to Ray, and the connection does not "
            "survive that: start the loader in the process that trains, or make processes with "
            "the 'spawn' method and let each attach itself (engine=RayEngine(address=...))"
        )


def _note_fork() -> None:
    global _forked
    _forked = ray.is_initialized()


_forked = False
os.register_at_fork(after_in_child=_note_fork)


def _keep() -> None:
    """The cluster was there before: it stays."""


def _stop() -> None:
    if ray.is_initialized():
        with _signals_kept():
            ray.shutdown()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Inside, Ray may not take SIGTERM away from who handles it in this process.

    Attaching puts two handlers in its place: one that exits, and one below Python that aborts the
    process. Detaching leaves none.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if is_main else None
    try:
        yield
    finally:
        if callable(before):
            signal.signal(signal.SIGTERM, before)


def _check_same(address: str | None) -> None:
    here = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", "local", here):
        raise ConfigError(
            f"this process is attached to the Ray cluster at {here}, and the engine is to use the "
            f"one at {address}: leave address out, or call ray.shutdown() first"
        )


def _check_answers(address: str | None) -> None:
    """Ray itself takes two minutes to say that nobody answers."""
    if address in _SOME:
        return
    check_address(address)
    if (why := no_answer(address, _CONNECT_SECONDS)) is not None:
        raise EngineError(
            f"nobody answers at the address of the Ray cluster, {address} ({why}). It is host:port "
            "of the head node's GCS, as 'ray start --head' prints it, and open to this machine."
        )


def check_address(address: str) -> None:
    """Refuse what is no address.

    Raises:
        ConfigError: says what one is.
    """
    if address in _SOME or _is_host_and_port(address):
        return
    client = ": addresses of Ray Client are not supported, and the GCS mostly is at port 6379"
    raise ConfigError(
        f"address must be host:port of the head node's GCS, or 'auto', not {address!r}"
        + (client if address.startswith("ray://") else "")
    )


def _is_host_and_port(address: str) -> bool:
    host, _, port = address.rpartition(":")
    named = bool(host) and "://" not in address
    return named and bool(re.fullmatch("[0-9]{1,5}", port)) and 1 <= int(port) <= 65535


def _refused(address: str | None, error: Exception) -> str:
    where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
    text = f"{type(error).__name__}: {error}"
    if address:
        return (
            f"{where} does not take this process in ({text}). Mostly it is the cluster's token: "
            "set RAY_AUTH_MODE=token, without which Ray sends none to an address that is named, "
            "and copy ~/.ray/auth_token of the head node, or set RAY_AUTH_TOKEN_PATH or "
            "RAY_AUTH_TOKEN; for a cluster without one set RAY_AUTH_MODE=disabled. "
            "Else see whether both have the same version of Ray and of Python."
        )
    return f"{where} cannot be started: {text}"
