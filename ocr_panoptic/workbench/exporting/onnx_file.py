"""Writes a model as a self-contained ONNX file, with a description in the metadata."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
import yaml
from detectron2.config import CfgNode
from detectron2.data import Metadata
from detectron2.data import transforms as T
from detectron2.modeling import PanopticFPN
from onnxscript.optimizer import optimize
from torch import nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import categories_of, ids_by_class
from ocr_panoptic.formats.files import replacing
from ocr_panoptic.modeling import InferenceModel
from ocr_panoptic.modeling.panoptic_merge import rules_of_network
from ocr_panoptic.predict.onnx_network import TRAINING_KEY
from ocr_panoptic.predict.run_onnx import FORMAT, METADATA_KEY, Model
from ocr_panoptic.predict.task import task_of

from .graphs import PanopticGraph, SemanticGraph, build_graph
from .operators import TRANSLATIONS
from .parity import SIZES, check_parity, parity_faults
from .stages import SEGMENT_OUTPUTS, joined, merge_stage, resize_stage

logger = logging.getLogger(__name__)

OPSET = 18
IR_VERSION = 8  # what onnxruntime 1.16 reads; the file uses nothing that is newer
INPUTS = ("resized", "size")


def export_onnx(
    model: InferenceModel,
    cfg: CfgNode,
    description: dict[str, Any],
    training: dict[str, Any],
    path: Path,
) -> list[dict[str, Any]]:
    """
    Write a model as an ONNX file, and check that onnxruntime reproduces the model's results.

    If a difference exceeds its limit, UserError is raised and no file is left behind.

    Args:
        model: inference model on the CPU, built with TEST.OPTIMIZED False.
        cfg: the model's config.
        description: classes and origin of the model, from :func:`describe`.
        training: settings and classes of the training, from :func:`.identity_of_run`.
        path: file to write.

    Returns:
        a row of differences for each test image, described in :func:`.check_parity`
    """
    channel_order, augmentation = cfg.INPUT.FORMAT, task_of(cfg).test_augmentation(cfg)
    graph = build_graph(model.network, channel_order)
    with replacing(path) as temporary:
        write_onnx(graph, augmentation, description, temporary, training)
        logger.info("Comparing onnxruntime with PyTorch on images of %d sizes", len(SIZES))
        rows = check_parity(model, Model(temporary), channel_order, augmentation)
        for row in rows:
            if faults := parity_faults(row):
                raise UserError(
                    f"{path} was not written: onnxruntime's results differ from the model's on an "
                    f"image of {row['image']}: {', '.join(faults)}. Try another version of "
                    "onnxruntime, or another checkpoint of the run (--weights)."
                )
    return rows


def write_onnx(
    graph: SemanticGraph,
    augmentation: T.Augmentation,
    description: dict[str, Any],
    path: Path,
    training: dict[str, Any] | None = None,
) -> None:
    """
    Write a graph, with the resizing before it and the panoptic merge after it, as an ONNX file.

    UserError is raised if PyTorch cannot export the network. Results are not checked. Arguments
    that are not listed are described in :func:`export_onnx`.

    Args:
        augmentation: transform that resizes test images.
    """
    resize = resize_stage(augmentation)
    # The exporter treats sizes that are 1, or equal by chance, as constants. So every map gets at
    # least 2 pixels along each side, and no side is a multiple of another.
    image = torch.zeros(3 * graph.stride - 31, 5 * graph.stride - 13, 3, dtype=torch.int32)
    size = torch.tensor([image.shape[0] - 3, image.shape[1] + 5])
    dynamic = torch.export.Dim.DYNAMIC
    for name in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logger.info("Tracing the network")
        try:
            program = torch.export.export(
                graph,
                (image, size),
                dynamic_shapes=({0: dynamic, 1: dynamic}, {}),
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
            logger.info("Translating %d operations to ONNX", len(program.graph.nodes))
            onnx_program = torch.onnx.export(
                program,
                dynamo=True,
                input_names=INPUTS,
                output_names=graph.outputs,
                opset_version=OPSET,
                custom_translation_table=TRANSLATIONS,
                verbose=False,
            )
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UserError(f"PyTorch cannot export this network: {reason}") from error
    # `export` returns None only without dynamo.
    network, outputs = onnx_program.model, SemanticGraph.outputs  # type: ignore[union-attr]
    # Fold the norms into the weights, however large.
    network = optimize(network, input_size_limit=2**28, output_size_limit=2**28)
    whole = joined(resize, network)
    if isinstance(graph, PanopticGraph):
        whole = joined(whole, merge_stage(rules_of_network(graph.model)))
        outputs = (*graph.outputs, *SEGMENT_OUTPUTS)
    given = {value.name: value for value in whole.graph.outputs}
    whole.graph.outputs[:] = [given[name] for name in outputs]
    whole.metadata_props[METADATA_KEY] = json.dumps(description)
    if training:
        whole.metadata_props[TRAINING_KEY] = yaml.safe_dump(training)
    whole.ir_version = IR_VERSION
    ir.save(whole, path)


def describe(model: nn.Module, metadata: Metadata, made: dict[str, Any]) -> dict[str, Any]:
    """
    Return the classes and the origin of a model as JSON values, for its ONNX file's metadata.

    ``made`` is the origin of the model, e.g. versions and the hash of the config.
    """

    def classes(names: list[str], colors: list) -> list[dict[str, Any]]:
        pairs = zip(names, colors, strict=True)
        return [{"name": name, "color": [int(c) for c in color]} for name, color in pairs]

    description = {
        "format": FORMAT,
        "classes": classes(metadata.stuff_classes, metadata.stuff_colors),
        "made": made,
    }
    if not isinstance(model, PanopticFPN):
        return description
    return description | {
        "things": classes(metadata.thing_classes, metadata.thing_colors),
        "thing_ids": ids_by_class(metadata, "thing"),
        "stuff_ids": ids_by_class(metadata, "stuff"),
        "categories": categories_of(metadata),
    }
