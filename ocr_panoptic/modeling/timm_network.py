"""A network of timm by its name: made, and what timm says of how its parameters are trained."""

import re
from typing import NamedTuple

import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn


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
    try:
        return timm.create_model(name, pretrained=False, **options)
    except NotImplementedError:
        if torch.get_default_device().type != "meta":
            raise
        with torch.device("cpu"):  # RegNet computes its widths, and there are no values on "meta"
            network = timm.create_model(name, pretrained=False, **options)
        return network.to("meta")


def training_of_parameters(
    name: str, features: nn.Module, layer_decay: float
) -> dict[str, Training]:
    """
    How timm trains a network: its ``param_groups_layer_decay``, of the whole classifier.

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
        network = create_network(name, num_classes=1)  # of its own DINOv2 has no classifier
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
    found = {}
    for key, _ in features.named_parameters():
        # timm makes "stages_0" of "stages.0", or puts "model." first.
        forms = (key, key.removeprefix("model."), re.sub(r"^([^.]*)_(\d+)\.", r"\1.\2.", key))
        form = next((form for form in forms if form in known), None)
        if form is None:
            raise ValueError(
                f"timm's {name} has no parameter {key}, so that nothing says which layer it is of"
            )
        found[key] = known[form]
    return found
