"""A model with the weights that the config names, ready for inference."""

import logging

from detectron2.config import CfgNode
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer, check_settings
from ocr_panoptic.modeling.optimized import check_inference_keys, optimized

from .agreement import stop_together
from .resume import check_trained_weights
from .run_info import weights_sha256


@stop_together()
def build_trained_model(cfg: CfgNode) -> nn.Module:
    """
    Args:
        cfg: a completed config (see :func:`ocr_panoptic.engine.setup`).

    Returns:
        the model in evaluation mode, on MODEL.DEVICE, made for inference (:func:`.optimized`)

    Raises:
        FileNotFoundError: if the weights do not exist.
        ValueError: if no weights are named, they do not fill the model, or they were converted for
            other settings.
    """
    check_inference_keys(cfg)
    check_trained_weights(cfg.MODEL.WEIGHTS)
    model = build_model(cfg)
    checkpointer = SafeCheckpointer(
        model, cfg.OUTPUT_DIR, trust_pickle=cfg.MODEL.TRUST_PICKLE, strict=True
    )
    checkpointer.load(cfg.MODEL.WEIGHTS, checkpointables=[])
    check_settings(cfg, checkpointer.record, strict=True)
    logging.getLogger(__name__).info("%s", checkpointer.summary())
    copy = optimized(cfg, model.eval())
    if copy is not model:  # its tensors are others
        copy.made_of = weights_sha256(model)
    return copy
