"""Two runs of one seed."""

import json
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.ops.roi_align import _roi_align

from ocr_panoptic.engine import setup
from support.tiny_runs import SEMANTIC_CONFIG
from train_net import main


@pytest.fixture(autouse=True)
def nondeterministic_again():
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.parametrize("config", [None, SEMANTIC_CONFIG], ids=["panoptic", "semantic"])
def test_equal_metrics_and_weights(tiny_data, make_args, semantic_args, tmp_path, config):
    """Random crops and flips, dropout, two worker processes; compared to the last bit."""
    runs = []
    evaluated = f"('{'tiny_val' if config is None else 'tiny_sem_val'}',)"
    names = ("a", 3, evaluated), ("b", 3, evaluated), ("another seed", 4, "()")
    for name, seed, test in names if config else names[:2]:
        opts = ["OUTPUT_DIR", tmp_path / name, "SEED", seed, "DATALOADER.NUM_WORKERS", 2]
        make = make_args if config is None else semantic_args
        main(make(*opts, "DATASETS.TEST", test, flags=("--deterministic",)))
        results = {}
        for metrics in (tmp_path / name / "inference").glob("*/metrics.json"):
            results = json.loads(metrics.read_text())
            results.pop("run")
        state = torch.load(tmp_path / name / "model_final.pth", weights_only=True)["model"]
        runs.append((results, state))
    assert runs[0][0] == runs[1][0] != {}
    assert all(torch.equal(value, runs[1][1][key]) for key, value in runs[0][1].items())
    for _, other in runs[2:]:
        assert any(not torch.equal(value, other[key]) for key, value in runs[0][1].items())
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
def test_pooling_that_no_gpu_holds(tiny_data, make_args, semantic_args, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    module = sys.modules["ocr_panoptic.engine.setup"]  # engine.setup is the function
    monkeypatch.setattr(module, "collect_env_info", lambda: "")  # asks the GPU
    box, mask = (f"MODEL.ROI_{head}_HEAD.POOLER_SAMPLING_RATIO" for head in ("BOX", "MASK"))
    opts, flags = ["MODEL.DEVICE", "cuda"], ("--deterministic",)
    with pytest.raises(ValueError, match=f"on a GPU .* Set {box} 2 {mask} 2,"):
        setup(make_args(*opts, flags=flags))
    with pytest.raises(ValueError, match=f"on a GPU .* Set {mask} 2,"):
        setup(make_args(*opts, box, 2, flags=flags))
    setup(make_args(*opts, box, 2, mask, 2, flags=flags))
    setup(make_args(*opts, box, 2, "MODEL.MASK_ON", False, flags=flags))
    setup(make_args(*opts))
    setup(semantic_args(*opts, flags=flags))


@pytest.mark.slow
@pytest.mark.parametrize("ratio, gib", [(0, 1607.8125), (2, 0.128173828125)])
def test_largest_tensor_of_deterministic_pooling(ratio, gib):
    """The number of the message, of torchvision's own function: 512 boxes x 256 channels x 7 x 7
    bins x 200 x 336 points of 4 bytes."""
    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            sizes.append(getattr(result, "nbytes", 0))
            return result

    with FakeTensorMode() as fake, Sizes(), fake:
        maps, boxes = (
            torch.empty(2, 256, 200, 336, device="cuda"),
            torch.empty(512, 5, device="cuda"),
        )
        _roi_align.__wrapped__(maps, boxes, 0.25, 7, 7, ratio, True)
    assert max(sizes) / 2**30 == gib
