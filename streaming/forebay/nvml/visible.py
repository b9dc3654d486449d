"""Which of the GPUs a process may use, as CUDA understands ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.nvml import library
from forebay.nvml.library import NotTold


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


def all_uuids() -> list[str]:
    """Of all devices that there are; a GPU that is divided is its first MIG device, the one that
    CUDA takes of it.

    Raises:
        NotTold: they cannot be counted.
    """
    return [_uuid(i) for i in range(library.ask("nvmlDeviceGetCount"))]


def _uuid(index: int) -> str:
    """A device that is lost keeps its place in the numbering, under a name that none has."""
    try:
        handle = library.ask("nvmlDeviceGetHandleByIndex", index)
        whole = str(library.ask("nvmlDeviceGetUUID", handle))
    except NotTold:
        return f"lost-{index}"
    try:
        if not library.ask("nvmlDeviceGetMigMode", handle)[0]:
            return whole
        part = library.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, 0)
        return str(library.ask("nvmlDeviceGetUUID", part))
    except NotTold:  # it cannot be divided, or has no part that is ours
        return whole
