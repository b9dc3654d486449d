"""How much of a window Ray's object store takes, and what is said once it takes no more.

Beyond that Ray writes objects to disk, and once the disk is full it fails again and again.
"""

from __future__ import annotations

import logging

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError

from forebay.errors import EngineError

# A parcel lies there twice while a worker is at it, and once more until the trainer has let go of
# it; of the rest Ray needs a fifth before it begins to spill.
_SHARE = 4
_MB = 1 << 20
_log = logging.getLogger("forebay")


def window_bytes(max_bytes: int) -> int:
    """The bound that keeps Ray from spilling: ``max_bytes``, or less, which is said aloud.

    All that is finished comes to the node of this process, so its store is the one that counts.
    """
    store = _store_bytes()
    if store is None or max_bytes <= store // _SHARE:
        return max_bytes
    _log.warning(
        "max_bytes is %d MB, and the object store of this node has %d MB: more than a quarter of it"
        " in flight makes Ray spill to disk, so the window is %d MB. Give Ray a larger store "
        "(object_store_memory), or set max_bytes.",
        max_bytes // _MB,
        store // _MB,
        store // _SHARE // _MB,
    )
    return store // _SHARE


def raise_if_full(error: BaseException | None) -> None:
    """Say in words that Ray has no room left.

    Raises:
        EngineError: it is that. New starts would be of no use.
    """
    if not isinstance(error, (OutOfDiskError, ObjectStoreFullError)):
        return
    raise EngineError(
        "an object store of the Ray cluster is full, and the disk that Ray spills to, too "
        f"({type(error).__name__}): see 'ray memory' for whose objects those are, give Ray a "
        "larger store (object_store_memory), or set max_bytes lower. Nothing is lost: start again "
        "from the checkpoint."
    ) from error


def _store_bytes() -> int | None:
    """The size of this node's object store; None if Ray does not tell."""
    here = ray.get_runtime_context().get_node_id()
    stores = [n["Resources"].get("object_store_memory") for n in ray.nodes() if n["NodeID"] == here]
    return int(stores[0]) if stores and stores[0] else None
