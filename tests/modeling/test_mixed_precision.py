"""Training in mixed precision, and in its memory order."""

import pytest
import torch
from detectron2.modeling import build_model
from detectron2.utils.events import EventStorage
from torch import nn

from support.segmentors import make_batch, make_cfg


def semantic_losses(model: nn.Module, examples: list[dict]) -> dict[str, torch.Tensor]:
    """Return the semantic losses; Panoptic-FPN's boxes are left out, because they need float32."""
    if "instances" not in examples[0]:
        return model(examples)
    labels = torch.stack([example["sem_seg"] for example in examples])
    features = model.backbone(model.preprocess_image(examples).tensor)
    return model.sem_seg_head(features, labels)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["panoptic", "cross_entropy", "ohem"])
def test_losses_and_gradients(small_cfg, batch, kind):
    """They are equal in channels-last memory, and near in bfloat16."""
    torch.manual_seed(0)
    is_panoptic, found = kind == "panoptic", []
    cfg = small_cfg() if is_panoptic else make_cfg("MODEL.SEM_SEG_HEAD.LOSS_TYPE", kind)
    model, examples = build_model(cfg).double().train(), batch() if is_panoptic else make_batch()
    for memory_format in (torch.contiguous_format, torch.channels_last):
        model.to(memory_format=memory_format).zero_grad()
        torch.manual_seed(1)  # of dropout
        losses = semantic_losses(model, examples)
        sum(losses.values()).backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append((losses, gradients))
    assert len(found[0][1]) > 50
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)

    model.float().zero_grad()
    with EventStorage():
        for enabled in (False, True):
            torch.manual_seed(1)
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                found.append(model(examples))
    sum(found[-1].values()).backward()
    assert all(p.grad.isfinite().all() for p in model.sem_seg_head.parameters())
    assert all(loss.isfinite() for loss in found[-1].values())
    for name in losses:
        assert found[-1][name].dtype == torch.float32 and found[-1][name] != found[-2][name]
        assert found[-1][name].item() == pytest.approx(found[-2][name].item(), rel=0.03)
