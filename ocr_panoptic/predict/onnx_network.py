"""An exported model, an ONNX file, in the place of a network: onnxruntime computes its outputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from detectron2.config import CfgNode
from detectron2.modeling.postprocessing import detector_postprocess
from detectron2.structures import Boxes, Instances
from torch import Tensor, nn

from ocr_panoptic.checkpoint.start import Start
from ocr_panoptic.config.files import load_config, values_by_key
from ocr_panoptic.errors import MissingFileError, MissingPackageError, UserError
from ocr_panoptic.modeling.inference import check_decided
from ocr_panoptic.modeling.inference_output import InferenceOutput

SUFFIX = ".onnx"
TRAINING_KEY = "ocr_panoptic.training"
"""Entry of the file's metadata with the settings and classes of the model's training, as YAML."""
FREE = (
    *("DATALOADER.", "DATASETS.", "MODEL.WEIGHTS", "OUTPUT_DIR", "SEED", "VERSION"),
    *("TEST.SAVE_PREDICTIONS", "TEST.EXPECTED_RESULTS"),
)
"""Keys, and beginnings of keys, that have no effect on the network."""
# The file resizes images itself.
OWN = {"INPUT.MIN_SIZE_TEST": 0, "INPUT.FIXED_SIZE": [], "MODEL.DEVICE": "cpu"}
OWN |= {"TEST.OPTIMIZED": True, "TEST.PRECISION": "float32"}


def find_onnx_model(file: str, keys: Mapping[str, Any]) -> tuple[CfgNode, Start]:
    """
    Return the config of a model in an ONNX file, and the facts about its training.

    Args:
        file: ONNX file, written by ``ocr-panoptic export``.
        keys: overrides of config keys. Keys that would change the network are refused.
    """
    if not Path(file).is_file():
        raise MissingFileError(f"The file {file} does not exist. Check the path.")
    text = _run_onnx().read_metadata(file).get(TRAINING_KEY)
    if text is None:
        raise UserError(
            f"{file} does not contain the settings of its training. Export the model again, with "
            "this version of ocr-panoptic export; or run the file with run_onnx.py."
        )
    training = yaml.safe_load(text)
    fixed = [
        key
        for key, value in keys.items()
        if not key.startswith(FREE) and (key, str(value)) != ("MODEL.DEVICE", "cpu")
    ]
    if fixed:
        raise UserError(
            f"{', '.join(fixed)} cannot be changed: the network in {file} has fixed settings. "
            "Name the run's folder instead of this file, or export the model again with these keys."
        )
    settings = values_by_key(yaml.safe_load(training["settings"]))
    start = Start(file, settings, training["classes"])
    return load_config("", {"OUTPUT_DIR": "output", **OWN, **keys}, settings), start


class OnnxNetwork(nn.Module):
    """
    The network of an ONNX file, which takes and returns what an :class:`.InferenceModel` does.

    Args:
        file: ONNX file, written by ``ocr-panoptic export``.
        channel_order: order of the input images' channels, "RGB" or "BGR".

    Attributes:
        precision: type of the network's numbers, "float32" or "int8".
    """

    def __init__(self, file: str, channel_order: str):
        super().__init__()
        threads = torch.get_num_threads()
        self.device = torch.device("cpu")
        self._model = _run_onnx().Model(file, threads=threads, providers=["CPUExecutionProvider"])
        self._is_bgr = channel_order == "BGR"
        self.precision = self._model.description.get("made", {}).get("precision", "float32")

    def forward(self, batched_inputs: list[dict]) -> list[InferenceOutput]:
        """Return the output for each input, whose image [3, H, W] was not resized."""
        return [self._output(inputs["image"]) for inputs in batched_inputs]

    def _output(self, image: Tensor) -> InferenceOutput:
        pixels = image.permute(1, 2, 0).numpy()
        try:
            found = self._model(pixels[:, :, ::-1] if self._is_bgr else pixels)
        except ValueError as error:  # e.g. an image so thin that a side is resized to 0 pixels
            raise UserError(f"{error}.") from error
        confidence = torch.from_numpy(found["confidences"])
        check_decided(confidence)
        parts: dict[str, Any] = {
            "labels": torch.from_numpy(found["labels"]).long(),
            "confidence": confidence,
        }
        if self._model.is_panoptic:
            parts["panoptic_seg"] = torch.from_numpy(found["ids"]), found["segments"]
            parts["instances"] = lambda output: _instances(found, image.shape[1:])
        return InferenceOutput(parts)


def _instances(found: Mapping[str, Any], size: torch.Size) -> Instances:
    """Return all detections of an image of the given size as Detectron2's model does."""
    boxes, scores, classes, masks = (
        torch.from_numpy(found[key]) for key in ("boxes", "scores", "classes", "masks")
    )
    instances = Instances(tuple(size))
    instances.pred_boxes, instances.scores = Boxes(boxes), scores
    instances.pred_classes, instances.pred_masks = classes, masks[:, None]
    return detector_postprocess(instances, *size)


def _run_onnx() -> Any:
    try:
        from . import run_onnx
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{error.name} is not installed, but ONNX files need it. Run: pip install onnxruntime"
        ) from error
    return run_onnx
