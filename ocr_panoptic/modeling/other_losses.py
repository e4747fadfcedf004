"""
Adds further losses to :data:`.LOSSES`.

To add a loss, write its function and add an entry to ``LOSSES`` below. The entry's key is the name
of the loss in MODEL.SEM_SEG_HEAD.LOSS_TYPE.
"""

from ocr_panoptic.layers.class_losses import binary_cross_entropy, dice_loss, lovasz_softmax
from ocr_panoptic.layers.rmi import region_mutual_information

from .losses import LOSSES

LOSSES |= {
    "binary_cross_entropy": binary_cross_entropy,
    "dice": dice_loss,
    "lovasz": lovasz_softmax,
    "rmi": region_mutual_information,
}
