"""Register semantic data: photos town/{train,val}/images, label PNGs town/{train,val}/labels."""

from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.data.datasets import load_sem_seg

CLASSES = ["sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car"]
CLASSES += ["pedestrian", "bicyclist"]
for split in ("train", "val"):
    folders = f"town/{split}/labels", f"town/{split}/images"
    DatasetCatalog.register(f"town_{split}", lambda folders=folders: load_sem_seg(*folders))
    MetadataCatalog.get(f"town_{split}").set(stuff_classes=CLASSES, ignore_label=11)  # as in CamVid
