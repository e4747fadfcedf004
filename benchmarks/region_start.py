"""
Measure the size of a network's soft object regions before the first training iteration.

The three values of MODEL.OCR.COARSE_START (the initialisation of the coarse classifier) are
compared.

    python benchmarks/region_start.py [--config-file CONFIG] [KEY VALUE ...]

Each value is measured on four images of DATASETS.TRAIN[0] with three seeds. "pixels" is the
effective number of pixels in a region (median over regions): 1 / sum_i w_ki^2, where w_ki is the
weight of pixel i in region k after the spatial softmax.
"""

import argparse
import sys
from pathlib import Path

import torch
from detectron2.data import DatasetCatalog
from detectron2.modeling import build_model
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.config.files import load_config
from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.predict.single_image import model_input
from ocr_panoptic.program import run_program

CONFIG = Path(__file__).parents[1] / "studies/configs/semantic_ocr_R_18_camvid.yaml"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--config-file", default=str(CONFIG))
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="config keys and values")
    args = parser.parse_args(argv)
    cfg = load_config(args.config_file, args.opts)
    complete_config(cfg, training=True)
    records = DatasetCatalog.get(cfg.DATASETS.TRAIN[0])[:60:15]
    order = slice(None, None, -1) if cfg.INPUT.FORMAT == "RGB" else slice(None)
    images = [read_picture(record["file_name"])[:, :, order] for record in records]
    rows = []
    for seed in range(3):
        for start in ("pytorch", "he", "detectron2"):
            torch.manual_seed(seed)
            cfg.MODEL.OCR.COARSE_START = start
            model = build_model(cfg).train()
            x = torch.stack([model_input(cfg, image)["image"] for image in images]).to(model.device)
            with torch.no_grad():
                x = (x - model.pixel_mean) / model.pixel_std
                coarse, _ = model.sem_seg_head.layers(model.backbone(x))
            logits = coarse.flatten(2)
            pixels = (1 / logits.softmax(dim=2).square().sum(dim=2)).median().item()
            shared = logits.mean(dim=1).std(dim=1).mean().item()
            rows.append([start, seed, logits.std(dim=2).mean().item(), shared, pixels])
    print(f"{logits.shape[2]} pixels, {logits.shape[1]} regions")
    header = ["start", "seed", "std of the logits", "of their mean over classes", "pixels"]
    print(tabulate(sorted(rows), headers=header, floatfmt=".1f", tablefmt="github"))


if __name__ == "__main__":
    run_program(main)
