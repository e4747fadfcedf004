"""
Computes scores, labels and confidence of whole images, with scales, flips and sliding windows.

Here, a network is a function from a normalised image [N,3,H,W] to logits [N,K,h,w]. The logits
cover the whole image at any resolution. Shape letters: N images; K classes; H, W size of the
network's input; h, w size of its logits; Ho, Wo size of the final scores and labels.

All resizing is bilinear without antialiasing. Images are resized with align_corners False, logits
with the network's own align_corners.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from detectron2.config import CfgNode, configurable
from detectron2.data import MetadataCatalog
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers.bands import band_bytes
from ocr_panoptic.layers.resize import resize

LogitsFn = Callable[[Tensor], Tensor]
# Function that yields the scores in groups of G classes, float32 [N,G,Ho,Wo]; the G add up to K.
ClassMaps = Callable[[], Iterator[Tensor]]
Size = tuple[int, int]


class SemanticInference:
    """
    Computes the scores of all classes, with scales, flips and sliding windows.

    Logits are averaged over flips and scales. The authors' code (openseg.pytorch) sums them, which
    gives the same labels; HRNet-Semantic-Segmentation sums exp(logits) instead. At each scale, the
    image is resized, and then its logits are resized to the size of the final scores.

    With one scale and no windows, only a few classes are upsampled at a time. Otherwise the logits
    of all classes are summed at full resolution.

    Args:
        scales: factors by which the image's sides are multiplied.
        flip: whether to average the logits of the image and its mirror image (left to right).
        flip_pairs: pairs of classes to swap in a mirror image, such as left and right arm.
        window_size: height and width of the windows that the network sees; () for the whole image.
            A window larger than the image is cut to the image.
        window_stride: steps (down, right) between windows, at most ``window_size``.
        accumulator_device: device on which logits are summed; "" for the logits' device.
        align_corners: how to resize logits, see :func:`ocr_panoptic.layers.resize`.
    """

    @configurable
    def __init__(
        self,
        *,
        scales: Sequence[float] = (1.0,),
        flip: bool = False,
        flip_pairs: Sequence[tuple[int, int]] = (),
        window_size: Sequence[int] = (),
        window_stride: Sequence[int] = (),
        accumulator_device: str = "",
        align_corners: bool = False,
    ):
        if not scales or min(scales) <= 0:
            raise UserError(
                f"TEST.SCALES is {list(scales)}; expected one or more factors above 0, such as "
                "[1.0] for the original size."
            )
        window_size, window_stride = tuple(window_size), tuple(window_stride)
        if window_size or window_stride:
            two_each = len(window_size) == len(window_stride) == 2
            if not two_each or not all(
                0 < step <= side for step, side in zip(window_stride, window_size, strict=True)
            ):
                raise UserError(
                    f"TEST.SLIDING_WINDOW has SIZE {list(window_size)} and STRIDE "
                    f"{list(window_stride)}; expected [height, width] in pixels for both, with 0 "
                    "< STRIDE <= SIZE. To see the whole image at once, set both to []."
                )
        self.scales = tuple(scales)
        self.flip, self.flip_pairs = flip, tuple(flip_pairs)
        self.window_size, self.window_stride = window_size, window_stride
        self.accumulator_device, self.align_corners = accumulator_device, align_corners

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        # The first data set in DATASETS.TEST, or else in DATASETS.TRAIN, defines the flip pairs.
        names = (*cfg.DATASETS.TEST, *cfg.DATASETS.TRAIN)
        pairs = MetadataCatalog.get(names[0]).get("flip_pairs") if names else None
        return {
            "scales": cfg.TEST.SCALES,
            "flip": cfg.TEST.FLIP,
            "flip_pairs": pairs or (),
            "window_size": cfg.TEST.SLIDING_WINDOW.SIZE,
            "window_stride": cfg.TEST.SLIDING_WINDOW.STRIDE,
            "accumulator_device": cfg.TEST.ACCUMULATOR_DEVICE,
            "align_corners": cfg.MODEL.ALIGN_CORNERS,
        }

    @property
    def sees_images_once(self) -> bool:
        """Whether the network sees each image once, whole and at its own scale."""
        return self.scales == (1.0,) and not self.flip and not self.window_size

    @torch.no_grad()
    def __call__(
        self, logits_fn: LogitsFn, image: Tensor, size: Size, divisor: int = 1
    ) -> ClassMaps:
        """
        Run the network on an image, and return a function that yields the scores.

        Each call of this function yields the scores in groups of G classes, float32 [N,G,Ho,Wo].

        Args:
            logits_fn: network to run.
            image: normalised image, [N,3,H,W].
            size: (Ho, Wo) of the scores.
            divisor: the image, or each window, is padded with zeros at the bottom and on the right
                to multiples of this number; 0 or 1 for no padding.
        """
        if len(self.scales) == 1:
            return self._view(logits_fn, image, size, self.scales[0], divisor)[1]
        total = self.scores(logits_fn, image, size, divisor)
        return lambda: iter(total.split(classes_at_once(total.device, *size), dim=1))

    @torch.no_grad()
    def scores(self, logits_fn: LogitsFn, image: Tensor, size: Size, divisor: int = 1) -> Tensor:
        """Return the mean logits over scales and flips, float32 [N,K,Ho,Wo]."""
        for number, scale in enumerate(self.scales):
            logits, classes = self._view(logits_fn, image, size, scale, divisor)
            if number == 0:
                device = self.accumulator_device or logits.device
                total = torch.zeros(*logits.shape[:2], *size, device=device)
            first = 0
            for group in classes():
                total[:, first : first + group.shape[1]] += group.to(total.device)
                first += group.shape[1]
        return total.div_(len(self.scales))

    def _view(
        self, logits_fn: LogitsFn, image: Tensor, size: Size, scale: float, divisor: int
    ) -> tuple[Tensor, ClassMaps]:
        """Return the image's logits at one scale, and a function that resizes them to ``size``."""
        image_size = [max(1, round(scale * side)) for side in image.shape[-2:]]
        image = resize(image, image_size)
        if self.window_size:
            padded_size = image_size
            logits = joined_rows(self.window_rows(logits_fn, image, divisor), image.shape[-2])
        else:
            image = pad_to_multiple(image, divisor)
            padded_size = [*image.shape[-2:]]
            logits = self._averaged(logits_fn)(image)
        corners = self.align_corners
        return logits, partial(resized_classes, logits, size, image_size, padded_size, corners)

    def window_rows(
        self, logits_fn: LogitsFn, image: Tensor, divisor: int, **prepare: Callable
    ) -> Iterator[Tensor]:
        """
        Yield an image's sliding-window logits in bands of rows, float32 [N,K,rows,W].

        The image is not resized. ``prepare`` is passed to :func:`sliding_window_rows`.
        """
        return sliding_window_rows(
            self._averaged(logits_fn),
            image,
            self.window_size,
            self.window_stride,
            divisor,
            self.accumulator_device or None,
            self.align_corners,
            **prepare,
        )

    def _averaged(self, logits_fn: LogitsFn) -> LogitsFn:
        """Return ``logits_fn``, averaged over the image and its mirror image if ``flip`` is set."""
        if not self.flip:
            return logits_fn

        def averaged(image: Tensor) -> Tensor:
            logits = logits_fn(image)
            mirrored = logits_fn(image.flip(-1)).flip(-1)
            if self.flip_pairs:
                order = list(range(mirrored.shape[1]))
                for a, b in self.flip_pairs:
                    order[a], order[b] = b, a
                mirrored = mirrored[:, order]
            return (logits + mirrored) / 2

        return averaged


def pad_to_multiple(image: Tensor, divisor: int) -> Tensor:
    """Pad [N,3,H,W] with zeros at the bottom and on the right to multiples of ``divisor``."""
    if divisor <= 1:
        return image
    bottom, right = (-side % divisor for side in image.shape[-2:])
    return F.pad(image, (0, right, 0, bottom))


@torch.no_grad()
def joined_rows(bands: Iterable[Tensor], height: int) -> Tensor:
    """Join bands of rows [N,K,rows,W], from top to bottom, into one tensor [N,K,height,W]."""
    total, top = torch.empty(0), 0
    for rows in bands:
        if top == 0:
            total = rows.new_empty(*rows.shape[:2], height, rows.shape[3])
        total[:, :, top : top + rows.shape[2]] = rows
        top += rows.shape[2]
    return total


@torch.no_grad()
def sliding_window_rows(
    logits_fn: LogitsFn,
    image: Tensor,
    window_size: Sequence[int],
    window_stride: Sequence[int],
    divisor: int = 1,
    device: torch.device | str | None = None,
    align_corners: bool = False,
    prepare: Callable[[Tensor], Tensor] = lambda window: window,
) -> Iterator[Tensor]:
    """
    Average the logits of overlapping windows at full resolution, and yield them in bands of rows.

    The bands are float32 [N,K,rows,W], from top to bottom. Only one row of windows is summed at a
    time, so that memory does not grow with the image's height. The last window of each row and
    column ends at the image's border.

    Args:
        logits_fn: network, which sees one window at a time, padded to multiples of ``divisor``.
        image: image [N,3,H,W], normalised unless ``prepare`` does this.
        window_size: height and width of a window; a window larger than the image is cut to the
            image.
        window_stride: steps (down, right) between windows.
        device: device of the sums; None for the logits' device.
        prepare: function that normalises a window before it is padded.
    """
    height, width = image.shape[-2:]
    tops = window_starts(height, window_size[0], window_stride[0])
    lefts = window_starts(width, window_size[1], window_stride[1])
    counts = torch.zeros((height, width), dtype=torch.int16)
    sums = torch.empty(0)  # sums of the windows' logits from row `top` on: [N, K, rows, W]
    for top, after in zip(tops, [*tops[1:], height], strict=True):
        bottom = min(top + window_size[0], height)
        for left in lefts:
            columns = slice(left, min(left + window_size[1], width))
            padded = pad_to_multiple(prepare(image[..., top:bottom, columns]), divisor)
            logits = resize(logits_fn(padded).float(), padded.shape[-2:], align_corners)
            logits = logits[..., : bottom - top, : columns.stop - left]
            if top == left == 0:
                sums = logits.new_zeros((*logits.shape[:2], 0, width), device=device)
            if sums.shape[2] < bottom - top:
                missing = sums.new_zeros((*sums.shape[:2], bottom - top - sums.shape[2], width))
                sums = torch.cat([sums, missing], dim=2)
            sums[..., columns] += logits.to(sums.device)
            counts[top:bottom, columns] += 1
        # No later window sees the rows above `after`.
        yield sums[:, :, : after - top].div_(counts[top:after].to(sums.device))
        sums = sums[:, :, after - top :].clone()


def window_starts(side: int, window: int, step: int) -> list[int]:
    """Return the first row (or column) of each window; the last window ends at the border."""
    last = max(side - window, 0)
    return [*range(0, last, step), last]


def resized_classes(
    logits: Tensor,
    size: Size,
    image_size: Sequence[int] = (),
    padded_size: Sequence[int] = (),
    align_corners: bool = False,
) -> Iterator[Tensor]:
    """
    Yield the logits of a few classes at a time, resized to ``size``, float32 [N,G,Ho,Wo].

    As in Detectron2's ``sem_seg_postprocess``, logits [N,K,h,w] are upsampled to the padded image,
    cropped to the image, and resized to ``size``. The scores are bit-identical to resizing all K
    classes at once. :func:`classes_at_once` limits G, the number of classes in a group.

    Args:
        size: (Ho, Wo) of the scores.
        image_size: (H, W) of the image that the network saw, without padding; ``size`` by default.
        padded_size: size of the padded image, which the logits cover; ``image_size`` by default.
    """
    image_size = image_size or size
    padded_size = padded_size or image_size
    for group in logits.split(classes_at_once(logits.device, *padded_size), dim=1):
        scores = resize(group.float(), padded_size, align_corners)
        scores = scores[..., : image_size[0], : image_size[1]]
        yield resize(scores, size, align_corners)


def classes_at_once(device: torch.device, height: int, width: int) -> int:
    """
    Return how many classes to resize at once to ``height`` x ``width``.

    The number is 1 on a CPU. On a GPU, the resized float32 scores take at most
    :func:`.band_bytes`, unless a single class takes more.
    """
    return 1 if device.type == "cpu" else max(1, band_bytes(device) // (4 * height * width))


@torch.no_grad()
def running_argmax(scores: Iterable[Tensor]) -> Tensor:
    """
    Return the class with the highest score at each pixel, int64 [N,H,W].

    ``scores`` come in groups of classes, [N,G,H,W]. If scores are equal, the first class wins.
    """
    done = 0
    for group in scores:
        if done == 0:
            highest, labels = group.max(dim=1)
        elif group.shape[1] == 1:
            labels.masked_fill_(group[:, 0] > highest, done)
            torch.maximum(highest, group[:, 0], out=highest)
        else:
            found, best = group.max(dim=1)
            labels = torch.where(found > highest, best + done, labels)
            torch.maximum(highest, found, out=highest)
        done += group.shape[1]
    return labels


@torch.no_grad()
def confident_argmax(scores: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """
    Return the best class at each pixel, int64 [N,H,W], and its probability, float32 [N,H,W].

    The probability is the softmax of the scores. It is NaN if any of the pixel's scores is NaN or
    +inf. ``scores`` come in groups of classes, [N,G,H,W]. If scores are equal, the first class
    wins.
    """
    done = 0
    for group in scores:
        is_single = group.shape[1] == 1
        if is_single and done:
            found = group[:, 0]  # saves a pass over the pixels
        else:
            found, best = group.max(dim=1)
        share = found.new_ones(()) if is_single else (group - found[:, None]).exp_().sum(dim=1)
        if done == 0:
            highest, labels = found, best
            total = torch.ones_like(highest) if is_single else share  # sum of exp(score - highest)
        else:
            # One of the two factors that rescale a running softmax is always exp(0) = 1.
            ratio = (found - highest).abs_().neg_().exp_()
            higher = found > highest
            smaller = ratio if is_single else ratio * share
            total = torch.where(higher, total * ratio + share, total + smaller)
            if is_single:
                labels.masked_fill_(higher, done)
            else:
                labels = torch.where(higher, best + done, labels)
            torch.maximum(highest, found, out=highest)
        done += group.shape[1]
    return labels, total.reciprocal_().masked_fill_(highest.isinf(), float("nan"))


def check_decided(confidence: Tensor) -> None:
    """Raise FloatingPointError if any confidence is NaN, which means that scores are not finite."""
    if undecided := int(confidence.isnan().sum()):
        raise FloatingPointError(
            f"the scores of {undecided} of {confidence.numel()} pixels are NaN or infinite. If "
            "neither the image nor the weights have such values, the network overflows: set "
            "TEST.PRECISION float32"
        )


def padded_batch(maps: Sequence[Tensor], divisor: int, value: float = 0) -> Tensor:
    """
    Stack maps [..., H, W] of different sizes into one tensor [N, ..., H', W'].

    Each map is padded with ``value`` at the bottom and on the right. H' and W' are the smallest
    multiples of ``divisor`` that hold all maps. The result equals Detectron2's
    ``ImageList.from_tensors``.
    """
    height, width = (
        -(-max(map_.shape[side] for map_ in maps) // divisor) * divisor for side in (-2, -1)
    )
    batch = maps[0].new_full((len(maps), *maps[0].shape[:-2], height, width), value)
    for padded, map_ in zip(batch, maps):
        padded[..., : map_.shape[-2], : map_.shape[-1]] = map_
    return batch
