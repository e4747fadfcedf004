"""TEST.SEGFIX: a trained SegFix that refines what a model predicts."""

from collections.abc import Callable

from detectron2.config import CfgNode
from torch import nn

from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.segfix.refinement import RefinedModel

from .segfix_config import segfix_config
from .single_image import model_input
from .trained_model import build_trained_model


def refined_by_segfix(cfg: CfgNode, model: nn.Module) -> nn.Module:
    """
    Args:
        cfg: completed, of the model.
        model: an :class:`.InferenceModel`.

    Returns:
        a :class:`.RefinedModel` where TEST.SEGFIX.WEIGHTS names one, else the model

    Raises:
        FileNotFoundError, ValueError: as :func:`.segfix_config` and :func:`.build_trained_model`.
    """
    segfix_cfg = segfix_config(cfg)
    if segfix_cfg is None:
        return model
    return RefinedModel(model, build_trained_model(segfix_cfg), cfg.TEST.SEGFIX.SCALE)


class SegFixMapper:
    """
    A mapper for tests whose records have the input of SegFix besides, "segfix".

    Args:
        mapper: of the model.
        segfix_cfg: see :func:`.segfix_config`.
    """

    def __init__(self, mapper: Callable[[dict], dict], segfix_cfg: CfgNode):
        self._mapper, self._cfg = mapper, segfix_cfg

    def __call__(self, dataset_dict: dict) -> dict:
        record = self._mapper(dataset_dict)
        inputs = self._cfg.INPUT
        image = read_picture(dataset_dict["file_name"], inputs.FORMAT, inputs.CHANNELS)
        return {**record, "segfix": model_input(self._cfg, image)}
