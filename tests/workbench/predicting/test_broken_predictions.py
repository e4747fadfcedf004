"""Weights that make a network predict nothing that has a meaning."""

import pytest
import torch

from ocr_panoptic.engine import Trainer, complete_config, load_config


@pytest.fixture
def broken(model_of, tmp_path):
    """Factory: a model's arguments, with one NaN in its weights."""

    def make(kind: str) -> list[str]:
        model = model_of(kind)
        content = torch.load(model[3])
        name = next(n for n in content["model"] if n.endswith("conv1.weight"))
        content["model"][name].view(-1)[0] = float("nan")
        torch.save(content, tmp_path / "broken.pth")
        return [*model[:3], str(tmp_path / "broken.pth"), *model[4:]]

    return make


@pytest.mark.slow
def test_a_nan_in_the_weights(broken, call, images, tmp_path):
    """A NaN is refused, which made all labels 0."""
    with pytest.raises(ValueError, match=r"broken.pth are broken: 1 values of .*conv1.weight are"):
        call(broken("panoptic"), images)


def test_a_nan_in_the_weights_of_an_evaluation(broken):
    """A NaN is refused, which gave the PQ of the class 0."""
    model = broken("semantic")
    cfg = load_config(model[1], [*model[4:], "MODEL.WEIGHTS", model[3]])
    complete_config(cfg)
    with pytest.raises(ValueError, match=r"broken.pth are broken"):
        Trainer.evaluate(cfg)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_scores_that_are_not_finite(kind, model_of, call, images, tmp_path):
    """The image has no results, and the reason stands where all do, if only scores overflow."""
    model = model_of(kind)
    content = torch.load(model[3])
    name = next(n for n in content["model"] if n.endswith("refined_predictor.weight"))
    content["model"][name].fill_(3e38)
    torch.save(content, tmp_path / "huge.pth")
    assert call([*model[:3], str(tmp_path / "huge.pth"), *model[4:]], images) == 1
    lines = (tmp_path / "out/missing.txt").read_text().splitlines()
    assert len(lines) == len([*images.iterdir()])
    assert all("of 4,096 pixels are not finite" in line and str(images) in line for line in lines)
