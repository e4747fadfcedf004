"""
The rules of a plan: each turns facts of the data and of the machine into values of config keys.

docs/planning.md has a sentence about each rule, with its measured effect or its reason. A rule is a
function of the :class:`Situation` that yields decisions; :data:`RULES` lists the rules in order.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ocr_panoptic.data.published.tables import CITYSCAPES_CLASSES

from .fingerprint import Fingerprint

CPU_BASES = {
    "panoptic": "Custom-PanopticSegmentation/panoptic_fpn_ocr_Lite0",
    "semantic": "Custom-SemanticSegmentation/plain_Lite0",
}
GPU_PANOPTIC = "Custom-PanopticSegmentation/panoptic_fpn_ocr_R_50"
# Least memory of a GPU in GiB -> config, for 4 crops of 512 pixels in mixed precision.
GPU_SEMANTIC = {
    8: "Custom-SemanticSegmentation/ocr_HRNet_W48_s4",
    4: "Custom-SemanticSegmentation/ocr_HRNet_W18_s4",
    0: "Custom-SemanticSegmentation/ocr_HRNet_W18_small_s4",
}
LITE0 = "tf_efficientnet_lite0"  # network of the configs for a CPU
SMALL = 10  # pixels of an object's side below which a larger image pays
WANTED = 13  # pixels of the median object's side that an enlarged image gives
LARGER, ENOUGH = 1.25, 16  # enlargement at test for a median object below this many pixels
THIN = 16  # pixels of a class's width below which a larger image pays
LONG = "keeps the size of long images"
LARGEST = 2048  # longest side of an image that is predicted as a whole
TILE = 768  # pixels from tile to tile
FEW = 100  # detections that every model allows
REGIONS = 256  # largest number of regions for the box and mask heads


class Decision(NamedTuple):
    """A config key's value, and why the data or the machine ask for it."""

    key: str
    value: Any
    because: str


@dataclass(frozen=True)
class Machine:
    """
    The facts of a machine on which a plan depends.

    Attributes:
        device: "cpu" or "cuda".
        memory: memory of the GPU in GiB; 0 without a GPU.
        is_mixed: whether mixed precision is faster: on GPUs, and on CPUs that compute bfloat16.
    """

    device: str
    memory: float
    is_mixed: bool


@dataclass(frozen=True)
class Situation:
    """
    What a rule sees.

    Attributes:
        base: values of the config that is adapted, by key.
        given: keys whose values the user has decided.
    """

    data: Fingerprint
    machine: Machine
    base: Mapping[str, Any]
    given: Collection[str] = ()

    @property
    def size(self) -> int:
        """The shorter side that the adapted config gives to training images; at most the data's."""
        sizes = self.base["INPUT.MIN_SIZE_TRAIN"]
        return int(sizes[len(sizes) // 2]) or self.data.short[1]

    @property
    def is_panoptic(self) -> bool:
        return self.data.kind == "panoptic"


Rule = Callable[[Situation], Iterator[Decision]]


def base_config(data: Fingerprint, machine: Machine) -> tuple[str, str]:
    """Return the name of the config that a plan adapts, and why."""
    if machine.device == "cpu":
        return CPU_BASES[data.kind], f"{data.kind} data, a machine without a GPU"
    memory = f"{data.kind} data, a GPU with {machine.memory:.0f} GiB"
    if data.kind == "panoptic":
        return GPU_PANOPTIC, memory
    return next(name for least, name in GPU_SEMANTIC.items() if machine.memory >= least), memory


def channels(it: Situation) -> Iterator[Decision]:
    """Normalise what the initial weights have not seen, by the images' own mean and deviation."""
    number = it.data.channels
    if number == 3:
        return
    yield Decision(
        "INPUT.CHANNELS",
        number,
        "the images are grey" if number == 1 else "the images have 4 channels",
    )
    is_deep = it.data.mean[0] + it.data.std[0] > 255  # grey images of 16 bits
    for key, found in (("MODEL.PIXEL_MEAN", it.data.mean), ("MODEL.PIXEL_STD", it.data.std)):
        known = it.base[key]
        if number == 1:
            known = [] if is_deep else [round(sum(known) / len(known), 3)]
        because = "of these images" if len(known) < number else "as the initial weights need it"
        yield Decision(key, [*known, *found[len(known) :]], because)
    if number == 1 and it.base.get("INPUT.BRIGHTNESS_SHIFT"):
        yield Decision("INPUT.BRIGHTNESS_SHIFT", 0, "for colour images only")


def precision(it: Situation) -> Iterator[Decision]:
    """Train in mixed precision where it is faster."""
    if it.machine.is_mixed:
        place = "GPU" if it.machine.device != "cpu" else "CPU, which has bfloat16"
        yield Decision("SOLVER.AMP.ENABLED", True, f"makes a step faster on this {place}")


def memory(it: Situation) -> Iterator[Decision]:
    """Compute a batch in parts on a GPU that cannot hold it: 1.6 GiB an image (docs/memory.md)."""
    if it.is_panoptic and 0 < it.machine.memory < 8:
        parts = 2 if it.machine.memory >= 4 else 4
        because = f"the GPU has {it.machine.memory:.0f} GiB"
        yield Decision("SOLVER.ACCUMULATION_STEPS", parts, because)


def start(it: Situation) -> Iterator[Decision]:
    """Start from weights that know the classes' names, whose classifiers then begin trained."""
    weights = it.base["MODEL.WEIGHTS"]
    known = {name for _, name, *_ in CITYSCAPES_CLASSES} & {c.name for c in it.data.classes}
    if weights.endswith("512x512_160k_ade20k") and 2 * len(known) >= len(it.data.classes):
        because = f"Cityscapes has {len(known)} of the {len(it.data.classes)} classes"
        better = weights.replace("512x512_160k_ade20k", "512x1024_160k_cityscapes")
        yield Decision("MODEL.WEIGHTS", better, because)


def optimizer(it: Situation) -> Iterator[Decision]:
    """Train the CPU's network, whose heads are new, with AdamW."""
    if it.base["MODEL.TIMM.NAME"] == LITE0 and "SOLVER.OPTIMIZER" not in it.given:
        because = "new heads learn faster than with SGD"
        yield Decision("SOLVER.OPTIMIZER", "AdamW", because)
        yield Decision("SOLVER.BASE_LR", 0.001, "for AdamW")
        yield Decision("SOLVER.WEIGHT_DECAY", 0.01, "for AdamW")


def image_size(it: Situation) -> Iterator[Decision]:
    """Enlarge images whose objects or thin classes need it, and crop them; keep small images."""
    size, longest = it.size, it.base["INPUT.MAX_SIZE_TRAIN"]
    wanted, because = resized(it)
    if wanted != size:
        yield Decision("INPUT.MIN_SIZE_TRAIN", [wanted], because)
    if keeps_size(it):
        return
    sizes = [wanted] if wanted != size else it.base["INPUT.MIN_SIZE_TRAIN"]
    largest = max(*sizes, wanted)
    if largest * it.data.aspect > longest:
        yield Decision("INPUT.MAX_SIZE_TRAIN", math.ceil(largest * it.data.aspect), LONG)
    # The other configs have crops.
    if it.is_panoptic and (wanted > size or wanted * it.data.aspect > longest):
        because = f"a step costs as much as with images of {size}"
        yield Decision("INPUT.CROP.ENABLED", True, because)
        yield Decision("INPUT.CROP.AFTER_RESIZE", True, because)
        yield Decision("INPUT.CROP.TYPE", "absolute", because)
        yield Decision("INPUT.CROP.SIZE", [size, size], because)


def size_at_test(it: Situation) -> Iterator[Decision]:
    """Predict images as large as in training, or larger if the objects are small."""
    key = "INPUT.MIN_SIZE_TEST"
    size, because = test_size(it)
    if is_other := size != it.base[key]:
        yield Decision(key, size, because)
    longest = (size or it.data.short[1]) * it.data.aspect
    is_decided = is_other or key in it.given or not keeps_size(it)
    if is_decided and longest > it.base["INPUT.MAX_SIZE_TEST"]:
        yield Decision("INPUT.MAX_SIZE_TEST", math.ceil(longest), LONG)


def keeps_size(it: Situation) -> bool:
    """Return whether training images have the size that the adapted config gives them."""
    is_long = it.size * it.data.aspect > it.base["INPUT.MAX_SIZE_TRAIN"]
    return resized(it)[0] == it.size and not is_long


def resized(it: Situation) -> tuple[int, str]:
    """Return the shorter side that the images need, at most their own, and why."""
    size, native = it.size, it.data.short[1]
    if "INPUT.MIN_SIZE_TRAIN" in it.given:
        return size, ""
    if it.is_panoptic and it.data.sides:
        median, anchor = it.data.sides[2], it.base["MODEL.ANCHOR_GENERATOR.SIZES"][0][0]
        is_small = it.base["MODEL.TIMM.NAME"] == LITE0 and native < size
        if is_small and median * native >= 2 * anchor:
            return native, f"the objects are large enough in images of {native} pixels"
        wanted = size if median * size >= SMALL else math.ceil(WANTED / median / 32) * 32
        because = f"at {size} the median object has a side of {median * size:.1f} pixels"
    elif it.data.has_top:  # where classes have their rows, a crop must show most of the image
        return size, ""
    else:
        widths = sorted(c.width * size for c in it.data.classes if c.width is not None)
        quarter = widths[(len(widths) - 1) // 4]
        wanted = 2 * size if quarter < THIN else size
        because = f"at {size}, a quarter of the classes are at most {quarter:.1f} pixels wide"
    return max(size, min(wanted, native)), because


def test_size(it: Situation) -> tuple[int, str]:
    """Return INPUT.MIN_SIZE_TEST, where 0 keeps the images' sizes, and why."""
    size, known = resized(it)[0], it.base["INPUT.MIN_SIZE_TEST"]
    sizes = it.base["INPUT.MIN_SIZE_TRAIN"]
    trained = size if size != it.size else sizes[len(sizes) // 2]
    if "INPUT.MIN_SIZE_TEST" in it.given:
        return known, ""
    if it.data.sides and trained and (median := it.data.sides[2] * size) < ENOUGH:
        because = f"finds more objects: at {size}, their median side is {median:.1f} pixels"
        return math.ceil(LARGER * size / 32) * 32, because
    is_changed = size != it.size or "INPUT.MIN_SIZE_TRAIN" in it.given
    return (trained if is_changed else known), "as in training"


def levels(it: Situation) -> Iterator[Decision]:
    """Read the features of stride 4, too, where the network of the CPU config has them."""
    key = "MODEL.SEM_SEG_HEAD.IN_FEATURES"
    if not it.is_panoptic and it.base["MODEL.TIMM.NAME"] == LITE0:
        yield Decision(key, ["blocks.1", *it.base[key]], "stride 4 shows thin classes")


def objects(it: Situation) -> Iterator[Decision]:
    """Learn and find as many objects as an image has."""
    if not it.is_panoptic:
        return
    _, many, most = it.data.objects
    in_crop = many * min(1, it.size / resized(it)[0]) ** 2
    # A quarter of the regions shows objects.
    regions = min(REGIONS, 2 ** math.ceil(math.log2(max(1, 4 * in_crop))))
    if regions > it.base["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE"]:
        because = f"one image in 20 has {many} objects or more"
        yield Decision("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", regions, because)
        if it.base["MODEL.RPN.POST_NMS_TOPK_TRAIN"] < 4 * regions:
            yield Decision("MODEL.RPN.POST_NMS_TOPK_TRAIN", min(1000, 4 * regions), because)
    found = max(FEW, min(1000, math.ceil(most * 1.2 / 50) * 50))
    because = f"an image has up to {most} objects"
    if "TEST.DETECTIONS_PER_IMAGE" in it.given:
        found = it.base["TEST.DETECTIONS_PER_IMAGE"]
    elif found > FEW:
        yield Decision("TEST.DETECTIONS_PER_IMAGE", found, because)
    if it.base["MODEL.RPN.POST_NMS_TOPK_TEST"] < 2 * found:
        yield Decision("MODEL.RPN.POST_NMS_TOPK_TEST", 2 * found, because)


def directions(it: Situation) -> Iterator[Decision]:
    """Turn and flip images without a fixed orientation."""
    if not it.data.has_top:
        because = "classes and brightness show no fixed orientation"
        yield Decision("INPUT.RANDOM_FLIP", "both", because)
        yield Decision("INPUT.RANDOM_ROTATE_90", True, because)


def tiles(it: Situation) -> Iterator[Decision]:
    """Predict large images in tiles, which overlap by the side of a large object."""
    size = test_size(it)[0] or it.data.short[1]
    if size * it.data.aspect <= LARGEST:
        return
    large = it.data.sides[-1] * size if it.data.sides else 0
    overlap = math.ceil(max(TILE / 4, large) / 32) * 32
    because = f"an image is up to {size * it.data.aspect:,.0f} pixels long"
    yield Decision("TEST.SLIDING_WINDOW.SIZE", [TILE + overlap] * 2, because)
    yield Decision("TEST.SLIDING_WINDOW.STRIDE", [TILE] * 2, f"tiles overlap by {overlap} pixels")


RULES: tuple[Rule, ...] = (
    *(channels, precision, memory, start, optimizer),
    *(image_size, size_at_test, tiles, levels, objects, directions),
)
