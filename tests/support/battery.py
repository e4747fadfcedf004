"""The tests that every context scheme must pass."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ocr_panoptic.layers import ContextScheme
from support import equations

GPU = pytest.mark.gpu


class SchemeBattery:
    """Tests that all context schemes share; a derived class defines a scheme and its equations."""

    scheme: type[ContextScheme]
    arguments: dict[str, Any]  # of a small scheme with 8 channels and 5 regions or classes
    variants: tuple[dict[str, Any], ...] = ({},)  # further arguments, for the equations
    sizes: tuple[dict[str, int], ...] = ({},)  # of the inputs, for the equations
    without_gradient: tuple[str, ...] = ()  # parameters that do not change the result
    # Of the published module: arguments, parameters (counted by hand), dropout probability.
    published: tuple[dict[str, Any], int, float]

    def reference(self, layer: ContextScheme, x: Tensor, m: Tensor, **options: Any) -> Tensor:
        """Return the scheme's result z, computed by the equations with a variant's options."""
        raise NotImplementedError

    def make(self, **options: Any) -> ContextScheme:
        torch.manual_seed(1)
        return equations.randomise(self.scheme(**{**self.arguments, "dropout": 0.0, **options}))

    def inputs(self, **size: int) -> tuple[Tensor, Tensor]:
        return equations.inputs(**size)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name, values in (("options", self.variants), ("size", self.sizes)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, values, ids=str)

    @pytest.mark.parametrize("training", [False, True])
    def test_equals_the_equations(self, options, size, training):
        layer, (x, m) = self.make(**options).train(training), self.inputs(**size)
        assert layer(x, m).shape == (len(x), layer.out_channels, *x.shape[2:])
        equations.assert_equal_with_gradients(
            layer,
            lambda x, m: self.reference(layer, x, m, **options),
            x,
            m,
            without_gradient=self.without_gradient,
        )

    def test_dropout_drops_channels_only_in_training(self):
        plain, dropping = self.make(), self.make(dropout=0.5)
        x, m = self.inputs()
        z = plain.train()(x, m)
        torch.manual_seed(1)
        dropped = dropping.train()(x, m)
        kept = dropped.flatten(2).abs().sum(dim=2) > 0
        assert 0.25 <= kept.double().mean() <= 0.75
        torch.testing.assert_close(dropped[kept], 2 * z[kept])
        torch.testing.assert_close(dropping.eval()(x, m), plain.eval()(x, m))

    def test_one_image_and_one_region_in_training(self):
        """A single value per channel has no variance, so a batch norm would raise an error."""
        layer = self.make().train()
        z = layer(*(t.requires_grad_() for t in self.inputs(n=1, k=1)))
        z.sum().backward()
        assert z.isfinite().all() and all(p.grad.isfinite().all() for p in layer.parameters())

    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize(
        "device, dtype, of_output, of_gradients",
        [
            ("cpu", torch.bfloat16, 0.02, 0.1),
            pytest.param("cuda", torch.float32, 1e-3, 1e-3, marks=GPU),
            pytest.param("cuda", torch.float16, 5e-2, 5e-2, marks=GPU),
            pytest.param("cuda", torch.bfloat16, 2e-1, 2e-1, marks=GPU),
        ],
    )
    @torch.backends.cudnn.flags(allow_tf32=False)  # float32 means float32
    def test_precision(self, training, device, dtype, of_output, of_gradients):
        """Outputs and gradients are close to the results in float32 on the CPU."""
        size = {"n": 4, "h": 7, "w": 9} if device == "cpu" else {"h": 33, "w": 41}
        results = []
        for where, precision in (("cpu", torch.float32), (device, dtype)):
            layer = self.make().float().to(where).train(training)
            tensors = [t.float().to(where).requires_grad_() for t in self.inputs(**size)]
            lower = precision != torch.float32
            with torch.autocast(where, dtype=precision if lower else None, enabled=lower):
                z = layer(*tensors)
            (z.float().square().sum() / 64).backward()  # gradients within float16's range
            used = [t for t in tensors if t.grad is not None]
            gradients = [t.grad for t in (*used, *layer.parameters())]
            assert all(g is not None and g.dtype == torch.float32 for g in gradients)
            parameters = torch.cat([g.flatten() for g in gradients[len(used) :]] or [z.new_ones(1)])
            results.append([z, parameters, *gradients[: len(used)]])
        for expected, actual, tolerance in zip(*results, [of_output, *[of_gradients] * 3]):
            difference = actual.detach().float().cpu() - expected.detach()
            assert difference.norm() <= tolerance * expected.norm()

    def test_the_published_module(self):
        arguments, parameters, dropout = self.published
        with torch.device("meta"):
            layer = self.scheme(**arguments)
        assert sum(p.numel() for p in layer.parameters()) == parameters
        assert layer.dropout.p == dropout
