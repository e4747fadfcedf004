#!/usr/bin/env python
"""
Write the images inside LabelMe's JSON files beside these files.

    python tools/labelme_images.py FOLDER

Then import with FOLDER as SOURCE and as IMAGES.
"""

import argparse
import base64
import json
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of LabelMe's JSON files")
    for file in sorted(parser.parse_args(argv).folder.rglob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        image = file.parent / PureWindowsPath(content["imagePath"]).name
        if content.get("imageData") and not image.exists():
            image.write_bytes(base64.b64decode(content["imageData"]))
            print(image)


if __name__ == "__main__":
    main()
