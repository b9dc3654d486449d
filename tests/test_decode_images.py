"""Image payloads of other formats: depth, palette, transparency, frames, orientation, size."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.pictures import by_pillow, decoded, difference, outcome_of, photo, reason, saved

from forebay import decode
from forebay.decode.headers import read_header
from forebay.errors import ConfigError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
RAMP = np.arange(65536, dtype=np.uint16).reshape(256, 256)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "BMP"])
def test_every_kind_of_file_comes_out_in_rgb_as_pillow_reads_it(format: str, mode: str) -> None:
    image = Image.fromarray(photo()).convert(mode)
    options = {"lossless": True} if format == "WEBP" else {}
    data = saved(image, format, **options)
    assert np.array_equal(decoded(decode.image("value"), data), by_pillow(data))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_palettes_of_any_depth_are_looked_up(bits: int) -> None:
    image = Image.fromarray(photo()).quantize(2**bits)
    data = saved(image, "PNG", bits=bits)
    assert np.array_equal(decoded(decode.png("value"), data), by_pillow(data))


def test_sixteen_bits_are_scaled_by_the_declared_type_and_never_cut_off() -> None:
    data = _png16(RAMP)
    options: dict[str, Any] = {"channels": "gray"}
    exact = decoded(decode.png("value", dtype="uint16", **options), data)[..., 0]
    eight = decoded(decode.png("value", **options), data)[..., 0]
    floats = decoded(decode.png("value", dtype="float32", **options), data)[..., 0]
    assert np.array_equal(exact, RAMP)
    assert np.array_equal(eight, np.rint(RAMP / 257).astype(np.uint8))
    assert np.array_equal(floats, RAMP / np.float32(65535)) and floats.max() == 1.0


def test_sixteen_bits_in_colour_keep_their_channels() -> None:
    picture = np.random.default_rng(0).integers(0, 65536, (9, 7, 3)).astype(np.uint16)
    data = _png16(picture)
    assert np.array_equal(decoded(decode.png("value", dtype="uint16"), data), picture)
    assert np.array_equal(decoded(decode.png("value"), data), np.rint(picture / 257))


@pytest.mark.parametrize(("dtype", "top"), [("uint16", 65535), ("float32", 1.0)])
def test_eight_bits_fill_a_wider_type(dtype: Any, top: float) -> None:
    black_and_white = np.array([[0, 255]], np.uint8)
    data = saved(black_and_white, "PNG")
    picture = decoded(decode.png("value", dtype=dtype, channels="gray"), data)
    assert picture[..., 0].tolist() == [[0, top]]


def test_transparent_parts_show_the_background() -> None:
    picture = np.dstack([photo(), np.full((48, 64), 255, np.uint8)])
    picture[:, :20, 3], picture[:, 20:40, 3] = 0, 128
    for format, options in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True})):
        data = saved(picture, format, **options)
        white = Image.new("RGBA", (64, 48), (255, 255, 255, 255))
        white.alpha_composite(Image.fromarray(picture))
        on_white = decoded(decode.image("value"), data)
        assert np.abs(on_white.astype(int) - np.asarray(white.convert("RGB"))).max() <= 1
        assert (
            decoded(decode.image("value", background=(255, 0, 0)), data)[0, 0] == (255, 0, 0)
        ).all()
        assert np.array_equal(decoded(decode.image("value", background=None), data), photo())


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_taken(format: str) -> None:
    frames = [Image.fromarray(photo(i)) for i in range(3)]
    options: dict[str, Any] = {"lossless": True} if format == "WEBP" else {}
    data = saved(frames[0], format, save_all=True, append_images=frames[1:], **options)
    picture = decoded(decode.image("value"), data)
    assert picture.shape == (48, 64, 3)
    assert difference(picture, by_pillow(data)) == 0


def test_a_first_frame_smaller_than_its_canvas_is_laid_on_the_background() -> None:
    frame = Image.new("P", (4, 4), 1)
    frame.putpalette([9, 9, 9, 200, 0, 0])
    data = bytearray(saved(frame, "GIF", transparency=0))
    data[6:10] = struct.pack("<HH", 8, 6)
    picture = decoded(decode.image("value"), bytes(data))
    assert picture.shape == (6, 8, 3)
    assert (picture[:4, :4] == (200, 0, 0)).all()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [None, (20, 30), (9, 7)])
def test_all_orientations_of_a_picture_decode_to_the_same_pixels(
    format: str, orientation: int, size: tuple[int, int] | None
) -> None:
    picture = np.repeat(np.repeat(photo(5, 6, 9), 8, 0), 8, 1)
    data = _oriented(picture, orientation, format)
    for fit in ("stretch", "crop", "pad"):
        decoder = decode.image("value", size=size, fit=fit)
        upright = decoded(decoder, _oriented(picture, 1, format))
        assert difference(decoded(decoder, data), upright) < (3 if format == "JPEG" else 0.01)


def test_the_orientation_can_be_left_alone() -> None:
    data = _oriented(photo(), 6, "PNG")
    assert decoded(decode.image("value", orient=False), data).shape == (64, 48, 3)
    assert decoded(decode.image("value"), data).shape == (48, 64, 3)


@pytest.mark.parametrize(
    "exif", [b"", b"II", b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x63\0\0"]
)
def test_broken_orientation_data_loses_no_picture(exif: bytes) -> None:
    data = saved(photo(), "PNG", exif=b"Exif\0\0" + exif)
    assert np.array_equal(decoded(decode.image("value"), data), photo())


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "BMP"])
def test_truncated_files_fail_wherever_they_end(format: str) -> None:
    data = saved(photo(), format)
    for at in (len(data) // 8, len(data) // 2, len(data) - len(data) // 8):
        why = reason(decode.image("value"), data[:at])
        assert f"truncated {format.lower()} image" in why or format in ("GIF", "BMP")


def test_a_damaged_png_fails() -> None:
    data = bytearray(saved(photo(), "PNG"))
    data[len(data) // 2] ^= 1
    assert "corrupt png" in reason(decode.image("value"), bytes(data))


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "BMP"])
def test_bytes_after_the_end_do_no_harm(format: str) -> None:
    data = saved(photo(), format)
    whole = decoded(decode.image("value"), data)
    assert np.array_equal(decoded(decode.image("value"), data + b"garbage"), whole)


def test_headers_that_promise_too_much_fail_before_memory_is_taken() -> None:
    empty = saved(photo(), "PNG")
    bomb = _png_of_zeros(20_000, 20_000)
    decoder = decode.image("value", size=(8, 8))
    reason(decoder, _with_png_size(empty, 60_000, 60_000))
    before = psutil.Process().memory_info().rss
    assert "60000x60000" in reason(decoder, _with_png_size(empty, 60_000, 60_000))
    assert "20000x20000" in reason(decoder, bomb)
    assert psutil.Process().memory_info().rss - before < 30 << 20


@pytest.mark.parametrize("format", FORMATS)
def test_headers_tell_the_size_pillow_tells(format: str) -> None:
    for height, width in ((1, 1), (5, 300), (300, 7)):
        for options in ({}, {"lossless": True}) if format == "WEBP" else ({},):
            header = read_header(saved(photo(0, height, width), format, **options))
            assert (header.height, header.width) == (height, width)


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_cut_anywhere_has_a_header_or_a_reason(format: str) -> None:
    data = saved(photo(0, 4, 4), format)
    decoder = decode.image("value", size=(2, 2))
    outcome = outcome_of(decoder, [data[:at] for at in range(len(data))])
    assert len(outcome.failed) + len(outcome.columns["id"]) == len(data)
    assert len(outcome.failed) > len(data) * 0.9


def test_padding_keeps_the_aspect_and_cropping_fills_the_frame() -> None:
    red = np.full((10, 40, 3), (200, 0, 0), np.uint8)
    red[:, 15:25] = (0, 0, 200)
    data = saved(red, "PNG")
    padded = decoded(decode.image("value", size=(20, 20), fit="pad"), data)
    cropped = decoded(decode.image("value", size=(20, 20), fit="crop"), data)
    assert (
        (padded[:7] == 0).all()
        and (padded[13:] == 0).all()
        and (padded[7:12, 0] == (200, 0, 0)).all()
    )
    assert (cropped == (0, 0, 200)).all()


def test_strong_shrinking_averages_instead_of_skipping_pixels() -> None:
    stripes = np.zeros((256, 256), np.uint8)
    stripes[:, ::8] = 240
    small = decoded(decode.image("value", size=(32, 32)), saved(stripes, "PNG"))
    assert (small == 30).all()


def test_without_a_size_each_picture_keeps_its_own_and_nulls_may_stay() -> None:
    files = [saved(photo(0, 5, 6), "PNG"), None, saved(photo(0, 7, 8), "PNG")]
    outcome = outcome_of(decode.image("value", nulls="keep"), files)
    pictures: NDArray[Any] = np.asarray(outcome.columns["value"])
    assert [None if p is None else p.shape for p in pictures] == [(5, 6, 3), None, (7, 8, 3)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"size": (0, 5)}, "size"),
        ({"size": (5,)}, "size"),
        ({"fit": "squeeze"}, "fit"),
        ({"channels": "bgr"}, "channels"),
        ({"dtype": "float64"}, "dtype"),
        ({"formats": ("tiff",)}, "formats"),
        ({"max_pixels": 0}, "max_pixels"),
        ({"nulls": "keep", "size": (2, 2)}, "nulls"),
    ],
)
def test_a_wrong_option_is_named_at_once(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        decode.image("value", **options)


def _png16(picture: NDArray[np.uint16]) -> bytes:
    bgr = picture if picture.ndim == 2 else picture[..., ::-1]
    return cv2.imencode(".png", np.ascontiguousarray(bgr))[1].tobytes()


def _with_png_size(data: bytes, height: int, width: int) -> bytes:
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


def _png_of_zeros(height: int, width: int) -> bytes:
    """A valid one-bit PNG, small as a file."""
    packed = zlib.compress(bytes((width // 8 + 1) * height), 9)
    idat = struct.pack(">I", len(packed)) + b"IDAT" + packed
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = (struct.pack(">I", 13) + header, idat, struct.pack(">I", 0) + b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(c + struct.pack(">I", zlib.crc32(c[4:])) for c in chunks)


def _oriented(picture: NDArray[np.uint8], orientation: int, format: str) -> bytes:
    """A file that a viewer shows as ``picture``, stored as ``orientation`` says."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = Image.fromarray(picture)
    image = image.transpose(undo[orientation]) if orientation > 1 else image
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {
        "WEBP": {"lossless": True},
        "JPEG": {"quality": 98, "subsampling": 0},
    }
    return saved(image, format, exif=exif, **options.get(format, {}))
