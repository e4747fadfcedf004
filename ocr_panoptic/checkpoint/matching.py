"""Matches the content of a file of weights with a model, and checks how the weights fit."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fvcore.common.checkpoint import _IncompatibleKeys
from tabulate import tabulate
from torch import Tensor, nn

from ocr_panoptic.errors import UserError

from .class_rows import ClassNames, Rows, rows_by_name, zoo_classes
from .imagenet import adapt_input_channels, adapt_names
from .settings import IDENTITY, RECORD

# Prefixes of the network inside Detectron2's FPN and simple feature pyramid.
NETWORKS = ("backbone.bottom_up.", "backbone.net.")
# Suffixes of tensors that a file is allowed to lack: counters of norms, and pixel mean and std.
OPTIONAL = ("num_batches_tracked", "pixel_mean", "pixel_std")
# ImageNet files of the Caffe2 era merge the statistics into weight and bias.
STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Demands:
    """What the weights of a file must fulfil, and whether their classes are matched by name."""

    strict: bool = False  # whether the file must fill every tensor of the model
    # Smallest share of the backbone's tensors, 0 to 1, that the file must fill. For ImageNet
    # weights of other packages, any value above 0 means 1.
    min_share: float = 0.0
    # Class names of the model, by which the rows of classifiers are matched if the file has class
    # names too; None to load the rows as they are.
    classes: ClassNames | None = None


class Matched(NamedTuple):
    """The weights of a file under the names of a model's tensors, before they are loaded."""

    weights: Mapping[str, Any]  # tensors or arrays
    record: Mapping[str, Any] | None  # settings that the weights expect; None if unknown
    is_renamed: bool  # whether the file had other names for the tensors of the backbone
    kept: list[str]  # classes whose rows are in ``weights``, if rows were matched by name
    new: list[str]  # classes that keep the model's rows


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


class Loaded(NamedTuple):
    """Facts about the file that was loaded into a model."""

    file: str  # path or address
    fit: Fit
    record: Mapping[str, Any] | None
    kept: list[str]
    new: list[str]

    def summary(self) -> str:
        """Describe how the file fits the model, with a table if the file lacks tensors."""
        fit = self.fit
        filled = len(fit.names) - len(fit.faults)
        text = f"{self.file} fills {filled} of the model's {len(fit.names)} tensors"
        if fit.unused:
            text += f"; {len(fit.unused)} tensor(s) in the file are unused"
        if self.new:
            text += (
                f"\nclasses   classifier rows loaded for {', '.join(self.kept) or 'no class'}; "
                f"new, random rows for {', '.join(self.new)}"
            )
        return f"{text}\n{fit.table()}" if fit.faults else text


def weights_for(
    model: nn.Module, content: Mapping[str, Any], file: str, demands: Demands
) -> Matched:
    """
    Return the weights of a file for a model: input channels, names and classifier rows adapted.

    Neither the model nor ``content`` is changed.

    Args:
        content: result of :func:`.read_checkpoint`.
        file: path or address of the file.
    """
    weights = content["model"]
    refuse_unconverted(weights, file)
    if not demands.strict:  # only training adapts the input channels
        weights = adapt_input_channels(weights, model)
    named, record = weights, None
    if not content.get("matching_heuristics"):  # else Detectron2 matches the names
        named, record = adapt_names(weights, model, file)
    rows = Rows(named, [], [])
    theirs = (content.get(IDENTITY) or {}).get("classes") or zoo_classes(file)
    if demands.classes and theirs:
        rows = rows_by_name(named, model.state_dict(), theirs, demands.classes)
    record = record or content.get(RECORD)
    return Matched(rows.weights, record, named is not weights, rows.kept, rows.new)


def refuse_unconverted(weights: Mapping[str, Any], file: str) -> None:
    """Refuse the OCR weights of other code bases, which have other names and other conventions."""
    if any("object_context_block" in name for name in weights):
        raise UserError(
            f"The weights {file} come from another OCR code base, with different tensor names. "
            "If `ocr-panoptic models` lists the model, use its name; otherwise, convert the file "
            "with ocr-panoptic convert (see docs/checkpoints.md)."
        )


def check_fit(fit: Fit, file: str, demands: Demands, *, is_renamed: bool) -> None:
    """Refuse weights that do not fill as much of the model as ``demands`` say."""
    if len(fit.faults) == len(fit.names) or (demands.strict and fit.faults):
        fix = ", or use other weights"
        if len(fit.faults) < len(fit.names):
            fix = (
                ", or first train with this config, starting from these weights (ocr-panoptic "
                "train, MODEL.WEIGHTS)"
            )
        raise UserError(
            f"The weights {file} do not fit the model: {len(fit.faults)} of "
            f"{len(fit.names)} tensors are missing or have another shape.{fit.listing()}\n"
            f"Use the config that the weights were trained with{fix}."
        )
    # ImageNet weights of the same network fill the whole backbone.
    expected = 1.0 if is_renamed and demands.min_share else demands.min_share
    if (share := fit.backbone_share(statistics=is_renamed)) < expected:
        raise UserError(
            f"The weights {file} belong to another model: they fill "
            f"{share:.1%} of the backbone; expected at least {expected:.0%}."
            f"\n{fit.table()}\nUse weights for this backbone (MODEL.BACKBONE, MODEL.RESNETS, "
            "MODEL.TIMM), or set MODEL.WEIGHTS_MIN_SHARE 0 to use these weights anyway."
        )


def check_finite(tensors: Mapping[str, Tensor], file: str) -> None:
    """Refuse weights with NaN or infinite values, since such a network's output is useless."""
    if what := not_finite(tensors):
        raise UserError(
            f"The weights {file} are broken: {what}. Use an earlier checkpoint of the run, or "
            "download or convert the file again."
        )


def not_finite(tensors: Mapping[str, Tensor]) -> str:
    """Describe the NaN and infinite values in named tensors; return "" if there are none."""
    counts = {name: int((~t.isfinite()).sum()) for name, t in tensors.items()}
    broken = {name: count for name, count in counts.items() if count}
    if not broken:
        return ""
    name, count = next(iter(broken.items()))
    others = f"; {len(broken) - 1} more tensor(s) have such values" if len(broken) > 1 else ""
    return f"{name} has {count:,} NaN or infinite value(s){others}"
