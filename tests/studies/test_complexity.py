"""The complexity table: FLOPs and parameters, compared with the paper and with counts by hand."""

import json
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ocr_panoptic.predict.run_info import machine_name
from studies.complexity.__main__ import main
from studies.complexity.schemes import PAPER, SchemeOfFeatures, count, count_flops, structures_table
from studies.complexity.transcriptions import transcribed
from studies.measurement import medians, peak_memory, saved_bytes
from studies.training_memory import AllocatedBytes
from support.tiny_runs import ROOT

SIZE = (1, 2048, 128, 128)


@pytest.fixture(scope="module")
def counts() -> dict[str, dict]:
    return {name: count(name, SIZE, num_classes=150) for name in PAPER}


@pytest.fixture
def command(tmp_path, capsys):
    def run(*arguments: object) -> tuple[list[dict], str]:
        main([*map(str, arguments), "--json", str(tmp_path / "rows.json")])
        return json.loads((tmp_path / "rows.json").read_text()), capsys.readouterr().out

    return run


@pytest.mark.slow
def test_flops_by_hand(counts):
    """P = 16384 pixels; multiply-accumulates of convolutions and products are doubled."""
    p, r, k = 16384, 50, 150  # r: cells of PPM's four sizes; k: classes
    reduction = 9 * 2048 * 512 * p
    cells = r * (2048 * 512)
    official = {
        "PPM": 9 * 4096 * 512 * p + cells,
        "ASPP": (2048 * 256 * (1 + 3 * 9) + 5 * 256 * 256) * p + 2048 * 256,
        "DANet": 2 * (reduction + 9 * 512 * 512 * p)
        + (512 * (64 + 64 + 512) + 2 * 512 * 512) * p
        + (64 + 512) * p * p,
        "CC-Attention": reduction
        + 9 * (512 + 2048 + 512) * 512 * p
        # q, k, v, and twice the products with the 128 + 128 pixels of row and column
        + 2 * (512 * (64 + 64 + 512) + (128 + 128) * (64 + 512)) * p,
        "Self-Attention": reduction + (4 * 512 * 256 + 1024 * 512) * p + 2 * 256 * p * p,
        "Double-Attention": reduction
        + (2 * 512 * 256 + 2 * 512 * 64 + 2 * 256 * 64 + 1024 * 512) * p,
        "OCR": reduction
        + (512 * k + 512 * 256 + 256 * k + 256 * k + 256 * 512 + 1024 * 512) * p
        + 2 * 512 * 256 * k,
    }
    assert {name: row["flops"] for name, row in counts.items()} == {
        name: 2 * macs for name, macs in official.items()
    }
    saved = {
        # the pyramid: 9 taps of each cell, instead of 512 channels at 9 taps of each pixel
        "PPM": 4 * 9 * 512 * 512 * p - 9 * r * 512 * (512 + p),
        "ASPP": 256 * 256 * (p - 1),
        # more than the plain form: products of queries and keys for each of 8 heads of values
        "DANet": -7 * 64 * p * p,
        "CC-Attention": 0,
        # W and g's part for y as a single product
        "Self-Attention": 512 * 512 * p - 512 * 512 * 256,
        # A and rho at the 64 regions instead of the pixels
        "Double-Attention": 2 * 512 * 256 * (p - 64) - 2 * (512 - 256) * 64 * p,
        # rho at the regions
        "OCR": 256 * 512 * (p - k) - (512 - 256) * k * p,
    }
    assert {name: row["flops"] - row["flops_reduced"] for name, row in counts.items()} == {
        name: 2 * macs for name, macs in saved.items()
    }


def test_flops_of_each_kind_of_product():
    """It includes products that PyTorch's counter leaves out: in place, and in the CPU's kernel."""
    a, b, c = torch.ones(2, 3, 4), torch.ones(2, 4, 5), torch.ones(2, 3, 5)
    conv = nn.Conv2d(4, 6, 3, padding=2, dilation=2)
    tokens, values = torch.ones(1, 1, 7, 4), torch.ones(1, 1, 7, 4)
    assert count_flops(lambda: a @ b) == 2 * (2 * 3 * 4 * 5)
    assert count_flops(lambda: c.baddbmm_(a, b)) == 2 * (2 * 3 * 4 * 5)
    assert count_flops(conv, torch.ones(2, 4, 5, 7)) == 2 * (2 * 5 * 7 * 9 * 4 * 6)
    attention = count_flops(F.scaled_dot_product_attention, tokens, tokens, values)
    assert attention == 2 * (7 * 7 * (4 + 4))


@pytest.mark.parametrize("name", PAPER)
def test_the_counted_function_equals_the_scheme(name):
    torch.manual_seed(0)
    module = SchemeOfFeatures(name, 32).double()
    for parameter_name, parameter in module.named_parameters():
        if parameter_name.endswith(("gamma", "output.weight")):  # zero at the start
            nn.init.uniform_(parameter, -0.5, 0.5)
    x, m = torch.randn(2, 32, 7, 9).double(), torch.randn(2, 5, 7, 9).double()
    with torch.no_grad():
        z = module(x, m)
        torch.testing.assert_close(z, module(x, m, transcribed), rtol=0, atol=1e-10)
    assert z.std() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Self-Attention", "DANet"])
def test_memory_of_attention_does_not_grow_with_the_square(name):
    """For 64 x 64 pixels, only the transcription makes the P x P matrix of 64 MiB."""
    module, x = SchemeOfFeatures(name, 16), torch.randn(1, 16, 64, 64)
    with torch.no_grad():
        reduced = peak_memory(lambda: module(x, x), "cpu")
        assert reduced < 64 * 2**20 < peak_memory(lambda: module(x, x, transcribed), "cpu")


@pytest.mark.slow
def test_tool_writes_the_table_and_the_rows(command):
    rows, printed = command("--size", "1,64,8,8", "--num-classes", "7", "--repeats", "1")
    assert [row["scheme"] for row in rows] == list(PAPER)
    keys = {"scheme", "parameters", "flops", "flops_reduced", "peak_memory_bytes", "seconds"}
    assert all(set(row) == keys for row in rows)
    for row in rows:  # at least the result of 512 channels, at most a thousand times as much
        assert 512 * 64 * 4 < row["peak_memory_bytes"] < 512 * 64 * 4 * 1000
        assert 0 < row["seconds"] < 10
        assert row["flops"] == count(row["scheme"], (1, 64, 8, 8), 7)["flops"]
    assert "Features [1, 64, 8, 8], 7 classes, float32" in printed
    assert "paper, table 6" in printed and "| compact" in printed
    with pytest.raises(SystemExit):
        command("--size", "64,64")


@pytest.mark.slow
def test_the_documented_counts_are_current(counts):
    """They are in studies/docs/complexity.md, and as in the paper."""
    page = (ROOT / "studies/docs/complexity.md").read_text()
    assert structures_table(SIZE) in page
    for name, row in counts.items():
        assert row["flops"] == pytest.approx(1e9 * PAPER[name].flops, rel=0.02)
        if name not in ("DANet", "CC-Attention"):
            assert row["parameters"] == pytest.approx(1e6 * PAPER[name].parameters, rel=0.02)
        documented = re.search(rf"\| {name} .*", page).group().replace(" ", "").split("|")
        billions = [f"{row[key] / 1e9:.1f}" for key in ("flops", "flops_reduced")]
        assert documented[2:7:2] == [f"{row['parameters'] / 1e6:.2f}", *billions]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, billions, millions, measured",
    [
        # Multiply-accumulates for 224x224 pixels, and parameters, from timm's and torchvision's
        # tables of classifiers. The last norm and layer (0.77M) are left out here.
        ("ConvNeXt", 4.47, 28.59, ["--repeats", "1"]),
        ("Swin", 4.49, 28.29, ["--counts-only"]),
    ],
)
def test_backbones_of_configs(name, billions, millions, measured, command):
    config = ROOT / f"configs/ADE20K-SemanticSegmentation/ocr_{name}_T_s4_160k_bs16.yaml"
    (row,), table = command("--configs", config, "--image-size", "224,224", *measured)
    assert row["flops"] == pytest.approx(2e9 * billions, rel=0.02)
    assert row["parameters"] == pytest.approx(1e6 * (millions - 0.77), rel=0.002)
    # For 56 x 56 pixels: 1440 channels to 512 for the classifier's branch, 3x3 for the pixels, and
    # OCR's own transforms.
    assert 2 * 56 * 56 * 1440 * 512 * 10 < row["head_flops"] < 2 * 56 * 56 * 1440 * 512 * 14
    assert f"{1e-6 * row['parameters']:.1f}" in table and "4/8/16/32" in table
    assert ("peak memory (MiB)" in table) == ("--repeats" in measured)
    if "--repeats" in measured:
        assert row["peak_memory_bytes"] > 0 and row["cpu_seconds"] > 0


def test_a_config_whose_data_define_the_classes(command):
    with pytest.raises(ValueError, match="as many classes as its data; say how many: --opts"):
        command("--configs", ROOT / "studies/configs/semantic_ocr_tiles.yaml")


def test_peak_memory_hand_worked():
    """The peak is 3 + 5 MiB, then 3 + 4 MiB; earlier memory does not count."""
    make = partial(torch.empty, dtype=torch.uint8)
    kept = [make(9 * 2**20)]

    def step() -> None:
        kept.append(make(3 * 2**20))
        make(5 * 2**20)
        kept.append(make(4 * 2**20))

    assert peak_memory(step, "cpu") == 8 * 2**20


def test_medians_of_steps_in_turn():
    values = iter([5.0, 30.0, 1.0, 10.0, 2.0, 40.0])
    assert medians([iter, next], 3, lambda step: next(values)) == [2.0, 30.0]


def test_the_name_of_a_machine(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert machine_name("cpu").endswith(", 3 threads")
    monkeypatch.setattr(torch.cuda, "get_device_name", {"cuda:1": "the second"}.get)
    assert machine_name("cuda:1") == "the second"


def test_counted_bytes_hand_worked():
    """1000 float32 are 4000 bytes: x and exp(x * x) are kept, x * x is freed."""
    x = torch.ones(1000, requires_grad=True)
    with AllocatedBytes() as allocated:
        y, saved = saved_bytes(lambda: (x * x).exp().sum())
        assert (saved, allocated.current, allocated.peak) == (8000, 4004, 8000)
        y.backward()
        assert allocated.current == 4004  # y and the gradient of x
    assert allocated.largest == 4000
    assert 8004 <= allocated.peak <= 4004 + 4 + 3 * 4000


def test_a_storage_counts_once():
    module = torch.nn.Linear(10, 10)
    x = torch.ones(5, 10, requires_grad=True)
    _, saved = saved_bytes(lambda: module(x) * x[:, :1].exp(), without=module)
    assert saved == (50 + 50 + 5) * 4  # x of the layer, its output, the exponential twice
    with AllocatedBytes() as allocated:
        y = x.detach() + 1
        views = [y.view(50), y.T, y[0]]
    assert allocated.current == 200 and len(views) == 3
