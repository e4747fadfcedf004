"""HRNet2x, an HRNet with a fifth branch (stride 2), registered as a timm network."""

from timm.models import register_model
from timm.models._features import FeatureInfo
from timm.models.hrnet import HighResolutionNet, block_types_dict
from torch import Tensor, nn

# For each of the four stages: number of modules, kind of block, channels of each branch.
STAGES = (
    (1, "BOTTLENECK", (32, 64)),
    (1, "BASIC", (20, 40, 80)),
    (4, "BASIC", (20, 40, 80, 160)),
    (3, "BASIC", (20, 40, 80, 160, 320)),
)


class HRNet2x(HighResolutionNet):
    """
    SegFix's backbone: an HRNet with five branches, of strides 2 to 32.

    This is ``HighResolutionNext`` of openseg.pytorch, with the same parameter names. The features
    are named as in timm's HRNet.
    """

    def __init__(self, in_chans: int = 3):
        nn.Module.__init__(self)  # HRNet's own constructor builds four branches
        self.conv1 = nn.Conv2d(in_chans, 64, kernel_size=3, stride=2, padding=1, bias=False)
        self.bn1, self.act1 = nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        before = [64]
        for i, (count, kind, channels) in enumerate(STAGES):
            after = [c * block_types_dict[kind].expansion for c in channels]
            setattr(self, f"transition{i}", self._make_transition_layer(before, after))
            config = {
                "num_modules": count,
                "num_branches": len(channels),
                "num_blocks": (4,) * len(channels),
                "num_channels": channels,
                "block_type": kind,
                "fuse_method": "SUM",
            }
            stage, before = self._make_stage(config, after)
            setattr(self, f"stage{i + 1}", stage)
        features = [
            {"num_chs": c, "reduction": 2 ** (i + 1), "module": f"stage{i + 1}"}
            for i, c in enumerate(before)
        ]
        self.feature_info = FeatureInfo(features, tuple(range(len(features))))
        self.init_weights()

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the map [N, C, H / stride, W / stride] of each branch, the finest first."""
        maps = [self.act1(self.bn1(self.conv1(x)))]
        for i in range(len(STAGES)):
            transition, stage = getattr(self, f"transition{i}"), getattr(self, f"stage{i + 1}")
            maps = [move(maps[min(j, len(maps) - 1)]) for j, move in enumerate(transition)]
            maps = stage(maps)
        return maps


@register_model
def hrnet2x_w20(
    pretrained: bool = False, features_only: bool = True, in_chans: int = 3, **_: object
) -> HRNet2x:
    """Build HRNet2x for ``timm.create_model``, with random weights and without a classifier."""
    return HRNet2x(in_chans)
