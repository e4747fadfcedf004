"""
Object-contextual representations, Eq. 3 - 6 of :paper:`OCR`, independent of any config.

Shape shorthand: N images, K object regions (= classes), h w feature size, P = h * w pixels,
C channels of the pixel representations x, D key channels, O output channels.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .context_scheme import ContextScheme, run_part
from .conv import ConvNormReLU, as_map, is_affine, is_pixel_major, pixelwise


def gather_regions(x: Tensor, m: Tensor) -> Tensor:
    """
    Return the object region representations f_k = sum_i softmax_i(m_k)_i x_i.

    This is the paper's Eq. "object region representations" with its spatial softmax. Softmax and
    sum are computed in float32 or better, under autocast too.

    Args:
        x: pixel representations [N, C, h, w]
        m: soft object regions (logits of the coarse segmentation) [N, K, h, w]

    Returns:
        f: object region representations [N, C, K, 1] in the dtype of x
    """
    # A softmax over P pixels has weights around 1 / P: subnormal in float16 if P exceeds 16,384.
    dtype = torch.promote_types(x.dtype, torch.float32)
    return weighted_sum(x, m.flatten(2).to(dtype).softmax(dim=2))


def weighted_sum(x: Tensor, weights: Tensor) -> Tensor:
    """
    Return K weighted sums of pixels, f_k = sum_i weights_ki x_i, as f [N, C, K, 1].

    The result has the dtype of x [N, C, h, w]. The sums are computed in the dtype of the weights
    [N, K, P], under autocast too.
    """
    with torch.autocast(device_type=x.device.type, enabled=False):
        f = torch.matmul(x.flatten(2).to(weights.dtype), weights.transpose(1, 2))  # [N, C, K]
    return f.to(x.dtype).unsqueeze(3)


def pixel_region_relation(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """
    Return the pixel-region relation w_ik = softmax_k(scale * phi(x_i)^T psi(f_k)).

    The paper's equation has scale = 1; the published code uses scale = 1 / sqrt(D).

    The queries phi(x) are [N, D, h, w] and the keys psi(f) [N, D, K, 1]. The result is [N, K, P] in
    the dtype of the queries; the softmax is computed in float32 or better.
    """
    # Scaling the K keys is cheaper than scaling K * P products, and keeps float16 in range.
    keys = (keys * scale).flatten(2).transpose(1, 2)  # [N, K, D]
    pixels = queries.flatten(2)
    if scale < 1:
        kappa = pixelwise(keys, pixels)  # [N, K, P]
    else:  # an unscaled product overflows float16
        dtype = torch.promote_types(queries.dtype, torch.float32)
        with torch.autocast(queries.device.type, enabled=False):
            kappa = pixelwise(keys.to(dtype), pixels.to(dtype))
    return softmax_over_regions(kappa, queries.dtype)


def softmax_over_regions(kappa: Tensor, dtype: torch.dtype) -> Tensor:
    """
    Return the softmax of logits kappa [N, K, P] over the K regions, in ``dtype``.

    The softmax is computed in float32 or better.
    """
    precise = torch.promote_types(kappa.dtype, torch.float32)
    if is_pixel_major(kappa):  # keep this memory order
        return kappa.transpose(1, 2).softmax(dim=2, dtype=precise).to(dtype).transpose(1, 2)
    return kappa.softmax(dim=1, dtype=precise).to(dtype)


ExtraTerm = tuple[Tensor, Tensor]

# A band of 512 channels takes 32 MB. Smaller bands save more memory, but threads then wait for each
# other more often: on two busy cores, bands of 4,096 pixels take longer than all pixels at once.
PIXELS_OF_BAND = 2**14


class RegionContext(ContextScheme):
    """
    The base class of OCR schemes, each of which defines a pixel-region relation w.

    The object contextual representations are y_i = rho(sum_k w_ik delta(f_k)), with the region
    representations f_k. The augmented representations are z_i = g([x_i; y_i]). delta, rho and g
    are conv-norm-ReLU layers. The defaults match the paper.

    Args:
        in_channels: number of channels (C) of the pixel representations x.
        key_channels: number of output channels (D) of delta, and of OCR's phi and psi.
        out_channels: number of output channels (O) of rho and g.
        options: further arguments of :class:`.ContextScheme`.
    """

    uses_regions = True

    def __init_subclass__(cls, **kwargs: Any):
        """Make the whole map one band if the subclass only defines its own :meth:`forward`."""
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls) and "in_bands" not in vars(cls):
            cls.in_bands = ContextScheme.in_bands  # type: ignore[method-assign]

    def __init__(
        self,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        **options: Any,
    ):
        super().__init__(out_channels, **options)
        self.delta: nn.Module = self.conv_norm_relu(in_channels, key_channels)
        self.rho = self.conv_norm_relu(key_channels, out_channels)
        self.g = self.conv_norm_relu(in_channels + out_channels, out_channels)

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """
        Return the pixel-region relation w [N, K, P], which sums to 1 over K.

        The arguments are pixel representations x [N, C, h, w], soft object regions m [N, K, h, w]
        and region representations f [N, C, K, 1].
        """
        raise NotImplementedError

    def context(self, w: Tensor, f: Tensor, size: torch.Size) -> Tensor:
        """
        Return the object contextual representations y_i = rho(sum_k w_ik delta(f_k)) [N, O, h, w].

        The relation w [N, K, P] sums to 1 over K; f is [N, C, K, 1]; ``size`` is (h, w).
        """
        # rho's convolution is linear and w sums to 1 over the regions, so that
        # conv(sum_k w_ik v_k) = sum_k w_ik conv(v_k), bias included. Convolving K regions is
        # cheaper than convolving P pixels. rho's norm and ReLU come after the sum.
        weight, bias = self.rho.linear_part()
        values = pixelwise(weight.flatten(1), self.delta(f).flatten(2), bias)  # [N, O, K]
        return self.rho.finish(as_map(pixelwise(values, w), size))

    def extra_term(self, x: Tensor) -> ExtraTerm | None:
        """
        Return a term that :meth:`fuse` adds before its norm; None for no term.

        A pixel's term is a weighted sum of S vectors. The result holds the vectors [N, O, S] and
        the weights [S, h, w]; a subclass chooses S.
        """
        return None

    def fuse(self, x: Tensor, y: Tensor, extra: ExtraTerm | None) -> Tensor:
        """Return the augmented map g([x; y]) [N, O, n, w]; all arguments are maps of n rows."""
        return self.g(x, y, dropout=self.dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Return the augmented map z [N, O, h, w] of x [N, C, h, w] and regions m [N, K, h, w]."""
        f = run_part(self, gather_regions, x, m)
        return self._augment(x, m, f, self.extra_term(x))

    def in_bands(self, x: Tensor, m: Tensor) -> Iterator[Tensor]:
        """
        Yield the result z of :meth:`forward` in bands of rows, from top to bottom.

        At inference with affine norms, a pixel's result depends only on the pixel itself and the
        region representations, so bands are computed one at a time to save memory. Otherwise, the
        whole map is one band.
        """
        if not self._by_bands():
            yield self(x, m)
            return
        f, extra = gather_regions(x, m), self.extra_term(x)
        rows = max(1, PIXELS_OF_BAND // x.shape[3])
        for top in range(0, x.shape[2], rows):
            band = slice(top, top + rows)
            here = extra and (extra[0], extra[1][:, band])
            yield self._augment(x[:, :, band], m[:, :, band], f, here)

    def _augment(self, x: Tensor, m: Tensor, f: Tensor, extra: ExtraTerm | None) -> Tensor:
        w = run_part(self, self.relation, x, m, f)
        y = run_part(self, self.context, w, f, x.shape[2:])
        return self.fuse(x, y, extra)

    def _by_bands(self) -> bool:
        """Return whether to compute in bands of rows: at inference, except in exports."""
        exported = torch.compiler.is_compiling() or torch.jit.is_tracing()
        norms = [m.norm for m in self.modules() if isinstance(m, ConvNormReLU)]
        return not (self.training or torch.is_grad_enabled() or exported) and all(
            norm is None or is_affine(norm) for norm in norms
        )


class OCR(RegionContext):
    """
    The OCR module of :paper:`OCR`, with the relation softmax_k(scale * phi(x_i)^T psi(f_k)).

    Args:
        transform_convs: number of conv-norm-ReLU layers in each of phi and psi: 1 in the paper's
            text, 2 in the published code.
        scale_relation: whether scale is 1 / sqrt(D), as in the published code, or 1, as in the
            paper's equation.
    """

    def __init__(
        self,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        *,
        transform_convs: int = 2,
        scale_relation: bool = True,
        **options: Any,
    ):
        super().__init__(in_channels, key_channels, out_channels, **options)
        self.scale = key_channels**-0.5 if scale_relation else 1.0
        self.phi, self.psi = relation_transforms(
            self.conv_norm_relu, in_channels, key_channels, transform_convs
        )

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """Return the relation w [N, K, P] of pixels x [N, C, h, w] to regions f [N, C, K, 1]."""
        return pixel_region_relation(self.phi(x), self.psi(f), self.scale)


def relation_transforms(
    conv_norm_relu: Callable[[int, int], nn.Module],
    in_channels: int,
    key_channels: int,
    transform_convs: int = 2,
) -> tuple[nn.Sequential, nn.Sequential]:
    """Return the transforms phi (pixels) and psi (regions), of ``transform_convs`` layers each."""
    channels = [in_channels] + [key_channels] * transform_convs
    phi, psi = (
        nn.Sequential(*(conv_norm_relu(i, o) for i, o in zip(channels, channels[1:])))
        for _ in range(2)
    )
    return phi, psi
