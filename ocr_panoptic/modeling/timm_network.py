"""A network of timm by its name: made, and what timm says of how its parameters are trained."""

from typing import NamedTuple

import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

from ocr_panoptic.errors import UserError


class Training(NamedTuple):
    """
    Attributes:
        lr_factor: of its layer.
        decays: whether it has weight decay: biases, norms, layer scales, position embeddings and
            tokens have none.
    """

    lr_factor: float
    decays: bool


def create_network(name: str, **options: object) -> nn.Module:
    """``timm.create_model`` with random weights, on the "meta" device too."""
    is_meta = torch.get_default_device().type == "meta"
    try:
        network = timm.create_model(name, pretrained=False, **options)
    except NotImplementedError:
        if not is_meta:
            raise
        with torch.device("cpu"):  # RegNet computes its widths, and there are no values on "meta"
            network = timm.create_model(name, pretrained=False, **options)
    return network.to("meta") if is_meta else network  # DINOv3's frequencies are on the CPU


def training_of_parameters(
    name: str, features: nn.Module, layer_decay: float
) -> dict[str, Training]:
    """
    Return how timm trains a network: its ``param_groups_layer_decay``, of the whole classifier.
    Register tokens, which timm forgets, are trained as the class token.

    Args:
        name: of the network.
        features: it with ``features_only``, which has other names for some parameters and lacks the
            last ones.
        layer_decay: lr_factor is layer_decay ** (layers behind it, the classifier counting as one).
            What a layer is says the ``group_matcher`` of timm's network; mostly it is a block.

    Returns:
        of each parameter of ``features``

    Raises:
        ValueError: one of them is unknown to timm's network.
    """
    with torch.device("meta"):
        network = create_network(name, num_classes=1)  # DINOv2's has no classifier of its own
    names = {parameter: key for key, parameter in network.named_parameters()}
    exempt = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    groups = param_groups_layer_decay(
        network, weight_decay=1.0, no_weight_decay_list=exempt, layer_decay=layer_decay
    )
    known = {
        names[parameter]: Training(group["lr_scale"], group["weight_decay"] > 0)
        for group in groups
        for parameter in group["params"]
    }
    if {"cls_token", "reg_token"} <= known.keys():
        known["reg_token"] = known["cls_token"]
    # timm makes "stages_0.blocks" of "stages.0.blocks", or puts "model." first.
    known = {key.replace(".", "_"): training for key, training in known.items()}
    found = {}
    for key, _ in features.named_parameters():
        form = key.removeprefix("model.").replace(".", "_")
        if form not in known:
            raise UserError(
                f"timm's {name} has no parameter {key}, so that nothing says which layer it is of"
            )
        found[key] = known[form]
    return found
