"""Augments: the same for a row wherever it is processed, and never in the source's memory."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.pictures import difference, photo

from forebay import augment
from forebay.columns import Columns
from forebay.errors import ConfigError
from forebay.rng import RowRandom, Run
from forebay.slice import Slice
from forebay.stage import Map, run_stages

ROWS = 12
PHOTOS = np.stack([photo(i, 40, 50) for i in range(ROWS)])
EVERY: dict[str, augment.Augment] = {
    "random_crop": augment.random_crop((24, 24)),
    "random_crop padded": augment.random_crop((44, 60), padding=4),
    "random_resized_crop": augment.random_resized_crop((32, 32)),
    "flip": augment.flip(),
    "jitter": augment.jitter(0.4, 0.4, 0.4, 0.1),
    "grayscale": augment.grayscale(0.5),
    "blur": augment.blur(),
    "noise": augment.noise(),
    "rotate": augment.rotate(),
    "cutout": augment.cutout(),
    "solarize": augment.solarize(p=0.5),
    "posterize": augment.posterize(p=0.5),
    "chain": augment.chain(augment.random_crop((30, 30)), augment.flip(), augment.blur()),
}
MIXES: dict[str, augment.Augment] = {
    "mixup": augment.mixup(1.0, classes=3),
    "cutmix": augment.cutmix(1.0, classes=3),
}
every = pytest.mark.parametrize("step", EVERY.values(), ids=EVERY.keys())


def random(rows: int = ROWS, start: int = 0, pass_index: int = 0) -> RowRandom:
    return RowRandom(Run(7, pass_index), "augment", "test/0", np.arange(start, start + rows))


def changed(step: augment.Augment, images: Any = PHOTOS, **key: int) -> NDArray[Any]:
    return np.asarray(step({"value": images}, random(len(images), **key))["value"])


def always(step: augment.Augment) -> NDArray[Any]:
    """The first picture, changed."""
    first: NDArray[Any] = changed(step)[0]
    return first


@every
def test_the_source_is_untouched_and_may_be_read_only(step: augment.Augment) -> None:
    images = PHOTOS.copy()
    images.flags.writeable = False
    out = changed(step, images)
    assert np.array_equal(images, PHOTOS)
    assert out.dtype == np.uint8 and not np.array_equal(out, PHOTOS)
    assert not np.shares_memory(out, images)


@every
def test_a_row_comes_out_the_same_however_slices_are_cut(step: augment.Augment) -> None:
    whole = changed(step)
    for size in (1, 5):
        parts = [changed(step, PHOTOS[i : i + size], start=i) for i in range(0, ROWS, size)]
        assert np.array_equal(np.concatenate(parts), whole)


@every
def test_a_row_comes_out_the_same_on_any_thread(step: augment.Augment) -> None:
    whole = changed(step)
    with ThreadPoolExecutor(4) as pool:
        rows = pool.map(lambda i: changed(step, PHOTOS[i : i + 1], start=i), [*range(ROWS)] * 4)
        for i, row in enumerate(rows):
            assert np.array_equal(row[0], whole[i % ROWS])


@every
def test_another_pass_draws_anew_and_the_same_pass_repeats(step: augment.Augment) -> None:
    first, again, next_pass = (changed(step, pass_index=n) for n in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, next_pass)


@every
def test_as_a_stage_it_keeps_the_other_columns(step: augment.Augment) -> None:
    offsets = np.arange(ROWS)
    columns: Columns = {"value": PHOTOS, "label": offsets}
    s = Slice(split="test/0", columns=columns, offsets=offsets, start=0, next_offset=ROWS)
    out = run_stages([Map("augment", step)], s, Run(7))
    assert out.failures == () and np.array_equal(out.columns["label"], offsets)
    assert np.array_equal(out.columns["value"], changed(step))


@every
def test_it_can_be_sent_to_another_process(step: augment.Augment) -> None:
    assert np.array_equal(changed(pickle.loads(pickle.dumps(step))), changed(step))
    assert hash(step) == hash(pickle.loads(pickle.dumps(step)))


@pytest.mark.parametrize("name", [n for n in EVERY if n not in ("jitter", "grayscale")])
def test_gray_pictures_work_too(name: str) -> None:
    out = changed(EVERY[name], PHOTOS[..., :1])
    assert out.shape[3] == 1
    assert np.array_equal(out, changed(EVERY[name], PHOTOS[..., :1]))


@every
def test_pictures_of_different_sizes_are_changed_one_by_one(step: augment.Augment) -> None:
    ragged = np.empty(ROWS, dtype=object)
    ragged[:] = list(PHOTOS)
    out = changed(step, ragged)
    assert all(np.array_equal(a, b) for a, b in zip(out, changed(step), strict=True))
    ragged[3] = photo(3, 70, 90)
    assert len(changed(step, ragged)) == ROWS


def test_flip_exchanges_left_and_right() -> None:
    assert np.array_equal(always(augment.flip(1.0)), PHOTOS[0][:, ::-1])
    assert np.array_equal(changed(augment.flip(0.0)), PHOTOS)


def test_crops_are_parts_of_the_picture() -> None:
    crop = always(augment.random_crop((39, 49)))
    places = [(y, x) for y in (0, 1) for x in (0, 1)]
    assert any(np.array_equal(crop, PHOTOS[0][y : y + 39, x : x + 49]) for y, x in places)
    whole = augment.random_resized_crop((40, 50), scale=(1, 1), ratio=(1.25, 1.25))
    assert np.array_equal(changed(whole), PHOTOS)


def test_jitter_moves_what_it_says() -> None:
    image = PHOTOS[0] // 4 + 64  # far from where values would be cut off
    bright = changed(augment.jitter(brightness=0.3), image[None])[0].astype(float)
    contrast = changed(augment.jitter(contrast=0.3), image[None])[0].astype(float)
    assert np.ptp(bright.mean((0, 1)) / image.mean((0, 1))) < 0.01
    luma = np.array([0.299, 0.587, 0.114])
    assert abs((contrast @ luma).mean() - (image @ luma).mean()) < 0.5
    assert abs(contrast.std() / image.std() - 1) > 0.01


def test_saturation_and_hue_keep_the_luma() -> None:
    image = PHOTOS // 4 + 64
    luma = np.array([0.299, 0.587, 0.114])
    for step in (augment.jitter(saturation=0.9), augment.jitter(hue=0.2)):
        out = changed(step, image)
        assert difference(out @ luma, image @ luma) < 0.6
        assert difference(out, image) > 1


def test_grayscale_has_three_equal_channels() -> None:
    gray = always(augment.grayscale(1.0))
    assert (gray[..., 0] == gray[..., 1]).all() and (gray[..., 1] == gray[..., 2]).all()


def test_noise_has_the_given_strength() -> None:
    flat = np.full((4, 64, 64, 3), 128, np.uint8)
    added = changed(augment.noise(10.0, p=1.0), flat).astype(float) - 128
    assert abs(added.mean()) < 0.3 and abs(added.std() - 10) < 0.3


def test_rotation_leaves_the_centre_and_blur_the_mean() -> None:
    odd = np.zeros((1, 41, 41, 3), np.uint8)
    odd[0, 20, 20] = 200
    assert (changed(augment.rotate(90.0), odd)[0, 20, 20] == 200).all()
    assert difference(changed(augment.blur(p=1.0)).mean((1, 2)), PHOTOS.mean((1, 2))) < 1


def test_cutout_fills_a_square_of_the_given_area() -> None:
    white = np.full((50, 40, 40, 3), 255, np.uint8)
    gone = (changed(augment.cutout((0.1, 0.3), p=1.0), white) == 0).all(3)
    assert gone.mean((1, 2)).min() > 0.08 and gone.mean((1, 2)).max() < 0.32
    sides = gone.any(1).sum(1), gone.any(2).sum(1)
    assert np.array_equal(*sides) and len(np.unique(gone.argmax(2).max(1))) > 5


def test_solarize_and_posterize_are_what_they_say() -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    inverted = changed(augment.solarize(200, p=1.0), ramp).ravel()
    assert inverted[:200].tolist() == list(range(200)) and inverted[200:].tolist() == list(
        range(55, -1, -1)
    )
    assert set(changed(augment.posterize(2, p=1.0), ramp).ravel()) == {0, 64, 128, 192}


@pytest.mark.parametrize("p", [0.2, 0.8])
def test_p_is_the_share_of_rows_that_change(p: float) -> None:
    dark = np.zeros((2000, 1, 1, 3), np.uint8)
    assert abs((changed(augment.solarize(0, p), dark) > 0).mean() - p) < 0.03


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_mixed_labels_follow_the_pixels(mix: augment.Augment) -> None:
    labels = np.arange(ROWS) % 3
    images = np.zeros((ROWS, 20, 20, 3), np.uint8)
    images[np.arange(ROWS), :, :, labels] = 255
    out: Any = mix({"value": images, "label": labels, "id": np.arange(ROWS)}, random())
    assert out["label"].dtype == np.float32 and np.allclose(out["label"].sum(1), 1)
    assert np.abs(out["value"].mean((1, 2)) / 255 - out["label"]).max() < 0.01
    assert (out["label"].max(1) < 1).any() and out["id"].tolist() == list(range(ROWS))


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_mixing_repeats_itself_and_leaves_the_batch_as_it_was(mix: augment.Augment) -> None:
    images = PHOTOS.copy()
    images.flags.writeable = False
    columns: Columns = {"value": images, "label": np.arange(ROWS) % 3}
    first, again, other = (mix(columns, random(pass_index=n)) for n in (0, 0, 1))
    assert np.array_equal(first["value"], again["value"])
    assert not np.array_equal(first["value"], other["value"])
    assert np.array_equal(images, PHOTOS)


def test_labels_that_are_floats_are_mixed_as_they_are() -> None:
    out = augment.mixup(1.0)({"value": PHOTOS, "label": np.linspace(0, 1, ROWS)}, random())
    assert np.asarray(out["label"]).shape == (ROWS,)


@pytest.mark.parametrize(
    ("labels", "classes", "said"),
    [
        (np.arange(ROWS), None, "classes="),
        (np.arange(ROWS), 3, "do not fit classes=3"),
        (np.full(ROWS, -1), 3, "labels -1 to -1"),
    ],
)
def test_labels_that_cannot_be_mixed_are_refused(labels: Any, classes: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        augment.mixup(classes=classes)({"value": PHOTOS, "label": labels}, random())


def test_a_column_without_pictures_is_refused() -> None:
    for column in (np.zeros(ROWS), PHOTOS.astype(np.float32), np.array([None] * ROWS)):
        with pytest.raises(ConfigError, match="column 'value' holds"):
            changed(augment.flip(), column)
    with pytest.raises(ConfigError, match="no column 'image' to augment"):
        augment.flip(column="image")({"value": PHOTOS}, random())
    with pytest.raises(ConfigError, match="needs 3 channels"):
        changed(augment.jitter(0.1), PHOTOS[..., :1])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: augment.random_crop((0, 3)), "size"),
        (lambda: augment.random_crop((3, 3), padding=-1), "padding"),
        (lambda: augment.random_resized_crop((8, 8), scale=(0.5, 1.5)), "scale"),
        (lambda: augment.random_resized_crop((8, 8), ratio=(2, 1)), "ratio"),
        (lambda: augment.flip(1.5), "p must"),
        (lambda: augment.jitter(hue=0.6), "hue"),
        (lambda: augment.jitter(contrast=-0.1), "contrast"),
        (lambda: augment.blur((0, 1)), "sigma"),
        (lambda: augment.noise(0), "std"),
        (lambda: augment.rotate(0), "degrees"),
        (lambda: augment.cutout((0.5, 0.1)), "area"),
        (lambda: augment.cutout(value=256), "value"),
        (lambda: augment.solarize(-1), "threshold"),
        (lambda: augment.posterize(0), "bits"),
        (lambda: augment.mixup(0), "alpha"),
        (lambda: augment.cutmix(-1), "alpha"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_at_once(make: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()
