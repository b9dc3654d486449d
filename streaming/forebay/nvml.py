"""What NVML tells of this process's GPUs, asked once a second; None for whatever it does not tell.

A driver, a library or a permission that is missing is no failure: training goes on, less is known,
and ``trouble`` says why.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# An optional library: without it nothing is known, as without a driver.
try:
    import pynvml
except ImportError:
    pynvml = None

_log = logging.getLogger("forebay")
_PERCENT, _MILLI = 100.0, 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSeen:
    """One device at one moment."""

    uuid: str
    busy: float | None = None
    """NVML's ``utilization.gpu``, 0 to 1: the share of its last sample period (a sixth of a second
    to a second) in which any kernel ran, however little of the device it used."""
    memory_used: int | None = None
    """Bytes, of all processes."""
    memory_total: int | None = None
    watts: float | None = None
    trouble: str = ""
    """What the device answered with instead; the last of several."""


class GpuWatch:
    """Asks for the devices that this process may use, on a thread from ``start`` to ``stop``.

    Args:
        seconds: between two questions.
        visible: what ``CUDA_VISIBLE_DEVICES`` says; None: this process's.
    """

    def __init__(self, seconds: float = 1.0, visible: str | None = None) -> None:
        self._seconds = seconds
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
        self._seen: Mapping[str, GpuSeen] = {}
        self._trouble = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-nvml", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for the thread's end after ``stop``."""
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def trouble(self) -> str:
        """Why nothing is known of any device; empty if it is. Any thread."""
        return self._trouble

    def seen(self) -> Mapping[str, GpuSeen]:
        """The devices as last seen, by UUID, in CUDA's order. Any thread."""
        return self._seen

    def _run(self) -> None:
        try:
            _begin()
        except NoGpus as e:
            self._trouble = str(e)
            _log.info("%s", e)
            return
        try:
            while True:
                self._look()
                if self._stopped.wait(self._seconds):
                    return
        finally:
            self._seen = {}
            pynvml.nvmlShutdown()

    def _look(self) -> None:
        try:
            self._seen = {uuid: _gpu(uuid) for uuid in visible(_uuids(), self._visible)}
            self._trouble = ""
        except pynvml.NVMLError as e:
            self._seen, self._trouble = {}, f"the GPUs cannot be counted: {e}"


class NoGpus(Exception):
    """NVML cannot be used; says why, and what would help."""


def _begin() -> None:
    if pynvml is None:
        raise NoGpus("GPUs are not watched: pip install 'forebay[gpu]'")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        raise NoGpus(f"GPUs are not watched, NVML says: {e} (is there an NVIDIA driver?)") from e


def visible(uuids: Sequence[str], wanted: str | None) -> list[str]:
    """The devices that CUDA shows to a process, in its order, of those that there are.

    A number counts the devices as NVML does, by their place on the bus. CUDA does so among devices
    that are alike, and among others with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``: where they are not, and
    it is not set, name them by UUID.
    """
    if wanted is None:
        return list(uuids)
    shown: list[str] = []
    for name in wanted.split(","):
        uuid = _named(uuids, name.strip())
        if uuid is None:
            break  # what follows a name that CUDA does not know is not there for it
        if uuid in shown:
            return []  # as CUDA does
        shown.append(uuid)
    return shown


def _named(uuids: Sequence[str], name: str) -> str | None:
    if name.isdecimal():
        return uuids[int(name)] if int(name) < len(uuids) else None
    if name.startswith("MIG-"):
        return name
    found = [uuid for uuid in uuids if name and uuid.startswith(name)]
    return found[0] if len(found) == 1 else None


def _uuids() -> list[str]:
    return [_uuid(i) for i in range(pynvml.nvmlDeviceGetCount())]


def _uuid(index: int) -> str:
    """A device that is lost keeps its place in the numbering, under a name that none has."""
    try:
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)))
    except pynvml.NVMLError:
        return f"lost-{index}"


def _gpu(uuid: str) -> GpuSeen:
    answers = _Answers(uuid)
    rates, memory = answers("nvmlDeviceGetUtilizationRates"), answers("nvmlDeviceGetMemoryInfo")
    power = answers("nvmlDeviceGetPowerUsage")
    return GpuSeen(
        uuid=uuid,
        busy=None if rates is None else rates.gpu / _PERCENT,
        memory_used=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
        watts=None if power is None else power / _MILLI,
        trouble=answers.trouble,
    )


class _Answers:
    """Asks a device; what it does not answer is None."""

    def __init__(self, uuid: str) -> None:
        self.trouble = ""
        self._handle = self._ask(lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid))

    def __call__(self, question: str) -> Any | None:
        if self._handle is None:
            return None
        return self._ask(lambda: getattr(pynvml, question)(self._handle))

    def _ask(self, ask: Callable[[], Any]) -> Any | None:
        try:
            return ask()
        except pynvml.NVMLError as e:
            self.trouble = str(e)
            return None
