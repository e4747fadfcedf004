"""Training in the memory layout of mixed precision."""

import pytest
import torch
from detectron2.modeling import build_model
from torch import nn

from support.segmentors import make_batch, make_cfg


def semantic_losses(model: nn.Module, examples: list[dict]) -> dict[str, torch.Tensor]:
    """Return the semantic losses; Panoptic-FPN's boxes are left out, as they need float32."""
    if "instances" not in examples[0]:
        return model(examples)
    labels = torch.stack([example["sem_seg"] for example in examples])
    features = model.backbone(model.preprocess_image(examples).tensor)
    return model.sem_seg_head(features, labels)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_channels_last_memory_keeps_losses_and_gradients(small_cfg, batch, kind):
    """Losses and gradients in float64 are equal up to rounding."""
    torch.manual_seed(0)
    is_panoptic = kind == "panoptic"
    model = build_model(small_cfg() if is_panoptic else make_cfg()).double().train()
    examples, found = batch() if is_panoptic else make_batch(), []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        model.to(memory_format=memory_format).zero_grad()
        torch.manual_seed(1)  # for equal dropout
        losses = semantic_losses(model, examples)
        sum(losses.values()).backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append((losses, gradients))
    assert len(found[0][1]) > 50
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)
