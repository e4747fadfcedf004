"""Object-contextual representations, Eq. 3 - 6 of :paper:`OCR`, free of configs.

Shape shorthand: N images, K object regions (= classes), h w feature size, P = h * w pixels,
C channels of the pixel representations x, D key channels, O channels of the output.
"""

import torch
from torch import Tensor, nn

from .context_scheme import ContextScheme
from .conv import ConvNormReLU, apply_norm, pixelwise


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

    Raises:
        ValueError: if x and m differ in images or feature size.
    """
    if x.shape[0] != m.shape[0] or x.shape[2:] != m.shape[2:]:
        raise ValueError(
            f"Pixel representations {tuple(x.shape)} and soft object regions {tuple(m.shape)} "
            "must have the same number of images and the same feature size: resize one of them."
        )
    dtype = torch.promote_types(x.dtype, torch.float32)
    return weighted_sum(x, m.flatten(2).to(dtype).softmax(dim=2))


def weighted_sum(x: Tensor, weights: Tensor) -> Tensor:
    """
    f_k = sum_i weights_ki x_i in the precision of the weights, outside autocast.

    Args:
        x: pixel representations [N, C, h, w]
        weights: float32 or better [N, K, P]

    Returns:
        [N, C, K, 1] in the dtype of x
    """
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
        w: [N, K, P], normalised in float32 or better, in the dtype of the product
    """
    # Scaling the K keys is cheaper than scaling K * P products, and keeps float16 in range.
    keys = (keys * scale).flatten(2).transpose(1, 2)  # [N, K, D]
    relation = torch.matmul(keys, queries.flatten(2))  # [N, K, P]
    dtype = torch.promote_types(relation.dtype, torch.float32)
    return relation.softmax(dim=1, dtype=dtype).to(relation.dtype)


class RegionContext(ContextScheme):
    """
    What any scheme does with region representations and a relation: delta, rho, g.

    Two identities make it cheap and leave its function, in training too, as it is:

    1. The convolution of rho is linear and the relation of a pixel sums to 1, so it is applied to
       the K values delta(f_k) instead of the P pixels, its bias included:
       conv(sum_k w_ik v_k) = sum_k w_ik conv(v_k). The norm and ReLU of rho stay behind the sum.
    2. g([x; y]) is the sum of two products, so x and y are never concatenated.

    Args:
        in_channels: C. The paper uses 512.
        key_channels: D, of delta (and of phi and psi). The paper uses 256.
        out_channels: O, of rho and g. The paper uses 512.
        norm: any name that Detectron2's ``get_norm`` knows, "" for none.
        dropout: probability with which a channel of the output is dropped in training. The
            published code uses 0.05.
        negative_slope: of every ReLU, see :class:`.conv.ConvNormReLU`.
    """

    uses_regions = True

    def __init__(
        self,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        *,
        norm: str = "SyncBN",
        dropout: float = 0.05,
        negative_slope: float = 0.0,
    ):
        super().__init__()
        self.out_channels = out_channels
        kinds = {"norm": norm, "negative_slope": negative_slope}
        self.delta = ConvNormReLU(in_channels, key_channels, **kinds)
        self.rho = ConvNormReLU(key_channels, out_channels, **kinds)
        self.g = ConvNormReLU(in_channels + out_channels, out_channels, **kinds)
        self.dropout = nn.Dropout2d(dropout)

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """
        Args:
            x: pixel representations [N, C, h, w]
            m: soft object regions (logits of the coarse segmentation) [N, K, h, w]
            f: object region representations [N, C, K, 1]

        Returns:
            w: pixel-region relation [N, K, P], which sums to 1 over K
        """
        raise NotImplementedError(f"{type(self).__name__} has no relation")

    def context(self, w: Tensor, f: Tensor, size: torch.Size) -> Tensor:
        """
        Object contextual representations, y_i = rho(sum_k w_ik delta(f_k)).

        Args:
            w: pixel-region relation [N, K, P] that sums to 1 over K
            f: object region representations [N, C, K, 1]
            size: (h, w) with h * w = P

        Returns:
            y: [N, O, h, w]
        """
        weight, bias, norm = self.rho.linear_part()
        values = pixelwise(weight.flatten(1), self.delta(f).flatten(2), bias)  # [N, O, K]
        y = pixelwise(values, w).unflatten(2, size)
        return self.rho.activate(apply_norm(norm, y))

    def augment(self, x: Tensor, y: Tensor) -> Tensor:
        """
        Augmented representations, z_i = g([x_i; y_i]).

        Args:
            x: pixel representations [N, C, h, w]
            y: object contextual representations [N, O, h, w]

        Returns:
            z: [N, O, h, w]
        """
        weight, bias, norm = self.g.linear_part()
        weight_x, weight_y = weight.flatten(1).split([x.shape[1], y.shape[1]], dim=1)
        z = pixelwise(weight_y, y.flatten(2), add_to=pixelwise(weight_x, x.flatten(2), bias))
        z = z.unflatten(2, x.shape[2:])
        return self.dropout(self.g.activate(apply_norm(norm, z)))

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """
        Args:
            x: pixel representations [N, C, h, w]
            m: soft object regions (logits of the coarse segmentation) [N, K, h, w]

        Returns:
            z: augmented representations [N, O, h, w]
        """
        f = gather_regions(x, m)
        w = self.relation(x, m, f)
        return self.augment(x, self.context(w, f, x.shape[2:]))


class OCR(RegionContext):
    """
    The OCR module of :paper:`OCR`: pixel representations and soft object regions in, augmented
    representations out.

    Args:
        in_channels, key_channels, out_channels, norm, dropout, negative_slope: of
            :class:`RegionContext`.
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
        norm: str = "SyncBN",
        transform_convs: int = 2,
        scale_relation: bool = True,
        dropout: float = 0.05,
        negative_slope: float = 0.0,
    ):
        kinds = {"norm": norm, "negative_slope": negative_slope}
        super().__init__(in_channels, key_channels, out_channels, dropout=dropout, **kinds)
        if transform_convs < 1:
            raise ValueError(
                f"transform_convs is {transform_convs}, but phi and psi need at least 1 "
                "convolution (paper: 1, published code: 2)."
            )

        def transform() -> nn.Sequential:
            channels = [in_channels] + [key_channels] * transform_convs
            return nn.Sequential(
                *(ConvNormReLU(i, o, **kinds) for i, o in zip(channels, channels[1:]))
            )

        self.scale = key_channels**-0.5 if scale_relation else 1.0
        self.phi = transform()
        self.psi = transform()

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """Eq. of the relation, from x and f; see :meth:`RegionContext.relation`."""
        return pixel_region_relation(self.phi(x), self.psi(f), self.scale)
