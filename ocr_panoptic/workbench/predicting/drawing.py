"""Draw what a model predicts for images and videos, with Detectron2's visualizers."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from detectron2.data import Metadata
from detectron2.utils.video_visualizer import VideoVisualizer
from detectron2.utils.visualizer import VisImage, Visualizer
from PIL import Image
from tqdm import tqdm

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import replacing
from ocr_panoptic.formats.pictures import COLOURS, TooThin, as_colours, read_picture
from ocr_panoptic.formats.video import VideoReader, VideoWriter, Window

Predict = Callable[[np.ndarray], dict[str, Any]]
"""From [H,W,C], BGR if it has colours, to a model's output for that image: "panoptic_seg", or else
"labels"."""

WINDOW = "Segmentation (q or Esc: stop)"


def draw_images(
    paths: Sequence[Path],
    outputs: Sequence[Path] | None,
    predict: Predict,
    metadata: Metadata,
    channels: int = COLOURS,
) -> list[Path]:
    """
    Draw the segments over every image, with class names and scores.

    Args:
        paths: image files.
        outputs: where each picture goes; None shows them in a window, one after another.
        predict: the model.
        metadata: class names and colours.
        channels: of the images, INPUT.CHANNELS.

    Returns:
        the images that could not be read; each is logged with the reason, the others are drawn.

    Raises:
        OSError: see :class:`Window`.
    """
    window = Window(WINDOW, wait_ms=0) if outputs is None else None
    unreadable = []
    for i, path in enumerate(tqdm(paths, unit="image")):
        try:
            image = read_picture(path, channels=channels)
        except (OSError, ValueError) as error:
            logging.getLogger(__name__).error("%s", error)
            unreadable.append(path)
            continue
        try:
            found = predict(image)
        except (TooThin, FloatingPointError) as error:
            logging.getLogger(__name__).error("%s: %s.", path, error)
            unreadable.append(path)
            continue
        visualizer = Visualizer(as_colours(image, "BGR"), metadata)
        picture = _draw(found, visualizer.draw_panoptic_seg, visualizer.draw_sem_seg)
        if window is None:
            format = Image.registered_extensions()[outputs[i].suffix.lower()]
            with replacing(outputs[i]) as temporary:
                Image.fromarray(picture[:, :, ::-1]).save(temporary, format)
        elif not window.write(picture):
            break
    return unreadable


def draw_video(
    reader: VideoReader, output: Path | None, predict: Predict, metadata: Metadata
) -> int:
    """
    Draw the frames of a video, where an instance keeps its colour from frame to frame.

    Args:
        output: a file, see :class:`VideoWriter`; None shows a window.

    Returns:
        the number of frames, at least 1.

    Raises:
        ValueError: no frame can be read, or the video ends before it should; the frames before
            that have been drawn.
        OSError: see :class:`Window` and :class:`VideoWriter`.
    """
    visualizer = VideoVisualizer(metadata)
    count = 0
    with Window(WINDOW, wait_ms=1) if output is None else VideoWriter(output, reader.fps) as sink:
        for frame in tqdm(reader, total=reader.num_frames or None, unit="frame"):
            count += 1
            rgb = frame[:, :, ::-1]
            picture = _draw(
                predict(frame),
                partial(visualizer.draw_panoptic_seg_predictions, rgb),
                partial(visualizer.draw_sem_seg, rgb),
            )
            if not sink.write(picture):
                break
    if not count:
        raise UserError(f"{reader.source}: no frame can be read")
    return count


def _draw(
    prediction: dict[str, Any],
    draw_panoptic: Callable[..., VisImage],
    draw_labels: Callable[..., VisImage],
) -> np.ndarray:
    """uint8 [H,W,3] BGR."""
    if "panoptic_seg" in prediction:
        panoptic_seg, segments_info = prediction["panoptic_seg"]
        drawn = draw_panoptic(panoptic_seg.cpu(), segments_info)
    else:
        drawn = draw_labels(prediction["labels"].cpu())
    return drawn.get_image()[:, :, ::-1]
