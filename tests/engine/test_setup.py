"""What a user can get wrong before training starts."""

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

from ocr_panoptic.engine import complete_config, load_config

from .conftest import CONFIGS, OCR_CONFIG

TINY_NAMES = ["DATASETS.TRAIN", "('tiny_train',)", "DATASETS.TEST", "('tiny_val',)"]


def complete(*opts: str, config=OCR_CONFIG) -> CfgNode:
    cfg = load_config(str(config), [*TINY_NAMES, *opts])
    complete_config(cfg)
    return cfg


def test_class_counts_come_from_the_data(tiny_data):
    cfg = complete()
    metadata = MetadataCatalog.get("tiny_train")
    assert cfg.MODEL.ROI_HEADS.NUM_CLASSES == len(metadata.thing_classes) == 4
    assert cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES == len(metadata.stuff_classes) == 6


@pytest.mark.parametrize("head, found", [("ROI_HEADS", 4), ("SEM_SEG_HEAD", 6)])
def test_other_class_count_than_the_data(tiny_data, head, found):
    key = f"MODEL.{head}.NUM_CLASSES"
    with pytest.raises(ValueError, match=f"{key} is 80, but tiny_train has {found}"):
        complete(key, "80")
    assert found == complete(key, str(found)).MODEL[head].NUM_CLASSES


def test_coco_config_has_cocos_counts_and_needs_no_files():
    cfg = load_config(str(CONFIGS / "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x.yaml"), [])
    complete_config(cfg)
    assert (cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES) == (80, 54)


def test_data_set_without_semantic_segmentation(tiny_data):
    with pytest.raises(ValueError, match="coco_2017_val is not a data set that Panoptic-FPN"):
        complete("DATASETS.TEST", "('coco_2017_val',)")


def test_unregistered_data_set_names_what_there_is(tiny_data):
    with pytest.raises(ValueError, match=r"DATASETS.TEST names tiny_vall.*tiny_val.*prepare_pano"):
        complete("DATASETS.TEST", "('tiny_vall',)")


def test_polygon_masks_of_prepared_data(tiny_data):
    with pytest.raises(ValueError, match="INPUT.MASK_FORMAT is polygon.*bitmask"):
        complete("INPUT.MASK_FORMAT", "polygon")


def test_unknown_key_on_the_command_line():
    with pytest.raises(ValueError, match=r"MODEL.OCR.CHANELS.*Did you mean MODEL.OCR.CHANNELS\?"):
        load_config(str(OCR_CONFIG), ["MODEL.OCR.CHANELS", "64"])


def test_unknown_key_in_a_file(tmp_path):
    (tmp_path / "c.yaml").write_text("MODEL:\n  OCR:\n    CHANELS: 64\n")
    with pytest.raises(ValueError, match=r"MODEL.OCR.CHANELS in .*c.yaml. Did you mean MODEL.OCR"):
        load_config(str(tmp_path / "c.yaml"), [])


@pytest.mark.parametrize("value", ["many", "(1, 2)"])
def test_value_of_another_type(value):
    with pytest.raises(ValueError, match="Bad config value in the command line"):
        load_config(str(OCR_CONFIG), ["MODEL.OCR.CHANNELS", value])


def test_missing_value_and_missing_file():
    with pytest.raises(ValueError, match="KEY VALUE pairs"):
        load_config(str(OCR_CONFIG), ["SOLVER.BASE_LR"])
    with pytest.raises(FileNotFoundError, match=r"nowhere.yaml"):
        load_config("nowhere.yaml", [])


def test_yaml_runs_no_code(tmp_path):
    marker = tmp_path / "marker"
    (tmp_path / "c.yaml").write_text(f"OUTPUT_DIR: !!python/object/apply:os.mkdir ['{marker}']\n")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_config(str(tmp_path / "c.yaml"), [])
    assert not marker.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_device_follows_the_machine(tiny_data):
    assert complete().MODEL.DEVICE == "cpu"
    with pytest.raises(ValueError, match="MODEL.DEVICE is cuda, but torch sees no GPU"):
        complete("MODEL.DEVICE", "cuda")
    with pytest.raises(ValueError, match="SOLVER.AMP.ENABLED is True"):
        complete("SOLVER.AMP.ENABLED", "True")


def test_device_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert load_config(str(OCR_CONFIG), []).MODEL.DEVICE == "cuda"
    assert load_config(str(OCR_CONFIG), ["MODEL.DEVICE", "cpu"]).MODEL.DEVICE == "cpu"


def test_sync_bn_only_where_there_is_something_to_synchronise(tiny_data, monkeypatch):
    cfg = complete()
    assert cfg.MODEL.OCR.NORM == cfg.MODEL.RESNETS.NORM == "BN"
    assert cfg.MODEL.SEM_SEG_HEAD.NORM == "GN"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: 2)
    assert complete("MODEL.DEVICE", "cuda").MODEL.OCR.NORM == "SyncBN"
    assert complete("MODEL.DEVICE", "cpu").MODEL.OCR.NORM == "BN"
