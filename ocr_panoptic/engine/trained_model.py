"""A model with the weights that the config names, ready for inference."""

from detectron2.config import CfgNode
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer, check_settings, fetch_weights
from ocr_panoptic.modeling.prepared import check_inference_keys, prepared

from .agreement import stop_together
from .resume import Resume, find_checkpoint


@stop_together()
def build_trained_model(cfg: CfgNode, *, resume: Resume = False) -> nn.Module:
    """
    Args:
        cfg: a completed config (see :func:`ocr_panoptic.engine.setup`).
        resume: take the last checkpoint of OUTPUT_DIR instead of MODEL.WEIGHTS; "auto": where there
            is one.

    Returns:
        the model in evaluation mode, on MODEL.DEVICE, made for inference (:func:`.prepared`)

    Raises:
        FileNotFoundError: if the weights, or the checkpoint to resume from, do not exist.
        ValueError: if no weights are named, they do not fill the model, or they were converted for
            other settings.
    """
    check_inference_keys(cfg)
    model = build_model(cfg)
    checkpointer = SafeCheckpointer(
        model, cfg.OUTPUT_DIR, trust_pickle=cfg.MODEL.TRUST_PICKLE, strict=True
    )
    weights = find_checkpoint(checkpointer, resume) or cfg.MODEL.WEIGHTS
    fetch_weights(weights)
    if not weights:
        raise ValueError(
            "MODEL.WEIGHTS is empty, but inference needs trained weights. "
            "Set it to a checkpoint, such as OUTPUT_DIR/model_final.pth."
        )
    checkpointer.load(weights, checkpointables=[])
    check_settings(cfg, checkpointer.record, strict=True)
    return prepared(cfg, model.eval())
