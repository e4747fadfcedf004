"""Draw a run's prediction with Detectron2's predictor and visualizer."""

import json
from pathlib import Path

import cv2
from detectron2.config import get_cfg
from detectron2.data import Metadata
from detectron2.engine import DefaultPredictor
from detectron2.utils.visualizer import Visualizer

from ocr_panoptic import add_ocr_config

cfg = get_cfg()
add_ocr_config(cfg)
cfg.merge_from_file("output/city/config.yaml")
cfg.MODEL.WEIGHTS = "output/city/model_final.pth"
cfg.MODEL.DEVICE = "cpu"
image = cv2.imread("photos/street.jpg")
segments, infos = DefaultPredictor(cfg)(image)["panoptic_seg"]

metadata = Metadata().set(**json.loads(Path("output/city/classes.json").read_text()))
picture = Visualizer(image[:, :, ::-1], metadata)
picture.draw_panoptic_seg_predictions(segments, infos).save("drawn.png")
