"""The head inside Detectron2's own PanopticFPN."""

import pytest
import torch
from detectron2.modeling import build_model
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from detectron2.utils.events import EventStorage

from ocr_panoptic.modeling import OCRSemSegFPNHead
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES

NARROW = (
    *("MODEL.FPN.OUT_CHANNELS", "32", "MODEL.SEM_SEG_HEAD.CONVS_DIM", "32"),
    *("MODEL.ROI_BOX_HEAD.FC_DIM", "32", "MODEL.ROI_MASK_HEAD.CONV_DIM", "32"),
)
THEIRS = (
    *("MODEL.META_ARCHITECTURE", "PanopticFPN", "MODEL.ROI_HEADS.NAME", "StandardROIHeads"),
    *("MODEL.ROI_MASK_HEAD.NAME", "MaskRCNNConvUpsampleHead"),
)


def test_pixels_that_pad_a_batch_have_no_label(small_cfg, batch, monkeypatch):
    """PanopticFPN pads the labels of the smaller image with the head's ignored label."""
    model = build_model(small_cfg("ocr")).train()
    head, seen = model.sem_seg_head, []
    losses = head.losses
    monkeypatch.setattr(head, "losses", lambda *given: seen.append(given[1]) or losses(*given))
    records = [*batch(1, 64, 96), *batch(1, 64, 64)]
    with EventStorage():
        model(records)
    (targets,) = seen
    for labels, record in zip(targets, records, strict=True):
        width = record["sem_seg"].shape[1]
        assert torch.equal(labels[:64, :width], record["sem_seg"])
        assert (labels[:, width:] == 255).all() and (labels[64:] == 255).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme, size",
    [("OCR", (100, 149)), *((name, (64, 96)) for name in CONTEXT_SCHEMES if name != "GT-OCR")],
)
def test_panoptic_fpn_trains_and_infers(small_cfg, batch, scheme, size):
    torch.manual_seed(0)
    model = build_model(small_cfg("ocr", *NARROW, *THEIRS, "MODEL.CONTEXT.NAME", scheme))
    assert type(model) is PanopticFPN and isinstance(model.sem_seg_head, OCRSemSegFPNHead)
    records = batch(2, *size)
    with EventStorage():
        losses = model.train()(records)
        sum(losses.values()).backward()
    assert {"loss_sem_seg", "loss_sem_seg_coarse", "loss_mask", "loss_box_reg"} <= set(losses)
    assert all(loss.isfinite() for loss in losses.values())
    parts = [n for n, _ in model.sem_seg_head.named_parameters()]
    assert all(model.sem_seg_head.get_parameter(n).grad is not None for n in parts)
    with torch.no_grad():
        model.sem_seg_head.refined_predictor.bias[0] -= 10  # class 0 is "things"; stuff should win
        output = model.eval()(records[:1])[0]
    # The panoptic map's stuff comes from this scheme's refined prediction.
    semantic = output["sem_seg"].argmax(0)
    panoptic, segments = output["panoptic_seg"]
    assert output["sem_seg"].shape == (4, *size) and panoptic.shape == size
    assert any(not s["isthing"] for s in segments)
    for s in segments:
        if not s["isthing"]:
            assert (semantic[panoptic == s["id"]] == s["category_id"]).all()
