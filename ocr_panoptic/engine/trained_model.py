"""A model with the weights that the config names, ready for inference."""

from detectron2.config import CfgNode
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer, check_settings


def build_trained_model(cfg: CfgNode, *, resume: bool = False) -> nn.Module:
    """
    Args:
        cfg: a completed config (see :func:`ocr_panoptic.engine.setup`).
        resume: take the last checkpoint of OUTPUT_DIR instead of MODEL.WEIGHTS.

    Returns:
        the model in evaluation mode, on MODEL.DEVICE

    Raises:
        FileNotFoundError: if the weights, or the checkpoint to resume from, do not exist.
        ValueError: if no weights are named, they do not fill the model, or they were converted for
            other settings.
    """
    model = build_model(cfg)
    checkpointer = SafeCheckpointer(
        model, cfg.OUTPUT_DIR, trust_pickle=cfg.MODEL.TRUST_PICKLE, strict=True
    )
    if resume:
        require_checkpoint(checkpointer)
    weights = checkpointer.get_checkpoint_file() if resume else cfg.MODEL.WEIGHTS
    if not weights:
        raise ValueError(
            "MODEL.WEIGHTS is empty, but inference needs trained weights. "
            "Set it to a checkpoint, such as OUTPUT_DIR/model_final.pth."
        )
    checkpointer.load(weights, checkpointables=[])
    check_settings(cfg, checkpointer.record, strict=True)
    return model.eval()


def require_checkpoint(checkpointer: SafeCheckpointer) -> None:
    """Raise FileNotFoundError where ``--resume`` has nothing to resume."""
    if not checkpointer.has_checkpoint():
        raise FileNotFoundError(
            f"--resume found no checkpoint in OUTPUT_DIR={checkpointer.save_dir} (no file "
            "last_checkpoint). Set OUTPUT_DIR to the run to be resumed, or leave --resume out."
        )
