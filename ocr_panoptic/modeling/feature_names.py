"""The features that the keys of a config list, which have to be those that there are."""

from collections.abc import Iterable, Sequence

from detectron2.config import CfgNode
from detectron2.modeling import Backbone

from ocr_panoptic.errors import UserError

STAGES = ("stem", "res2", "res3", "res4", "res5")  # of Detectron2's ResNet


def check_stage_names(cfg: CfgNode) -> None:
    """
    Check what a ResNet of Detectron2 is to give, and what an FPN reads of it.

    Raises:
        ValueError: as :func:`check_features`.
    """
    if "resnet" in cfg.MODEL.BACKBONE.NAME:
        given, key = cfg.MODEL.RESNETS.OUT_FEATURES, "MODEL.RESNETS.OUT_FEATURES"
        check_features(key, given, STAGES, "the network")
        if "fpn" in cfg.MODEL.BACKBONE.NAME:
            check_features("MODEL.FPN.IN_FEATURES", cfg.MODEL.FPN.IN_FEATURES, given, key)


def check_panoptic_names(cfg: CfgNode, backbone: Backbone) -> None:
    """
    Check what the heads of a panoptic model read. Detectron2's leave out what there is not, or fail
    without its name.

    Raises:
        ValueError: as :func:`check_features`.
    """
    for head in ("SEM_SEG_HEAD", "RPN", "ROI_HEADS"):
        names = cfg.MODEL[head].IN_FEATURES
        check_features(f"MODEL.{head}.IN_FEATURES", names, backbone.output_shape())


def check_features(
    key: str, names: Sequence[str], known: Iterable[str], source: str = "the backbone"
) -> None:
    """
    Args:
        key: of the config, for the message.
        names: what it lists.
        known: what ``source`` has.

    Raises:
        ValueError: they are none, or one is not known.
    """
    unknown = [str(name) for name in names if name not in known]
    if unknown or not names:
        raise UserError(
            f"{key} is {list(names)}, and {source} has {', '.join(known)}"
            + (f": {', '.join(unknown)} is not among them." if unknown else ".")
        )
