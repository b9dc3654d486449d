"""Images: JPEG, PNG, WebP, GIF and BMP payloads to arrays of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

import numpy as np

from forebay.columns import Columns
from forebay.decode.headers import Header, read_header
from forebay.decode.payloads import (
    BadPayload,
    Nulls,
    Payload,
    check_nulls,
    decode_each,
    one_of,
    outcome,
    payloads,
)
from forebay.decode.pixels import (
    Channels,
    Colour,
    Pixels,
    convert_into,
    decode_jpeg,
    decode_other,
    upright,
)
from forebay.decode.sizing import Fit, Size, least_size, resize_into
from forebay.errors import ConfigError
from forebay.rng import RowRandom
from forebay.stage import Outcome

if TYPE_CHECKING:
    from typing_extensions import Unpack

PixelType: TypeAlias = Literal["uint8", "uint16", "float32"]
FORMATS = ("jpeg", "png", "webp", "gif", "bmp")


class ImageOptions(TypedDict, total=False):
    """The options of every image decoder; ``ImageDecoder`` says what they mean."""

    size: Size | None
    fit: Fit
    channels: Channels
    dtype: PixelType
    max_pixels: int
    orient: bool
    background: Colour | None
    nulls: Nulls
    into: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDecoder:
    """A stage that decodes a column of image files.

    Raises:
        ConfigError: an option is wrong.
    """

    column: str
    formats: tuple[str, ...] = FORMATS
    """The file formats that are let in, by content. Of an animated file the first frame counts."""
    size: Size | None = None
    """(height, width) of the result, which then is one array ``[rows, height, width, channels]``.
    None keeps each picture's own size: a column of arrays. Large JPEGs are decoded at a half, a
    quarter or an eighth where that is enough; the rest is bilinear, or averaging where less than
    a quarter of the pixels remain."""
    fit: Fit = "stretch"
    """How a picture of another aspect gets ``size``."""
    channels: Channels = "rgb"
    """``gray`` is one channel, luma as in ITU-R 601. Four-channel JPEGs (CMYK, YCCK) are read by
    Adobe's convention. Colour profiles are not applied."""
    dtype: PixelType = "uint8"
    """float32 goes from 0 to 1. Files of another depth are scaled by the largest value of their
    type, never cut off."""
    max_pixels: int = 50_000_000
    """Larger pictures fail by what their header says, before they are decoded."""
    orient: bool = True
    """Apply the EXIF orientation."""
    background: Colour | None = (255, 255, 255)
    """What is seen through transparent parts; None gives the colour stored there."""
    nulls: Nulls = "dead_letter"
    """``keep`` gives None, and needs ``size=None``."""
    into: str | None = None
    """The name of the column that takes the place of ``column``; None: the same."""
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", f"decode.image({self.column})")
        _check(self)

    def run(self, columns: Columns, rng: RowRandom) -> Outcome:
        found = payloads(columns, self.column)
        images = self._room(len(found))
        done = decode_each(found, self.nulls, lambda data, i: self._decode(data, images, i))
        made = {self.into or self.column: images[: len(done.kept)]}
        return outcome(columns, self.column, made, done.kept, done.failed)

    def _room(self, rows: int) -> Pixels:
        """One array for all rows; or, where sizes may differ, one of objects, None at first."""
        if self.size is None:
            return np.empty(rows, dtype=object)
        return np.empty((rows, *self.size, self._depth), dtype=self.dtype)

    @property
    def _depth(self) -> int:
        return 1 if self.channels == "gray" else 3

    def _decode(self, data: Payload, images: Pixels, i: int) -> None:
        """Decode straight into row ``i``: a copy less, and no lock of the interpreter held."""
        header = self._checked_header(data)
        pixels = self._pixels(data, header)
        if self.orient:
            pixels = upright(pixels, header.orientation)
        if self.size is None:
            images[i] = np.empty((*pixels.shape[:2], self._depth), dtype=self.dtype)
        self._write(pixels, images[i])

    def _checked_header(self, data: Payload) -> Header:
        header = read_header(data)
        if header.format not in self.formats:
            raise BadPayload(f"the image is a {header.format}, not a {' or '.join(self.formats)}")
        if header.height * header.width > self.max_pixels:
            raise BadPayload(
                f"the image is too large: {header.width}x{header.height} pixels exceed "
                f"max_pixels={self.max_pixels}"
            )
        return header

    def _pixels(self, data: Payload, header: Header) -> Pixels:
        if header.format == "jpeg":
            return decode_jpeg(data, self.channels, self._shrunk(header))
        return decode_other(data, header, self.channels, self.background)

    def _shrunk(self, header: Header) -> Size | None:
        """The least size of a half, a quarter or an eighth that loses nothing; None: none does."""
        if self.size is None:
            return None
        height, width = header.height, header.width
        turned = self.orient and header.orientation >= 5
        size = self.size[::-1] if turned else self.size
        least = least_size(height, width, size, self.fit)
        for factor in (8, 4, 2):
            shrunk = -(-height // factor), -(-width // factor)
            if shrunk[0] >= least[0] and shrunk[1] >= least[1]:
                return shrunk
        return None

    def _write(self, pixels: Pixels, out: Pixels) -> None:
        if pixels.dtype == out.dtype:
            resize_into(pixels, out, self.fit)
            return
        sized = np.empty(out.shape, dtype=pixels.dtype)
        resize_into(pixels, sized, self.fit)
        convert_into(sized, out)


def image(
    column: str,
    *,
    formats: Sequence[str] = FORMATS,
    name: str = "",
    **options: Unpack[ImageOptions],
) -> ImageDecoder:
    """Decode a column of image files of any of ``formats``; ``ImageDecoder`` has the options."""
    return ImageDecoder(column=column, formats=tuple(formats), name=name, **options)


def jpeg(column: str, *, name: str = "", **options: Unpack[ImageOptions]) -> ImageDecoder:
    """Decode a column of JPEG files; ``ImageDecoder`` has the options."""
    return _only("jpeg", column, name, options)


def png(column: str, *, name: str = "", **options: Unpack[ImageOptions]) -> ImageDecoder:
    """Decode a column of PNG files; ``ImageDecoder`` has the options."""
    return _only("png", column, name, options)


def webp(column: str, *, name: str = "", **options: Unpack[ImageOptions]) -> ImageDecoder:
    """Decode a column of WebP files; ``ImageDecoder`` has the options."""
    return _only("webp", column, name, options)


def _only(kind: str, column: str, name: str, options: ImageOptions) -> ImageDecoder:
    name = name or f"decode.{kind}({column})"
    return ImageDecoder(column=column, formats=(kind,), name=name, **options)


def _check(d: ImageDecoder) -> None:
    """Raises ConfigError for an option that cannot work."""
    one_of("fit", d.fit, ("stretch", "crop", "pad"))
    one_of("channels", d.channels, ("rgb", "gray"))
    one_of("dtype", d.dtype, ("uint8", "uint16", "float32"))
    for name in d.formats:
        one_of("formats", name, FORMATS)
    if d.size is not None and (len(d.size) != 2 or min(d.size) < 1):
        raise ConfigError(f"size must be (height, width) in pixels, not {d.size!r}")
    if d.max_pixels < 1:
        raise ConfigError(f"max_pixels must be positive, not {d.max_pixels}")
    may_keep = d.size is None
    check_nulls(d.nulls, may_keep, "" if may_keep else ": pixels of a given size have no null")
