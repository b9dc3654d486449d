"""A thread that asks the GPUs of this process once a second."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from forebay.nvml import library
from forebay.nvml.device import Device
from forebay.nvml.library import NoGpus, NotTold
from forebay.nvml.seen import GpuSeen
from forebay.nvml.visible import all_uuids, visible

_log = logging.getLogger("forebay")
_DRIVER = Path("/proc/driver/nvidia")


class GpuWatch:
    """Asks for the devices that this process may use, on a thread from ``start`` to ``stop``.

    Args:
        seconds: between two questions.
        visible: what ``CUDA_VISIBLE_DEVICES`` says; None: this process's.
    """

    def __init__(self, seconds: float = 1.0, visible: str | None = None) -> None:
        self._seconds = seconds
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
        self._devices: dict[str, Device] = {}
        self._seen: Mapping[str, GpuSeen] = {}
        self._missing: set[str] = set()
        self._trouble = self._versions = ""
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

    @property
    def versions(self) -> str:
        """Of the driver and of the binding; empty before the first look. Any thread."""
        return self._versions

    def seen(self) -> Mapping[str, GpuSeen]:
        """The devices as last seen, by UUID, in CUDA's order. Any thread."""
        return self._seen

    def _run(self) -> None:
        try:
            self._versions = library.begin()
        except NoGpus as e:
            self._trouble = str(e)
            # A machine without a GPU is nothing to tell everybody who trains on one.
            _log.log(logging.INFO if _DRIVER.exists() else logging.DEBUG, "%s", e)
            return
        try:
            while True:
                self._look()
                if self._stopped.wait(self._seconds):
                    return
        finally:
            self._seen = {}
            self._close()

    def _look(self) -> None:
        try:
            uuids = visible(all_uuids(), self._visible)
        except NotTold as e:
            self._seen, self._trouble = {}, f"the GPUs cannot be counted: {e}"
            return
        self._seen = {uuid: self._device(uuid).look() for uuid in uuids}
        self._trouble = ""

    def _device(self, uuid: str) -> Device:
        if uuid not in self._devices:
            self._devices[uuid] = Device(uuid, self._note_missing)
        return self._devices[uuid]

    def _note_missing(self, question: str) -> None:
        """A driver that is older than the binding: said once, and what it does tell is told."""
        if question not in self._missing:
            self._missing.add(question)
            _log.info("%s is unknown to the GPUs' driver (%s)", question, self._versions)

    def _close(self) -> None:
        try:
            for device in self._devices.values():
                device.close()
        except NotTold as e:
            _log.debug("samples of the GPUs could not be freed: %s", e)
        library.end()
