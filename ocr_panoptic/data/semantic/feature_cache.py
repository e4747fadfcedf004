"""Features of a frozen backbone in a file, from which the training of a head starts.

A memory-mapped array, which all trainings on a machine share, holds for every view of every image
(as it is and, for training, mirrored) the feature maps and the labels. A JSON beside it, written
after it, says which rows are whose. The features of a mirrored image are computed, as they are not
the image's features mirrored.
"""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from torch import Tensor

from ocr_panoptic.data.fingerprint import digest, file_digest, file_state
from ocr_panoptic.files import read_json, replacing, write_json

from .augmentation import MirrorTransform, RandomMirror
from .mapper import SemanticDatasetMapper

LABELS = "labels"
INDEX_LIMIT = 1 << 30  # bytes

# The one value with which a feature of an image can be used again.
CACHEABLE = {
    "INPUT.RANDOM_SCALE": [1.0, 1.0],
    "INPUT.RANDOM_ASPECT": [1.0, 1.0],
    "INPUT.CROP.ENABLED": False,
    "INPUT.BRIGHTNESS_SHIFT": 0,
    "TEST.SCALES": [1.0],
    "TEST.FLIP": False,
    "TEST.SLIDING_WINDOW.SIZE": [],
    "TEST.PRECISION": "float32",
    "MODEL.TIMM.FROZEN": True,
    "MODEL.HMSA.ENABLED": False,
}
# What the features of an image follow from, besides the weights.
READ = (
    *("MODEL.TIMM.NAME", "MODEL.TIMM.OUTPUT_STRIDE", "MODEL.ALIGN_CORNERS"),
    *("MODEL.TIMM.OUTPUT_NORM", "MODEL.TIMM.PATCH_SIZE"),
    *("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD", "MODEL.SEM_SEG_HEAD.NUM_CLASSES"),
    *("INPUT.FORMAT", "INPUT.CHANNELS", "INPUT.FIXED_SIZE", "INPUT.INTERPOLATION"),
)


def check_cacheable(cfg: CfgNode) -> None:
    """
    Raises:
        ValueError: MODEL.FEATURE_CACHE is set, and another key does not go with it.
    """
    if not cfg.MODEL.FEATURE_CACHE:
        return
    for key, needed in CACHEABLE.items():
        value = _value(cfg, key)
        if (list(value) if isinstance(value, tuple) else value) != needed:
            raise ValueError(
                f"MODEL.FEATURE_CACHE keeps the features of a frozen backbone, one set for each "
                f"image and its mirror image, which {key} {value} does not allow: set {key} "
                f"{needed}, or MODEL.FEATURE_CACHE to nothing."
            )
    if cfg.INPUT.RANDOM_FLIP == "vertical":
        raise ValueError(
            "MODEL.FEATURE_CACHE has images mirrored left to right alone: set INPUT.RANDOM_FLIP "
            "horizontal or none."
        )
    if not cfg.INPUT.FIXED_SIZE:
        raise ValueError(
            "MODEL.FEATURE_CACHE is one array for images of one size: set INPUT.FIXED_SIZE to "
            "[height, width]."
        )
    if not cfg.MODEL.WEIGHTS:
        raise ValueError(
            "MODEL.FEATURE_CACHE keeps the features of MODEL.WEIGHTS, which is empty: name the "
            "weights of the frozen backbone."
        )


def _value(cfg: CfgNode, key: str) -> object:
    for part in key.split("."):
        cfg = cfg[part]
    return cfg


class FeatureCache:
    """
    Features and labels of images, as :func:`write_feature_cache` has written them.

    Attributes:
        backbone: a digest of the weights that made the features.
        views: 2 where there are mirror images, else 1.
    """

    def __init__(self, path: Path):
        """
        Args:
            path: of :func:`cache_path`.
        """
        index = read_json(path.with_name(f"{path.name}.json"), INDEX_LIMIT)
        self.backbone: str = index["backbone"]
        self.views: int = index["views"]
        self._rows = {name: self.views * i for i, name in enumerate(index["files"])}
        self._sizes: list[list[int]] = index["sizes"]
        self._array = np.load(path.with_name(f"{path.name}.npy"), mmap_mode="r")

    def features(self, file_name: str, mirrored: bool = False) -> dict[str, Tensor]:
        """Feature maps of an image, or of its mirror image, by name, float32 [C, h, w]."""
        row = self._row(file_name, mirrored)
        return {n: torch.from_numpy(row[n].copy()) for n in row.dtype.names if n != LABELS}

    def labels(self, file_name: str, mirrored: bool = False) -> Tensor:
        """Training labels, int64 [H, W]."""
        return torch.from_numpy(self._row(file_name, mirrored)[LABELS].astype(np.int64))

    def size(self, file_name: str) -> list[int]:
        """Height and width of the file's image."""
        return self._sizes[self._rows[file_name] // self.views]

    def _row(self, file_name: str, mirrored: bool) -> np.ndarray:
        return self._array[self._rows[file_name] + mirrored]


class CachedFeatureMapper:
    """What :class:`.SemanticDatasetMapper` makes of a record, with the "features" of the image in
    its place, drawing the same random numbers.

    Args:
        cache: of the records.
        mapper: whose place this one takes.
    """

    def __init__(self, cache: FeatureCache, mapper: SemanticDatasetMapper):
        self.cache = cache
        self.with_labels = mapper.with_labels
        self.mirror = _mirror_of(mapper)

    def __call__(self, dataset_dict: dict) -> dict:
        record = copy.copy(dataset_dict)
        record.pop("sem_seg_file_name", None)
        name = record["file_name"]
        record["height"], record["width"] = self.cache.size(name)
        mirrored = False
        if self.mirror:
            transform = self.mirror.get_transform(np.empty((1, 1, 3), np.uint8))
            mirrored = isinstance(transform, MirrorTransform)
        record["features"] = self.cache.features(name, mirrored)
        if self.with_labels:
            record["sem_seg"] = self.cache.labels(name, mirrored)
        return record


def _mirror_of(mapper: SemanticDatasetMapper) -> RandomMirror | None:
    last = mapper.augmentations.augs[-1]
    return last if isinstance(last, RandomMirror) else None


def cache_path(cfg: CfgNode, weights: Path, records: Sequence[dict], is_train: bool) -> Path:
    """
    The array's path without its suffix. The name follows from all that the content follows from.

    Args:
        weights: the file of MODEL.WEIGHTS.
        records: of the images.
        is_train: with mirror images, if INPUT.RANDOM_FLIP has them.
    """
    head = cfg.MODEL.SEM_SEG_HEAD
    # As they are prepared now: classes may be merged, or sides exchanged, without another file.
    prepared = [
        [name, *(repr(MetadataCatalog.get(name).get(key)) for key in ("label_map", "flip_pairs"))]
        for name in dict.fromkeys(r["dataset_name"] for r in records)
    ]
    files = [(r["file_name"], r.get("sem_seg_file_name")) for r in records]
    key = digest(
        {key: _value(cfg, key) for key in READ},
        sorted({*head.IN_FEATURES, *head.COARSE_IN_FEATURES}),
        file_digest(weights),
        [(*pair, *(file_state(Path(name)) for name in pair if name)) for pair in files],
        is_train and cfg.INPUT.RANDOM_FLIP,
        prepared,
    )
    return Path(cfg.MODEL.FEATURE_CACHE) / f"{records[0]['dataset_name']}-{key}"


def write_feature_cache(
    path: Path,
    records: Sequence[dict],
    mapper: SemanticDatasetMapper,
    extract: Callable[[Tensor], Mapping[str, Tensor]],
    backbone: str,
) -> None:
    """
    Args:
        path: of :func:`cache_path`.
        mapper: of images; with labels where they are to be kept.
        extract: image [3, H, W] as the mapper gives it -> float32 feature maps by name, [C, h, w].
        backbone: :attr:`FeatureCache.backbone`.

    Raises:
        FileNotFoundError, ValueError: see :class:`.SemanticDatasetMapper`.
        OSError: the disk has no room for the array.
    """
    mapper = copy.deepcopy(mapper)
    mirror = _mirror_of(mapper)
    views = 2 if mirror else 1
    array, sizes = None, []
    with replacing(path.with_name(f"{path.name}.npy")) as temporary:
        for row in range(views * len(records)):
            if mirror:
                mirror.prob = float(row % views)  # never, or always
            inputs = mapper(records[row // views])
            maps = {name: map_.cpu().numpy() for name, map_ in extract(inputs["image"]).items()}
            if array is None:
                fields = [(name, map_.dtype, map_.shape) for name, map_ in maps.items()]
                fields.append((LABELS, np.uint8, tuple(inputs["image"].shape[1:])))
                array = np.lib.format.open_memmap(
                    temporary, mode="w+", dtype=fields, shape=(views * len(records),)
                )
                _reserve(temporary, path.parent)
            for name, map_ in maps.items():
                array[name][row] = map_
            if "sem_seg" in inputs:
                array[LABELS][row] = inputs["sem_seg"].numpy()
            if row % views == 0:
                sizes.append([inputs["height"], inputs["width"]])
        array.flush()
    files = [r["file_name"] for r in records]
    index = {"backbone": backbone, "views": views, "files": files, "sizes": sizes}
    write_json(path.with_name(f"{path.name}.json"), index)


def _reserve(file: Path, folder: Path) -> None:
    """Room on the disk for a file with holes: a full disk kills who writes to a mapped one."""
    size = file.stat().st_size
    with open(file, "rb+") as opened:
        try:
            os.posix_fallocate(opened.fileno(), 0, size)
        except OSError as error:
            raise OSError(
                f"The {size / 2**20:,.0f} MiB of features for MODEL.FEATURE_CACHE cannot be kept "
                f"in {folder} ({error.strerror}). Make room, or name another folder."
            ) from error
