"""Read and write the frames of video files with OpenCV."""

import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable

CODEC = "mp4v"  # a codec that OpenCV's wheels can write
SHARE_LOST = 0.01  # tolerance, since OpenCV estimates the number of frames in some formats
FALLBACK_FPS = 25.0  # for streams without a frame rate


class VideoReader:
    """
    The frames of a video, uint8 [H, W, 3] BGR; a reader can be iterated only once.

    The iteration ends with UserError if more than 1% of the video's frames are missing.
    """

    def __init__(self, source: Path):
        if not source.is_file():
            raise MissingFileError(f"{source}: no such file")
        self._source = source
        self._capture = cv2.VideoCapture(str(source))
        if not self._capture.isOpened():
            raise UserError(
                f"OpenCV {cv2.__version__} cannot open {source}. Is it a video, in a format that "
                "this build of OpenCV supports?"
            )
        self.fps = self._capture.get(cv2.CAP_PROP_FPS) or FALLBACK_FPS

    def __iter__(self) -> Iterator[np.ndarray]:
        stated, count = self._capture.get(cv2.CAP_PROP_FRAME_COUNT), 0
        try:
            while True:
                there, frame = self._capture.read()
                if not there:
                    break
                count += 1
                yield frame
        finally:
            self._capture.release()
        if count + 1 < (1 - SHARE_LOST) * stated:
            raise UserError(
                f"{printable(self._source)}: the video ends after {count} of {stated:.0f} frames. "
                "The file is truncated or broken. Copy it again, or convert it with ffmpeg"
            )


def write_video(path: Path, frames: Iterable[np.ndarray], fps: float) -> None:
    """Write frames of equal size, uint8 [H, W, 3] BGR, to an MP4 file atomically."""
    unfinished = path.with_name(f".{secrets.token_hex(8)}{path.suffix}")
    writer = None
    try:
        for frame in frames:
            if writer is None:
                size = frame.shape[1], frame.shape[0]
                codec = cv2.VideoWriter.fourcc(*CODEC)
                writer = cv2.VideoWriter(str(unfinished), codec, fps, size)
                if not writer.isOpened():
                    raise OSError(
                        f"OpenCV {cv2.__version__} cannot write {path} (codec {CODEC}). Check "
                        "that the folder is writable, and that this build has the codec"
                    )
            writer.write(np.ascontiguousarray(frame))
        if writer is not None:
            writer.release()
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
