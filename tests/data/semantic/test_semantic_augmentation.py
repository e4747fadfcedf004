"""Every augmentation by hand, and the effect of every config key."""

import numpy as np
import pytest
from detectron2.data import transforms as T

from ocr_panoptic.data.image_input import ChannelInput, ResizedCrop
from ocr_panoptic.data.semantic.augmentation import build_semantic_augmentation


@pytest.fixture(autouse=True)
def seed():
    np.random.seed(0)  # noqa: NPY002, Detectron2's augmentations draw from it


@pytest.fixture
def cfg(semantic_cfg):
    semantic_cfg.INPUT.CROP.TYPE = "absolute"
    semantic_cfg.INPUT.CROP.SIZE = [20, 30]
    return semantic_cfg


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


@pytest.fixture
def labels():
    return np.random.default_rng(1).choice([0, 1, 2, 255], (40, 60)).astype(np.uint8)


def augmented(cfg, image, labels, is_train=True, flip_pairs=()):
    inputs = ChannelInput(image, sem_seg=labels)
    T.AugmentationList(build_semantic_augmentation(cfg, is_train, flip_pairs))(inputs)
    assert inputs.image.shape[:2] == inputs.sem_seg.shape
    return inputs.image, inputs.sem_seg


@pytest.mark.parametrize("is_train", [True, False])
def test_randomness_only_if_configured_and_in_training(cfg, image, labels, is_train):
    if not is_train:
        cfg.INPUT.RANDOM_SCALE, cfg.INPUT.RANDOM_ASPECT = [2.0, 3.0], [0.5, 0.6]
        cfg.INPUT.CROP.ENABLED, cfg.INPUT.RANDOM_FLIP = True, "horizontal"
        cfg.INPUT.BRIGHTNESS_SHIFT = 10
    for _ in range(5):
        same_image, same_labels = augmented(cfg, image, labels, is_train)
        assert np.array_equal(same_image, image) and np.array_equal(same_labels, labels)


@pytest.mark.parametrize(("is_train", "size"), [(True, (20, 30)), (False, (80, 120))])
def test_a_fixed_size_comes_before_the_short_side(cfg, image, labels, is_train, size):
    cfg.INPUT.MIN_SIZE_TRAIN, cfg.INPUT.MIN_SIZE_TEST = (20,), 80
    assert augmented(cfg, image, labels, is_train)[1].shape == size
    cfg.INPUT.FIXED_SIZE = [33, 17]
    assert augmented(cfg, image, labels, is_train)[1].shape == (33, 17)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("way", ["FIXED_SIZE", "MIN_SIZE_TRAIN", "RANDOM_SCALE"])
def test_interpolation_of_images_and_labels(cfg, interpolation, way):
    """A cubic filter overshoots at an edge, a linear filter does not. No new label appears."""
    values = {"FIXED_SIZE": [12, 12], "MIN_SIZE_TRAIN": (12,), "RANDOM_SCALE": [2.0, 2.0]}
    cfg.INPUT.MIN_SIZE_TRAIN = (0,)
    cfg.INPUT[way] = values[way]
    cfg.INPUT.INTERPOLATION = interpolation
    half = np.repeat(np.array([50, 200], np.uint8), 3)[None].repeat(6, 0)
    image, labels = augmented(cfg, np.stack([half] * 3, 2), half)
    assert (image.min() < 50) == (image.max() > 200) == (interpolation == "bicubic")
    assert np.array_equal(labels, half.repeat(2, 0).repeat(2, 1))


def test_random_scale_and_aspect(cfg, image, labels):
    cfg.INPUT.RANDOM_SCALE = [0.5, 2.0]
    cfg.INPUT.RANDOM_ASPECT = [0.8, 1.25]
    sizes = np.array([augmented(cfg, image, labels)[1].shape for _ in range(200)])
    scales = np.sqrt(sizes.prod(1) / (40 * 60))
    aspects = sizes[:, 1] / sizes[:, 0] / 1.5
    for values, low, high in ((scales, 0.5, 2.0), (aspects, 0.8, 1.25)):
        assert low - 0.03 < values.min() < low + 0.1
        assert high - 0.1 < values.max() < high + 0.03
        assert abs(values.mean() - (low + high) / 2) < 0.1  # the mean of a uniform distribution
    assert abs(np.corrcoef(scales, aspects)[0, 1]) < 0.2


def test_crop_is_a_part_of_both(cfg, image, labels):
    cfg.INPUT.CROP.ENABLED = True
    (step,) = build_semantic_augmentation(cfg, True)[:1]
    assert isinstance(step, ResizedCrop)  # no more is resized than is shown
    places = set()
    for _ in range(50):
        crop, crop_labels = augmented(cfg, image, labels)
        assert crop.shape == (20, 30, 3)
        windows = np.lib.stride_tricks.sliding_window_view(image[..., 0], (20, 30))
        ((y, x),) = np.argwhere((windows == crop[..., 0]).all((2, 3)))
        assert np.array_equal(crop, image[y : y + 20, x : x + 30])
        assert np.array_equal(crop_labels, labels[y : y + 20, x : x + 30])
        places.add((y, x))
    assert len(places) > 30


@pytest.mark.parametrize("share", [1.0, 0.75])
def test_cap_on_one_class(cfg, share):
    """Left of column 50 there is only one class; ignored pixels do not count."""
    cfg.INPUT.CROP.ENABLED = True
    cfg.INPUT.CROP.SIZE = [10, 20]
    cfg.INPUT.CROP.SINGLE_CATEGORY_MAX_AREA = share
    labels = np.zeros((40, 120), np.uint8)
    labels[:, 50:] = np.arange(70) % 2 + 1
    labels[:, 100:] = 255
    image = np.zeros((40, 120, 3), np.uint8)
    alone = 0
    for _ in range(100):
        counts = np.bincount(augmented(cfg, image, labels)[1].ravel(), minlength=256)[:255]
        alone += counts.max() >= 0.75 * counts.sum()
    assert alone > 20 if share == 1.0 else alone < 5


def test_an_image_smaller_than_the_crop_is_padded(cfg, image, labels):
    """After the normalisation the padding is exactly 0, although the mean is not an integer."""
    cfg.INPUT.CROP.ENABLED = True
    cfg.INPUT.CROP.SIZE = [50, 30]
    cfg.INPUT.BRIGHTNESS_SHIFT = 10  # it does not change the padding
    cfg.MODEL.PIXEL_MEAN = [1.5, 2.0, 3.0, 4.0]
    crop, crop_labels = augmented(cfg, np.dstack([image, image[..., :1]]), labels)
    assert crop.shape == (50, 30, 4)
    mean = np.array(cfg.MODEL.PIXEL_MEAN, np.float32)
    assert np.all(crop[40:] - mean == 0) and np.all(crop_labels[40:] == 255)
    windows = np.lib.stride_tricks.sliding_window_view(labels, (40, 30))[0]
    assert any(np.array_equal(window, crop_labels[:40]) for window in windows)


def test_turns_and_flips_show_all_eight_sides(cfg, image, labels):
    """Results equal NumPy's rot90 and flips; pairs are swapped only in mirrored images."""
    cfg.INPUT.RANDOM_FLIP, cfg.INPUT.RANDOM_ROTATE_90 = "both", True
    table = np.array([0, 2, 1] + [255] * 253, np.uint8)
    expected = {}
    for quarters in range(4):
        for way, swaps in ((np.array, 0), (np.fliplr, 1), (np.flipud, 1)):
            side = way(np.rot90(labels, quarters))
            expected[(table[side] if swaps else side).tobytes()] = way(np.rot90(image, quarters))
    assert len(expected) == 8
    seen = set()
    for _ in range(100):
        new_image, new_labels = augmented(cfg, image, labels, flip_pairs=[(1, 2)])
        assert np.array_equal(new_image, expected[new_labels.tobytes()])
        seen.add(new_labels.tobytes())
    assert seen == expected.keys()


def test_colours_are_multiplied(cfg, image, labels):
    cfg.INPUT.COLOR_JITTER, ratios = 0.2, []
    for _ in range(50):
        new_image, new_labels = augmented(cfg, image, labels)
        assert np.array_equal(new_labels, labels) and new_image.dtype == np.uint8
        ratios.append(new_image.mean() / image.mean())
    assert 0.79 < min(ratios) < 0.9 and 1.1 < max(ratios) < 1.21
    cfg.INPUT.CHANNELS = 1
    with pytest.raises(ValueError, match="COLOR_JITTER is 0.2, but INPUT.CHANNELS is 1"):
        build_semantic_augmentation(cfg, True)


def test_brightness_is_an_integer_shift_with_clipping(cfg, image, labels):
    cfg.INPUT.BRIGHTNESS_SHIFT = 10
    image = np.concatenate([image, image[..., :1]], axis=2)
    found = set()
    for _ in range(300):
        new_image, new_labels = augmented(cfg, image, labels)
        shift = int(np.median(new_image[..., :3].astype(int) - image[..., :3]))
        expected = np.clip(image.astype(int) + np.array([shift, shift, shift, 0]), 0, 255)
        assert np.array_equal(new_image, expected)
        assert new_image.dtype == np.uint8
        assert np.array_equal(new_labels, labels)
        found.add(shift)
    assert found == set(range(-10, 11))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("CHANNELS", 1, "BRIGHTNESS_SHIFT is 10; expected 0, because INPUT.CHANNELS is 1"),
        ("FIXED_SIZE", [473], r"FIXED_SIZE is \[473\]; expected \[height, width\]"),
        ("RANDOM_SCALE", [2.0, 0.5], r"RANDOM_SCALE is \[2.0, 0.5\]; expected \[smallest"),
        ("RANDOM_ASPECT", [0.0, 1.0], "RANDOM_ASPECT"),
        ("BRIGHTNESS_SHIFT", -1, "BRIGHTNESS_SHIFT is -1"),
        ("BRIGHTNESS_SHIFT", 0.1, "BRIGHTNESS_SHIFT is 0.1; expected an integer 0..255"),
        ("CROP.TYPE", "relative_range", "TYPE is 'relative_range'; expected .absolute"),
        ("CROP.SIZE", [0.9, 0.9], r"CROP.SIZE is \[0.9, 0.9\]; expected .* in pixels"),
        ("INTERPOLATION", "nearest", "INTERPOLATION is 'nearest'; expected bicubic or bilinear"),
    ],
)
def test_unusable_values(cfg, key, value, message):
    cfg.INPUT.CROP.ENABLED, cfg.INPUT.BRIGHTNESS_SHIFT = True, 10
    node = cfg.INPUT.CROP if key.startswith("CROP.") else cfg.INPUT
    node[key.removeprefix("CROP.")] = value
    with pytest.raises(ValueError, match=f"INPUT.*{message}"):
        build_semantic_augmentation(cfg, is_train=True)
