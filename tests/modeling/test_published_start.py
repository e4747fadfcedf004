"""Panoptic-FPN + OCR begins as the published Panoptic-FPN whose weights it loads."""

from unittest.mock import Mock

import pytest
import torch
from detectron2 import model_zoo
from detectron2.modeling import build_model

from ocr_panoptic.checkpoint.class_rows import ZOO_WEIGHTS
from ocr_panoptic.config.files import load_config
from ocr_panoptic.predict.single_image import class_metadata
from ocr_panoptic.predict.trained_model import trained_model
from support.loaded_configs import CONFIGS

NAMES = {"R_50_1x": "R_50_from_1x", "R_101_3x": "R_101_from_3x"}
FOLDER = "COCO-PanopticSegmentation"
THRESHOLD = ["MODEL.ROI_HEADS.SCORE_THRESH_TEST", "0.02", "MODEL.DEVICE", "cpu"]
THRESHOLD += ["MODEL.RPN.POST_NMS_TOPK_TEST", "100"]
COUNTS = ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", "54", "MODEL.ROI_HEADS.NUM_CLASSES", "80"]


def own_config(name: str):
    return load_config(
        str(CONFIGS / FOLDER / f"panoptic_fpn_ocr_{NAMES[name]}.yaml"),
        [*THRESHOLD, *COUNTS, "MODEL.OCR.NORM", "BN", "MODEL.WEIGHTS", ""],
    )


@pytest.fixture(scope="module")
def pair():
    """Return Detectron2's model with random weights, and the OCR model that has loaded them."""
    cfg = model_zoo.get_config(f"{FOLDER}/panoptic_fpn_R_50_1x.yaml")
    cfg.merge_from_list([*THRESHOLD, "MODEL.WEIGHTS", ""])
    torch.manual_seed(0)
    published, own = build_model(cfg).eval(), build_model(own_config("R_50_1x")).eval()
    with torch.no_grad():  # frozen norms keep the size of features, as after training
        for name, buffer in published.named_buffers():
            if name.endswith("conv3.norm.weight"):
                buffer.fill_(0.3)
        published.sem_seg_head.predictor.bias.normal_()
    found = own.load_state_dict(published.state_dict(), strict=False)
    assert not found.unexpected_keys
    new = ("sem_seg_head.context.", "sem_seg_head.bottleneck.", "sem_seg_head.refined_predictor.")
    assert found.missing_keys and all(name.startswith(new) for name in found.missing_keys)
    return published, own


@pytest.fixture(scope="module")
def image():
    noise = torch.rand(3, 9, 11, generator=torch.Generator().manual_seed(1))
    image = torch.nn.functional.interpolate(noise[None], size=(200, 249), mode="bicubic")[0]
    return [{"image": (255 * image).clamp(0, 255).byte(), "height": 300, "width": 373}]


@pytest.mark.slow
def test_the_model_as_trained_computes_the_same(pair, image):
    """Semantic logits, instances and the panoptic map are equal bit by bit."""
    with torch.no_grad():
        (expected,), (found,) = (model(image) for model in pair)
    assert torch.equal(found["sem_seg"], expected["sem_seg"])
    assert found["sem_seg"].argmax(0).unique().numel() > 2
    for field, value in expected["instances"].get_fields().items():
        own = found["instances"].get(field)
        assert torch.equal(getattr(own, "tensor", own), getattr(value, "tensor", value)), field
    assert len(expected["instances"]) > 0
    assert torch.equal(found["panoptic_seg"][0], expected["panoptic_seg"][0])
    assert found["panoptic_seg"][1] == expected["panoptic_seg"][1]


@pytest.mark.parametrize("name", ZOO_WEIGHTS)
def test_the_addresses_are_the_zoos(name):
    url = model_zoo.get_checkpoint_url(f"{name}.yaml")
    assert ZOO_WEIGHTS[name] == "detectron2://" + url.partition("/detectron2/")[2]


def test_the_name_of_a_zoo_config_is_enough(tmp_path, monkeypatch):
    """Its weights are downloaded, or a line names source and destination; no data are needed."""
    (name, address), *_ = ZOO_WEIGHTS.items()
    for variable in ("FVCORE_CACHE", "DETECTRON2_DATASETS"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr("iopath.common.file_io.download", Mock(side_effect=OSError("no network")))
    file = tmp_path / address.replace("://", "/")
    with pytest.raises(OSError, match=rf"no network\).*download https://\S*.pkl .* to {file}, or"):
        trained_model(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    cfg = trained_model(f"configs/{name}.yaml").cfg
    assert address == cfg.MODEL.WEIGHTS
    assert class_metadata(cfg).thing_classes[0] == "person"
    with pytest.raises(FileNotFoundError, match="The weights my.pth do not exist"):
        trained_model(name, None, {"MODEL.WEIGHTS": "my.pth"})


@pytest.mark.parametrize("name", NAMES)
def test_the_config_continues_the_zoos_weights(name):
    zoo = f"{FOLDER}/panoptic_fpn_{name}.yaml"
    file = f"panoptic_fpn_ocr_{NAMES[name]}.yaml"
    cfg, theirs = load_config(str(CONFIGS / FOLDER / file), []), model_zoo.get_config(zoo)
    assert ZOO_WEIGHTS[f"{FOLDER}/panoptic_fpn_{name}"] == cfg.MODEL.WEIGHTS
    assert cfg.MODEL.RESNETS.DEPTH == theirs.MODEL.RESNETS.DEPTH
    assert (cfg.MODEL.PIXEL_MEAN, cfg.INPUT.FORMAT) == (theirs.MODEL.PIXEL_MEAN, "BGR")
    solver = cfg.SOLVER
    assert solver.HEAD_LR_FACTOR * solver.BASE_LR == theirs.SOLVER.BASE_LR
    assert solver.MAX_ITER == 30000 and solver.IMS_PER_BATCH == theirs.SOLVER.IMS_PER_BATCH
