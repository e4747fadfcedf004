"""Reports which of a model's tensors are filled by a file of weights."""

from collections.abc import Iterable

from fvcore.common.checkpoint import _IncompatibleKeys
from tabulate import tabulate

# Prefixes of the network inside Detectron2's FPN and simple feature pyramid.
NETWORKS = ("backbone.bottom_up.", "backbone.net.")
# Suffixes of tensors that a file is allowed to lack: counters of norms, and pixel mean and std.
OPTIONAL = ("num_batches_tracked", "pixel_mean", "pixel_std")
# ImageNet files of the Caffe2 era merge the statistics into weight and bias.
STATISTICS = ("running_mean", "running_var")


class Fit:
    """
    How the tensors of a file fit a model.

    Args:
        names: names of all tensors of the model.
        incompatible: differences between file and model that Detectron2's checkpointer found.

    Attributes:
        names: names of the model's tensors, without pixel mean, pixel std and batch counters.
        faults: reasons why the file does not fill tensors of the model, keyed by tensor name.
        unused: names of the file's tensors that the model lacks.
    """

    def __init__(self, names: Iterable[str], incompatible: _IncompatibleKeys):
        why = dict.fromkeys(incompatible.missing_keys, "missing from the file")
        for name, in_file, in_model in incompatible.incorrect_shapes:
            why[name] = f"{in_file} in the file, {in_model} in the model"
        self.names = [name for name in names if not name.endswith(OPTIONAL)]
        self.faults = {name: why[name] for name in self.names if name in why}
        self.unused = [n for n in incompatible.unexpected_keys if not n.endswith(OPTIONAL)]

    def backbone_share(self, statistics: bool = False) -> float:
        """
        Return the share of the backbone's tensors that the file fills; 1 without a backbone.

        The layers of an FPN and the norms that MODEL.TIMM.OUTPUT_NORM adds do not count. Running
        statistics of norms, which some files lack, count only with ``statistics``.
        """
        found = (p for p in NETWORKS if any(name.startswith(p) for name in self.names))
        prefix = next(found, "backbone.")
        added = f"{prefix}output_norms."
        names = [n for n in self.names if n.startswith(prefix) and not n.startswith(added)]
        names = [name for name in names if statistics or not name.endswith(STATISTICS)]
        filled = sum(name not in self.faults for name in names)
        return filled / len(names) if names else 1.0

    def table(self) -> str:
        """Return a text table that counts the filled tensors of each top-level module."""
        parts: dict[str, list[str]] = {}
        for name in self.names:
            parts.setdefault(name.partition(".")[0], []).append(name)
        rows = []
        for part, names in parts.items():
            unfilled = [name for name in names if name in self.faults]
            shown = [name.removeprefix(f"{part}.") for name in unfilled[:2]]
            shown += ["..."] * (len(unfilled) > 2)
            rows.append([part, len(names), len(names) - len(unfilled), ", ".join(shown)])
        return tabulate(rows, headers=["part", "tensors", "filled", "initialised"])

    def listing(self, lines: int = 10) -> str:
        """
        Return text that lists the model's unfilled tensors, then the file's unused tensors.

        Only the first ``lines`` tensors are listed, each on an indented line.
        """
        shown = [f"\n  {name}: {fault}" for name, fault in sorted(self.faults.items())]
        shown += [f"\n  {name}: not in the model" for name in sorted(self.unused)]
        return "".join(shown[:lines] + ["\n  ..."] * (len(shown) > lines))
