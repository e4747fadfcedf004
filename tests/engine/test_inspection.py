"""What the report shows of a model, against an independent computation from its logits."""

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog
from detectron2.modeling import build_model

from ocr_panoptic.engine import complete_config, load_config
from ocr_panoptic.engine.inspection import (
    class_metadata,
    inspect_record,
    model_input,
    predict,
)
from ocr_panoptic.visualization import read_image

from .conftest import OCR_CONFIG, PLAIN_CONFIG

# 64-pixel scenes at 72 pixels, which the FPN pads to 96: logits of 24 x 24, 18 x 18 of them inside.
SIZE, PADDED, INSIDE = 72, 96, 18


def build(make_args, config, *opts):
    args = make_args("INPUT.MIN_SIZE_TEST", SIZE, *opts, config=config)
    cfg = load_config(args.config_file, args.opts)
    complete_config(cfg)
    torch.manual_seed(1)
    model = build_model(cfg).eval()
    captured = {}
    head = model.sem_seg_head
    for name in ("predictor", "ocr_predictor"):
        if hasattr(head, name):
            getattr(head, name).register_forward_hook(
                lambda module, inputs, output, name=name: captured.update({name: output[0]})
            )
    return cfg, model, captured


def bilinear(size: int, new_size: int) -> np.ndarray:
    """[new_size, size]: the weights of bilinear resizing, pixel centres at halves."""
    weights = np.zeros((new_size, size))
    for i in range(new_size):
        x = max((i + 0.5) * size / new_size - 0.5, 0.0)
        low = min(int(x), size - 1)
        weights[i, low] += 1 - (x - low)
        weights[i, min(low + 1, size - 1)] += x - low
    return weights


def logits_of_the_image(logits: torch.Tensor) -> np.ndarray:
    """[K,64,64], float64: to the padded input's size, without the padding, to the image's size."""
    up, down = bilinear(24, PADDED), bilinear(SIZE, 64)
    inside = (up @ logits.double().numpy() @ up.T)[:, :SIZE, :SIZE]
    return down @ inside @ down.T


def assert_labels(labels: np.ndarray, logits: np.ndarray) -> None:
    """The labels are the argmax, up to ties within float32's precision."""
    assert len(np.unique(labels)) > 1
    chosen = np.take_along_axis(logits, labels[None], axis=0)[0]
    np.testing.assert_allclose(chosen, logits.max(axis=0), atol=1e-5)


@pytest.mark.parametrize("config", [OCR_CONFIG, PLAIN_CONFIG], ids=["ocr", "plain"])
def test_inspection_of_an_image(tiny_data, make_args, config):
    cfg, model, captured = build(make_args, config)
    record = DatasetCatalog.get("tiny_val")[1]
    found = inspect_record(cfg, model, record)

    bgr = read_image(record["file_name"])
    np.testing.assert_array_equal(found.image, bgr[:, :, ::-1])
    ids, info = predict(cfg, model, bgr)["panoptic_seg"]
    np.testing.assert_array_equal(found.panoptic.ids, ids.numpy())
    assert found.panoptic.info == info

    last = captured["predictor" if config == PLAIN_CONFIG else "ocr_predictor"]
    assert last.shape[1:] == (24, 24)
    assert_labels(found.refined, logits_of_the_image(last))
    if config == PLAIN_CONFIG:
        assert found.coarse is None and found.regions is None
        return
    coarse = captured["predictor"]
    assert_labels(found.coarse, logits_of_the_image(coarse))
    weights = np.exp(coarse[:, :INSIDE, :INSIDE].double().numpy())
    weights /= weights.sum(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(found.regions, weights, rtol=1e-4)
    np.testing.assert_allclose(found.regions.sum(axis=(1, 2)), 1, rtol=1e-5)


def test_the_channels_follow_the_config(tiny_data, make_args):
    """A model for RGB gets the channels of one for BGR in reverse; the picture is the same."""
    plain = ("MODEL.PIXEL_MEAN", "[0.0, 0.0, 0.0]", "MODEL.PIXEL_STD", "[1.0, 1.0, 1.0]")
    inputs, images = {}, {}
    for order in ("BGR", "RGB"):
        cfg, model, _ = build(make_args, OCR_CONFIG, "INPUT.FORMAT", order, *plain)
        seen = inputs[order] = []
        model.backbone.register_forward_pre_hook(lambda _, x, seen=seen: seen.append(x[0]))
        record = DatasetCatalog.get("tiny_val")[0]
        images[order] = inspect_record(cfg, model, record).image
        predict(cfg, model, read_image(record["file_name"]))
        assert all(torch.equal(seen[0], x) for x in seen)
    np.testing.assert_array_equal(images["RGB"], images["BGR"])
    assert torch.equal(inputs["RGB"][0], inputs["BGR"][0].flip(1))
    assert not torch.equal(inputs["RGB"][0], inputs["BGR"][0])


def test_the_input_keeps_its_values_and_shape(tiny_data, make_args):
    cfg, _, _ = build(make_args, OCR_CONFIG)
    image = np.full((50, 100, 3), (10, 20, 30), dtype=np.uint8)
    found = model_input(cfg, image)
    assert found["image"].shape == (3, SIZE, 2 * SIZE)
    assert found["image"][:, 5, 5].tolist() == [10, 20, 30]
    assert (found["height"], found["width"]) == (50, 100)


def test_class_names_come_from_the_test_data(tiny_data, make_args):
    cfg, _, _ = build(make_args, OCR_CONFIG)
    assert class_metadata(cfg).stuff_classes[0] == "things"
    cfg.DATASETS.TEST = ("coco_2017_val",)
    with pytest.raises(ValueError, match="coco_2017_val has no stuff_classes"):
        class_metadata(cfg)
    cfg.DATASETS.TEST = ()
    with pytest.raises(ValueError, match=r"DATASETS\.TEST is empty"):
        class_metadata(cfg)
