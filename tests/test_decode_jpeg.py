"""JPEG payloads: right colours, scaled decoding, and no half pictures."""

from __future__ import annotations

import struct

import cv2
import numpy as np
import psutil
import pyarrow as pa
import pytest
from PIL import Image
from tests.pictures import by_pillow, decoded, difference, outcome_of, photo, reason, saved

from forebay import decode
from forebay.decode.sizing import Fit

TRUNCATED_AT = (3, 10, 100, 400, -2)


def test_a_jpeg_is_what_pillow_reads() -> None:
    data = saved(photo(), "JPEG", quality=90)
    assert difference(decoded(decode.jpeg("value"), data), by_pillow(data)) < 0.5


def test_pictures_of_one_size_come_as_one_array_beside_the_other_columns() -> None:
    files = [saved(photo(i, 40 + i, 70), "JPEG") for i in range(5)]
    outcome = outcome_of(decode.jpeg("value", size=(32, 24), into="image"), files)
    assert outcome.parents is None
    image = np.asarray(outcome.columns["image"])
    assert image.shape == (5, 32, 24, 3) and image.dtype == np.uint8
    assert list(outcome.columns) == ["id", "image"]


@pytest.mark.parametrize("adobe", ["inverted CMYK", "YCCK", "no marker"])
def test_four_channel_jpegs_come_out_in_rgb(adobe: str) -> None:
    patches = np.repeat(np.repeat(photo(3, 4, 4), 16, 0), 16, 1)
    data = _with_adobe(saved(Image.fromarray(patches).convert("CMYK"), "JPEG"), adobe)
    picture = decoded(decode.jpeg("value"), data)
    assert picture.shape == (64, 64, 3)
    assert np.abs(picture.astype(int) - by_pillow(data)).max() <= 2
    if adobe != "YCCK":  # that one is made by relabelling, so its colours are not the patches'
        assert difference(picture, patches) < 12


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_gray_is_one_channel_of_luma(mode: str) -> None:
    data = saved(Image.fromarray(photo()).convert(mode), "JPEG", quality=90)
    gray = decoded(decode.jpeg("value", channels="gray"), data)
    assert gray.shape == (48, 64, 1)
    assert difference(gray[..., 0], by_pillow(data, "L")) < 1.5


@pytest.mark.parametrize("shape", [(400, 400), (1001, 1203), (3000, 500)])
@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_decoding_at_a_fraction_of_the_size_shows_the_same_picture(
    shape: tuple[int, int], fit: Fit
) -> None:
    picture = photo(1, *shape)
    small = decode.image("value", size=(96, 96), fit=fit)
    from_jpeg = decoded(small, saved(picture, "JPEG", quality=95))
    from_png = decoded(small, saved(picture, "PNG", compress_level=1))
    assert difference(from_jpeg, from_png) < 2.5


@pytest.mark.parametrize("turned", [False, True])
def test_no_jpeg_is_decoded_smaller_than_it_is_needed(turned: bool) -> None:
    stripes = np.zeros((1600, 96, 3), np.uint8)
    stripes[:, ::2] = 255
    exif = Image.Exif()
    exif[0x0112] = 6 if turned else 1
    stored = np.rot90(stripes) if turned else stripes
    data = saved(np.ascontiguousarray(stored), "JPEG", quality=95, exif=exif)
    picture = decoded(decode.jpeg("value", size=(40, 96)), data)
    assert difference(picture, stripes[:40]) < 10


@pytest.mark.parametrize("at", TRUNCATED_AT)
def test_a_truncated_jpeg_fails_instead_of_ending_in_grey(at: int) -> None:
    data = saved(photo(), "JPEG")
    for size in (None, (8, 8)):
        why = reason(decode.jpeg("value", size=size), data[:at])
        assert "truncated jpeg" in why or "ends inside its header" in why


def test_a_jpeg_cut_short_and_closed_with_an_end_marker_fails_too() -> None:
    data = saved(photo(), "JPEG")
    assert "truncated jpeg" in reason(decode.jpeg("value"), data[:-200] + b"\xff\xd9")


def test_bytes_after_the_end_do_no_harm() -> None:
    data = saved(photo(), "JPEG")
    whole = decoded(decode.jpeg("value"), data)
    assert (decoded(decode.jpeg("value"), data + b"\0garbage" * 99) == whole).all()


def test_oddities_of_common_cameras_do_no_harm() -> None:
    data = saved(photo(), "JPEG")
    whole = decoded(decode.jpeg("value"), data)
    revision = data.index(b"JFIF\0") + 5
    odd = data[:revision] + b"\x09" + data[revision + 1 :]
    padded = data[:-2] + b"\0" * 19 + data[-2:]
    for camera in (odd, padded):
        assert (decoded(decode.jpeg("value"), camera) == whole).all()
        assert "truncated jpeg" in reason(decode.jpeg("value"), camera[:500])


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"hello, world", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0"]
)
def test_what_is_no_jpeg_fails_with_a_reason(data: bytes) -> None:
    assert reason(decode.jpeg("value"), data)


def test_only_the_bad_rows_fail_and_the_others_keep_their_neighbours() -> None:
    good = [saved(photo(i), "JPEG") for i in range(4)]
    outcome = outcome_of(
        decode.jpeg("value", size=(48, 64)), [good[0], b"", good[1], good[2][:300], good[3]]
    )
    assert outcome.columns["id"].tolist() == [0, 2, 4]
    assert outcome.parents is not None and outcome.parents.tolist() == [0, 2, 4]
    assert outcome.failed.keys() == {1, 3}
    for row, file in zip(outcome.columns["value"], (good[0], good[1], good[3]), strict=True):
        assert difference(np.asarray(row), by_pillow(file)) < 1


def test_a_size_beyond_the_limit_fails_by_its_header_alone() -> None:
    data = saved(photo(), "JPEG")
    frame = data.index(b"\xff\xc0") + 5
    huge = data[:frame] + struct.pack(">HH", 60000, 60000) + data[frame + 4 :]
    why = reason(decode.jpeg("value", size=(8, 8)), huge)
    assert "60000x60000" in why and "max_pixels=50000000" in why


def test_other_formats_are_refused_by_content() -> None:
    png = saved(photo(), "PNG")
    assert reason(decode.jpeg("value"), png) == "the image is a png, not a jpeg"


def test_arrow_payloads_are_read_where_they_lie() -> None:
    files = [saved(photo(i), "JPEG") for i in range(3)]
    decoder = decode.jpeg("value", size=(16, 16))
    expected = outcome_of(decoder, files).columns["value"]
    for kind in (pa.binary(), pa.large_binary()):
        column = pa.array([b"cut off", *files], kind)[1:]
        assert np.array_equal(outcome_of(decoder, column).columns["value"], expected)


def test_thousands_of_broken_files_leave_no_memory_behind() -> None:
    data = cv2.imencode(".jpg", photo(0, 120, 160))[1].tobytes()
    random = np.random.default_rng(0)
    decoder = decode.jpeg("value", size=(64, 64))
    outcome_of(decoder, _broken(data, random, 500))
    before = psutil.Process().memory_info().rss
    for _ in range(10):
        outcome_of(decoder, _broken(data, random, 500))
    assert psutil.Process().memory_info().rss - before < 30 << 20


def _broken(data: bytes, random: np.random.Generator, count: int) -> list[bytes]:
    """Files cut somewhere, or with a Huffman table, a length or some pixels overwritten."""
    table = data.index(b"\xff\xc4")
    made = []
    for i in range(count):
        at = int(random.integers(20, len(data) - 20))
        hurt = bytearray(data[:at] if i % 3 == 0 else data)
        place = (table + 6 if i % 3 == 1 else at) % (len(hurt) - 8)
        hurt[place : place + 8] = random.bytes(8)
        made.append(bytes(hurt))
    return made


def _with_adobe(data: bytes, kind: str) -> bytes:
    """A CMYK file of Pillow's with its Adobe marker as it is, saying YCCK, or gone."""
    at = data.index(b"\xff\xee")
    end = at + 2 + struct.unpack_from(">H", data, at + 2)[0]
    if kind == "YCCK":
        return data[: end - 1] + b"\x02" + data[end:]
    return data[:at] + data[end:] if kind == "no marker" else data
