"""A config's names are the classes that are built, and runs of earlier versions go on equally."""

import copy
import shutil

import pytest
import torch
import yaml
from detectron2.config import CfgNode
from detectron2.modeling import StandardROIHeads, build_model
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from detectron2.modeling.roi_heads.mask_head import MaskRCNNConvUpsampleHead
from detectron2.utils.events import EventStorage

import ocr_panoptic
from ocr_panoptic.config.files import CLASS_KEYS, EXACT, load_config, values_by_key
from ocr_panoptic.config.rules import value_of
from ocr_panoptic.modeling import ExactMaskHead, ExactROIHeads, PanopticSegmentor, deploy
from support.segmentors import trained_panoptic
from support.tiny_runs import images_of
from train_net import main

THEIRS = [PanopticFPN, StandardROIHeads, MaskRCNNConvUpsampleHead]
OURS = [PanopticSegmentor, ExactROIHeads, ExactMaskHead]
DETECTRON2 = [word for pair in zip(CLASS_KEYS, EXACT) for word in pair]


def text_of_version_1(text: str) -> str:
    """Return a run's config as version 1 wrote it, which named Detectron2's classes."""
    values = yaml.safe_load(text)
    del values["OCR_VERSION"]
    cfg = CfgNode(values)
    cfg.merge_from_list(DETECTRON2)
    return cfg.dump()


def classes(model) -> list[type]:
    return [type(m) for m in (model, model.roi_heads, model.roi_heads.mask_head)]


@pytest.mark.parametrize("source", ["config file", "settings of a checkpoint"])
@pytest.mark.parametrize("kind", ["version 1", "this version", "by hand"])
def test_names_in_configs(kind, source, small_cfg, tmp_path):
    """Only a run of version 1 has Detectron2's names for this project's classes."""
    text = small_cfg("ocr", *DETECTRON2).dump()
    if kind == "version 1":
        text = text_of_version_1(text)
    elif kind == "by hand":
        parts = {"META_ARCHITECTURE": "PanopticFPN", "ROI_HEADS": {"NAME": "StandardROIHeads"}}
        text = yaml.safe_dump({"MODEL": parts})
    (file := tmp_path / "config.yaml").write_text(text)
    settings = values_by_key(yaml.safe_load(text))
    cfg = load_config("", [], settings=settings) if "settings" in source else load_config(file, [])
    found = [value_of(cfg, key) for key in CLASS_KEYS]
    assert found == [*EXACT.values()] if kind == "version 1" else found == [*EXACT]


@pytest.mark.parametrize("head", ["ocr", "plain"])
def test_float32_results_equal_detectron2s_classes(head, small_cfg, batch):
    """Losses, logits, boxes, masks and the panoptic map are equal, deployed or not."""
    ours = trained_panoptic(small_cfg(head))
    theirs = build_model(small_cfg(head, *DETECTRON2)).eval()
    theirs.load_state_dict(ours.state_dict())
    assert classes(ours) == OURS and classes(theirs) == THEIRS
    results = []
    for model in (ours, theirs):
        outputs = []
        with torch.no_grad():
            for network in (model, deploy(model)):
                for found in network(copy.deepcopy(batch(2, 90, 121))):
                    instances = found["instances"].get_fields()
                    outputs += [found["sem_seg"], instances["pred_boxes"].tensor]
                    outputs += [instances[name] for name in ("scores", "pred_masks")]
                    outputs.append(found["panoptic_seg"][0])
        assert sum(len(output) for output in outputs[2::5]) > 20
        torch.manual_seed(0)
        with EventStorage():
            losses = model.train()(copy.deepcopy(batch(2)))
        results.append([*outputs, *losses.values()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.slow
def test_a_run_of_version_1_goes_on(trained, tiny_data, tmp_path, monkeypatch):
    """Its folder and its weights give equal results in bfloat16, and ``--resume`` continues it."""
    args = trained("SOLVER.MAX_ITER", 4)
    image = images_of(tiny_data)[0]
    folder, earlier = tmp_path / "run", tmp_path / "earlier"
    shutil.copytree(folder, earlier)
    file = earlier / "config.yaml"
    file.write_text(text_of_version_1(file.read_text()))
    for weights in earlier.glob("*.pth"):
        content = torch.load(weights, weights_only=True)
        content["identity"]["settings"] = text_of_version_1(content["identity"]["settings"])
        content["trainer"]["config"] = text_of_version_1(content["trainer"]["config"])
        torch.save(content, weights)
    keys = {"TEST.PRECISION": "bfloat16", "MODEL.ROI_HEADS.SCORE_THRESH_TEST": 0.0}
    expected = ocr_panoptic.load(folder, **keys).predict(image)
    for run in (earlier, earlier / "model_final.pth"):
        model = ocr_panoptic.load(run, **keys)
        assert classes(model.module) == OURS
        found = model.predict(image)
        assert torch.equal(found.instances.pred_masks, expected.instances.pred_masks)
        assert (found.ids == expected.ids).all()
    args.resume, args.opts = True, [*args.opts, "OUTPUT_DIR", str(earlier), "SOLVER.MAX_ITER", "6"]
    main(args)
    assert classes(ocr_panoptic.load(earlier).module) == OURS


@pytest.mark.slow
def test_detectron2s_classes_train_and_predict(trained, tiny_data, tmp_path):
    """They stay in the run's config; their weights also fit this project's classes."""
    trained(*DETECTRON2)
    image, folder = images_of(tiny_data)[0], tmp_path / "run"
    low = {"MODEL.ROI_HEADS.SCORE_THRESH_TEST": 0.0}
    keys = [low, low | dict(zip(CLASS_KEYS, EXACT.values()))]
    models = [ocr_panoptic.load(folder, **some) for some in keys]
    assert [classes(model.module) for model in models] == [THEIRS, OURS]
    found, other = (model.predict(image) for model in models)
    assert torch.equal(found.instances.scores, other.instances.scores)
    assert (found.ids == other.ids).all() and (found.confidence == other.confidence).all()
