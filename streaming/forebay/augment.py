"""Augments: random changes to a column of images, the same for a row wherever it is processed.

An augment is a function ``(columns, rng) -> columns`` for ``Pipeline.map``::

    pipeline.map(augment.chain(augment.random_resized_crop((224, 224)), augment.flip()))

Its column holds uint8 images, ``[rows, height, width, channels]``, or, without a common size, a
column of such arrays. What is drawn for a row depends on the seed, the pass, and the row's place
in its split alone. Pictures are never changed in place, for they may be shared with the source.
``mixup`` and ``cutmix`` mix the rows of a batch, and are for ``Pipeline.map_batch``.

The work is done in NumPy and OpenCV, which let go of the interpreter's lock. Needs
``pip install 'forebay[image]'``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forebay.columns import Columns, as_numpy
from forebay.decode.image_libs import cv2
from forebay.decode.sizing import resize_into
from forebay.errors import ConfigError
from forebay.rng import RowRandom

Images: TypeAlias = "NDArray[Any]"
Range: TypeAlias = tuple[float, float]
"""Least and most."""
Size: TypeAlias = tuple[int, int]
"""Height and width in pixels."""
Write: TypeAlias = Callable[[int, Images, Images], object]
"""``write(row, picture, out)`` fills ``out``."""

_LUMA = np.array([0.299, 0.587, 0.114])
_TO_YIQ = np.array([_LUMA, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
_FROM_YIQ = np.linalg.inv(_TO_YIQ)


class Augment(Protocol):
    """What ``chain`` takes, and every augment is."""

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        """The columns, one of them changed in a copy."""


@dataclass(frozen=True, slots=True, init=False)
class chain:
    """All steps, one after the other, as one stage."""

    steps: tuple[Augment, ...]

    def __init__(self, *steps: Augment) -> None:
        object.__setattr__(self, "steps", steps)

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        for step in self.steps:
            columns = step(columns, rng)
        return columns


@dataclass(frozen=True, slots=True)
class random_crop:
    """A part of ``size`` from a random place, after ``padding`` pixels are added on each side.

    The padding mirrors the picture; one that is still too small is padded until it fits.
    """

    size: Size
    padding: int = 0
    column: str = "value"

    def __post_init__(self) -> None:
        _check_size(self.size)
        _check(self.padding >= 0, f"padding must not be negative, not {self.padding}")

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        at = rng.uniform(size=(2,))
        return _resized(columns, self.column, self.size, lambda i, p, out: self._cut(p, at[i], out))

    def _cut(self, picture: Images, at: NDArray[np.float64], out: Images) -> None:
        picture = _padded(picture, self.size, self.padding)
        y, x = _place(picture, self.size, at)
        np.copyto(out, picture[y : y + self.size[0], x : x + self.size[1]])


@dataclass(frozen=True, slots=True)
class random_resized_crop:
    """A random part, resized to ``size``: the usual augment of image classification."""

    size: Size
    scale: Range = (0.08, 1.0)
    """The part's area, as a share of the picture's."""
    ratio: Range = (3 / 4, 4 / 3)
    """The part's width to its height, drawn evenly on a logarithmic scale."""
    column: str = "value"

    def __post_init__(self) -> None:
        _check_size(self.size)
        _check_range("scale", self.scale, 1.0)
        _check_range("ratio", self.ratio)

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        area = rng.uniform(*self.scale)
        stretch = np.exp(rng.uniform(*np.log(self.ratio)) / 2)
        at = rng.uniform(size=(2,))

        def cut(i: int, picture: Images, out: Images) -> None:
            side = np.sqrt(area[i] * picture.shape[0] * picture.shape[1])
            # A part longer than the picture is shortened: nothing is drawn a second time.
            size = _within(picture, side / stretch[i], side * stretch[i])
            y, x = _place(picture, size, at[i])
            resize_into(picture[y : y + size[0], x : x + size[1]], out, "stretch")

        return _resized(columns, self.column, self.size, cut)


@dataclass(frozen=True, slots=True)
class flip:
    """Left and right exchanged, with probability ``p``."""

    p: float = 0.5
    column: str = "value"

    def __post_init__(self) -> None:
        _check_chance(self.p)

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        return _changed(
            columns, self.column, rng.chance(self.p), lambda i, p, out: cv2.flip(p, 1, dst=out)
        )


@dataclass(frozen=True, slots=True)
class jitter:
    """Brightness, contrast, saturation and hue of RGB pictures, changed in one pass.

    Values are cut off at 0 and 255 once, after all four changes.
    """

    brightness: float = 0.0
    """0.4 multiplies by 0.6 to 1.4."""
    contrast: float = 0.0
    """Likewise, the distance from the picture's mean luma."""
    saturation: float = 0.0
    """Likewise, the distance of each pixel from its luma."""
    hue: float = 0.0
    """0.1 turns colours by up to a tenth of the circle either way, at constant luma."""
    column: str = "value"

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            _check(0 <= value <= 1, f"{name} must be between 0 and 1, not {value}")
        _check(0 <= self.hue <= 0.5, f"hue must be between 0 and 0.5, not {self.hue}")

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        spread = np.array([self.brightness, self.contrast, self.saturation])
        factors = 1 + spread * rng.uniform(-1, 1, size=(3,))
        angles = 2 * np.pi * self.hue * rng.uniform(-1, 1)
        every = np.ones(len(rng), np.bool_)

        def write(i: int, picture: Images, out: Images) -> None:
            cv2.transform(picture, _colour_change(picture, factors[i], angles[i]), dst=out)

        return _changed(columns, self.column, every, write, channels=3)


@dataclass(frozen=True, slots=True)
class grayscale:
    """RGB pictures without their colours, still in three channels, with probability ``p``."""

    p: float = 0.1
    column: str = "value"

    def __post_init__(self) -> None:
        _check_chance(self.p)

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        def write(i: int, picture: Images, out: Images) -> None:
            cv2.cvtColor(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB, dst=out)

        return _changed(columns, self.column, rng.chance(self.p), write, channels=3)


@dataclass(frozen=True, slots=True)
class blur:
    """Gaussian blur of a random ``sigma`` in pixels, with probability ``p``."""

    sigma: Range = (0.1, 2.0)
    p: float = 0.5
    column: str = "value"

    def __post_init__(self) -> None:
        _check_range("sigma", self.sigma)
        _check_chance(self.p)

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        chosen, sigma = rng.chance(self.p), rng.uniform(*self.sigma)

        def write(i: int, picture: Images, out: Images) -> None:
            cv2.GaussianBlur(picture, (0, 0), sigma[i], dst=out)

        return _changed(columns, self.column, chosen, write)


@dataclass(frozen=True, slots=True)
class noise:
    """Gaussian noise of ``std`` grey levels on every value, with probability ``p``.

    The dearest augment: it takes twice as long as decoding a JPEG of the same size.
    """

    std: float = 8.0
    p: float = 0.5
    column: str = "value"

    def __post_init__(self) -> None:
        _check(self.std > 0, f"std must be positive, not {self.std}")
        _check_chance(self.p)

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        chosen, seeds = rng.chance(self.p), rng.bits()[:, 0].tolist()

        def write(i: int, picture: Images, out: Images) -> None:
            # A generator for each picture: hashing a counter for each value costs six times this.
            random = np.random.Generator(np.random.SFC64(seeds[i]))
            added = random.standard_normal(picture.shape, dtype=np.float32)
            added *= np.float32(self.std)
            added += picture
            np.rint(added, out=added)
            np.copyto(out, np.clip(added, 0, 255, out=added), casting="unsafe")

        return _changed(columns, self.column, chosen, write)


@dataclass(frozen=True, slots=True)
class rotate:
    """Turned by up to ``degrees`` either way about the centre; the picture's edge is mirrored."""

    degrees: float = 15.0
    p: float = 1.0
    column: str = "value"

    def __post_init__(self) -> None:
        _check(0 < self.degrees <= 180, f"degrees must be within (0, 180], not {self.degrees}")
        _check_chance(self.p)

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        chosen, angles = rng.chance(self.p), rng.uniform(-self.degrees, self.degrees)

        def write(i: int, picture: Images, out: Images) -> None:
            height, width = picture.shape[:2]
            turn = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), angles[i], 1.0)
            mirror = cv2.BORDER_REFLECT_101
            cv2.warpAffine(picture, turn, (width, height), dst=out, borderMode=mirror)

        return _changed(columns, self.column, chosen, write)


@dataclass(frozen=True, slots=True)
class cutout:
    """A square at a random place filled with ``value``, with probability ``p``."""

    area: Range = (0.02, 0.2)
    """The square's area, as a share of the picture's."""
    value: int = 0
    p: float = 0.5
    column: str = "value"

    def __post_init__(self) -> None:
        _check_range("area", self.area, 1.0)
        _check(0 <= self.value <= 255, f"value must be between 0 and 255, not {self.value}")
        _check_chance(self.p)

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        chosen, area, at = rng.chance(self.p), rng.uniform(*self.area), rng.uniform(size=(2,))

        def write(i: int, picture: Images, out: Images) -> None:
            side = np.sqrt(area[i] * picture.shape[0] * picture.shape[1])
            h, w = _within(picture, side, side)
            y, x = _place(picture, (h, w), at[i])
            np.copyto(out, picture)
            out[y : y + h, x : x + w] = self.value

        return _changed(columns, self.column, chosen, write)


@dataclass(frozen=True, slots=True)
class solarize:
    """Values from ``threshold`` up inverted, with probability ``p``."""

    threshold: int = 128
    p: float = 0.2
    column: str = "value"

    def __post_init__(self) -> None:
        _check(0 <= self.threshold <= 256, f"threshold must be 0 to 256, not {self.threshold}")
        _check_chance(self.p)

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        values = np.arange(256, dtype=np.uint8)
        table = np.where(values < self.threshold, values, 255 - values)
        return _looked_up(columns, self.column, rng.chance(self.p), table)


@dataclass(frozen=True, slots=True)
class posterize:
    """Only the upper ``bits`` of each value kept, with probability ``p``."""

    bits: int = 4
    p: float = 0.2
    column: str = "value"

    def __post_init__(self) -> None:
        _check(1 <= self.bits <= 8, f"bits must be 1 to 8, not {self.bits}")
        _check_chance(self.p)

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        table = (np.arange(256) & (0xFF00 >> self.bits)).astype(np.uint8)
        return _looked_up(columns, self.column, rng.chance(self.p), table)


@dataclass(frozen=True, slots=True)
class mixup:
    """Each picture of a batch blended with another one, and its label with the other's.

    Labels that are integers need ``classes`` and become float32 shares ``[rows, classes]``;
    those that are floats are blended as they are.
    """

    alpha: float = 0.2
    """The share of the first picture is drawn from Beta(alpha, alpha) for each row."""
    classes: int | None = None
    images: str = "value"
    labels: str = "label"

    def __post_init__(self) -> None:
        _check(self.alpha > 0, f"alpha must be positive, not {self.alpha}")

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        pictures = _images(columns, self.images)
        share, other, _ = _pairs(rng, self.alpha)
        out = np.empty_like(pictures)
        for i, (a, j) in enumerate(zip(share.tolist(), other, strict=True)):
            cv2.addWeighted(pictures[i], a, pictures[j], 1 - a, 0, dst=out[i])
        labels = _mixed_labels(columns, self.labels, self.classes, share, other)
        return {**columns, self.images: out, self.labels: labels}


@dataclass(frozen=True, slots=True)
class cutmix:
    """A rectangle of each picture taken from another one; labels are mixed by its area.

    The fields are those of ``mixup``.
    """

    alpha: float = 1.0
    classes: int | None = None
    images: str = "value"
    labels: str = "label"

    def __post_init__(self) -> None:
        _check(self.alpha > 0, f"alpha must be positive, not {self.alpha}")

    def __call__(self, columns: Columns, rng: RowRandom) -> Columns:
        pictures = _images(columns, self.images)
        share, other, at = _pairs(rng, self.alpha)
        out = pictures.copy()
        for i, j in enumerate(other):
            whole, side = pictures[i].shape, np.sqrt(1 - share[i])
            h, w = _within(pictures[i], side * whole[0], side * whole[1])
            y, x = _place(pictures[i], (h, w), at[i])
            out[i, y : y + h, x : x + w] = pictures[j, y : y + h, x : x + w]
            share[i] = 1 - h * w / (whole[0] * whole[1])
        labels = _mixed_labels(columns, self.labels, self.classes, share, other)
        return {**columns, self.images: out, self.labels: labels}


def _resized(columns: Columns, name: str, size: Size, write: Write) -> Columns:
    """Pictures of any size to one array of pictures of ``size``."""
    images = _images(columns, name, ragged=True)
    channels = images[0].shape[2] if len(images) else 3
    out = np.empty((len(images), *size, channels), np.uint8)
    for i, picture in enumerate(images):
        write(i, picture, out[i])
    return {**columns, name: out}


def _changed(
    columns: Columns,
    name: str,
    chosen: NDArray[np.bool_],
    write: Write,
    channels: int | None = None,
) -> Columns:
    """A copy of the pictures in which the chosen ones are written anew, in their size."""
    images = _images(columns, name, ragged=True)
    if not chosen.any():
        return columns
    out = np.empty_like(images)
    for i, picture in enumerate(images):
        if channels not in (None, picture.shape[2]):
            raise _unfit(name, f"with {picture.shape[2]} channels", f"needs {channels} channels")
        if images.dtype == object:
            out[i] = np.empty_like(picture)
        if chosen[i]:
            write(i, picture, out[i])
        else:
            np.copyto(out[i], picture)
    return {**columns, name: out}


def _looked_up(
    columns: Columns, name: str, chosen: NDArray[np.bool_], table: NDArray[np.uint8]
) -> Columns:
    return _changed(columns, name, chosen, lambda i, p, out: cv2.LUT(p, table, dst=out))


def _images(columns: Columns, name: str, ragged: bool = False) -> Images:
    """The column of pictures; ``ragged`` allows pictures of different sizes.

    Raises:
        ConfigError: there is no such column, or it holds no pictures of uint8.
    """
    if name not in columns:
        raise ConfigError(f"there is no column {name!r} to augment; there are {sorted(columns)}")
    images = as_numpy(columns[name])
    if images.dtype == np.uint8 and images.ndim == 4:
        return images
    if ragged and images.dtype == object and all(_is_picture(p) for p in images):
        return images
    raise _unfit(name, f"{images.dtype}{list(images.shape[1:])}", "needs uint8 images")


def _is_picture(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3


def _unfit(name: str, found: str, needed: str) -> ConfigError:
    return ConfigError(
        f"column {name!r} holds {found}; the augment {needed}, [rows, height, width, channels] "
        "(decode.jpeg with a size gives them)"
    )


def _padded(picture: Images, size: Size, padding: int) -> Images:
    """The picture with ``padding`` on each side, and more where it is smaller than ``size``."""
    y, x = (
        padding + max(0, -(-(wanted - has) // 2) - padding)
        for wanted, has in zip(size, picture.shape[:2], strict=True)
    )
    if not y and not x:
        return picture
    padded: Images = cv2.copyMakeBorder(picture, y, y, x, x, cv2.BORDER_REFLECT_101)
    return padded if padded.ndim == 3 else padded[..., None]


def _within(picture: Images, height: float, width: float) -> Size:
    """The size in whole pixels, at least one and at most the picture's."""
    h, w = picture.shape[:2]
    return min(max(round(height), 1), h), min(max(round(width), 1), w)


def _place(picture: Images, size: Size, at: NDArray[np.float64]) -> tuple[int, int]:
    """Where a part of ``size`` begins, ``at`` (0 to 1, two values) of the way."""
    return (
        int(at[0] * (picture.shape[0] - size[0] + 1)),
        int(at[1] * (picture.shape[1] - size[1] + 1)),
    )


def _colour_change(
    picture: Images, factors: NDArray[np.float64], angle: float
) -> NDArray[np.float64]:
    """The change of RGB as one matrix ``[3, 4]``, the last column being added."""
    brightness, contrast, saturation = factors
    mean = float(np.dot(cv2.mean(picture)[:3], _LUMA)) if contrast != 1 else 0.0
    turn = np.array(
        [[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]]
    )
    hue = _FROM_YIQ @ turn @ _TO_YIQ
    colour = saturation * np.eye(3) + (1 - saturation) * _LUMA[None, :]
    # Grey, which contrast adds, stays what it is under the other two.
    added = np.full((3, 1), (1 - contrast) * brightness * mean)
    return np.hstack([hue @ colour * (contrast * brightness), added])


def _pairs(
    rng: RowRandom, alpha: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """For each row of a batch the share it keeps, the row it is mixed with, and a place (0 to 1).

    Drawn from one generator for the batch, keyed by all its rows.
    """
    seed = np.bitwise_xor.reduce(rng.bits(2), axis=0).tolist()
    random = np.random.Generator(np.random.SFC64(seed))
    rows = len(rng)
    return random.beta(alpha, alpha, rows), random.permutation(rows), random.random((rows, 2))


def _mixed_labels(
    columns: Columns,
    name: str,
    classes: int | None,
    share: NDArray[np.float64],
    other: NDArray[np.int64],
) -> NDArray[np.float32]:
    if name not in columns:
        raise ConfigError(f"there is no column {name!r} of labels; there are {sorted(columns)}")
    labels = _shares(as_numpy(columns[name]), name, classes)
    weight = share.astype(np.float32).reshape(-1, *(1,) * (labels.ndim - 1))
    mixed: NDArray[np.float32] = labels * weight + labels[other] * (1 - weight)
    return mixed


def _shares(labels: NDArray[Any], name: str, classes: int | None) -> NDArray[np.float32]:
    """Labels as float32; integers as shares of classes, all in one."""
    if labels.dtype.kind == "f":
        return labels.astype(np.float32)
    if labels.dtype.kind not in "iu" or labels.ndim != 1 or classes is None:
        raise ConfigError(
            f"column {name!r} holds labels of {labels.dtype}{list(labels.shape[1:])}: to mix them "
            "they must be floats, or integers with classes= given"
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ConfigError(
            f"column {name!r} holds the labels {labels.min()} to {labels.max()}, which do not fit "
            f"classes={classes}"
        )
    shares: NDArray[np.float32] = np.eye(classes, dtype=np.float32)[labels]
    return shares


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


def _check_size(size: Size) -> None:
    right = len(size) == 2 and min(size) > 0
    _check(right, f"size must be (height, width) in pixels, not {size}")


def _check_chance(p: float) -> None:
    _check(0 <= p <= 1, f"p must be a probability, not {p}")


def _check_range(name: str, bounds: Range, most: float = np.inf) -> None:
    right = len(bounds) == 2 and 0 < bounds[0] <= bounds[1] <= most
    _check(right, f"{name} must be (least, most) above 0 and up to {most}, not {bounds}")
