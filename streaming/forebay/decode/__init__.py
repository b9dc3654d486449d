"""Decoders: stages that turn a column of payloads into columns of values.

Each takes the name of a column and puts what it decodes in its place; the other columns stay.
A payload that cannot be decoded fails alone, with a reason. A row whose payload is null (in
Kafka a tombstone) fails too, unless ``nulls="skip"`` leaves it out or ``nulls="keep"`` gives a
row of nulls. Raw bytes need no decoder.

``image``, ``jpeg``, ``png`` and ``webp`` need ``pip install 'forebay[image]'``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from forebay.decode.arrow_messages import arrow_ipc
from forebay.decode.json_rows import json
from forebay.decode.raw_arrays import raw

if TYPE_CHECKING:
    from forebay.decode.images import image, jpeg, png, webp

__all__ = ["arrow_ipc", "image", "jpeg", "json", "png", "raw", "webp"]

_OPTIONAL = dict.fromkeys(("image", "jpeg", "png", "webp"), "forebay.decode.images")


def __getattr__(name: str) -> Any:
    """Image decoders, imported when first asked for: the rest must work without OpenCV."""
    if name not in _OPTIONAL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_OPTIONAL[name]), name)
