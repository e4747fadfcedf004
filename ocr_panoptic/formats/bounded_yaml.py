"""YAML of any origin, read within bounds."""

import os
from typing import Any, TextIO

import yaml

from ocr_panoptic.errors import UserError

MAX_BYTES = 2**20
_MAX_DEPTH = 50
MAX_NODES = 100_000  # with what an alias stands for counted each time


def read_yaml(path: str | os.PathLike) -> Any:
    """
    The content of a YAML file: mappings, lists, strings, numbers, dates.

    Raises:
        ValueError: it is no YAML, wants another type built, or is larger, deeper or, by its
            aliases, longer than a file that somebody has written.
        OSError: it cannot be read.
    """
    if os.path.getsize(path) > MAX_BYTES:
        raise UserError(f"{path} has more than {MAX_BYTES // 2**20} MiB; it is no file of settings")
    with open(path, encoding="utf-8") as file:
        return parse_yaml(file, path)


def parse_yaml(source: str | TextIO, name: object) -> Any:
    """
    Parse YAML as :func:`read_yaml` does, of a text or an open file, of at most MAX_BYTES.

    Args:
        name: of the source, for the message.
    """
    try:
        return yaml.load(source, _BoundedLoader)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as e:
        # Other ValueErrors: a date such as 2020-99-99.
        raise UserError(f"{name} is not valid YAML: {' '.join(str(e).split())}") from e


class _BoundedLoader(yaml.SafeLoader):
    """Counts the nodes before anything is built from them: an alias is small in the file, and its
    copies are not."""

    def __init__(self, stream: Any):
        super().__init__(stream)
        self._open: list[int] = []  # nodes below each that is being composed
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        is_alias, mark = self.check_event(yaml.AliasEvent), self.peek_event().start_mark
        self._open.append(0)
        if len(self._open) > _MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=mark)
        node = super().compose_node(parent, index)
        size = 1 + self._open.pop()
        if is_alias:
            if id(node) not in self._sizes:
                raise yaml.MarkedYAMLError(problem="refers to itself", problem_mark=mark)
            size = self._sizes[id(node)]
        self._sizes[id(node)] = size
        if self._open:
            self._open[-1] += size
        if size > MAX_NODES:
            raise yaml.MarkedYAMLError(problem="aliases make it too long", problem_mark=mark)
        return node
