"""Draw what a model predicts for images and videos, with Detectron2's visualizers."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from detectron2.data import Metadata
from detectron2.utils.video_visualizer import VideoVisualizer
from detectron2.utils.visualizer import Visualizer
from PIL import Image
from tqdm import tqdm

from ocr_panoptic.visualization.inputs import read_image
from ocr_panoptic.visualization.video import VideoReader, VideoWriter, Window

Predictor = Callable[[np.ndarray], dict[str, Any]]
"""From uint8 [H,W,3] BGR to a model's output for that image: "panoptic_seg", or else "labels"."""


WINDOW = "Segmentation (q or Esc: stop)"


def draw_images(
    paths: Sequence[Path], outputs: Sequence[Path] | None, predict: Predictor, metadata: Metadata
) -> list[Path]:
    """
    Draw the segments over every image, with class names and scores.

    Args:
        paths: image files.
        outputs: where each picture goes; None shows them in a window, one after another.
        predict: the model.
        metadata: class names and colours.

    Returns:
        the images that could not be read; each is logged with the reason, the others are drawn.

    Raises:
        RuntimeError: see :class:`Window`.
    """
    window = Window(WINDOW, wait_ms=0) if outputs is None else None
    unreadable = []
    for i, path in enumerate(tqdm(paths, unit="image")):
        try:
            image = read_image(path)
        except ValueError as error:
            logging.getLogger(__name__).error("%s", error)
            unreadable.append(path)
            continue
        picture = draw_prediction(image, predict(image), metadata)
        if window is None:
            Image.fromarray(picture[:, :, ::-1]).save(outputs[i])
        elif not window.write(picture):
            break
    return unreadable


def draw_video(
    reader: VideoReader, output: Path | None, predict: Predictor, metadata: Metadata
) -> int:
    """
    The same for the frames of a video, where an instance keeps its colour from frame to frame.

    Args:
        output: a file, see :class:`VideoWriter`; None shows a window.

    Returns:
        the number of frames, at least 1.

    Raises:
        ValueError: no frame can be read.
        RuntimeError: see :class:`Window` and :class:`VideoWriter`.
    """
    visualizer = VideoVisualizer(metadata)
    count = 0
    with Window(WINDOW, wait_ms=1) if output is None else VideoWriter(output, reader.fps) as sink:
        for frame in tqdm(reader, total=reader.num_frames or None, unit="frame"):
            count += 1
            if not sink.write(_draw_frame(visualizer, frame, predict(frame))):
                break
    if not count:
        raise ValueError(f"{reader.source}: no frame can be read")
    return count


def draw_prediction(
    image: np.ndarray, prediction: dict[str, Any], metadata: Metadata
) -> np.ndarray:
    """
    Args:
        image: uint8 [H,W,3] BGR.
        prediction: a model's output for this image.
        metadata: class names and colours.

    Returns:
        uint8 [H,W,3] BGR.
    """
    visualizer = Visualizer(image[:, :, ::-1], metadata)
    if "panoptic_seg" in prediction:
        panoptic_seg, segments_info = prediction["panoptic_seg"]
        drawn = visualizer.draw_panoptic_seg(panoptic_seg.cpu(), segments_info)
    else:
        drawn = visualizer.draw_sem_seg(prediction["labels"].cpu())
    return drawn.get_image()[:, :, ::-1]


def _draw_frame(
    visualizer: VideoVisualizer, frame: np.ndarray, prediction: dict[str, Any]
) -> np.ndarray:
    rgb = frame[:, :, ::-1]
    if "panoptic_seg" in prediction:
        panoptic_seg, segments_info = prediction["panoptic_seg"]
        drawn = visualizer.draw_panoptic_seg_predictions(rgb, panoptic_seg.cpu(), segments_info)
    else:
        drawn = visualizer.draw_sem_seg(rgb, prediction["labels"].cpu())
    return drawn.get_image()[:, :, ::-1]
