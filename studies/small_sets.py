"""
Make data sets for studies: clothing9 and nuclei2, with 100 training photos each, and nuclei_half.

    python -m studies.small_sets --clothing CLOTHING --nuclei NUCLEI

The command writes label PNGs, links to the photos and a data file to clothing9 and nuclei2 in
$DETECTRON2_DATASETS. CLOTHING has {train,val}/{images,labels} and classes.json with the 59 classes
of Clothing Co-Parsing, which the command merges into 11 groups. clothing20 has 20 of the 100
training photos, and clothing59 has the other 618 photos with the 59 classes. NUCLEI has
{train,val}/{images,panoptic} and {train,val}/panoptic.json, in COCO's panoptic format with the
thing class "nucleus"; in nuclei_half, half of the nuclei in each training photo are void.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
from panopticapi.utils import rgb2id
from PIL import Image

from ocr_panoptic.formats.coco_panoptic import read_panoptic_png, write_panoptic_png
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
TRAIN, FEW = 100, 20


def main() -> None:
    parser = argparse.ArgumentParser("python -m studies.small_sets", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--clothing", type=Path, help="folder")
    parser.add_argument("--nuclei", type=Path, help="folder")
    args = parser.parse_args()
    root = Path(os.environ.get("DETECTRON2_DATASETS", "datasets"))
    if args.clothing:
        make_clothing(args.clothing, root)
    if args.nuclei:
        make_nuclei(args.nuclei, root / "nuclei2")
        make_half_void(args.nuclei, root / "nuclei_half")


def make_clothing(source: Path, root: Path) -> None:
    """Write the data sets clothing9, clothing20 and clothing59 into the folder ``root``."""
    names = json.loads((source / "classes.json").read_text(encoding="utf-8"))["classes"]
    names[names.index("null")] = "background"
    groups = [["background"], *(words.split() for words in list(GROUPS.values())[1:])]
    table = np.full(256, 255, np.uint8)
    for label, name in enumerate(names):
        found = [i for i, group in enumerate(groups) if name in group]
        table[label] = found[0] if found else len(GROUPS) - 1
    for split in ("train", "val"):
        photos = sorted((source / split / "images").iterdir())
        chosen = every_nth(photos, TRAIN if split == "train" else len(photos))
        few = every_nth(chosen, FEW) if split == "train" else chosen
        for photo in photos:
            labels = np.array(Image.open(source / split / "labels" / f"{photo.stem}.png"))
            if photo in chosen:
                add(root / "clothing9" / split, photo, table[labels])
            if photo in few:
                add(root / "clothing20" / split, photo, table[labels])
            if photo not in chosen or split == "val":
                add(root / "clothing59" / split, photo, labels)
    write_data_file(root / "clothing9", GROUPS)
    write_data_file(root / "clothing20", GROUPS)
    write_data_file(root / "clothing59", names)


def make_nuclei(source: Path, target: Path) -> None:
    """
    Write the data set nuclei2: 100 training photos and all val photos.

    Labels are 1 on nuclei, else 0.
    """
    for split in ("train", "val"):
        panoptic = json.loads((source / split / "panoptic.json").read_text(encoding="utf-8"))
        things = {c["id"] for c in panoptic["categories"] if c["name"] == "nucleus"}
        annotations = {a["image_id"]: a for a in panoptic["annotations"]}
        images = sorted(panoptic["images"], key=lambda image: image["file_name"])
        for image in every_nth(images, TRAIN if split == "train" else len(images)):
            annotation = annotations[image["id"]]
            segments = Image.open(source / split / "panoptic" / annotation["file_name"])
            ids = [s["id"] for s in annotation["segments_info"] if s["category_id"] in things]
            labels = np.isin(rgb2id(np.array(segments.convert("RGB"))), ids).astype(np.uint8)
            add(target / split, source / split / "images" / image["file_name"], labels)
    write_data_file(target, ["background", "nucleus"])


def make_half_void(source: Path, target: Path) -> None:
    """
    Write the panoptic data sets nuclei_half_train and nuclei_half_val.

    In nuclei_half_train a random half of the nuclei in each photo is void; nuclei_half_val has
    every third of the val photos as they are.
    """
    random = np.random.default_rng(0)
    splits = ""
    for split in ("train", "val"):
        content = json.loads((source / split / "panoptic.json").read_text(encoding="utf-8"))
        things = {c["id"] for c in content["categories"] if c["isthing"]}
        if split == "val":
            content["images"] = content["images"][::3]
        kept = {image["id"] for image in content["images"]}
        content["annotations"] = [a for a in content["annotations"] if a["image_id"] in kept]
        for annotation in content["annotations"]:
            segments = annotation["segments_info"]
            nuclei = [s["id"] for s in segments if s["category_id"] in things]
            void = random.permutation(nuclei)[: len(nuclei) // 2] if split == "train" else []
            annotation["segments_info"] = [s for s in segments if s["id"] not in void]
            ids = read_panoptic_png(source / split / "panoptic" / annotation["file_name"])
            ids[np.isin(ids, void)] = 0
            write_panoptic_png(target / split / "panoptic" / annotation["file_name"], ids)
        (target / split / "panoptic.json").write_text(json.dumps(content), encoding="utf-8")
        link = target / split / "images"
        link.unlink(missing_ok=True)
        link.symlink_to((source / split / "images").resolve())
        paths = f"annotations: {split}/panoptic.json, segments: {split}/panoptic"
        splits += f"  {split}: {{images: {split}/images, {paths}}}\n"
    text = f"name: {target.name}\npanoptic:\n{splits}"
    (target / f"{target.name}.yaml").write_text(text, encoding="utf-8")


def every_nth(items: list, count: int) -> list:
    """Return ``count`` items at equal distances, or all if there are fewer."""
    count = min(count, len(items))
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
