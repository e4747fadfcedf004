"""Memory of a prediction: how large an image is seen at once, by what it takes and what the machine
has."""

import os
from pathlib import Path
from typing import NamedTuple

import torch
from detectron2.config import CfgNode
from detectron2.utils import comm

from .inputs import THREADS, under_way

LARGEST = 50_000_000
"""Pixels, whatever the memory: one that is larger takes no longer in windows."""
SHARE = 0.75  # of the free memory; the estimate is one
# Bytes of a pixel.
NETWORK = 1000  # R-101 and HRNet-W48 with OCR take 540 to 950, see docs/prediction.md
LABELS = 64  # the normalised image, labels, confidence and what they are computed from
DRAWING = 100  # overlays and files, in each of the threads that write
CGROUP = Path("/sys/fs/cgroup")  # of a container that has less than the machine
MEMINFO = Path("/proc/meminfo")


class Limit(NamedTuple):
    """
    Attributes:
        pixels: of the largest image that is seen at once.
        reason: where that comes from.
    """

    pixels: int
    reason: str


def largest_image(cfg: CfgNode) -> Limit:
    """Return what :data:`SHARE` of the free memory of this process has room for, but not more than
    :data:`LARGEST`."""
    if cfg.MODEL.DEVICE.startswith("cuda"):
        free = torch.cuda.mem_get_info(cfg.MODEL.DEVICE)[0]
    else:
        free = free_memory() // comm.get_world_size()
    of_pixel = bytes_of_pixel(cfg)
    pixels = int(SHARE * free / of_pixel)
    if pixels > LARGEST:
        return Limit(LARGEST, f"at most {LARGEST / 1e6:.0f} megapixels are seen at once")
    return Limit(
        pixels,
        f"{SHARE:.0%} of the free memory, {free / 2**30:.1f} GiB, are for {pixels / 1e6:.1f} "
        f"megapixels, of {of_pixel:,} bytes each with {cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES} classes",
    )


def bytes_of_pixel(cfg: CfgNode) -> int:
    """Return what each pixel of an image takes at the highest point, images before and after it
    that are in memory at the same time included."""
    classes = cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES
    is_panoptic = cfg.MODEL.META_ARCHITECTURE == "PanopticFPN"
    masks = cfg.TEST.DETECTIONS_PER_IMAGE if is_panoptic else 0
    scales = (1.0,) if is_panoptic else cfg.TEST.SCALES
    has_windows = not is_panoptic and bool(cfg.TEST.SLIDING_WINDOW.SIZE)
    result = 3 + 16 + masks  # the image; labels, confidence, ids; masks
    total = LABELS + THREADS * DRAWING + (under_way() + 1) * result
    if sees_own_size(cfg) and not has_windows:
        total += int(NETWORK * max(1.0, *scales) ** 2)
    several = len(scales) > 1 or (is_panoptic and cfg.TEST.AUG.ENABLED)
    total += 4 * classes * (has_windows + several)  # running sums
    if cfg.MODEL.HMSA.ENABLED and several and not has_windows:
        # Logits of the largest scale, and what is blended of them and of the image's own size.
        total += int(4 * classes * (max(scales) ** 2 + 4))
    return total + masks  # which are cut out of scores


def sees_own_size(cfg: CfgNode) -> bool:
    """Return whether images are not resized for the network."""
    return not cfg.INPUT.MIN_SIZE_TEST and not cfg.INPUT.FIXED_SIZE


def free_memory() -> int:
    """Bytes that the system can give to this program; what it keeps of files read is among them."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if MEMINFO.exists():  # on Linux
        lines = (line.split() for line in MEMINFO.read_text().splitlines())
        free = next((1024 * int(f[1]) for f in lines if f[0] == "MemAvailable:"), free)
    try:
        limit, used = (int((CGROUP / f"memory.{k}").read_text()) for k in ("max", "current"))
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # none, or "max"
        return free
    # The kernel drops those first; after much reading they fill the container.
    kept_files = int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
    return min(free, limit - used + kept_files)
