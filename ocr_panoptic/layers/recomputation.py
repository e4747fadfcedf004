"""Parts of a network that are computed again in the backward pass, for less memory."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint


def run_part(module: nn.Module, function: Callable[..., Any], *inputs: Any) -> Any:
    """
    ``function(*inputs)``, a part of the module with large intermediate results. In training with
    ``module.recompute`` the inputs alone are kept for the backward pass, which computes the rest
    again, with the same random numbers (dropout). Norms update their running statistics once.

    Args:
        module: holds every layer of the function.
        function, inputs: what is computed, from tensors or dicts of them. It may have parts
            itself, which are then not all there at once.
    """
    if not (module.recompute and module.training):
        return function(*inputs)
    flat, tree = tree_flatten(inputs)  # a tensor in a dict would not be known as kept
    return checkpoint(
        lambda *flat: function(*tree_unflatten(flat, tree)),
        *flat,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), _running_statistics_kept(module)),
    )


@contextlib.contextmanager
def _running_statistics_kept(module: nn.Module) -> Iterator[None]:
    """Batch norms as they are, with a momentum of 0 and a counter that is thrown away: PyTorch's
    SyncBatchNorm does not train without one."""
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    settings = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, norm.num_batches_tracked.clone()
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, settings):
            norm.momentum, norm.num_batches_tracked = momentum, count
