"""
Make two small semantic data sets for studies, clothing9 and nuclei2: 100 training photos each.

    python -m studies.small_sets --clothing CLOTHING --nuclei NUCLEI

The command writes label PNGs, links to the photos and a data file to clothing9 and nuclei2 in
$DETECTRON2_DATASETS. CLOTHING has {train,val}/{images,labels} and classes.json with the 59 classes
of Clothing Co-Parsing, which the command merges into 11 groups. NUCLEI has
{train,val}/{images,panoptic} and {train,val}/panoptic.json, in COCO's panoptic format with the
thing class "nucleus".
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
from panopticapi.utils import rgb2id
from PIL import Image

from ocr_panoptic.program import run_program

GROUPS = {
    "background": "null",
    "skin": "skin",
    "hair": "hair",
    "upper": "blouse bodysuit bra hoodie intimate jumper shirt sweater sweatshirt swimwear t-shirt "
    "top vest",
    "outer": "blazer cape cardigan coat jacket suit",
    "lower": "jeans leggings panties pants shorts skirt",
    "dress": "dress romper",
    "legwear": "socks stockings tights",
    "shoes": "boots clogs flats heels loafers pumps sandals shoes sneakers wedges",
    "bag": "bag purse wallet",
    "accessories": "",  # all other classes
}
TRAIN = 100


def main() -> None:
    parser = argparse.ArgumentParser("python -m studies.small_sets", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--clothing", type=Path, required=True, help="folder")
    parser.add_argument("--nuclei", type=Path, required=True, help="folder")
    args = parser.parse_args()
    root = Path(os.environ.get("DETECTRON2_DATASETS", "datasets"))
    make_clothing(args.clothing, root / "clothing9")
    make_nuclei(args.nuclei, root / "nuclei2")


def make_clothing(source: Path, target: Path) -> None:
    """Write the data set clothing9 (classes ``GROUPS``): 100 training photos and all val photos."""
    names = json.loads((source / "classes.json").read_text(encoding="utf-8"))["classes"]
    groups = [words.split() for words in GROUPS.values()]
    table = np.full(256, 255, np.uint8)
    for label, name in enumerate(names):
        found = [i for i, group in enumerate(groups) if name in group]
        table[label] = found[0] if found else len(GROUPS) - 1
    for split in ("train", "val"):
        for photo in every_nth(sorted((source / split / "images").iterdir()), split):
            labels = source / split / "labels" / f"{photo.stem}.png"
            add(target / split, photo, table[np.array(Image.open(labels))])
    write_data_file(target, GROUPS)


def make_nuclei(source: Path, target: Path) -> None:
    """
    Write the data set nuclei2: 100 training photos and all val photos.

    Labels are 1 on nuclei, else 0.
    """
    for split in ("train", "val"):
        panoptic = json.loads((source / split / "panoptic.json").read_text(encoding="utf-8"))
        things = {c["id"] for c in panoptic["categories"] if c["name"] == "nucleus"}
        annotations = {a["image_id"]: a for a in panoptic["annotations"]}
        for image in every_nth(sorted(panoptic["images"], key=lambda i: i["file_name"]), split):
            annotation = annotations[image["id"]]
            segments = Image.open(source / split / "panoptic" / annotation["file_name"])
            ids = [s["id"] for s in annotation["segments_info"] if s["category_id"] in things]
            labels = np.isin(rgb2id(np.array(segments.convert("RGB"))), ids).astype(np.uint8)
            add(target / split, source / split / "images" / image["file_name"], labels)
    write_data_file(target, ["background", "nucleus"])


def every_nth(items: list, split: str) -> list:
    count = min(TRAIN, len(items)) if split == "train" else len(items)
    return [items[i * len(items) // count] for i in range(count)]


def add(folder: Path, photo: Path, labels: np.ndarray) -> None:
    """Write a PNG of a photo's labels, uint8 [H, W], and a link to the photo into a folder."""
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    link = folder / "images" / photo.name
    link.unlink(missing_ok=True)
    link.symlink_to(photo.resolve())
    Image.fromarray(labels).save(folder / "labels" / f"{photo.stem}.png")


def write_data_file(folder: Path, classes: list[str] | dict[str, str]) -> None:
    splits = "".join(
        f"  {split}: {{images: {split}/images, labels: {split}/labels}}\n"
        for split in ("train", "val")
    )
    text = f"name: {folder.name}\nsemantic:\n{splits}classes: [{', '.join(classes)}]\n"
    (folder / f"{folder.name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run_program(main)
