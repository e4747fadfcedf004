"""The report's pictures equal results computed independently from a model's logits."""

from functools import partial

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog
from detectron2.modeling import build_model

from ocr_panoptic.config.files import load_config
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.modeling import deploy
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.single_image import class_metadata, model_input
from ocr_panoptic.workbench.looking.inspection import Inspector
from support.tiny_runs import (
    OCR_CONFIG,
    PLAIN_CONFIG,
    SEMANTIC_CONFIG,
    TINY_SEMANTIC,
    make_labels_vary,
    predict,
)

# The FPN pads scenes of 64 pixels, resized to 72, to 96: 24 x 24 logits, 18 x 18 inside.
SIZE, PADDED, INSIDE = 72, 96, 18


def build(make_args, config, *opts):
    args = make_args("INPUT.MIN_SIZE_TEST", SIZE, *opts, config=config)
    cfg = load_config(args.config_file, args.opts)
    complete_config(cfg)
    torch.manual_seed(1)
    model = build_model(cfg).eval()
    captured = {}
    head = model.sem_seg_head
    image = read_picture(DatasetCatalog.get(cfg.DATASETS.TEST[0])[1]["file_name"])
    if cfg.MODEL.CONTEXT.NAME != "GT-OCR":  # GT-OCR needs the truth
        make_labels_vary(model, model_input(cfg, image))

    def keep(name: str, part: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        captured.setdefault(name, output[0])  # only the first pass, by the network itself

    names = "predictor refined_predictor coarse_predictor regions phi psi relation_predictor"
    for name in names.split():
        part = getattr(head, name, None) or getattr(getattr(head, "context", None), name, None)
        if part is not None:
            part.register_forward_hook(partial(keep, name))
    return cfg, deploy(model, optimize=False), captured


def softmax(logits: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=axis, keepdims=True))
    return weights / weights.sum(axis=axis, keepdims=True)


def relation_of(captured: dict) -> np.ndarray:
    """Return softmax_k(phi(x)^T psi(f) / sqrt(D)), float64 [K,h,w]."""
    phi, psi = captured["phi"].double().numpy(), captured["psi"].double().numpy()[..., 0]
    return softmax(np.einsum("dhw,dk->khw", phi, psi) / len(phi) ** 0.5, axis=0)


def bilinear(size: int, new_size: int) -> np.ndarray:
    """Return weights of bilinear resizing [new_size, size], with pixel centres at halves."""
    weights = np.zeros((new_size, size))
    for i in range(new_size):
        x = max((i + 0.5) * size / new_size - 0.5, 0.0)
        low = min(int(x), size - 1)
        weights[i, low] += 1 - (x - low)
        weights[i, min(low + 1, size - 1)] += x - low
    return weights


def logits_of_the_image(logits: torch.Tensor) -> np.ndarray:
    """Resize logits to the padded input, remove the padding, and resize to [K,64,64]."""
    up, down = bilinear(24, PADDED), bilinear(SIZE, 64)
    inside = (up @ logits.double().numpy() @ up.T)[:, :SIZE, :SIZE]
    return down @ inside @ down.T


def assert_labels(labels: np.ndarray, logits: np.ndarray) -> None:
    """Check that labels are the argmax, up to ties within float32's precision."""
    assert len(np.unique(labels)) > 1
    chosen = np.take_along_axis(logits, labels[None], axis=0)[0]
    np.testing.assert_allclose(chosen, logits.max(axis=0), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("config, order", [(OCR_CONFIG, "RGB"), (PLAIN_CONFIG, "BGR")])
def test_inspection_of_an_image(tiny_data, make_args, config, order):
    cfg, model, captured = build(make_args, config, "INPUT.FORMAT", order)
    record = DatasetCatalog.get("tiny_val")[1]
    found = Inspector(cfg, model)(record)

    bgr = read_picture(record["file_name"])
    np.testing.assert_array_equal(found.image, bgr[:, :, ::-1])
    ids, info = predict(cfg, model, bgr)["panoptic_seg"]
    np.testing.assert_array_equal(found.panoptic.ids, ids.numpy())
    assert found.panoptic.info == info

    last = captured["predictor" if config == PLAIN_CONFIG else "refined_predictor"]
    assert last.shape[1:] == (24, 24)
    assert_labels(found.refined, logits_of_the_image(last))
    if config == PLAIN_CONFIG:
        assert found.coarse is None and found.regions is None
        return
    coarse = captured["predictor"]
    assert_labels(found.coarse, logits_of_the_image(coarse))
    weights = softmax(coarse[:, :INSIDE, :INSIDE].double().numpy(), axis=(1, 2))
    np.testing.assert_allclose(found.regions.weights, weights, rtol=1e-4)
    np.testing.assert_allclose(found.regions.weights.sum(axis=(1, 2)), 1, rtol=1e-5)
    relation = relation_of(captured)[:, :INSIDE, :INSIDE]
    np.testing.assert_allclose(found.regions.relation, relation, rtol=1e-4, atol=1e-6)


def semantic(make_args, *opts):
    """Return a semantic model for scenes of 64 pixels, with logits of 8 x 8."""
    options = [*TINY_SEMANTIC, "MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", 16, *opts]
    return build(make_args, SEMANTIC_CONFIG, *options)


def test_inspection_of_a_semantic_model(tiny_data, make_args):
    cfg, model, captured = semantic(make_args)
    record = DatasetCatalog.get("tiny_sem_val")[1]
    found = Inspector(cfg, model)(record)
    assert found.panoptic is None

    expected = predict(cfg, model, read_picture(record["file_name"]))["labels"].numpy()
    np.testing.assert_array_equal(found.refined, expected)
    up = bilinear(8, 64)
    for labels, name in ((found.refined, "refined"), (found.coarse, "coarse")):
        assert_labels(labels, up @ captured[f"{name}_predictor"].double().numpy() @ up.T)
    weights = softmax(captured["coarse_predictor"].double().numpy(), axis=(1, 2))
    np.testing.assert_allclose(found.regions.weights, weights, rtol=1e-4)
    np.testing.assert_allclose(found.regions.relation, relation_of(captured), rtol=1e-4, atol=1e-6)
    assert found.regions.relation.std(axis=(1, 2)).max() > 1e-4  # it differs between pixels


def test_regions_without_supervision_come_from_the_second_branch(tiny_data, make_args):
    cfg, model, captured = semantic(make_args, "MODEL.OCR.REGION_SUPERVISION", False)
    found = Inspector(cfg, model)(DatasetCatalog.get("tiny_sem_val")[1])
    weights = softmax(captured["regions"].double().numpy(), axis=(1, 2))
    np.testing.assert_allclose(found.regions.weights, weights, rtol=1e-4)
    coarse = captured["coarse_predictor"].double().numpy()
    assert not np.allclose(weights, softmax(coarse, axis=(1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme, has_regions",
    [
        ("none", False),
        ("Double-Attention", False),  # its regions are not classes
        ("Segmentation-Transformer", False),
        ("GT-OCR", False),
        ("DA-OCR", True),
        ("ACF-OCR", True),
        ("ASP-OCR", True),
    ],
)
def test_regions_and_relations_of_other_schemes(tiny_data, make_args, scheme, has_regions):
    cfg, model, captured = semantic(make_args, "MODEL.CONTEXT.NAME", scheme)
    found = Inspector(cfg, model)(DatasetCatalog.get("tiny_sem_val")[1])
    assert (found.regions is not None) == has_regions
    if has_regions:
        if scheme == "ASP-OCR":
            expected = relation_of(captured)
        else:
            part = {"ACF-OCR": "coarse_predictor", "DA-OCR": "relation_predictor"}[scheme]
            expected = softmax(captured[part].double().numpy(), axis=0)
        np.testing.assert_allclose(found.regions.relation, expected, rtol=1e-4, atol=1e-6)


def test_the_input_keeps_its_values_and_shape(tiny_data, make_args):
    args = make_args("INPUT.MIN_SIZE_TEST", SIZE)
    cfg = load_config(args.config_file, args.opts)
    complete_config(cfg)
    assert class_metadata(cfg).stuff_classes[0] == "things"
    image = np.full((50, 100, 3), (10, 20, 30), dtype=np.uint8)
    found = model_input(cfg, image)
    assert found["image"].shape == (3, SIZE, 2 * SIZE)
    assert found["image"][:, 5, 5].tolist() == [10, 20, 30]
    assert (found["height"], found["width"]) == (50, 100)
    cfg.DATASETS.TEST = ()
    with pytest.raises(ValueError, match="TEST is empty"):
        class_metadata(cfg)


def test_labels_of_several_scales(tiny_data, make_args):
    opts = ("MODEL.HMSA.ENABLED", "True", "TEST.SCALES", "[0.5, 1.0, 1.5]", *TINY_SEMANTIC)
    cfg, model, _ = build(make_args, SEMANTIC_CONFIG, *opts)
    model.network.sem_seg_head.scale_attention[2].weight.data *= 1000
    record = DatasetCatalog.get(cfg.DATASETS.TEST[0])[1]
    expected = predict(cfg, model, read_picture(record["file_name"]))["labels"].numpy()
    assert np.array_equal(Inspector(cfg, model)(record).refined, expected)
