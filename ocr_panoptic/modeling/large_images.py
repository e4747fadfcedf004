"""
Labels of a large image in windows (TEST.SLIDING_WINDOW), holding one row of windows at a time.

Shape letters: K classes, C channels, H, W size of the image.
"""

import torch
from torch import Tensor

from ocr_panoptic.layers.resize import resize

from .inference import (
    LogitsFn,
    averaged_over_flip,
    check_decided,
    classes_at_once,
    confident_argmax,
    pad_to_multiple,
    window_starts,
)
from .semantic_segmentor import OCRSemanticSegmentor


@torch.no_grad()
def window_labels(model: OCRSemanticSegmentor, image: Tensor) -> tuple[Tensor, Tensor]:
    """
    Label an image in windows, to the bit as the model itself does.

    Each window's logits are upsampled, and averaged over overlaps. The model holds the sums of the
    whole image, this function the sums of one row of windows.

    Args:
        model: model with TEST.SLIDING_WINDOW, and one scale in TEST.SCALES.
        image: [C,H,W].

    Returns:
        labels int64 [H,W] and their probabilities, float32 [H,W], on the CPU
    """
    inference = model.inference
    logits_fn: LogitsFn = model.logits
    if inference.flip:
        logits_fn = averaged_over_flip(logits_fn, inference.flip_pairs)
    height, width = image.shape[1:]
    (window_height, window_width), steps = inference.window_size, inference.window_stride
    tops = window_starts(height, window_height, steps[0])
    lefts = window_starts(width, window_width, steps[1])
    labels = torch.empty((height, width), dtype=torch.int64)
    confidence = torch.empty((height, width))
    counts = torch.zeros((height, width), dtype=torch.int16)
    for top, after in zip(tops, [*tops[1:], height], strict=True):
        bottom = min(top + window_height, height)
        rows = image[:, top:bottom]
        for left in lefts:
            columns = slice(left, min(left + window_width, width))
            window = pad_to_multiple(model.normalised(rows[..., columns])[None], model.divisor)
            logits = resize(logits_fn(window).float(), window.shape[2:], inference.align_corners)
            logits = logits[0, :, : bottom - top, : columns.stop - left]
            if top == left == 0:
                device = inference.accumulator_device or logits.device
                # Logits of the windows so far, from row `top` on: [K, rows, W].
                sums = torch.zeros((len(logits), 0, width), device=device)
            if sums.shape[1] < bottom - top:
                missing = sums.new_zeros((len(sums), bottom - top - sums.shape[1], width))
                sums = torch.cat([sums, missing], dim=1)
            sums[..., columns] += logits.to(sums.device)
            counts[top:bottom, columns] += 1
        # No later window sees the rows above `after`.
        mean = sums[:, : after - top].div_(counts[top:after].to(sums.device))
        groups = mean[None].split(classes_at_once(mean.device, *mean.shape[1:]), dim=1)
        found, probability = confident_argmax(groups)
        check_decided(probability)
        labels[top:after], confidence[top:after] = found[0], probability[0]
        sums = sums[:, after - top :].clone()
    return labels, confidence
