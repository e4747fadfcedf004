"""XML of any origin, read within bounds."""

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from ocr_panoptic.errors import MissingFileError, UserError

_MAX_DEPTH = 50
MAX_PART_BYTES = 256 << 20  # of an element below the root
BLOCK = 1 << 20


def read_parts(path: Path, root: str) -> Iterator[ElementTree.Element]:
    """
    The elements directly below the root, one at a time: those before it are given up.

    Args:
        root: name that the root must have.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no XML, has another root, or a document type, by which entities are
            declared and other files read; it is deeper, or a part of it larger, than an annotation.
    """
    if not path.is_file():
        raise MissingFileError(f"{path}: file not found, or no regular file.")
    target = _Parts(root)
    parser = ElementTree.XMLParser(target=target)
    unfinished = 0
    with open(path, "rb") as file:
        while True:
            block = file.read(BLOCK)
            unfinished += len(block)
            try:
                if block:
                    parser.feed(block)
                else:
                    parser.close()
            except (ElementTree.ParseError, LookupError, ValueError) as error:
                # LookupError: an encoding that Python does not know.
                raise UserError(f"{path}: cannot be read as XML ({error}).") from error
            if target.parts:
                yield from target.parts
                target.parts.clear()
                unfinished = 0
            if unfinished > MAX_PART_BYTES:
                raise UserError(
                    f"{path}: has an element of more than {MAX_PART_BYTES >> 20} MiB. "
                    "Is it the right file?"
                )
            if not block:
                return


class _Parts(ElementTree.TreeBuilder):
    """Takes the finished elements off the root, and refuses what an annotation does not have."""

    def __init__(self, root: str):
        super().__init__()
        self.parts: list[ElementTree.Element] = []
        self._root = root
        self._open: list[ElementTree.Element] = []

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise UserError("it has a document type, which annotations do not need; remove <!DOCTYPE")

    def start(self, tag: str, attributes: dict[str, str]) -> ElementTree.Element:
        if not self._open and tag != self._root:
            raise UserError(f"its root is <{tag[:80]}>, expected <{self._root}>")
        if len(self._open) == _MAX_DEPTH:
            raise UserError("nested too deeply")
        element = super().start(tag, attributes)
        self._open.append(element)
        return element

    def end(self, tag: str) -> ElementTree.Element:
        element = super().end(tag)
        self._open.pop()
        if len(self._open) == 1:
            self._open[0].clear()
            self.parts.append(element)
        return element
