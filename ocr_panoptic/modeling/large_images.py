"""Labels of images that are too large to be held: in bands of rows, from windows or tiles.

Shape letters: K classes, C channels, H, W size of the image, n rows of a band, h, w feature size.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers import RegionContext, RunningGather, resize

from .inference import (
    Size,
    averaged_over_flip,
    check_decided,
    classes_at_once,
    confident_argmax,
    pad_to_multiple,
    window_starts,
)
from .semantic_segmentor import OCRSemanticSegmentor

Rows = Callable[[int, int], Tensor]
"""From (top, bottom) to these rows of an image, uint8 [3,n,W]; top does not fall between calls."""


class Band(NamedTuple):
    """
    Attributes:
        labels: integers of 8 or 16 bits [n,W].
        confidence: probability of each pixel's label, float32 [n,W].
        image: the rows themselves, uint8 [3,n,W].
    """

    labels: Tensor
    confidence: Tensor
    image: Tensor


@torch.no_grad()
def window_bands(model: OCRSemanticSegmentor, rows: Rows, size: Size) -> Iterator[Band]:
    """
    Yield what TEST.SLIDING_WINDOW gives, to the bit: each window's logits are upsampled, and
    averaged where windows overlap. A row of windows is held, and the sums of its overlap with the
    next one.

    Args:
        rows: of the image.
        size: (H, W).

    Yields:
        the rows from top to bottom.

    Raises:
        ValueError: as :func:`check_windows`.
    """
    inference = model.inference
    check_windows(model)
    height, width = size
    (window_height, window_width), steps = inference.window_size, inference.window_stride
    tops = window_starts(height, window_height, steps[0])
    lefts = window_starts(width, window_width, steps[1])
    of_row, of_column = (
        _coverage(starts, window, side)
        for starts, window, side in (
            (tops, window_height, height),
            (lefts, window_width, width),
        )
    )
    overlap: Tensor | None = None  # sums over the windows above, [K, rows, W]
    above = 0  # rows of it that count
    rests = _overlaps(tops, window_height, height)
    for top, rest in zip(tops, rests, strict=True):
        bottom = min(top + window_height, height)
        final = bottom - rest  # rows above it are seen by no later window
        strip = rows(top, bottom)
        band: Band | None = None
        sums: Tensor | None = None  # of the windows of this row and above, [K, n, columns]
        start = entered = 0  # first column of the sums, and the end of those in it
        for left, right_rest in zip(lefts, _overlaps(lefts, window_width, width), strict=True):
            right = min(left + window_width, width)
            scores = _window_scores(model, strip[..., left:right])
            if overlap is None:
                shape = scores.shape[0], max(rests), width
                overlap = torch.zeros(shape, device=inference.accumulator_device or scores.device)
            scores = scores.to(overlap.device)
            now = torch.zeros_like(scores)
            if sums is not None:
                now[..., : entered - left] = sums[..., left - start :]
            now[:, :above, entered - left :] = overlap[:, :above, entered:right]
            now += scores
            sums, start, entered = now, left, right
            done = right - right_rest
            overlap[:, :rest, left:done] = sums[:, final - top :, : done - left]
            count = of_row[top:final, None] * of_column[None, left:done]
            mean = sums[:, : final - top, : done - left] / count.to(sums.device)
            band = band or _empty_band(mean, strip[:, : final - top])
            _label(mean, band, left)
        above = rest
        yield band


@torch.no_grad()
def tile_bands(
    model: OCRSemanticSegmentor, open_rows: Callable[[], Rows], size: Size
) -> Iterator[Band]:
    """
    Yield what the network gives for the whole image at once, with the memory of a tile. It takes
    two passes: the first gathers the region representations over all tiles, in the second every
    tile takes its context from those of the whole image.

    Tiles are the windows of TEST.SLIDING_WINDOW; of each only the middle counts, of the size of the
    stride, so that every pixel counts once. The result is exact where what the backbone sees of a
    pixel lies in its tile.

    Args:
        open_rows: begins to read the image.
        size: (H, W).

    Yields:
        the rows from top to bottom.

    Raises:
        ValueError: as :func:`check_tiles`.
    """
    check_tiles(model)
    gather = RunningGather()
    for _, tiles in _tile_rows(model, open_rows(), size):
        for tile in tiles:
            _, x, regions = model.sem_seg_head.prepare(model.backbone(tile.image))
            gather.add(
                *(part[..., tile.feature_rows, tile.feature_columns] for part in (x, regions))
            )
    f = gather.regions()
    for strip, tiles in _tile_rows(model, open_rows(), size):
        band = None
        for tile in tiles:
            prepared = model.sem_seg_head.prepare(model.backbone(tile.image))
            logits = model.sem_seg_head.refine(*prepared, f)
            align_corners = model.inference.align_corners
            scores = resize(logits.float(), tuple(tile.image.shape[2:]), align_corners)[0]
            scores = scores[:, tile.rows, tile.columns]
            scores = scores[:, : strip.shape[1], : size[1] - tile.start]
            band = band or _empty_band(scores, strip)
            _label(scores, band, tile.start)
        yield band


class _Tile(NamedTuple):
    """
    Attributes:
        image: normalised, [1,3,tile height,tile width].
        rows, columns: of the pixels that count in it.
        feature_rows, feature_columns: of the features that do.
        start: column of the image at which they begin.
    """

    image: Tensor
    rows: slice
    columns: slice
    feature_rows: slice
    feature_columns: slice
    start: int


def _tile_rows(
    model: OCRSemanticSegmentor, rows: Rows, size: Size
) -> Iterator[tuple[Tensor, Iterator[_Tile]]]:
    """Yield for each row of tiles the image's rows that it is for, and its tiles; they cover the
    image with the padding that the whole one has."""
    height, width = size
    stride = model.sem_seg_head.common_stride
    steps, margins = model.inference.window_stride, _margins(model)
    padded = [math.ceil(side / model.divisor) * model.divisor for side in size]

    def spans(axis: int) -> Iterator[tuple[int, int, int, int]]:
        """Ends of a tile, and of what counts in it."""
        for start in range(0, padded[axis], steps[axis]):
            end = min(start + steps[axis], padded[axis])
            margin = margins[axis]
            yield max(start - margin, 0), min(end + margin, padded[axis]), start, end

    def tiles(strip: Tensor, top: int, bottom: int, first: int, last: int) -> Iterator[_Tile]:
        for left, right, start, end in spans(1):
            inside = model.normalised(strip[..., left : min(right, width)])
            missing = (0, right - left - inside.shape[2], 0, bottom - top - inside.shape[1])
            pixels = slice(first - top, last - top), slice(start - left, end - left)
            features = (slice(s.start // stride, s.stop // stride) for s in pixels)
            yield _Tile(F.pad(inside, missing)[None], *pixels, *features, start)

    for top, bottom, first, last in spans(0):
        strip = rows(top, min(bottom, height))
        yield strip[:, first - top : last - top], tiles(strip, top, bottom, first, last)


def _window_scores(model: OCRSemanticSegmentor, window: Tensor) -> Tensor:
    """Logits of a window of the image, upsampled: float32 [K,n,columns]."""
    inference = model.inference
    logits_fn = model.logits
    if inference.flip:
        logits_fn = averaged_over_flip(logits_fn, inference.flip_pairs)
    image = pad_to_multiple(model.normalised(window)[None], model.divisor)
    logits = resize(logits_fn(image).float(), image.shape[2:], inference.align_corners)
    return logits[0, :, : window.shape[1], : window.shape[2]]


def _empty_band(scores: Tensor, image: Tensor) -> Band:
    """Return a band for the classes of scores [K,...] and rows of an image [3,n,W]."""
    dtypes = torch.uint8 if len(scores) <= 256 else torch.int16, torch.float32
    found = (torch.empty(image.shape[1:], dtype=d, device=scores.device) for d in dtypes)
    return Band(*found, image)


def _label(scores: Tensor, band: Band, left: int) -> None:
    """Write what scores [K,n,columns] give into the band."""
    columns = slice(left, left + scores.shape[2])
    groups = scores[None].split(classes_at_once(scores.device, *scores.shape[1:]), dim=1)
    labels, confidence = confident_argmax(groups)
    check_decided(confidence)
    band.labels[:, columns], band.confidence[:, columns] = labels[0], confidence[0]


def _overlaps(starts: Sequence[int], window: int, side: int) -> list[int]:
    """Rows of each window that the next one sees too."""
    ends = [min(start + window, side) for start in starts]
    return [end - after for end, after in zip(ends, [*starts[1:], ends[-1]], strict=True)]


def _coverage(starts: Sequence[int], window: int, side: int) -> Tensor:
    """Return how many windows see each row, float32 [side]."""
    count = torch.zeros(side)
    for start in starts:
        count[start : start + window] += 1
    return count


def _margins(model: OCRSemanticSegmentor) -> list[int]:
    sizes, steps = model.inference.window_size, model.inference.window_stride
    return [(window - step) // 2 for window, step in zip(sizes, steps, strict=True)]


def check_windows(model: OCRSemanticSegmentor) -> None:
    """
    Raises:
        ValueError: :func:`window_bands` cannot see images: the config has no windows, several
            scales, or a scheme that needs the truth.
    """
    inference = model.inference
    if not inference.window_size:
        raise UserError(
            "TEST.SLIDING_WINDOW is empty; set SIZE and STRIDE, to [1024, 1024] and [768, 768] say."
        )
    if inference.scales != (1.0,):
        raise UserError(
            f"TEST.SCALES is {list(inference.scales)}; an image that is read in windows is seen at "
            "its own scale alone: set it to [1.0]."
        )
    if model.sem_seg_head.context.needs_truth:
        raise UserError("The scheme of MODEL.CONTEXT.NAME needs the truth, which is not there.")


def check_tiles(model: OCRSemanticSegmentor) -> None:
    """
    Raises:
        ValueError: :func:`tile_bands` would not give what the model gives for the whole image: the
            config has no windows, several scales, or flips; the scheme has no region
            representations; the model aligns corners; maps of it are resized by a ratio that
            depends on the image's size; or the windows and their overlap are no multiples of the
            stride.
    """
    check_windows(model)
    context, inference = model.sem_seg_head.context, model.inference
    if not isinstance(context, RegionContext) or not context.sees_pixels_alone:
        raise UserError(
            f"The scheme of MODEL.CONTEXT.NAME ({type(context).__name__}) has no region "
            "representations that could be those of the whole image; OCR, DA-OCR and ACF-OCR have."
        )
    if model.hierarchy and len(model.hierarchy.scales) > 1:
        raise UserError(
            "MODEL.HMSA.ENABLED is True with several TEST.SCALES; regions of the whole image are "
            "those of one scale: set TEST.SCALES [1.0]."
        )
    if inference.flip:
        raise UserError("TEST.FLIP is True; regions of the whole image are not averaged over it.")
    if inference.align_corners:
        raise UserError(
            "MODEL.ALIGN_CORNERS is True; maps are then resized by the size of the whole image, "
            "which tiles do not have: leave regions of the whole image out."
        )
    # Coarser maps are enlarged to finer ones, HRNet's for example. Where a side is no multiple of
    # the coarsest stride, they are rounded up, and enlarged by less than the ratio of the strides.
    coarsest = max(shape.stride for shape in model.backbone.output_shape().values())
    if model.divisor % coarsest:
        raise UserError(
            f"Images are padded to multiples of {model.divisor}, and the backbone has maps of "
            f"stride {coarsest}, which are resized by the size of the whole image where it is no "
            f"multiple of that: for regions of the whole image set MODEL.PAD_TO_MULTIPLE "
            f"{coarsest}, which pads images to it wherever they are seen."
        )
    # Tiles begin at multiples of it, so that strides fall on the same pixels as in the whole image.
    multiple = math.lcm(32, model.divisor)
    sides = [*inference.window_stride, *_margins(model)]
    if any(side % multiple for side in sides) or not all(inference.window_stride):
        raise UserError(
            f"TEST.SLIDING_WINDOW has SIZE {list(inference.window_size)} and STRIDE "
            f"{list(inference.window_stride)}; for regions of the whole image STRIDE and half of "
            f"SIZE - STRIDE are multiples of {multiple}: SIZE [{32 * multiple}, {32 * multiple}] "
            f"and STRIDE [{24 * multiple}, {24 * multiple}], say."
        )
