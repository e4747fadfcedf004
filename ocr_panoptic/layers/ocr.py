"""
Object-contextual representations, Eq. 3 - 6 of :paper:`OCR`, free of configs.

Shape shorthand: N images, K object regions (= classes), h w feature size, P = h * w pixels,
C channels of the pixel representations x, D key channels, O channels of the output.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ocr_panoptic.errors import UserError

from .context_scheme import ContextScheme
from .conv import ConvNormReLU, as_map, is_pixel_major, pixelwise
from .recomputation import run_part


def gather_regions(x: Tensor, m: Tensor) -> Tensor:
    """
    Object region representations, f_k = sum_i softmax_i(m_k)_i x_i: the spatial softmax and the
    weighted sum of the paper's Eq. "object region representations".

    Computed in float32 or better, outside autocast: a softmax over P pixels has weights around
    1 / P, which leave the normal numbers of float16 once P exceeds 16,384.

    Args:
        x: pixel representations [N, C, h, w]
        m: soft object regions (logits of the coarse segmentation) [N, K, h, w]

    Returns:
        f: object region representations [N, C, K, 1] in the dtype of x
    """
    if x.shape[0] != m.shape[0] or x.shape[2:] != m.shape[2:]:
        raise ValueError(
            f"Pixel representations {tuple(x.shape)} and soft object regions {tuple(m.shape)} "
            "must have the same number of images and the same feature size: resize one of them."
        )
    dtype = torch.promote_types(x.dtype, torch.float32)
    return weighted_sum(x, m.flatten(2).to(dtype).softmax(dim=2))


def weighted_sum(x: Tensor, weights: Tensor) -> Tensor:
    """f_k = sum_i weights_ki x_i, of x [N, C, h, w] and weights [N, K, P] in float32 or better: in
    their precision, outside autocast; [N, C, K, 1] in the dtype of x."""
    with torch.autocast(device_type=x.device.type, enabled=False):
        f = torch.matmul(x.flatten(2).to(weights.dtype), weights.transpose(1, 2))  # [N, C, K]
    return f.to(x.dtype).unsqueeze(3)


def pixel_region_relation(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """
    Pixel-region relation, w_ik = softmax_k(scale * phi(x_i)^T psi(f_k)): the paper's Eq. of the
    relation for scale = 1; the published code uses scale = 1 / sqrt(D).

    Args:
        queries: phi(x) [N, D, h, w]
        keys: psi(f) [N, D, K, 1]
        scale: factor of the unnormalised relation

    Returns:
        w: [N, K, P], normalised in float32 or better, in the dtype of the queries
    """
    # Scaling the K keys is cheaper than scaling K * P products, and keeps float16 in range.
    keys = (keys * scale).flatten(2).transpose(1, 2)  # [N, K, D]
    pixels = queries.flatten(2)
    if scale < 1:
        kappa = pixelwise(keys, pixels)  # [N, K, P]
    else:  # as it is, the product overflows float16
        dtype = torch.promote_types(queries.dtype, torch.float32)
        with torch.autocast(queries.device.type, enabled=False):
            kappa = pixelwise(keys.to(dtype), pixels.to(dtype))
    return softmax_over_regions(kappa, queries.dtype)


def softmax_over_regions(kappa: Tensor, dtype: torch.dtype) -> Tensor:
    """The relation of its logits [N, K, P], normalised in float32 or better, as ``dtype``."""
    precise = torch.promote_types(kappa.dtype, torch.float32)
    if is_pixel_major(kappa):  # and so the relation is
        return kappa.transpose(1, 2).softmax(dim=2, dtype=precise).to(dtype).transpose(1, 2)
    return kappa.softmax(dim=1, dtype=precise).to(dtype)


Surroundings = tuple[Tensor, Tensor]

# 32 MB of 512 channels. Smaller bands save more memory, but threads then wait for each other more
# often: on two busy cores bands of 4,096 take longer than all pixels at once.
PIXELS_OF_BAND = 2**14


class RegionContext(ContextScheme):
    """
    A scheme with region representations f and a relation w: the object contextual representations
    y_i = rho(sum_k w_ik delta(f_k)) and the augmented ones z_i = g([x_i; y_i]).

    An identity makes it cheap and leaves its function, in training too, as it is: the convolution
    of rho is linear and the relation of a pixel sums to 1, so it is applied to the K values
    delta(f_k) instead of the P pixels, its bias included:
    conv(sum_k w_ik v_k) = sum_k w_ik conv(v_k). The norm and ReLU of rho come after the sum.

    Args:
        in_channels: C. The paper uses 512.
        key_channels: D, of delta (and of phi and psi). The paper uses 256.
        out_channels: O, of rho and g. The paper uses 512.
        options: of :class:`.ContextScheme`. The published code drops with probability 0.05.
    """

    uses_regions = True

    def __init__(
        self,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        **options: Any,
    ):
        super().__init__(out_channels, **options)
        self.delta = self.conv_norm_relu(in_channels, key_channels)
        self.rho = self.conv_norm_relu(key_channels, out_channels)
        self.g = self.conv_norm_relu(in_channels + out_channels, out_channels)

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """The pixel-region relation w [N, K, P], which sums to 1 over K, of x [N, C, h, w],
        m [N, K, h, w] and f [N, C, K, 1]."""
        raise NotImplementedError(f"{type(self).__name__} has no relation")

    def context(self, w: Tensor, f: Tensor, size: torch.Size) -> Tensor:
        """Object contextual representations y_i = rho(sum_k w_ik delta(f_k)) [N, O, h, w], of a
        relation w [N, K, P] that sums to 1 over K and f [N, C, K, 1]; ``size`` is (h, w)."""
        weight, bias = self.rho.linear_part()
        values = pixelwise(weight.flatten(1), self.delta(f).flatten(2), bias)  # [N, O, K]
        return self.rho.finish(as_map(pixelwise(values, w), size))

    def surroundings(self, x: Tensor) -> Surroundings | None:
        """Return what a scheme adds before the norm of g, of x of all pixels, as two factors:
        values [N, O, S] and their weights at each pixel [S, h, w]."""
        return None

    def fuse(self, x: Tensor, y: Tensor, around: Surroundings | None) -> Tensor:
        """The augmented representations g([x; y]) [N, O, n, w] of a band of rows of x [N, C, n, w]
        and y [N, O, n, w], and of what :meth:`surroundings` gives for these rows."""
        return self.g(x, y, dropout=self.dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """z_i = g([x_i; y_i]); see :meth:`.ContextScheme.forward`."""
        f = run_part(self, gather_regions, x, m)
        return self._augment(x, m, f, self.surroundings(x))

    def in_bands(self, x: Tensor, m: Tensor) -> Iterator[Tensor]:
        """See :meth:`.ContextScheme.in_bands`."""
        if type(self).forward is not RegionContext.forward or not self._by_bands():
            return super().in_bands(x, m)
        return self.augment(x, m, gather_regions(x, m))

    def augment(self, x: Tensor, m: Tensor, f: Tensor) -> Iterator[Tensor]:
        """
        The part after the gather, without gradients. Once f is there, a pixel's z depends on that
        pixel alone (if the norms are affine): a band of rows is finished before the next one, so
        that phi(x), w, y and z of all pixels are never there.

        Args:
            x, m: of :meth:`.ContextScheme.forward`
            f: region representations [N, C, K, 1], of these pixels or of more

        Yields:
            z of a band [N, O, n, w], from top to bottom
        """
        rows = max(1, PIXELS_OF_BAND // x.shape[3]) if self._by_bands() else x.shape[2]
        around = self.surroundings(x)
        for top in range(0, x.shape[2], rows):
            band = slice(top, top + rows)
            here = around and (around[0], around[1][:, band])
            yield self._augment(x[:, :, band], m[:, :, band], f, here)

    def _augment(self, x: Tensor, m: Tensor, f: Tensor, around: Surroundings | None) -> Tensor:
        w = run_part(self, self.relation, x, m, f)
        y = run_part(self, self.context, w, f, x.shape[2:])
        return self.fuse(x, y, around)

    def _by_bands(self) -> bool:
        """Return whether z is computed by bands: not in training; not where another norm sees all
        pixels; not in an exported graph, which is of no fixed size."""
        exported = torch.compiler.is_compiling() or torch.jit.is_tracing()
        return not (self.training or torch.is_grad_enabled() or exported) and all(
            layer.is_affine for layer in self.modules() if isinstance(layer, ConvNormReLU)
        )


class OCR(RegionContext):
    """
    The OCR module of :paper:`OCR`: pixel representations and soft object regions in, augmented
    representations out.

    Args:
        in_channels, key_channels, out_channels, options: of :class:`RegionContext`.
        transform_convs: number of conv-norm-ReLU in each of phi and psi. The paper's text says
            1, the published code has 2.
        scale_relation: scale the relation by 1 / sqrt(D) as the published code does; False is
            the paper's equation.
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
        """Eq. of the relation, from x and f; see :meth:`RegionContext.relation`."""
        return pixel_region_relation(self.phi(x), self.psi(f), self.scale)


def relation_transforms(
    conv_norm_relu: Callable[[int, int], nn.Module],
    in_channels: int,
    key_channels: int,
    transform_convs: int = 2,
) -> tuple[nn.Sequential, nn.Sequential]:
    """phi and psi; arguments of :class:`OCR`."""
    if transform_convs < 1:
        raise UserError(
            f"transform_convs is {transform_convs}, but phi and psi need at least 1 "
            "convolution (paper: 1, published code: 2)."
        )
    channels = [in_channels] + [key_channels] * transform_convs
    phi, psi = (
        nn.Sequential(*(conv_norm_relu(i, o) for i, o in zip(channels, channels[1:])))
        for _ in range(2)
    )
    return phi, psi


class ACFOCR(RegionContext):
    """
    OCR with the relation of ACFNet, the coarse segmentation: w_ik = softmax_k(m_ki), without
    parameters; a form that the paper compares with its own ("Pixel-region relations").
    """

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """Return the relation of each pixel to the regions; see :meth:`RegionContext.relation`."""
        return softmax_over_regions(m.flatten(2), x.dtype)


class DoubleAttentionOCR(RegionContext):
    """
    OCR with another relation that the paper compares, that of Double Attention, predicted from the
    pixel alone by a 1x1 convolution: w_ik = softmax_k(a_k^T x_i + b_k). The region representations
    have no part in it.

    Args:
        num_classes: K.
        in_channels, key_channels, out_channels, options: of :class:`RegionContext`.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        **options: Any,
    ):
        super().__init__(in_channels, key_channels, out_channels, **options)
        self.relation_predictor = nn.Conv2d(in_channels, num_classes, kernel_size=1)

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """Return the relation of each pixel to the regions; see :meth:`RegionContext.relation`."""
        logits = self.relation_predictor(x).flatten(2)
        return softmax_over_regions(logits, logits.dtype)
