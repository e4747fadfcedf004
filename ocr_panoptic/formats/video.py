"""Frames in and out through OpenCV: files, a camera, a window."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import cv2
import numpy as np

from ocr_panoptic.errors import FailedWriteError, MissingFileError, UserError
from ocr_panoptic.formats.files import printable

# The codec that OpenCV's own wheels can write for each container.
CODECS = {".mp4": "mp4v", ".avi": "MJPG"}
SHARE_LOST = 0.01  # some formats do not state the number of their frames, OpenCV estimates it
FALLBACK_FPS = 25.0  # of streams that do not tell their frame rate


class VideoReader:
    """
    Iterate over the frames (uint8 [H,W,3] BGR) of a video file or a camera, once. At the end of a
    file that has lost more than SHARE_LOST of its frames, ValueError is raised.

    Attributes:
        source: the file, or the number of the camera.
        fps: frames per second.
        num_frames: as the file states it, 0 where unknown (cameras).
    """

    def __init__(self, source: Path | int):
        """
        Raises:
            FileNotFoundError: no such file.
            ValueError: OpenCV can open no video there.
        """
        is_file = isinstance(source, Path)
        if is_file and not source.is_file():
            raise MissingFileError(f"--video-input {source}: no such file")
        self.source = source
        self._capture = cv2.VideoCapture(str(source) if is_file else source)
        if not self._capture.isOpened():
            raise UserError(
                f"OpenCV {cv2.__version__} cannot open {source if is_file else f'camera {source}'}"
                "; is it there, and of a format that this OpenCV was built for?"
            )
        self.fps = self._capture.get(cv2.CAP_PROP_FPS) or FALLBACK_FPS
        self.num_frames = max(0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))

    def __iter__(self) -> Iterator[np.ndarray]:
        count = 0
        try:
            while True:
                there, frame = self._capture.read()
                if not there:
                    break
                count += 1
                yield frame
        finally:
            self._capture.release()
        if count + 1 < (1 - SHARE_LOST) * self.num_frames:
            raise UserError(
                f"{printable(self.source)}: ends after {count} of its {self.num_frames} frames, it "
                "is cut off or broken; the frames before that are done"
            )


def video_output(source: Path, output: str) -> Path:
    """
    Return where the drawn video goes: to the file ``output``, or into that folder under the
    source's name.

    Raises:
        ValueError: the file's ending is not one of CODECS, or it is the source itself.
    """
    target = Path(output).expanduser()
    if target.is_dir() or not target.suffix:
        target = target / f"{source.stem}.mp4"
    if target.suffix.lower() not in CODECS:
        raise UserError(
            f"--output {output}: a video is written to a folder or to a file that ends in "
            f"{' or '.join(CODECS)}"
        )
    if target.resolve() == source.resolve():
        raise UserError(f"--output {output} would overwrite the input {source}")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


class VideoWriter(AbstractContextManager):
    """Writes frames of one size to a file, whose ending is one of CODECS. Until all are written
    it has another name: a video without its end cannot be played."""

    def __init__(self, path: Path, fps: float):
        self._path, self._fps = path, fps
        self._unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
        self._writer: cv2.VideoWriter | None = None

    def write(self, frame: np.ndarray) -> bool:
        """
        Args:
            frame: uint8 [H,W,3] BGR.

        Returns:
            True.

        Raises:
            OSError: this OpenCV cannot write the format, or the folder is not writable.
        """
        if self._writer is None:
            height, width = frame.shape[:2]
            codec = CODECS[self._path.suffix.lower()]
            self._writer = cv2.VideoWriter(
                str(self._unfinished), cv2.VideoWriter_fourcc(*codec), self._fps, (width, height)
            )
            if not self._writer.isOpened():
                raise FailedWriteError(
                    f"OpenCV {cv2.__version__} cannot write {self._path} (codec {codec}); is the "
                    f"folder writable? Another format may do: {', '.join(CODECS)}"
                )
        self._writer.write(np.ascontiguousarray(frame))
        return True

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.release()
            if self._unfinished.exists():
                self._unfinished.replace(self._path)


class Window(AbstractContextManager):
    """A window on the screen, for OpenCV builds that have one."""

    def __init__(self, title: str, wait_ms: int):
        """
        Args:
            wait_ms: how long a frame stays; 0 until a key is pressed.

        Raises:
            OSError: this OpenCV build or this machine has no display.
        """
        try:
            cv2.namedWindow(title, cv2.WINDOW_NORMAL)
        except cv2.error as error:
            raise FailedWriteError(
                "this OpenCV cannot open a window (a headless build, or no screen): write to files "
                "with --output, or install opencv-python in place of opencv-python-headless"
            ) from error
        self._title, self._wait_ms = title, wait_ms

    def write(self, frame: np.ndarray) -> bool:
        """
        Args:
            frame: uint8 [H,W,3] BGR.

        Returns:
            False when the user asks to stop (Escape or q).
        """
        cv2.imshow(self._title, frame)
        return cv2.waitKey(self._wait_ms) & 0xFF not in (27, ord("q"))

    def __exit__(self, *error: object) -> None:
        cv2.destroyWindow(self._title)
