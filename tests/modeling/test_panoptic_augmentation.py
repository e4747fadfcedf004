"""Test-time augmentation of Panoptic-FPN: Detectron2's instances, and mean semantics by hand."""

import pytest
import torch
from detectron2.modeling import GeneralizedRCNN, GeneralizedRCNNWithTTA
from detectron2.modeling.meta_arch.panoptic_fpn import combine_semantic_and_instance_outputs

from ocr_panoptic.formats.pictures import TooThin
from ocr_panoptic.modeling import deploy
from support.segmentors import trained_panoptic

SIZE = 64, 96


@pytest.fixture
def model(small_cfg):
    """Return a function that makes a config and a model like a trained model."""

    def make(*opts: object):
        cfg = small_cfg("ocr", "MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.3", *opts)
        cfg.MODEL.RPN.POST_NMS_TOPK_TEST = 40
        cfg.MODEL.PANOPTIC_FPN.COMBINE.update(INSTANCES_CONFIDENCE_THRESH=0.3, STUFF_AREA_LIMIT=5)
        return cfg, trained_panoptic(cfg)

    return make


def augmented(sizes: str, flip: bool) -> tuple:
    return "TEST.AUG.ENABLED", True, "TEST.AUG.MIN_SIZES", sizes, "TEST.AUG.FLIP", flip


def image() -> dict:
    generator = torch.Generator().manual_seed(0)
    return {"image": torch.randint(256, (3, *SIZE), generator=generator, dtype=torch.uint8)}


def assert_same_instances(found, expected):
    assert len(found) == len(expected) > 3
    assert torch.equal(found.pred_boxes.tensor, expected.pred_boxes.tensor)
    for field in ("pred_classes", "scores", "pred_masks"):
        assert torch.equal(found.get(field), expected.get(field)), field


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["(0,)", "(64,)"])
@torch.no_grad()
def test_one_view_of_the_image_equals_the_plain_result(model, sizes):
    plain, seen = (deploy(model(*opts)[1])([image()])[0] for opts in ((), augmented(sizes, False)))
    assert_same_instances(seen["instances"], plain["instances"])
    assert torch.equal(seen["sem_seg"], plain["sem_seg"])
    assert torch.equal(seen["panoptic_seg"][0], plain["panoptic_seg"][0])
    assert seen["panoptic_seg"][1] == plain["panoptic_seg"][1]


@pytest.mark.slow
@torch.no_grad()
def test_instances_equal_detectron2s(model):
    """They are also equal in a result that has another size than the image."""
    cfg, network = model(*augmented("(64, 80)", True))
    inputs = {**image(), "height": 50, "width": 70}
    names = ("backbone", "proposal_generator", "roi_heads")
    theirs = GeneralizedRCNN(
        **{name: getattr(network, name) for name in names},
        pixel_mean=cfg.MODEL.PIXEL_MEAN,
        pixel_std=cfg.MODEL.PIXEL_STD,
    ).eval()
    expected = GeneralizedRCNNWithTTA(cfg, theirs, batch_size=1)([inputs])[0]["instances"]
    found = deploy(network, optimize=False)([inputs])[0]["instances"]
    assert found.image_size == (50, 70)
    assert_same_instances(found, expected)


@pytest.mark.slow
@torch.no_grad()
def test_scores_are_the_mean_over_the_image_and_its_mirror_image(model):
    _, plain = model()
    mirror = image()["image"].flip(-1)
    one, other = (deploy(plain)([{"image": x}])[0]["sem_seg"] for x in (image()["image"], mirror))
    _, network = model(*augmented("(64,)", True))
    output = deploy(network)([image()])[0]
    torch.testing.assert_close(output["sem_seg"], (one + other.flip(-1)) / 2)
    assert torch.equal(output["labels"], output["sem_seg"].argmax(dim=0))
    expected = combine_semantic_and_instance_outputs(
        output["instances"], output["labels"], 0.5, 5, 0.3
    )
    assert torch.equal(output["panoptic_seg"][0], expected[0])
    assert len(output["panoptic_seg"][1]) == len(expected[1]) > 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "opts, channels",
    [
        (("MODEL.ROI_HEADS.SCORE_THRESH_TEST", "1.1"), 3),  # this finds no instance
        (("INPUT.CHANNELS", 4, "MODEL.PIXEL_MEAN", [9.0] * 4, "MODEL.PIXEL_STD", [1.0] * 4), 4),
    ],
)
@torch.no_grad()
def test_images_without_instances_or_with_other_channels(model, opts, channels):
    _, network = model(*augmented("(64, 96)", True), *opts)
    inputs = {"image": torch.randint(256, (channels, *SIZE), dtype=torch.uint8)}
    output = deploy(network, "bfloat16")([inputs])[0]
    assert len(output["instances"]) == 0 or channels == 4
    assert output["panoptic_seg"][0].shape == SIZE


@torch.no_grad()
def test_thin_images(model):
    _, network = model(*augmented("(64,)", True), "TEST.AUG.MAX_SIZE", 100)
    column = torch.zeros(3, 201, 1, dtype=torch.uint8)
    with pytest.raises(TooThin, match="image of 1x201 .*TEST.AUG.MAX_SIZE"):
        deploy(network)([{"image": column}])[0]["labels"]
    assert deploy(network)([{"image": column[:, :200]}])[0]["labels"].shape == (200, 1)
