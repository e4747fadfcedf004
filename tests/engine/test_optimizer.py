"""Learning rate and weight decay of every parameter, in both architectures."""

import copy
import itertools
from functools import partial

import pytest
import timm
import torch
from detectron2.config import CfgNode
from detectron2.modeling import build_model
from detectron2.modeling.backbone.vit import get_vit_lr_decay_rate
from detectron2.solver import build_optimizer as detectron2_optimizer
from detectron2.utils.events import EventStorage
from timm.optim import create_optimizer_v2
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ocr_panoptic.config.files import load_config
from ocr_panoptic.engine.optimizer import build_optimizer
from ocr_panoptic.engine.step import AccumulatingTrainer, build_clipping
from ocr_panoptic.modeling.timm_backbone import TimmBackbone
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG
from train_net import Trainer


@pytest.fixture(params=["panoptic", "semantic"])
def cfg(request, small_cfg) -> CfgNode:
    if request.param == "panoptic":
        return small_cfg()
    norms = [arg for part in ("OCR", "TIMM") for arg in (f"MODEL.{part}.NORM", "BN")]
    opts = ["MODEL.DEVICE", "cpu", "MODEL.SEM_SEG_HEAD.NUM_CLASSES", "4", *norms]
    return load_config(str(SEMANTIC_CONFIG), opts)


def of_each_parameter(model: nn.Module, optimizer: torch.optim.Optimizer, key: str) -> dict:
    values = {id(p): group[key] for group in optimizer.param_groups for p in group["params"]}
    return {name: values[id(p)] for name, p in model.named_parameters() if p.requires_grad}


def test_rates_of_backbone_and_head(cfg):
    """By hand; biases also have their factor, and norms keep their decay."""
    cfg.SOLVER.BASE_LR, cfg.SOLVER.HEAD_LR_FACTOR, cfg.SOLVER.BIAS_LR_FACTOR = 0.5, 10.0, 2.0
    cfg.SOLVER.WEIGHT_DECAY, cfg.SOLVER.WEIGHT_DECAY_NORM = 0.25, 0.125
    model = build_model(cfg)
    optimizer = Trainer.build_optimizer(cfg, model)
    rates = of_each_parameter(model, optimizer, "lr")
    for name, rate in rates.items():
        expected = 0.5 if name.startswith("backbone.") else 5.0
        assert rate == (2 * expected if name.endswith(".bias") else expected), name
    assert {rate for name, rate in rates.items() if name.endswith("weight")} == {0.5, 5.0}
    assert set(of_each_parameter(model, optimizer, "weight_decay").values()) == {0.25, 0.125}
    scheduler = Trainer.build_lr_scheduler(cfg, optimizer)  # it multiplies each group's rate
    first = {group["lr"] / group["initial_lr"] for group in optimizer.param_groups}
    assert len(first) == 1 and len(scheduler.base_lrs) > 2


def test_factor_1_gives_detectron2s_optimizer(cfg):
    cfg.SOLVER.WEIGHT_DECAY_BIAS = 0.0
    model = build_model(cfg)
    ours, theirs = (make(cfg, model) for make in (Trainer.build_optimizer, detectron2_optimizer))
    groups = ours.state_dict()["param_groups"]
    assert all(group["foreach"] for group in groups)  # on a GPU they would be fused
    for group, expected in zip(groups, theirs.state_dict()["param_groups"], strict=True):
        assert group.items() <= expected.items()


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_steps_on_a_gpu_are_fused(name, pretended_gpu):
    """Then the CPU does not wait for a loss scale."""
    cfg = load_config("", ["SOLVER.OPTIMIZER", name])
    with FakeTensorMode(), torch.device("cuda"):
        optimizer = build_optimizer(cfg, nn.Linear(2, 3), own_step=True)
        assert not any(g.get("fused") for g in build_optimizer(cfg, nn.Linear(2, 3)).param_groups)
    assert all(group["fused"] for group in optimizer.param_groups)
    assert optimizer._step_supports_amp_scaling


def with_gradients() -> nn.Module:
    """Return a model with gradients of all sizes; one gradient is 0, and one is missing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 3), nn.Linear(5, 7), nn.Linear(7, 1))
    for i, parameter in enumerate(list(model.parameters())[:-1]):
        parameter.grad = 0.1 * i * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("kind", ["norm", "value"])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_clipping_equals_detectron2s(kind, name):
    """Clipped gradients are exactly equal; fused and separate steps differ only by rounding."""
    opts = ["SOLVER.CLIP_GRADIENTS.CLIP_TYPE", kind, "SOLVER.CLIP_GRADIENTS.CLIP_VALUE", "1.5"]
    opts += ["SOLVER.OPTIMIZER", name, "SOLVER.CLIP_GRADIENTS.ENABLED", "True"]
    cfg, models = load_config("", opts), [with_gradients() for _ in range(2)]
    if kind == "value":  # Detectron2 needs all gradients for it
        for *_, last in (model.parameters() for model in models):
            last.grad = torch.zeros_like(last)
    ours = build_optimizer(cfg, models[0], own_step=True)
    theirs = build_optimizer(cfg, models[1])  # Detectron2's function has added the clipping
    build_clipping(cfg, ours)()
    ours.step()
    theirs.step()
    for i, (a, b) in enumerate(zip(*(model.parameters() for model in models), strict=True)):
        assert a.grad is b.grad is None or torch.equal(a.grad, b.grad), i
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    assert build_clipping(load_config("", []), ours) is None


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize(
    "saved, loaded", itertools.permutations([torch.contiguous_format, torch.channels_last])
)
def test_momenta_in_another_memory_layout_are_used(name, saved, loaded):
    """After loading, a fused step equals separate operations for every layout of the momenta."""
    cfg = load_config("", ["SOLVER.OPTIMIZER", name])

    def make(layout: torch.memory_format) -> AccumulatingTrainer:
        model = with_gradients().to(memory_format=layout)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
        return AccumulatingTrainer(model, [], build_optimizer(cfg, model), steps=1, amp=False)

    separate, fused = make(saved), make(loaded)
    separate.optimizer.step()
    fused.model.load_state_dict(separate.model.state_dict())
    separate.iter = 0
    fused.load_state_dict(copy.deepcopy(separate.state_dict()))
    for group in fused.optimizer.param_groups:
        group.update(fused=True, foreach=None)
    for trainer in (separate, fused):
        trainer.optimizer.step()
    for a, b in zip(separate.model.parameters(), fused.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": self.linear(batch[0]).mul(7).sum()}


def trained_weights(make_optimizer, infinite: int, scaled: bool, clip=None) -> list[torch.Tensor]:
    """Return the weights after each of six steps; the gradient of step ``infinite`` is infinite."""
    torch.manual_seed(0)
    model, images = Loss(), list(torch.randn(6, 4, 3))
    images[infinite][:] = torch.tensor([3e36, 0, 0])
    optimizer = make_optimizer(model)
    batches, clip = [[image] for image in images], clip and clip(optimizer)
    trainer = AccumulatingTrainer(model, batches, optimizer, steps=1, amp=False, clip=clip)
    trainer.grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=scaled)
    weights = []
    with EventStorage():
        for trainer.iter in range(6 if scaled else infinite):
            trainer.run_step()
            weights.append(model.linear.weight.detach().clone())
    assert not scaled or trainer.grad_scaler.get_scale() == 2**11
    return weights


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_gradients_are_clipped_without_the_scale_of_float16(name):
    """The scale of a loss changes nothing; an infinite gradient skips the step."""
    opts = ["SOLVER.CLIP_GRADIENTS.CLIP_VALUE", "0.1", "SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "norm"]
    opts += ["SOLVER.OPTIMIZER", name, "SOLVER.CLIP_GRADIENTS.ENABLED", "True"]
    cfg = load_config("", opts)
    make, clip = partial(build_optimizer, cfg, own_step=True), partial(build_clipping, cfg)
    plain, scaled = (trained_weights(make, 3, on, clip) for on in (False, True))
    assert all(map(torch.equal, plain, scaled)) and not torch.equal(plain[0], plain[1])
    assert torch.equal(scaled[2], scaled[3]) and not torch.equal(scaled[3], scaled[4])


def test_an_infinite_gradient_in_the_first_step_leaves_no_trace(monkeypatch):
    """A fused step must not read momenta that PyTorch leaves uninitialised."""
    unset = lambda like, **options: torch.full_like(like, torch.nan, **options)  # noqa: E731
    monkeypatch.setattr(torch, "empty_like", unset)
    separate, fused = (
        trained_weights(
            lambda m, on=on: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, fused=on), 0, True
        )
        for on in (False, True)
    )
    torch.testing.assert_close(separate, fused, rtol=1e-6, atol=1e-9)


class Network(nn.Module):
    def __init__(self, name: str):
        super().__init__()
        self.backbone = TimmBackbone(name, norm="BN")
        self.head = nn.Sequential(nn.Conv2d(3, 4, 1), nn.LayerNorm(4))


ADAMW = [
    *("SOLVER.OPTIMIZER", "AdamW", "SOLVER.LAYER_DECAY", "0.75", "SOLVER.BASE_LR", "0.5"),
    *("SOLVER.WEIGHT_DECAY", "0.25", "SOLVER.HEAD_LR_FACTOR", "2.0"),
]
# Network -> a parameter and the number of later layers, counted by hand: blocks and classifier.
LATER_LAYERS = {
    "convnext_atto": ("stages_0.blocks.1.conv_dw.weight", 11),  # 2 + 2 + 6 + 2 blocks
    "resnet18": ("layer2.0.downsample.0.weight", 6),  # 8 blocks
    "vit_tiny_patch16_224": ("model.pos_embed", 13),  # 12 blocks
    "swin_tiny_patch4_window7_224": ("layers_1.downsample.reduction.weight", 10),  # 2 + 2 + 6 + 2
    "vit_small_patch14_reg4_dinov2": ("model.reg_token", 13),  # without a classifier
}


OTHERS = ("tf_efficientnet_lite0", "regnety_002", "hrnet_w18_small", "vit_small_patch16_dinov3")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LATER_LAYERS, *OTHERS, "swinv2_tiny_window8_256"])
def test_layers_of_timm(name):
    """Rates equal timm's optimizer, Detectron2's for a ViTDet, and values by hand."""
    with torch.device("meta"):  # only names and shapes matter
        model = Network(name)
    optimizer = Trainer.build_optimizer(load_config("", ADAMW), model)
    assert type(optimizer) is torch.optim.AdamW
    rates, decays = (of_each_parameter(model, optimizer, key) for key in ("lr", "weight_decay"))
    prefix, first = "backbone.body.", next(iter(rates.values()))
    backbone = [rate for key, rate in rates.items() if key.startswith("backbone.")]
    assert first == min(backbone) < max(backbone) == 0.5 * 0.75 and len(set(backbone)) >= 5
    if name not in LATER_LAYERS:
        return
    with torch.device("meta"):
        theirs = timm.create_model(name)
    key, behind = LATER_LAYERS[name]
    assert rates[prefix + key] == pytest.approx(0.5 * 0.75**behind)
    assert {rates[f"head.{key}"] for key in ("0.weight", "0.bias", "1.weight")} == {1.0}
    assert [decays[f"head.{key}"] for key in ("0.weight", "0.bias", "1.weight")] == [0.25, 0, 0]

    groups = create_optimizer_v2(theirs, "adamw", lr=0.5, weight_decay=0.25, layer_decay=0.75)
    factors = of_each_parameter(theirs, groups, "lr_scale")
    their_decays = of_each_parameter(theirs, groups, "weight_decay")
    for key in (key.removeprefix(prefix) for key in rates if key.startswith(prefix)):
        their_key = key.removeprefix("model.")
        for part in ("stem", "stages", "layers"):
            their_key = their_key.replace(f"{part}_", f"{part}.")
        expected = 0 if "reg_token" in key else their_decays[their_key]
        assert decays[prefix + key] == expected, key
        if "dinov2" not in name:
            assert rates[prefix + key] == pytest.approx(0.5 * factors[their_key]), key
        if name.startswith("vit") and not key.endswith(("_token", ".norm.weight", ".norm.bias")):
            rate = get_vit_lr_decay_rate(f"backbone.net.{their_key}", 0.75, num_layers=12)
            assert rates[prefix + key] == pytest.approx(0.5 * rate), key


def test_decay_of_biases_and_norms_with_adamw():
    """Detectron2's keys set the weight decay, and its factor for biases stays."""
    opts = ["SOLVER.WEIGHT_DECAY_NORM", "0.125", "SOLVER.WEIGHT_DECAY_BIAS", "0.0625"]
    opts += ["SOLVER.BIAS_LR_FACTOR", "3.0"]
    model = Network("resnet10t")
    optimizer = Trainer.build_optimizer(load_config("", [*ADAMW, *opts]), model)
    decays, rates = (of_each_parameter(model, optimizer, key) for key in ("weight_decay", "lr"))
    for name, decay in decays.items():
        norm = any(n in name for n in ("bn", "downsample.2", "head.1", ".conv1.1", ".conv1.4"))
        expected = 0.0625 if name.endswith(".bias") else 0.125 if norm else 0.25
        assert decay == expected, name
    assert rates["head.0.bias"] == 3 * rates["head.0.weight"] == 3.0


def test_adamw_with_an_fpn():
    """The backbone has the same layers as without an FPN, which learns at the backbone's rate."""
    opts = [*ADAMW, "MODEL.DEVICE", "cpu", "MODEL.TIMM.NAME", "resnet10t", "MODEL.TIMM.NORM", "BN"]
    opts += ["MODEL.ROI_HEADS.NUM_CLASSES", "2", "MODEL.SEM_SEG_HEAD.NUM_CLASSES", "4"]
    opts += ["MODEL.BACKBONE.NAME", "build_timm_fpn_backbone", "MODEL.OCR.NORM", "BN"]
    cfg = load_config(str(OCR_CONFIG), [*opts, "MODEL.FPN.NORM", "BN"])
    model = build_model(cfg)
    optimizer = Trainer.build_optimizer(cfg, model)
    rates = of_each_parameter(model, optimizer, "lr")
    prefix = "backbone.bottom_up.body."
    assert rates[f"{prefix}conv1.0.weight"] == pytest.approx(0.5 * 0.75**5)  # 4 blocks
    assert rates[f"{prefix}layer4.0.conv1.weight"] == pytest.approx(0.5 * 0.75)
    assert {rate for name, rate in rates.items() if not name.startswith(prefix)} == {0.5, 1.0}


POLY = {"LR_SCHEDULER_NAME": "WarmupPolyLR"}


@pytest.mark.parametrize(
    "solver, expected",
    [
        # Detectron2 ignores steps above MAX_ITER, but fails for a step equal to MAX_ITER.
        ({"STEPS": (3, 9, 20), "LR_SCHEDULER_NAME": "WarmupMultiStepLR"}, [0.02] * 3 + [0.002] * 6),
        (POLY | {"POLY_LR_POWER": 0.5}, [0.02 * (1 - i / 9) ** 0.5 for i in range(9)]),
        (
            POLY | {"POLY_LR_POWER": 0.9, "POLY_LR_CONSTANT_ENDING": 0.3},
            [0.02 * max((1 - i / 9) ** 0.9, 0.3) for i in range(9)],
        ),
    ],
)
def test_schedules_by_hand(solver, expected):
    """SOLVER.POLY_LR_POWER and SOLVER.POLY_LR_CONSTANT_ENDING define the second and third row."""
    cfg = load_config("", [])
    cfg.SOLVER.update(WARMUP_ITERS=0, MAX_ITER=9, **solver)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.02)
    scheduler, rates = Trainer.build_lr_scheduler(cfg, optimizer), []
    for _ in range(9):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx(expected)
