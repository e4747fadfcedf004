"""Add a context scheme and a loss to the tables of ocr_panoptic."""

import torch.nn.functional as F

from ocr_panoptic.layers import ContextScheme, resize
from ocr_panoptic.modeling.context import COMMON, CONTEXT_SCHEMES
from ocr_panoptic.modeling.losses import LOSSES


class Mean(ContextScheme):
    def __init__(self, channels, **options):
        super().__init__(channels, **options)
        self.g = self.conv_norm_relu(2 * channels, channels)

    def forward(self, x, m):
        mean = x.mean(dim=(2, 3), keepdim=True).expand_as(x)
        return self.dropout(self.g(x, mean))


def smooth(logits, targets, ignore_value, class_weights=None, align_corners=False):
    logits = resize(logits, targets.shape[1:], align_corners)
    options = {"ignore_index": ignore_value, "label_smoothing": 0.1}
    return F.cross_entropy(logits, targets, class_weights, **options)


CONTEXT_SCHEMES["Mean"] = (Mean, {"channels": "MODEL.OCR.CHANNELS", **COMMON})
LOSSES["smooth"] = smooth
