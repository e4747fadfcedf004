"""MODEL.FEATURE_CACHE: a head that is trained and evaluated on kept features."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from detectron2.config import CfgNode
from detectron2.utils import comm
from torch import Tensor, nn

from ocr_panoptic.checkpoint import SafeCheckpointer, fetch_weights
from ocr_panoptic.data import (
    CachedFeatureMapper,
    FeatureCache,
    SemanticDatasetMapper,
    cache_path,
    write_feature_cache,
)
from ocr_panoptic.files import locked
from ocr_panoptic.modeling import build_model
from ocr_panoptic.modeling.context import context_class
from ocr_panoptic.seeding import seeded_generators
from ocr_panoptic.true_labels import has_labels

from .agreement import stop_together
from .run_info import weights_sha256

logger = logging.getLogger(__name__)


def cached_feature_mapper(
    cfg: CfgNode, records: Sequence[dict], is_train: bool
) -> CachedFeatureMapper:
    """
    The mapper of a config with MODEL.FEATURE_CACHE. Features that are not kept yet are computed
    and written first, by one process of those that need them.

    Raises:
        OSError, ValueError: data or weights cannot be read, or the folder cannot be written.
    """
    cache = _feature_cache(cfg, records, is_train)
    keep_labels = context_class(cfg).needs_truth
    return CachedFeatureMapper(cache, SemanticDatasetMapper(cfg, is_train, keep_labels=keep_labels))


def check_cached_backbone(cfg: CfgNode, records: Sequence[dict], backbone: nn.Module) -> None:
    """
    Args:
        records: of the training images.
        backbone: as it was loaded.

    Raises:
        ValueError: the kept features are those of other weights: the training is resumed from a
            checkpoint that has not begun with MODEL.WEIGHTS.
    """
    cache = _feature_cache(cfg, records, True)
    if cache.backbone != weights_sha256(backbone):
        raise ValueError(
            f"The backbone's weights differ from those of MODEL.WEIGHTS {cfg.MODEL.WEIGHTS}, whose "
            "features MODEL.FEATURE_CACHE keeps. Set MODEL.WEIGHTS to the file that the training "
            "began with."
        )


def _feature_cache(cfg: CfgNode, records: Sequence[dict], is_train: bool) -> FeatureCache:
    records = [records[i] for i in range(len(records))]
    with stop_together():
        path = cache_path(cfg, Path(fetch_weights(cfg.MODEL.WEIGHTS)), records, is_train)
        if comm.is_main_process():
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path.with_name(f"{path.name}.lock"), wait=True):
                # The array alone may have been removed, to make room.
                files = (path.with_name(f"{path.name}.{suffix}") for suffix in ("json", "npy"))
                if not all(file.is_file() for file in files):
                    _fill(cfg, path, records, is_train)
    with stop_together():
        return FeatureCache(path)


def _fill(cfg: CfgNode, path: Path, records: list[dict], is_train: bool) -> None:
    logger.info("Computing the features of %d images for %s", len(records), path)
    with seeded_generators(0):  # the training's go on as if there were no other model
        model = build_model(cfg)
    checkpointer = SafeCheckpointer(
        model, trust_pickle=cfg.MODEL.TRUST_PICKLE, min_share=cfg.MODEL.WEIGHTS_MIN_SHARE
    )
    checkpointer.load(cfg.MODEL.WEIGHTS, checkpointables=[])
    model.eval()
    if any(side % model.divisor for side in cfg.INPUT.FIXED_SIZE):
        raise ValueError(
            f"INPUT.FIXED_SIZE is {list(cfg.INPUT.FIXED_SIZE)}; MODEL.FEATURE_CACHE needs "
            f"multiples of {model.divisor}, as features of padded images are not kept."
        )
    head = cfg.MODEL.SEM_SEG_HEAD
    names = sorted({*head.IN_FEATURES, *head.COARSE_IN_FEATURES})

    @torch.no_grad()
    def extract(image: Tensor) -> Mapping[str, Tensor]:
        features = model.backbone(model.normalised(image)[None])
        return {name: features[name][0] for name in names}

    labelled = all(map(has_labels, records))
    mapper = SemanticDatasetMapper(cfg, is_train, keep_labels=labelled)
    write_feature_cache(path, records, mapper, extract, weights_sha256(model.backbone))
