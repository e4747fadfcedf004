"""The part of a model that the weights of a file fill, and too small a one to start from."""

import re

import pytest
import torch
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer
from ocr_panoptic.checkpoint.fit import Fit, Shape
from ocr_panoptic.engine import load_config


def fit_of(found: dict[str, Shape], expected: dict[str, Shape]) -> Fit:
    misshapen = [
        (n, found[n], expected[n]) for n in found if expected.get(n) not in (None, found[n])
    ]
    missing, unexpected = expected.keys() - found.keys(), [n for n in found if n not in expected]
    return Fit.of(expected, missing, misshapen, unexpected)


def test_by_hand():
    """One of four tensors is missing, one of another shape, and one of the file is not used;
    counters and pixel statistics are nobody's business."""
    model = {"a.weight": (2, 3), "a.bias": (2,), "b.weight": (4,), "b.bias": (4,)}
    model |= {"pixel_mean": (3,), "b.num_batches_tracked": ()}
    file = {"a.weight": (2, 3), "b.weight": (5,), "b.bias": (4,), "c.bias": (1,)}
    fit = fit_of(file | {"c.num_batches_tracked": ()}, model)
    assert fit.names == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert fit.faults == {
        "a.bias": "missing in the file",
        "b.weight": "(5,) in the file, (4,) in the model",
    }
    assert fit.unused == ["c.bias"]
    assert fit.listing(2).splitlines()[1:] == [
        "  a.bias: missing in the file",
        "  b.weight: (5,) in the file, (4,) in the model",
        "  ...",
    ]
    assert fit.backbone_share() == 1  # there is none


def test_the_backbone_is_the_network_below_an_fpn():
    """Hand-worked: 2 of 3 tensors; running statistics may be within weight and bias."""
    names = ["conv.weight", "norm.weight", "norm.running_mean", "last.weight"]
    model = {f"backbone.bottom_up.{name}": (1,) for name in names}
    model |= {"backbone.fpn_lateral2.weight": (1,), "head.weight": (1,)}
    file = {name: (1,) for name in list(model)[:2]}
    assert fit_of(file, model).backbone_share() == pytest.approx(2 / 3)
    plain = {name.replace("bottom_up.", ""): shape for name, shape in model.items()}
    assert fit_of(dict(list(plain.items())[:2]), plain).backbone_share() == 2 / 4
    added = {"backbone.bottom_up.output_norms.res2.weight": (1,)}  # no file of ImageNet has them
    assert fit_of(file, model | added).backbone_share() == pytest.approx(2 / 3)


@pytest.mark.parametrize("fills", ["backbone", "all but other classes", "four tensors", "head"])
def test_weights_of_another_model_start_no_training(tmp_path, fills):
    def make() -> nn.Module:
        body = [nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)) for _ in range(8)]
        return nn.ModuleDict({"backbone": nn.Sequential(*body), "head": nn.Conv2d(4, 5, 1)})

    weights = make().state_dict()
    if fills == "backbone":
        weights = {k: v for k, v in weights.items() if k.startswith("backbone")}
    elif fills == "all but other classes":
        weights |= {"head.weight": torch.zeros(9, 4, 1, 1), "head.bias": torch.zeros(9)}
    elif fills == "head":
        weights = {k: v for k, v in weights.items() if k.startswith("head")}
    else:
        weights = dict(list(weights.items())[:4])
    path = str(tmp_path / "m.pth")
    torch.save({"model": weights}, path)
    checkpointer = SafeCheckpointer(make(), min_share=0.9)
    if fills in ("backbone", "all but other classes"):
        checkpointer.load(path)
        assert "head " in checkpointer.summary() and "weight, bias" in checkpointer.summary()
        return
    share = {"head": "0%", "four tensors": "12%"}[fills]  # of 8 * 4, without running statistics
    message = f"of another model: they fill {share} of the backbone(.|\n)*WEIGHTS_MIN_SHARE 0 to"
    with pytest.raises(ValueError, match=message) as error:
        checkpointer.load(path)
    advice = re.search(r"set (MODEL\S+) (\S+) to start", str(error.value)).groups()
    min_share = load_config("", list(advice)).MODEL.WEIGHTS_MIN_SHARE
    SafeCheckpointer(make(), min_share=min_share).load(path)
