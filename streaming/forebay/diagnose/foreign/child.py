"""The process in which the user's loader is tried: it does what it is asked, one thing at a time.

It may hang, die or fill up its memory, and so may its workers: whoever asks (``laboratory``)
watches it from outside. It has one thread, so that a fork in it is as safe as in a plain training
script.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import torch
from torch.utils.data import DataLoader, IterableDataset

from forebay.diagnose.foreign.loading import Given, has_order, load, rebuilt, setting_of
from forebay.diagnose.foreign.setting import Setting
from forebay.diagnose.foreign.stacks import StackInit, tells_stacks
from forebay.diagnose.foreign.window import EmptyLoader, Request, cuda_started, device_done, measure
from forebay.errors import ConfigError

_TELL_EVERY = 0.1
_WARM_STEPS = 3
FailureKind: TypeAlias = Literal["spec", "factory", "empty", "error", "hang", "died"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the factory gave, and the process it left behind."""

    kind: str
    """The loader's class."""
    dataset: str
    iterable: bool
    """Whether it is an ``IterableDataset``: each worker gets a copy of it, and all of its data."""
    length: int | None
    """Batches of an epoch."""
    batch_size: int | None
    setting: Setting
    has_step: bool
    has_order: bool
    """Whether torch knows ``in_order``."""
    rebuilds: str
    """Why no loader like it can be made; empty if one can."""
    start_methods: tuple[str, ...]
    """Those that this machine has."""
    threads: tuple[str, ...]
    """Python threads that the factory started and that still run, by name."""
    cuda_started: bool
    """Whether the factory used CUDA, which no forked worker can go on with."""
    cuda: bool
    """Whether there is any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """It did not work."""

    kind: FailureKind
    what: str
    """In a sentence."""
    details: tuple[str, ...] = ()
    """Lines of a traceback, or where each process was."""


class Child:
    """Serves requests until there are none."""

    def __init__(self, requests: Connection, answers: Connection, folder: Path, spec: str) -> None:
        self._requests, self._answers, self._folder, self._spec = requests, answers, folder, spec
        self._given: Given | None = None
        self._told = 0.0

    def serve(self) -> None:
        """Call the factory, then answer; returns when the other side closes."""
        given = self._guarded(lambda: load(self._spec), "factory")
        if isinstance(given, Failure):
            self._answer(given)
            return
        self._given = given
        self._answer(self._describe(given))
        with suppress(EOFError):
            while True:
                self._answer(self._done(json.loads(self._requests.recv_bytes())))

    def _done(self, order: dict[str, Any]) -> Any:
        if "ceiling" in order:
            return self._guarded(lambda: self._ceiling(order["ceiling"]), "error")
        request = msgspec.convert(order["window"], Request)
        simulated: float | None = order["step_seconds"]
        return self._guarded(lambda: self._window(request, simulated), "error")

    def _window(self, request: Request, step_seconds: float | None) -> Any:
        assert self._given is not None
        step = self._given.step
        if step_seconds is not None:
            step = lambda batch: time.sleep(step_seconds)  # noqa: E731
        return measure(lambda: self._loader(request.setting), request, step, self._tell)

    def _ceiling(self, steps: int) -> float:
        """Seconds of the training step when its batch is there: one batch, again and again."""
        assert self._given is not None and self._given.step is not None
        self._tell("taking the batch for the step alone")
        step, batch = self._given.step, next(iter(self._loader(setting_of(self._given.loader))))
        for _ in range(_WARM_STEPS):
            step(batch)
        device_done()
        began = time.monotonic()
        for n in range(steps):
            self._tell(f"step {n + 1} alone")
            step(batch)
        device_done()
        return (time.monotonic() - began) / steps

    def _loader(self, setting: Setting) -> DataLoader[Any]:
        assert self._given is not None
        loader = self._given.loader
        init = StackInit(str(self._folder), _users_init(loader))
        if setting == setting_of(loader) and _rebuilds(loader):
            loader.worker_init_fn = init  # none like it can be made: the one there is
            return loader
        return rebuilt(loader, setting, init)

    def _describe(self, given: Given) -> Description:
        loader = given.loader
        length: int | None = None
        with suppress(TypeError, NotImplementedError):
            length = len(loader)
        return Description(
            kind=type(loader).__name__,
            dataset=type(loader.dataset).__name__,
            iterable=isinstance(loader.dataset, IterableDataset),
            length=length,
            batch_size=loader.batch_size,
            setting=setting_of(loader),
            has_step=given.step is not None,
            has_order=has_order(loader),
            rebuilds=_rebuilds(loader),
            start_methods=tuple(multiprocessing.get_all_start_methods()),
            threads=tuple(
                t.name for t in threading.enumerate() if t is not threading.main_thread()
            ),
            cuda_started=cuda_started(),
            cuda=torch.cuda.is_available(),
        )

    def _guarded(self, do: Callable[[], Any], kind: FailureKind) -> Any:
        """What it returns, or what it raised: the user's code may raise anything."""
        try:
            return do()
        except ConfigError as e:
            return Failure(kind="spec", what=str(e))
        except EmptyLoader:
            return Failure(kind="empty", what="the loader gives no batch at all")
        except Exception as e:
            return Failure(kind=kind, what=_said(e), details=tuple(_last_lines(e)))

    def _tell(self, what: str) -> None:
        now = time.monotonic()
        if now - self._told >= _TELL_EVERY or not what.startswith(("batch", "step")):
            self._told = now
            self._send({"told": what})

    def _answer(self, answer: Any) -> None:
        self._send({"answer": type(answer).__name__, "value": msgspec.to_builtins(answer)})

    def _send(self, message: Any) -> None:
        self._answers.send_bytes(json.dumps(message).encode())


def _users_init(loader: DataLoader[Any]) -> Callable[[int], None] | None:
    init = loader.worker_init_fn
    return init.then if isinstance(init, StackInit) else init


def _rebuilds(loader: DataLoader[Any]) -> str:
    """Why no loader like it can be made; empty if one can."""
    try:
        rebuilt(loader, setting_of(loader), loader.worker_init_fn)
    except Exception as e:  # a class of the user's, with a constructor of its own
        return f"{type(loader).__name__} cannot be made anew: {type(e).__name__}: {e}"
    return ""


def _said(error: Exception) -> str:
    """Its type and message; the last line of it if it is a traceback, as of a worker."""
    text = f"{type(error).__name__}: {str(error).strip()}"
    return text.splitlines()[-1] if "Original Traceback" in text else text


def _last_lines(error: BaseException) -> list[str]:
    """Of its traceback, without the part that leads from here to the user's code."""
    tb, here = error.__traceback__, str(Path(__file__).parent)
    while tb is not None and tb.tb_next and tb.tb_frame.f_code.co_filename.startswith(here):
        tb = tb.tb_next
    lines = "".join(traceback.format_exception(type(error), error, tb)).splitlines()
    return [line for line in lines if line.strip()][-12:]


def main() -> None:
    """``python -m forebay.diagnose.foreign.child REQUESTS ANSWERS FOLDER SPEC``."""
    requests, answers, folder, spec = sys.argv[1:]
    tells_stacks(Path(folder))
    sys.argv = [sys.argv[0]]  # a script's factory may look at its arguments
    Child(Connection(int(requests)), Connection(int(answers)), Path(folder), spec).serve()


if __name__ == "__main__":
    main()
