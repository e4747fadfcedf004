"""
Train like train_net.py, but compute the features of a frozen backbone only once for all runs.

    python -m studies.train --config-file CONFIG ...

Studies train with this program. If MODEL.TIMM.FROZEN is True, the backbone runs on one image at a
time, and its features are stored in output/feature_cache, keyed by the network and the input image.
With random crops or scales, every input is new, and the stored features would fill the disk.
"""

import hashlib
import sys
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

if not __package__:  # studies/run.py runs this file
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from ocr_panoptic.cli.train import argument_parser
from ocr_panoptic.formats.files import replacing  # noqa: E402
from ocr_panoptic.modeling import TimmBackbone  # noqa: E402
from ocr_panoptic.predict.run_info import weights_sha256  # noqa: E402
from ocr_panoptic.program import run_program
from train_net import main  # noqa: E402

FOLDER = Path("output/feature_cache")

compute = TimmBackbone.forward
folders: WeakKeyDictionary[TimmBackbone, Path] = WeakKeyDictionary()  # a copy has a separate folder


def kept_features(self: TimmBackbone, x: Tensor) -> dict[str, Tensor]:
    """
    Return a backbone's feature maps for a batch of images.

    If the backbone is frozen, each image's maps are computed once, stored in a file, and read from
    the file afterwards. Mixed-precision evaluation does not use the files.

    Args:
        x: images [N, in_channels, H, W]
    """
    in_other_precision = torch.is_autocast_enabled(x.device.type) and not self.training
    if not self.frozen or in_other_precision:
        return compute(self, x)
    if self not in folders:
        made_of = f"{self}{list(self.output_shape())}{weights_sha256(self)}{x.device.type}"
        folders[self] = FOLDER / hashlib.sha256(made_of.encode()).hexdigest()[:16]
    images = [_kept(self, folders[self], image) for image in x.split(1)]
    return {name: torch.cat([maps[name] for maps in images]) for name in images[0]}


def _kept(network: TimmBackbone, folder: Path, image: Tensor) -> dict[str, Tensor]:
    pixels = image.cpu().contiguous().numpy().tobytes()
    name = hashlib.sha256(f"{[*image.shape]}{image.dtype}".encode() + pixels).hexdigest()
    file = folder / f"{name}.pt"
    if not file.is_file():
        with replacing(file) as temporary:
            torch.save(compute(network, image), temporary)
    return torch.load(file, weights_only=True, map_location=image.device)


def keep_features() -> None:
    """Make this process store the features of frozen timm backbones in files and reuse them."""
    TimmBackbone.forward = kept_features


if __name__ == "__main__":
    keep_features()
    run_program(main, argument_parser().parse_args())
