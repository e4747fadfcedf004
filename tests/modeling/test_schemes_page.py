"""docs/context_schemes.md lists every scheme, with its class and inputs."""

import re
from pathlib import Path

import pytest
import torch
from detectron2.layers import FrozenBatchNorm2d

from ocr_panoptic import layers
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES, build_context, context_class
from support.segmentors import make_cfg

DOC = (Path(__file__).resolve().parents[2] / "docs/context_schemes.md").read_text()
ROWS = {name: (cls, takes) for name, cls, takes in re.findall(
    r"^\| `([\w-]+)` \| `(\w+)`[^|]* \|[^|]*\| ([^|]*) \|$", DOC, re.M
)}  # fmt: skip


@pytest.mark.parametrize("name", list(CONTEXT_SCHEMES))
def test_the_table_describes_the_scheme(name):
    """Its class and inputs are right, and every ReLU and norm follows the config."""
    assert set(ROWS) == set(CONTEXT_SCHEMES), "a scheme has a row in docs/context_schemes.md"
    opts = ("MODEL.OCR.NEGATIVE_SLOPE", 0.5, "MODEL.OCR.NORM", "FrozenBN")
    cfg = make_cfg("MODEL.CONTEXT.NAME", name, *opts)
    torch.manual_seed(0)
    scheme = build_context(cfg, 48).eval()
    cls, takes = ROWS[name]
    assert context_class(cfg) is type(scheme) is getattr(layers, cls)
    convs = [m for m in scheme.modules() if isinstance(m, layers.ConvNormReLU)]
    found = {(m.negative_slope, type(m.norm)) for m in convs}
    assert found == (set() if name in ("none", "Joint-Transformer") else {(0.5, FrozenBatchNorm2d)})
    source = "features" if scheme.takes_features else "x"
    regions = "labels" if scheme.needs_truth else "m"
    takes = takes.partition(";")[0].split(", ")
    assert takes == [source, regions] if scheme.uses_regions else takes == [source]
    x = torch.randn(2, 48 if scheme.takes_features else 32, 6, 7)
    labels = torch.randint(0, 5, (2, 6, 7))
    m = torch.nn.functional.one_hot(labels, 5).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        changed = not torch.allclose(scheme(x, m), scheme(x, m.flip(3)))
        assert changed == scheme.uses_regions
        assert scheme(x, m).shape == (2, scheme.out_channels, 6, 7)
