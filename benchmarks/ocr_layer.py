"""
Compare the time and memory of the OCR layer with a direct transcription of the paper's equations.

    python benchmarks/ocr_layer.py [--device cpu|cuda] [--repeats 15]

The two layers have the same weights; their outputs and gradients are compared before any timing.
"Optimized" is the OCR layer as an evaluation runs it (``ocr_panoptic.modeling.inference_model``):
norms are folded into convolutions, and the input feature maps are in channels-last memory.
"Products" are only the four matrix products over all pixels that every implementation needs: two in
the query transform phi, and two in the final transform g.
"""

import argparse
import copy
import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ocr_panoptic.layers import OCR, fold_norms, to_channels_last
from ocr_panoptic.predict.run_info import machine_name
from studies.measurement import medians, peak_memory, seconds


def conv_norm_relu(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class TranscribedOCR(nn.Module):
    """
    The OCR layer, written out as in equations 3 to 6 of the OCR paper.

    The query transform phi and the key transform psi have two convolutions each.
    """

    def __init__(self, channels: int, key_channels: int):
        super().__init__()
        c, d = channels, key_channels
        self.key_channels = d
        self.phi = nn.Sequential(conv_norm_relu(c, d), conv_norm_relu(d, d))
        self.psi = nn.Sequential(conv_norm_relu(c, d), conv_norm_relu(d, d))
        self.delta = conv_norm_relu(c, d)
        self.rho = conv_norm_relu(d, c)
        self.g = conv_norm_relu(2 * c, c)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        n, c, h, w = x.shape
        weights = F.softmax(m.view(n, m.shape[1], -1), dim=2)  # [N, K, P]
        pixels = x.view(n, c, -1).permute(0, 2, 1)  # [N, P, C]
        f = torch.matmul(weights, pixels).permute(0, 2, 1).unsqueeze(3)  # [N, C, K, 1]
        query = self.phi(x).view(n, self.key_channels, -1).permute(0, 2, 1)
        key = self.psi(f).view(n, self.key_channels, -1)
        value = self.delta(f).view(n, self.key_channels, -1).permute(0, 2, 1)
        relation = F.softmax(torch.matmul(query, key) * self.key_channels**-0.5, dim=2)
        context = torch.matmul(relation, value).permute(0, 2, 1).contiguous()
        y = self.rho(context.view(n, self.key_channels, h, w))
        return self.g(torch.cat([x, y], dim=1))

    def load_from(self, ocr: OCR) -> None:
        """Copy the parameters and norm statistics from an OCR layer."""
        pairs = [(self.delta, ocr.delta), (self.rho, ocr.rho), (self.g, ocr.g)]
        pairs += zip(self.phi, ocr.phi, strict=True)
        pairs += zip(self.psi, ocr.psi, strict=True)
        for target, source in pairs:
            target[0].weight.data.copy_(source.weight.data)
            target[1].load_state_dict(source.norm.state_dict())


def build_pair(channels: int, device: str) -> tuple[OCR, TranscribedOCR]:
    """Return an OCR and a TranscribedOCR with the same random weights and norm statistics."""
    torch.manual_seed(0)
    ocr = OCR(channels, channels // 2, channels, norm="BN", dropout=0.0)
    for module in ocr.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    plain = TranscribedOCR(channels, channels // 2)
    plain.load_from(ocr)
    return ocr.to(device), plain.to(device)


def compare(ocr: nn.Module, plain: nn.Module, x: Tensor, m: Tensor) -> tuple[float, float]:
    """
    Return the largest difference of the outputs, and the largest difference of the gradients.

    Each difference is relative to the largest output or gradient of ``plain``. Outputs are compared
    in evaluation mode and float32. The gradients of ``x`` are compared in training mode and
    float64, because float32 rounding could make the input of a ReLU positive in only one layer.
    """
    with torch.no_grad():
        a, b = ocr.eval()(x, m), plain.eval()(x, m)
    output = ((a - b).abs().max() / b.abs().max()).item()
    gradients = []
    for layer in (ocr, plain):
        x_leaf = x.double().requires_grad_()
        copy.deepcopy(layer).double().train()(x_leaf, m.double()).square().mean().backward()
        gradients.append(x_leaf.grad)
    gradient = ((gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max()).item()
    return output, gradient


@torch.no_grad()
def infer(layer: nn.Module, x: Tensor, m: Tensor) -> None:
    layer.eval()(x, m)


@torch.no_grad()
def infer_optimized(layer: nn.Module, x: Tensor, m: Tensor) -> None:
    """Run a layer that is already prepared for inference."""
    layer(x, m)


def train(layer: nn.Module, x: Tensor, m: Tensor) -> None:
    layer.train().zero_grad()
    x_leaf, m_leaf = x.detach().requires_grad_(), m.detach().requires_grad_()
    layer(x_leaf, m_leaf).mean().backward()


@torch.no_grad()
def products(maps: list[tuple[Tensor, Tensor]], backward: bool) -> None:
    """
    Multiply pixels by weights, and discard the results.

    Args:
        maps: for each product, pixels [N * P, C] and weights [C', C]: N images of P pixels, C input
            channels, C' output channels.
        backward: whether to also compute the gradients of pixels and weights.
    """
    for pixels, weight in maps:
        y = F.linear(pixels, weight)
        if backward:
            torch.matmul(y, weight)
            torch.matmul(y.t(), pixels)


def products_of(shape: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    c, count = shape[1], shape[0] * shape[2] * shape[3]
    sizes = [(c, c // 2), (c // 2, c // 2), (c, c), (c, c)]
    return [(torch.randn(count, i), torch.randn(o, i)) for i, o in sizes]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args(argv)

    print(f"{machine_name(args.device)}, torch {torch.__version__}, float32")
    cases = [
        ("inference", infer, (1, 512, 128, 128), 19),
        ("inference, optimized", infer_optimized, (1, 512, 128, 128), 19),
        ("forward + backward", train, (2, 512, 96, 96), 54),
    ]
    rows = []
    for title, step, shape, num_classes in cases:
        layers = build_pair(shape[1], args.device)
        x = torch.randn(shape, device=args.device)
        m = torch.randn(shape[0], num_classes, *shape[2:], device=args.device)
        output, gradient = compare(*layers, x, m)
        if max(output, gradient) > 1e-4:
            raise SystemExit(f"the layers differ: output {output:.1e}, gradient {gradient:.1e}")
        steps = [partial(step, layer, x, m) for layer in layers]
        if step is infer_optimized:
            last = {"memory_format": torch.channels_last}
            ours = copy.deepcopy(layers[0]).eval()
            fold_norms(ours)
            to_channels_last(ours)
            steps = [partial(step, ours, x.contiguous(**last), m.contiguous(**last)), steps[1]]
        maps = [(a.to(args.device), b.to(args.device)) for a, b in products_of(shape)]
        steps.append(partial(products, maps, step is train))
        for run in steps:  # to warm up
            run()
        wall = partial(seconds, device=args.device)
        ours, plain, least = medians(steps, args.repeats, wall)
        our_peak, plain_peak, _ = (peak_memory(run, args.device) for run in steps)
        rows.append(
            [title, str(list(shape)), num_classes, f"{output:.0e} / {gradient:.0e}"]
            + [f"{1e3 * plain:.1f}", f"{1e3 * ours:.1f}", f"{ours / plain:.2f}"]
            + [f"{1e3 * least:.1f}", f"{least / plain:.2f}"]
            + [f"{plain_peak / 2**20:.0f}", f"{our_peak / 2**20:.0f}"]
            + [f"{our_peak / plain_peak:.2f}"]
        )
    headers = ["", "x", "K", "difference (output / gradient)", "transcription ms", "ours ms"]
    headers += ["ratio", "products ms", "ratio", "transcription MiB", "ours MiB", "ratio"]
    print(tabulate(rows, headers=headers, disable_numparse=True))


if __name__ == "__main__":
    main()
