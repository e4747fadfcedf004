"""One preparation at a time of an output folder."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ocr_panoptic.files import check_output_folder, locked, printable

from .journal import FOLDER

LOCK = "lock"
# Of :func:`.replacing`, in the folder itself, where other files may be somebody else's.
_UNFINISHED = re.compile(r"\.(dataset|(panoptic|instances)_.+)\.json\.[0-9a-f]+\.tmp")

_held: set[Path] = set()


@contextmanager
def preparing(output: Path) -> Iterator[None]:
    """Keep other processes from preparing data in a folder, which is made, and remove what killed
    ones have left half-written there. A block may lie inside another of the same folder.

    Raises:
        ValueError: the folder cannot be written, or another process prepares data there.
    """
    if (key := output.resolve()) in _held:
        yield
        return
    fix = "Give another --output, or set DETECTRON2_DATASETS to a folder that you can write."
    folders = output / FOLDER, output
    new = [folder for folder in folders if not folder.exists()]
    for folder in reversed(folders):
        check_output_folder(folder, "The output folder", fix)
    with ExitStack() as stack:
        stack.callback(_remove_empty, new)
        try:
            stack.enter_context(locked(output / FOLDER / LOCK, wait=False))
        except BlockingIOError as error:
            raise ValueError(
                f"{printable(output)}: another process prepares data there. Wait for its end, or "
                "give another --name or --output."
            ) from error
        _held.add(key)
        stack.callback(_held.remove, key)
        for path in output.glob(".*.tmp"):
            if _UNFINISHED.fullmatch(path.name):
                path.unlink()
        remove_unfinished(output / FOLDER)
        yield


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def remove_unfinished(folder: Path) -> None:
    """Remove what :func:`.replacing` has left in a folder of ours when its process was killed."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)
