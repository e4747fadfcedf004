"""docs/context_schemes.md lists every scheme, and its example of a new scheme runs."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from detectron2.layers import FrozenBatchNorm2d
from detectron2.modeling import build_model

from ocr_panoptic import layers
from ocr_panoptic.layers import ContextScheme
from ocr_panoptic.modeling import context as registry
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES, build_context, context_class
from support.segmentors import make_batch, make_cfg

DOC = (Path(__file__).resolve().parents[2] / "docs/context_schemes.md").read_text()
ROWS = {name: (cls, takes) for name, cls, takes in re.findall(
    r"^\| `([\w-]+)` \| `(\w+)`[^|]* \|[^|]*\| ([^|]*) \|$", DOC, re.M
)}  # fmt: skip


@pytest.fixture
def example(monkeypatch) -> type[ContextScheme]:
    """Return the example's scheme, with the three code blocks of the document put in place."""
    file, statement, line = re.findall(r"```python\n(.*?)```", DOC, re.S)
    name = re.match(r"from ([\w.]+) import", statement)[1]
    module = ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    exec(compile(file, name, "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, name, module)
    namespace = dict(vars(registry))
    exec(statement, namespace)
    ((key, entry),) = eval("{" + line + "}", namespace).items()
    monkeypatch.setitem(CONTEXT_SCHEMES, key, entry)
    assert key == "Global"
    return module.GlobalContext


@pytest.mark.slow
def test_the_example_runs(example):
    model = build_model(make_cfg("MODEL.CONTEXT.NAME", "Global"))
    context = model.sem_seg_head.context
    assert type(context) is example
    sum(model.train()(make_batch()).values()).backward()
    assert context.g.weight.grad.abs().sum() > 0
    with torch.no_grad():
        assert model.eval()(make_batch())[0]["labels"].shape == (61, 83)
        x = torch.randn(2, 32, 3, 5)
        mean = x.mean(dim=(2, 3))[:, :, None, None].repeat(1, 1, 3, 5)
        torch.testing.assert_close(context(x, None), context.g(torch.cat([x, mean], dim=1)))


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
