"""Modules of a network in the place of others."""

from collections.abc import Callable

from torch import nn


def replace(
    network: nn.Module, kind: type[nn.Module], make: Callable[[nn.Module], nn.Module]
) -> None:
    """Put what ``make`` gives of every module of a kind, and of no subclass, in its place."""
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if type(module) is kind:
                setattr(parent, name, make(module))
