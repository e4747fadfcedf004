"""Classes that weights and data share by name keep their rows of the classifiers."""

import copy

import numpy as np
import torch

from ocr_panoptic.checkpoint.checkpointer import SafeCheckpointer
from ocr_panoptic.checkpoint.class_rows import ZOO_WEIGHTS, rows_by_name, zoo_classes

THEIRS = {"thing_classes": ["cat", "dog"], "stuff_classes": ["things", "sky", "sea"]}
OURS = {"thing_classes": ["cow", "Dog", "hen"], "stuff_classes": ["things", "grass", "sky"]}
BOX, MASK = "roi_heads.box_predictor", "roi_heads.mask_head.predictor"


def test_rows_are_matched_by_class_name():
    weights = {
        f"{BOX}.cls_score.bias": np.array([1.0, 2, 9], np.float32),  # the last row is background
        f"{BOX}.bbox_pred.weight": torch.arange(1.0, 9)[:, None],
        f"{MASK}.weight": torch.tensor([1.0, 2])[:, None, None, None],
        "sem_seg_head.predictor.bias": torch.tensor([7.0, 1, 2]),
        "backbone.weight": torch.ones(2),
    }
    own = {
        f"{BOX}.cls_score.bias": torch.zeros(4),
        f"{BOX}.bbox_pred.weight": torch.zeros(12, 1),
        f"{MASK}.weight": torch.zeros(3, 1, 1, 1),
        "sem_seg_head.predictor.bias": torch.full((3,), -1.0),  # the same shape
        "sem_seg_head.refined_predictor.bias": torch.zeros(3),
        "backbone.weight": torch.zeros(2),
    }
    found, kept, new = rows_by_name(weights, own, THEIRS, OURS)
    assert found.keys() == weights.keys()
    assert found[f"{BOX}.cls_score.bias"].tolist() == [0, 2, 0, 9]
    assert found[f"{BOX}.bbox_pred.weight"].flatten().tolist() == [0] * 4 + [5, 6, 7, 8] + [0] * 4
    assert found[f"{MASK}.weight"].flatten().tolist() == [0, 2, 0]
    assert found["sem_seg_head.predictor.bias"].tolist() == [7, -1, 1]
    assert found["backbone.weight"] is weights["backbone.weight"]
    assert (kept, new) == (["Dog", "sky"], ["cow", "hen", "grass"])


def test_rows_shared_by_all_classes_stay():
    weights = {f"{BOX}.bbox_pred.weight": torch.ones(4, 1), f"{MASK}.weight": torch.ones(1, 1)}
    own = {name: torch.zeros_like(value) for name, value in weights.items()}
    found, kept, new = rows_by_name(weights, own, THEIRS, OURS)
    assert all(found[name] is value for name, value in weights.items())
    assert not kept and not new


def test_a_training_keeps_the_rows_of_shared_classes(tmp_path):
    """The semantic classifier has the same shape before and after."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"sem_seg_head": torch.nn.ModuleDict()})
    model["sem_seg_head"]["predictor"] = torch.nn.Conv2d(2, 3, 1)
    before = copy.deepcopy(model.state_dict())
    weights = {name: torch.full_like(value, 5.0) for name, value in before.items()}
    torch.save({"model": weights, "identity": {"classes": THEIRS}}, tmp_path / "model.pth")
    for by_class, new in ((True, [1]), (False, [])):
        model.load_state_dict(before)
        checkpointer = SafeCheckpointer(model, identity={"classes": OURS}, by_class=by_class)
        checkpointer.load(str(tmp_path / "model.pth"))
        expected = before["sem_seg_head.predictor.bias"].where(
            torch.tensor([place in new for place in range(3)]), torch.tensor(5.0)
        )
        assert torch.equal(model["sem_seg_head"]["predictor"].bias, expected)
        said = "sky keep their rows of the classifiers; grass start anew"
        assert (said in checkpointer.summary()) is by_class


def test_the_zoos_files_know_cocos_classes():
    (file, *_) = ZOO_WEIGHTS.values()
    found = zoo_classes(f"downloads/{file.rpartition('/')[2]}")
    assert (len(found["thing_classes"]), found["stuff_classes"][0]) == (80, "things")
    assert {"person", "sky"} < {*found["thing_classes"], *found["stuff_classes"]}
    assert zoo_classes("model_final.pth") is None
