"""Pictures for tests: made here, written by Pillow, which is also the reference."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from forebay.columns import Column
from forebay.rng import RowRandom, Run
from forebay.stage import Outcome, Stage

Picture: TypeAlias = "NDArray[np.uint8]"


def photo(seed: int = 0, height: int = 48, width: int = 64) -> Picture:
    """A smooth picture with some noise, RGB: it compresses as photographs do."""
    random = np.random.default_rng(seed)
    colours = random.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    smooth = cv2.resize(colours, (width, height), interpolation=cv2.INTER_CUBIC)
    noise = random.normal(0, 4, smooth.shape)
    picture: Picture = np.clip(smooth + noise, 0, 255).astype(np.uint8)
    return picture


def saved(picture: Image.Image | NDArray[Any], format: str, **options: Any) -> bytes:
    """The file that Pillow writes."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def by_pillow(data: bytes, mode: str = "RGB") -> NDArray[Any]:
    """The pixels that Pillow reads."""
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


def outcome_of(decoder: Stage, payloads: Sequence[Any] | Column) -> Outcome:
    """What a decoder of the column "value" makes of payloads; beside it is a column "id"."""
    if not isinstance(payloads, np.ndarray) and not hasattr(payloads, "type"):
        column = np.empty(len(payloads), dtype=object)
        column[:] = payloads
        payloads = column
    rows = len(payloads)
    columns: dict[str, Any] = {"id": np.arange(rows), "value": payloads}
    return decoder.run(columns, RowRandom(Run(), decoder.name, "test/0", np.arange(rows)))


def columns_of(decoder: Stage, payloads: Sequence[Any] | Column) -> dict[str, Any]:
    """The columns that payloads give, none of which may fail."""
    outcome = outcome_of(decoder, payloads)
    assert outcome.failed == {}
    return dict(outcome.columns)


def decoded(decoder: Stage, payload: Any) -> NDArray[Any]:
    """The picture that one payload gives."""
    picture: NDArray[Any] = columns_of(decoder, [payload])["value"][0]
    return picture


def reason(decoder: Stage, payload: Any) -> str:
    """Why one payload fails."""
    outcome = outcome_of(decoder, [payload])
    assert len(outcome.columns["id"]) == 0
    return outcome.failed[0]


def difference(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The mean difference of two pictures of one shape."""
    assert a.shape == b.shape
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).mean())
