"""A deployed model gives the same results, and the trained model stays unchanged."""

import copy

import pytest
import torch
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.modeling import InferenceModel, deploy
from ocr_panoptic.predict.trained_model import check_inference_keys, deployed
from support.segmentors import make_batch, make_cfg, make_resnet_cfg, trained_like, trained_panoptic


def images(*sizes: tuple[int, int]) -> list[dict]:
    generator = torch.Generator().manual_seed(0)
    return [{"image": 255 * torch.rand(3, *size, generator=generator)} for size in sizes]


R18 = ("MODEL.TIMM.NAME", "resnet18")  # whose norms are all folded
GN = (
    *("MODEL.OCR.NORM", "GN", "MODEL.OCR.CHANNELS", 64, "MODEL.OCR.KEY_CHANNELS", 32),
    *("MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", 32),
)
LITE0 = ("MODEL.SEM_SEG_HEAD.IN_FEATURES", ["blocks.6"])
LITE0 += ("MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES", ["blocks.4"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: make_cfg(*R18),
        lambda: make_cfg(*R18, "TEST.FLIP", True, "MODEL.CONTEXT.NAME", "PPM", *GN),
        lambda: make_cfg(backbone="hrnet_w18_small"),
        lambda: make_resnet_cfg(50),
        lambda: make_cfg(*R18, "MODEL.CONTEXT.NAME", "PPM-OCR", "MODEL.OCR.RESIDUAL", True),
    ],
    ids=["OCR", "PPM", "HRNet", "dilated", "PPM-OCR"],
)
def test_a_semantic_model_has_the_same_logits(make):
    model = trained_like(build_model(make())).double()
    fast = deploy(model).network
    assert not [m for m in fast.modules() if getattr(m, "running_var", None) is not None]
    inputs = [{"image": one["image"].double()} for one in images((61, 83))]
    with torch.no_grad():
        for found, expected in zip(fast.layers(inputs), model.layers(inputs)):
            # float32 rounds only the folded weights here.
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
            assert expected.std() > 1e-3


@pytest.fixture
def panoptic(small_cfg):
    """Return a function that makes a config and a model with many instances and stuff classes."""

    def make(head: str, *opts: str):
        opts += ("MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.0", "MODEL.RPN.POST_NMS_TOPK_TEST", "40")
        cfg = small_cfg(head, *opts)
        cfg.MODEL.PANOPTIC_FPN.COMBINE.update(INSTANCES_CONFIDENCE_THRESH=0.3, STUFF_AREA_LIMIT=5)
        return cfg, trained_panoptic(cfg)

    return make


@pytest.mark.slow
@torch.no_grad()
def test_the_merge_has_the_thresholds_of_the_config(panoptic):
    """Only classes whose own limit the image meets are in the map."""
    cfg, _ = panoptic("ocr")
    things, labels = cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES

    def shown(confidence: list[float], area: list[float]) -> set[tuple[bool, int]]:
        cfg.merge_from_list(["MODEL.PANOPTIC_FPN.COMBINE.CLASS_CONFIDENCE", confidence])
        cfg.merge_from_list(["MODEL.PANOPTIC_FPN.COMBINE.CLASS_STUFF_AREA", area])
        outputs = deploy(trained_panoptic(cfg))(images((64, 96), (70, 65)))
        segments = [s for output in outputs for s in output["panoptic_seg"][1]]
        return {(s["isthing"], s["category_id"]) for s in segments}

    every = shown([], [])
    assert {True, False} == {isthing for isthing, _ in every}
    thing, stuff = (next(c for kind, c in sorted(every) if kind == k) for k in (True, False))
    confidence, area = [2.0] * things, [1e9] * labels
    assert {isthing for isthing, _ in shown(confidence, [])} == {False}
    assert {isthing for isthing, _ in shown([], area)} == {True}
    confidence[thing], area[stuff] = 0.3, 5
    assert shown(confidence, [1e9] * labels) == {(True, thing)}
    assert shown([2.0] * things, area) == {(False, stuff)}


@pytest.mark.slow
@pytest.mark.parametrize("head", [["ocr"], ["ocr", "MODEL.OCR.DOWNSAMPLE", "2"], ["plain"]])
@torch.no_grad()
def test_a_panoptic_model_has_the_same_outputs(panoptic, head):
    cfg, model = panoptic(*head)
    inputs = images((64, 96), (70, 65))
    inputs[1].update(height=50, width=77)
    fast = deploy(model)
    for found, expected in zip(fast(inputs), model(inputs), strict=True):
        ids, segments = expected["panoptic_seg"]
        assert len(segments) > 3
        assert (found["panoptic_seg"][0] == ids).double().mean() > 0.999
        assert len(found["panoptic_seg"][1]) == len(segments)
        ours, theirs = found["instances"], expected["instances"]
        torch.testing.assert_close(ours.scores, theirs.scores, atol=1e-4, rtol=0)
        torch.testing.assert_close(found["sem_seg"], expected["sem_seg"], atol=1e-3, rtol=1e-3)
        labels = expected["sem_seg"].argmax(dim=0)
        assert (found["labels"] == labels).double().mean() > 0.999
        with pytest.raises(KeyError):
            found["proposals"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_parts_belong_together_in_any_order(panoptic, kind):
    model = panoptic("ocr")[1] if kind == "panoptic" else trained_like(build_model(make_cfg()))
    inputs = images((70, 65))
    inputs[0].update(height=50, width=77)
    (alone,), (both,) = deploy(model)(inputs), deploy(model)(inputs)
    assert "labels" in alone and "confidence" in alone and "proposals" not in alone
    labels = alone["labels"]
    assert labels.shape == (50, 77) and alone["labels"] is labels
    torch.testing.assert_close(both["confidence"], both["sem_seg"].softmax(dim=0).amax(dim=0))
    assert torch.equal(both["labels"], labels)
    (found,) = deploy(model, confident=True)(inputs)  # an evaluation asks for the labels first
    assert torch.equal(found["labels"], labels)
    assert torch.equal(found["confidence"], both["confidence"])
    if kind == "panoptic":
        assert torch.equal(found["panoptic_seg"][0], alone["panoptic_seg"][0])
        assert alone["panoptic_seg"][1] and alone["instances"] is alone["instances"]
    else:
        assert sorted(found) == ["confidence", "labels", "sem_seg"]


@pytest.mark.slow
def test_the_trained_model_can_train_on():
    cfg = make_cfg()
    model = trained_like(build_model(cfg)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}

    def labels() -> torch.Tensor:
        with torch.no_grad():
            return deploy(model)(images((61, 83)))[0]["labels"]

    first = labels()
    assert model.training
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    sum(model(make_batch()).values()).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.02 * parameter.grad.sign())
        expected = copy.deepcopy(model).eval()(images((61, 83)))[0]["labels"]
    assert not torch.equal(first, expected)
    assert (labels() == expected).double().mean() > 0.999  # made from the present weights


@pytest.mark.slow
def test_a_key_disables_it_and_models_are_optimized_once():
    cfg = make_cfg()
    model = build_model(cfg)
    fast = deployed(cfg, model)
    assert fast.network is not model and not fast.training
    again = deployed(cfg, fast, confident=True)
    assert again.network is fast.network and again.confident and not fast.confident
    plain = deployed(make_cfg("TEST.OPTIMIZED", False), model)
    assert plain.network is model and plain.training


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("kind", ["panoptic", "semantic", "GN", "SAME padding"])
def test_half_precision_has_the_bits_of_autocast(panoptic, kind):
    """Autocast casts the weights for each image, the deployed model casts them once."""
    if kind == "panoptic":
        model = panoptic("ocr")[1]
    elif kind == "SAME padding":
        model = trained_like(build_model(make_cfg(*LITE0, backbone="tf_efficientnet_lite0")))
    else:
        model = trained_like(build_model(make_cfg(*(GN if kind == "GN" else ()))))
    fast, inputs = deploy(model, "bfloat16"), images((61, 83))
    assert any(p.dtype == torch.bfloat16 for p in fast.parameters())
    expected = InferenceModel(deploy(model).network, "bfloat16")(inputs)[0]["sem_seg"]
    found, labels = fast(inputs)[0], model(inputs)[0]["sem_seg"].argmax(dim=0)
    assert torch.equal(found["sem_seg"], expected) and expected.float().std() > 0
    assert (found["labels"] == labels).double().mean() > 0.8


@pytest.mark.parametrize(
    "refuse, message",
    [
        (lambda: deploy(nn.Identity(), "half"), "'half'; expected one of float32, bfloat16"),
        (
            lambda: check_inference_keys(make_cfg("TEST.PRECISION", "float16")),
            "needs a GPU, but MODEL.DEVICE is cpu",
        ),
        (
            lambda: check_inference_keys(
                make_cfg("TEST.PRECISION", "bfloat16", "TEST.OPTIMIZED", False)
            ),
            "needs TEST.OPTIMIZED True",
        ),
    ],
)
def test_refused_models(refuse, message):
    with pytest.raises(ValueError, match=message):
        refuse()
