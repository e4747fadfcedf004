"""HRNet's exchange between its branches, for images of any size."""

from timm.models.hrnet import HighResolutionModule
from torch import Tensor, nn

from ocr_panoptic.layers import resize


class BilinearFusion(nn.Module):
    """
    HRNet's exchange between its branches as the published segmentation codes have it: coarse maps
    are enlarged bilinearly, whatever the sizes. (timm's, of a classifier, takes the nearest
    neighbours and needs sizes that fit.) Parameters and their names are timm's.

    Args:
        module: of timm, whose parts are taken.
        align_corners: see :func:`.resize`.
        enlarge_twice: enlarge by the ratio of the strides, and resize that to the size of the finer
            map, as mmsegmentation; False resizes at once, as the authors' code and NVIDIA's. The
            two differ where the finer map is no multiple of that ratio: the first blurs it more.
    """

    def __init__(
        self, module: HighResolutionModule, align_corners: bool, enlarge_twice: bool = False
    ):
        super().__init__()
        self.branches, self.fuse_act = module.branches, module.fuse_act
        self.fuse_layers, self.align_corners = module.fuse_layers, align_corners
        self.enlarge_twice = enlarge_twice
        rows = self.fuse_layers if len(self.branches) > 1 else ()
        for i, row in enumerate(rows):
            for j in range(i + 1, len(row)):
                assert isinstance(row[j][2], nn.Upsample)
                row[j][2] = nn.Identity()

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        """
        Args:
            x: the maps of the branches, [N, C, h, w] each, the finest first

        Returns:
            the same, each with what it gets from the others
        """
        x = [branch(map_) for branch, map_ in zip(self.branches, x, strict=True)]
        if len(x) == 1:
            return x
        fused = []
        for i, row in enumerate(self.fuse_layers):
            y = row[0](x[0]) if i else x[0]
            for j in range(1, len(x)):
                coarse = row[j](x[j])
                y = y + (self._enlarge(coarse, 2 ** (j - i), x[i]) if j > i else coarse)
            fused.append(self.fuse_act(y))
        return fused

    def _enlarge(self, coarse: Tensor, factor: int, fine: Tensor) -> Tensor:
        if self.enlarge_twice:
            coarse = resize(coarse, tuple(factor * side for side in coarse.shape[2:]))
        return resize(coarse, fine.shape[2:], self.align_corners)
