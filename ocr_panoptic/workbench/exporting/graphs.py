"""
The exported networks, which turn a resized image into labels, or into labels and instances.

:mod:`.stages` has the resizing before a network and the panoptic merge after it.

Shape shorthand: H W size of the network's input image, Ho Wo size of the label map, K classes, h w
feature size, M instances, s side of a mask.
"""

import torch
import torch.nn.functional as F
from detectron2.modeling import PanopticFPN
from torch import Tensor, nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.modeling import OCRSemanticSegmentor
from ocr_panoptic.modeling.inference_model import evenly_padded
from ocr_panoptic.modeling.panoptic_segmentor import PanopticSegmentor
from ocr_panoptic.modeling.timm_parts import WindowBlock, replace

from .instances import check_instances, find_instances
from .operators import confident_labels


class SemanticGraph(nn.Module):
    """An exportable ``OCRSemanticSegmentor``, which turns a resized image into labels."""

    outputs: tuple[str, ...] = ("labels", "confidences", "logits")
    stride = 32  # stride of the network's coarsest map, in pixels of the image
    model: OCRSemanticSegmentor | PanopticFPN

    def __init__(self, model: OCRSemanticSegmentor | PanopticFPN, channel_order: str):
        super().__init__()
        channels = model.pixel_mean.numel()
        if channel_order not in ("RGB", "BGR") or channels != 3:
            raise UserError(
                f"INPUT.FORMAT is {channel_order} and INPUT.CHANNELS is {channels}; only models "
                "for RGB or BGR images with 3 channels can be exported"
            )
        context = getattr(model.sem_seg_head, "context", None)
        if context is not None and context.needs_truth:
            raise UserError(
                f"The context scheme in MODEL.CONTEXT.NAME ({type(context).__name__}) needs the "
                "ground truth of every image, so it cannot be exported"
            )
        if any(isinstance(module, WindowBlock) for module in model.modules()):
            raise UserError(
                "Swin networks cannot be exported: PyTorch's exporter never finishes. "
                "ConvNeXt, ViT, PVT v2, ResNet and EfficientNet can be exported"
            )
        # Padding that depends on the size nests expressions of sizes, and tracing takes minutes.
        self.model = evenly_padded(model)
        self.is_bgr = channel_order == "BGR"
        self.check()

    def check(self) -> None:
        """Raise UserError if the model has settings that cannot be exported."""
        if not self.model.sees_images_once:
            raise UserError(
                "TEST.SCALES, TEST.FLIP or TEST.SLIDING_WINDOW is set, but an exported model sees "
                "each image once. Set TEST.SCALES [1.0], TEST.FLIP False and "
                "TEST.SLIDING_WINDOW.SIZE [] and STRIDE []"
            )

    @property
    def divisor(self) -> int:
        """Return the number that divides the height and width of every padded image."""
        return self.model.divisor

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """
        Return labels, confidences and logits.

        Labels are int32 [Ho, Wo] in 0..K-1. Confidences, float32 [Ho, Wo], are the probabilities of
        the labels. Logits, float32 [K, h, w], cover the padded image.

        Args:
            image: image, int32 [H, W, 3] RGB, 0..255.
            size: Ho and Wo, int64 [2].
        """
        x = self.prepared(image)
        logits = self.logits(self.model.backbone(x))
        return self.labels(logits, x, image, size)

    def prepared(self, image: Tensor) -> Tensor:
        """Return the normalised image, zero-padded at the bottom and right, [1, 3, padded H, W]."""
        x = image.permute(2, 0, 1)
        x = (x.flip(0) if self.is_bgr else x) - self.model.pixel_mean
        x = x / self.model.pixel_std
        # Written as a multiple of the divisor, so that the exporter can derive the features' sizes.
        bottom, right = (
            (side + self.divisor - 1) // self.divisor * self.divisor - side
            for side in image.shape[:2]
        )
        return F.pad(x[None], (0, right, 0, bottom))

    def logits(self, features: dict[str, Tensor]) -> Tensor:
        """Return the final logits, [1, K, h, w]."""
        predicted = self.model.sem_seg_head.layers(features)
        return predicted[1] if isinstance(predicted, tuple) else predicted  # (coarse, refined)

    def labels(self, logits: Tensor, x: Tensor, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """
        Return labels, confidences and logits, as described in :meth:`forward`.

        ``x`` is the padded image; only the sizes of ``x`` and ``image`` are used.
        """
        align_corners = getattr(self.model.sem_seg_head, "align_corners", False)
        return *confident_labels(logits, x, image, size, align_corners), logits[0]


class ShuffledConv(nn.Module):
    """A transposed convolution of 2x2 pixels with stride 2, as 1x1 convolution and shuffle."""

    def __init__(self, conv: nn.ConvTranspose2d):
        super().__init__()
        assert conv.bias is not None
        weight = conv.weight.detach().permute(1, 2, 3, 0).flatten(0, 2)  # [4 O, I]
        self.weight = nn.Parameter(weight[:, :, None, None])
        self.bias = nn.Parameter(conv.bias.detach().repeat_interleave(4))

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(F.conv2d(x, self.weight, self.bias), 2)


def _shuffled(conv: nn.ConvTranspose2d) -> nn.Module:
    """Return a module that runtimes compute faster, and can quantise, if there is one."""
    is_shuffle = conv.kernel_size == conv.stride == (2, 2) and conv.padding == (0, 0)
    return ShuffledConv(conv) if is_shuffle and conv.bias is not None else conv


class PanopticGraph(SemanticGraph):
    """An exportable panoptic model, which turns a resized image into labels and instances."""

    outputs = (*SemanticGraph.outputs, "boxes", "scores", "classes", "masks")
    stride = 64  # stride of the RPN's coarsest map

    def check(self) -> None:
        check_instances(self.model)
        replace(self.model, nn.ConvTranspose2d, _shuffled)
        if getattr(self.model, "augmentation", None):
            raise UserError(
                "TEST.AUG.ENABLED is True, but an exported model sees each image once. Set it to "
                "False"
            )

    @property
    def divisor(self) -> int:
        constraints = self.model.backbone.padding_constraints
        return constraints.get("size_divisibility", self.model.backbone.size_divisibility) or 1

    def forward(self, image: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        """
        Return labels, confidences, logits, and the instances' boxes, scores, classes and masks.

        Labels, confidences and logits are described in :meth:`SemanticGraph.forward`. Boxes,
        float32 [M, 4], are x0, y0, x1, y1 in pixels of the label map. Scores, float32 [M], are in
        descending order. Thing classes are int64 [M]. Masks, float32 [M, s, s], are the
        probabilities inside the boxes.
        """
        x = self.prepared(image)
        features = self.model.backbone(x)
        labels = self.labels(self.logits(features), x, image, size)
        height, width = image.shape[:2]
        boxes, *others = find_instances(self.model, features, (height, width))
        down, right = (wanted.to(boxes.dtype) for wanted in size.unbind())
        scale = torch.stack([right / width, down / height] * 2)
        limits = torch.stack([right, down] * 2)
        return *labels, (boxes * scale).clamp(min=0).minimum(limits), *others


def build_graph(model: nn.Module, channel_order: str) -> SemanticGraph:
    """Return the exportable graph of a model whose INPUT.FORMAT is ``channel_order``."""
    # Subclasses are refused, since they may compute something else.
    if type(model) in (PanopticFPN, PanopticSegmentor):
        return PanopticGraph(model, channel_order)
    if type(model) is OCRSemanticSegmentor:
        return SemanticGraph(model, channel_order)
    raise UserError(
        f"MODEL.META_ARCHITECTURE is {type(model).__name__}; only PanopticSegmentor, "
        "PanopticFPN and OCRSemanticSegmentor can be exported"
    )
