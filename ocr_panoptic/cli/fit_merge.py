"""
Fit the thresholds of the panoptic merge to the ground truth of DATASETS.TEST[0].

The network runs once on each image; then thousands of combinations of thresholds are tried without
the network. The gain in PQ is cross-validated. If the gain's confidence interval is above 0, the
thresholds are written to the config OUTPUT_DIR/merge.yaml. Categories that are missing in the
ground truth do not count in the PQ.

    ocr-panoptic fit-merge [--config-file RUN] [--weights FILE] [--data FILE ...] [--folds N]
        [KEY VALUE ...]
"""

import argparse
from pathlib import Path

from .arguments import CommandParser, check_model_is_named


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument(
        "--folds", type=int, default=5, help="number of cross-validation folds (default 5)"
    )
    parser.add_data()
    parser.add_model()
    return parser


def run(args: argparse.Namespace) -> None:
    check_model_is_named(args)
    from tabulate import tabulate

    from ocr_panoptic.data.data_file import read_data_files
    from ocr_panoptic.formats.files import write_text
    from ocr_panoptic.modeling.panoptic_merge import rules_of_config
    from ocr_panoptic.predict.trained_model import trained_model
    from ocr_panoptic.workbench.fitting.merge_fit import fit_merge, kept_predictions, rules_fragment

    files = read_data_files(args.data)
    model = trained_model(args.config_file, args.weights, args.opts, files=files, needs_data=True)
    cfg = model.cfg
    kept, name = kept_predictions(model), cfg.DATASETS.TEST[0]
    before, fits = fit_merge(kept, rules_of_config(cfg), args.folds)
    rows: list[tuple] = [("unchanged", before, before, None, "")]
    for fit in fits:
        interval = "[{:+.2f}, {:+.2f}]".format(*fit.interval)
        rows.append((fit.name, fit.fitted, fit.held_out, fit.gain, interval))
    header = ["rules", "PQ, fitted to all images", "PQ, cross-validated", "gain", "95% interval"]
    print(f"{name}, {len(kept.images)} images, {args.folds} folds\n")
    print(tabulate(rows, headers=header, floatfmt=(".2f", ".2f", ".2f", "+.2f"), tablefmt="github"))
    carried = [fit for fit in fits if fit.is_improvement]
    if not carried:
        print("\nNo interval is above 0: these images do not show that other rules are better.")
        return
    best = max(carried, key=lambda fit: fit.held_out)
    weights, file = Path(cfg.MODEL.WEIGHTS), Path(cfg.OUTPUT_DIR) / "merge.yaml"
    merged = cfg.clone()
    merged.MODEL.WEIGHTS = str(weights.resolve() if weights.is_file() else cfg.MODEL.WEIGHTS)
    merged.MODEL.PANOPTIC_FPN.COMBINE.update(rules_fragment(best.rules))
    gain = f"PQ {before:.2f} -> {best.held_out:.2f} (cross-validated)"
    note = f"# Fitted to {len(kept.images)} images of {name}, {best.name}: {gain}.\n"
    write_text(file, note + merged.dump())
    print(f"\nWrote {file} ({best.name}). Use it with --config-file.")
