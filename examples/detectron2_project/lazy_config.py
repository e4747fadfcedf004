"""Give the Panoptic-FPN of Detectron2's LazyConfig the head with OCR."""

from detectron2 import model_zoo
from detectron2.config import LazyCall, instantiate

from ocr_panoptic.layers import OCR
from ocr_panoptic.modeling.losses import SemSegCriterion
from ocr_panoptic.modeling.ocr_sem_seg_fpn_head import OCRSemSegFPNHead

model = model_zoo.get_config("common/models/panoptic_fpn.py").model
# Detectron2's head moves a level down, where its reference to the backbone's channels would fail.
for shape in model.sem_seg_head.input_shape.values():
    shape.channels = model.backbone.out_channels
model.sem_seg_head = LazyCall(OCRSemSegFPNHead)(
    plain=model.sem_seg_head,
    context=LazyCall(OCR)(in_channels=512, key_channels=256, out_channels=512),
    criterion=LazyCall(SemSegCriterion)(num_classes=54, loss_weight=0.25, coarse_loss_weight=0.25),
)
network = instantiate(model)
