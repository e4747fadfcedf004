"""Two runs of one seed."""

import json

import pytest
import torch

from train_net import main

from .conftest import SEMANTIC_CONFIG, TINY_SEMANTIC


@pytest.fixture(autouse=True)
def nondeterministic_again():
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("config", [None, SEMANTIC_CONFIG], ids=["panoptic", "semantic"])
def test_equal_metrics_and_weights(tiny_data, make_args, tmp_path, config):
    """Random crops and flips, dropout, two worker processes; compared to the last bit."""
    runs = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        opts = ["OUTPUT_DIR", tmp_path / name, "SEED", seed, "DATALOADER.NUM_WORKERS", 2]
        if config is None:
            args = make_args(*opts, flags=("--deterministic",))
        else:
            args = make_args(*TINY_SEMANTIC, *opts, config=config, flags=("--deterministic",))
        main(args)
        (metrics,) = (tmp_path / name / "inference").glob("*/metrics.json")
        results = json.loads(metrics.read_text())
        results.pop("run")
        state = torch.load(tmp_path / name / "model_final.pth", weights_only=True)["model"]
        runs.append((results, state))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(value, runs[1][1][key]) for key, value in runs[0][1].items())
    assert any(not torch.equal(value, runs[2][1][key]) for key, value in runs[0][1].items())
    assert torch.are_deterministic_algorithms_enabled()


def test_a_seed_is_needed(tiny_data, make_args):
    with pytest.raises(ValueError, match="--deterministic needs a seed, but SEED is -1"):
        main(make_args("SEED", -1, flags=("--deterministic",)))
