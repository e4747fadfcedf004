"""YAML files."""

import os
from typing import Any

import yaml

from ocr_panoptic.errors import UserError


class _UniqueKeys(yaml.SafeLoader):
    """Refuse a key that a mapping has twice: YAML keeps the last one, and a user sees the first."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if (key.tag, key.value) in seen:
                    problem = f"the key {key.value!r} is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        super().flatten_mapping(node)


def read_yaml(path: str | os.PathLike) -> Any:
    """Return the content of a YAML file."""
    with open(path, encoding="utf-8") as file:
        try:
            return yaml.load(file, _UniqueKeys)
        except (yaml.YAMLError, ValueError) as e:  # ValueError: no UTF-8, or the date 2020-99-99
            raise UserError(f"{path} is not valid YAML: {' '.join(str(e).split())}") from e
