"""
The published OCR networks as functions that create their state dicts as they run.

They follow the published code's layers and key names, without this project's modules. A tensor is
created when the forward pass first needs it, so the state dict has exactly the needed names and
shapes. A norm's statistics are near its input's, so that activations keep their size through a
hundred layers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class Weights:
    """
    Random weights of a network; each tensor is created when it is first needed.

    In-Place ABN's norms scale by |w| + 1e-5, have no ``num_batches_tracked`` and belong to leaky
    ReLUs in heads; ``mixed`` networks have them only in the backbone, with plain ReLUs. In heads
    with ``nested`` Sequentials, the norm of a conv-norm-ReLU is named ``1.0`` instead of ``1``.
    """

    def __init__(self, *, inplace_abn=False, mixed=False, nested=False, seed=0):
        self.inplace_abn, self.mixed, self.nested = inplace_abn, mixed, nested
        self.leaky = inplace_abn
        self.tensors: dict[str, Tensor] = {}
        self.generator = torch.Generator().manual_seed(seed)

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def conv(self, x, name, out, kernel=1, *, stride=1, dilation=1, bias=False):
        if name + ".weight" not in self.tensors:
            fan_in = x.shape[1] * kernel**2
            weight = self.randn(out, x.shape[1], kernel, kernel) * (2 / fan_in) ** 0.5
            self.tensors[name + ".weight"] = weight
            if bias:
                self.tensors[name + ".bias"] = 0.3 * self.randn(out)
        weight, shift = self.tensors[name + ".weight"], self.tensors.get(name + ".bias")
        return F.conv2d(x, weight, shift, stride, dilation * (kernel // 2), dilation)

    def norm(self, x, name):
        names = [f"{name}.{k}" for k in ("running_mean", "running_var", "weight", "bias")]
        is_abn = self.inplace_abn or (self.mixed and name.startswith("backbone."))
        if names[0] not in self.tensors:
            n = x.shape[1]
            mean, std = x.mean((0, 2, 3)), x.std((0, 2, 3), unbiased=False)
            self.tensors[names[0]] = mean + 0.1 * self.randn(n)
            self.tensors[names[1]] = std**2 + 0.1 * self.randn(n).abs() + 0.1
            self.tensors[names[2]] = 0.3 * self.randn(n) + (0 if is_abn else 0.8)
            self.tensors[names[3]] = 0.3 * self.randn(n)
            if not is_abn:
                self.tensors[name + ".num_batches_tracked"] = torch.tensor(100)
        mean, var, weight, bias = (self.tensors[k] for k in names)
        if is_abn:
            weight = weight.abs() + 1e-5
        return F.batch_norm(x, mean, var, weight, bias, training=False, eps=1e-5)

    def conv_norm_relu(self, x, conv, norm, out, kernel=1, *, bias=False, leaky=False, **kwargs):
        y = self.norm(self.conv(x, conv, out, kernel, bias=bias, **kwargs), norm)
        return F.leaky_relu(y, 0.01) if leaky else F.relu(y)


def bilinear(x, size, align_corners):
    return F.interpolate(x, size=size, mode="bilinear", align_corners=align_corners)


# ------------------------------------------------------------------------------------ backbones


def bottleneck(w: Weights, x, name, planes, *, stride=1, dilation=1):
    y = w.conv_norm_relu(x, f"{name}.conv1", f"{name}.bn1", planes)
    y = w.conv_norm_relu(
        y, f"{name}.conv2", f"{name}.bn2", planes, 3, stride=stride, dilation=dilation
    )
    y = w.norm(w.conv(y, f"{name}.conv3", 4 * planes), f"{name}.bn3")
    if x.shape[1] != 4 * planes:
        x = w.conv(x, f"{name}.downsample.0", 4 * planes, stride=stride)
        x = w.norm(x, f"{name}.downsample.1")
    return F.relu(x + y)


def dilated_resnet(w: Weights, x, depth, stem, ceil_mode):
    """
    Return the maps of stages 3 and 4 of a ResNet-50 or -101, both at stride 8.

    The stages' first blocks have dilations 1 and 2, the other blocks 2 and 4. ``stem`` has the
    names of conv and norm, and the channels, of three convolutions.
    """
    for i, (conv, norm, channels) in enumerate(stem):
        x = w.conv_norm_relu(x, conv, norm, channels, 3, stride=1 if i else 2)
    x = F.max_pool2d(x, 3, 2, 1, ceil_mode=ceil_mode)
    stages = []
    for stage, (blocks, stride, dilation) in enumerate(
        [(3, 1, 1), (4, 2, 1), ({50: 6, 101: 23}[depth], 1, 2), (3, 1, 4)], start=1
    ):
        first = {"stride": stride, "dilation": max(dilation // 2, 1)}
        for block in range(blocks):
            options = {"dilation": dilation} if block else first
            x = bottleneck(w, x, f"backbone.layer{stage}.{block}", 32 * 2**stage, **options)
        stages.append(x)
    return stages[2:]


def basic_block(w: Weights, x, name):
    y = w.conv_norm_relu(x, f"{name}.conv1", f"{name}.bn1", x.shape[1], 3)
    return F.relu(x + w.norm(w.conv(y, f"{name}.conv2", x.shape[1], 3), f"{name}.bn2"))


def wide_block(w: Weights, x, name):
    return bottleneck(w, x, name, x.shape[1] // 4)


def hrnet(w: Weights, x, prefix, enlarge, *, small=True, width=18):
    """
    Return the maps of the four branches of HRNet-W``width`` or, if ``small``, of a smaller HRNet.

    ``enlarge`` resizes a coarse map, given the ratio of the strides and the size of the result.
    """
    blocks, modules = (2, (1, 3, 2)) if small else (4, (1, 4, 3))
    x = w.conv_norm_relu(x, f"{prefix}conv1", f"{prefix}bn1", 64, 3, stride=2)
    x = w.conv_norm_relu(x, f"{prefix}conv2", f"{prefix}bn2", 64, 3, stride=2)
    for block in range(blocks):
        x = bottleneck(w, x, f"{prefix}layer1.{block}", 64)
    branches = [x]
    for stage, count in enumerate(modules, start=2):
        branches = transition(w, branches, f"{prefix}transition{stage - 1}", width, stage)
        for module in range(count):
            name = f"{prefix}stage{stage}.{module}"
            branches = exchange(w, branches, name, blocks, enlarge)
    return branches


def hrnet2x(w: Weights, x, prefix, enlarge):
    """Return the maps of a ``HighResolutionNext`` of width 20: five branches, strides 2 to 32."""
    branches = [w.conv_norm_relu(x, f"{prefix}conv1", f"{prefix}bn1", 64, 3, stride=2)]
    for stage, count in enumerate((1, 1, 4, 3), start=1):
        width = 128 if stage == 1 else 20
        branches = transition(w, branches, f"{prefix}transition{stage - 1}", width, stage + 1)
        for module in range(count):
            name = f"{prefix}stage{stage}.{module}"
            block = wide_block if stage == 1 else basic_block
            branches = exchange(w, branches, name, 4, enlarge, block)
    return branches


def transition(w: Weights, branches, name, width, count):
    new = []
    for i in range(count):
        channels = width * 2**i
        if i < len(branches):
            x = branches[i]
            if x.shape[1] != channels:
                x = w.conv_norm_relu(x, f"{name}.{i}.0", f"{name}.{i}.1", channels, 3)
        else:
            x = w.conv_norm_relu(
                branches[-1], f"{name}.{i}.0.0", f"{name}.{i}.0.1", channels, 3, stride=2
            )
        new.append(x)
    return new


def exchange(w: Weights, branches, name, blocks, enlarge, make=basic_block):
    for i in range(len(branches)):
        for block in range(blocks):
            branches[i] = make(w, branches[i], f"{name}.branches.{i}.{block}")
    fused = []
    for i, fine in enumerate(branches):
        total = 0
        for j, x in enumerate(branches):
            path = f"{name}.fuse_layers.{i}.{j}"
            if j > i:
                x = w.norm(w.conv(x, f"{path}.0", fine.shape[1]), f"{path}.1")
                x = enlarge(x, 2 ** (j - i), fine.shape[2:])
            for k in range(i - j):
                last = k == i - j - 1
                out = fine.shape[1] if last else x.shape[1]
                x = w.norm(w.conv(x, f"{path}.{k}.0", out, 3, stride=2), f"{path}.{k}.1")
                x = x if last else F.relu(x)
            total = total + x
        fused.append(F.relu(total))
    return fused


def concatenated(branches, align_corners):
    size = branches[0].shape[2:]
    return torch.cat([branches[0]] + [bilinear(x, size, align_corners) for x in branches[1:]], 1)


def enlarge_aligned(x, factor, size):
    return bilinear(x, size, True)


def enlarge_twice(x, factor, size):
    return bilinear(bilinear(x, [factor * s for s in x.shape[2:]], False), size, False)


# ---------------------------------------------------------------------------------------- OCR


def object_context(x, m, transform):
    """Return OCR's object contextual representations; ``transform`` applies "phi" ... "rho"."""
    n, _, h, width = x.shape
    regions = m.flatten(2).softmax(dim=2) @ x.flatten(2).transpose(1, 2)  # [N, K, C]
    regions = regions.transpose(1, 2).unsqueeze(3)
    query, key = transform(x, "phi").flatten(2), transform(regions, "psi").flatten(2)
    value = transform(regions, "delta").flatten(2)
    relation = (query.transpose(1, 2) @ key * query.shape[1] ** -0.5).softmax(dim=2)  # [N, P, K]
    context = (relation @ value.transpose(1, 2)).transpose(1, 2).reshape(n, -1, h, width)
    return transform(context, "rho")


def authors_layer(w: Weights, x, name, channels, kernel=1, i=0, *, bias=True, **options):
    """Apply the conv ``name``.i, the norm ``name``.i + 1 and a ReLU; without bias it is nested."""
    conv, norm = f"{name}.{i}", f"{name}.{i + 1}" + ".0" * (w.nested or not bias)
    return w.conv_norm_relu(x, conv, norm, channels, kernel, bias=bias, leaky=w.leaky, **options)


def authors_context(w: Weights, x, m, name, bias):
    """Call :func:`object_context` with the parameter names of openseg.pytorch and HRNet-OCR."""
    roles = {"phi": "f_pixel", "psi": "f_object", "delta": "f_down", "rho": "f_up"}

    def transform(y, role):
        path = f"{name}.object_context_block.{roles[role]}"
        channels = x.shape[1] if role == "rho" else x.shape[1] // 2
        for i in (0, 2) if role in ("phi", "psi") else (0,):
            y = authors_layer(w, y, path, channels, i=i, bias=bias)
        return y

    return object_context(x, m, transform)


def authors_head(w: Weights, x, m, name, bias):
    y = torch.cat([authors_context(w, x, m, name, bias), x], dim=1)
    return authors_layer(w, y, f"{name}.conv_bn_dropout", x.shape[1], bias=bias)


def authors_coarse(w: Weights, x, name, hidden, kernel, last, classes):
    y = authors_layer(w, x, name, hidden, kernel)
    return w.conv(y, f"{name}.{last}", classes, bias=True)


def openseg_asp_head(w: Weights, x, m):
    def layer(x, name, **options):
        return authors_layer(w, x, f"asp_ocr_head.{name}", 256, **options)

    y = layer(x, "context", kernel=3)
    branches = [authors_context(w, y, m, "asp_ocr_head.context.2", bias=True), layer(x, "conv2")]
    branches += [layer(x, f"conv{i + 2}", kernel=3, dilation=12 * i) for i in (1, 2, 3)]
    return layer(torch.cat(branches, dim=1), "conv_bn_dropout")


def openseg_resnet(w: Weights, x, depth=101, classes=19, *, asp=False):
    stem = [(f"backbone.resinit.conv{i}", f"backbone.resinit.bn{i}", c)
            for i, c in ((1, 64), (2, 64), (3, 128))]  # fmt: skip
    stage3, stage4 = dilated_resnet(w, x, depth, stem, ceil_mode=True)
    m = authors_coarse(w, stage3, "dsn_head", 512, 3, 3, classes)
    if asp:
        z = openseg_asp_head(w, stage4, m)
    else:
        y = authors_layer(w, stage4, "conv_3x3", 512, 3)
        z = authors_head(w, y, m, "spatial_ocr_head", bias=True)
    return m, w.conv(z, "head", classes, bias=True)


def openseg_hrnet(w: Weights, x, classes=19, *, small=True):
    features = concatenated(hrnet(w, x, "backbone.", enlarge_aligned, small=small), True)
    m = authors_coarse(w, features, "aux_head", features.shape[1], 3, 2, classes)
    y = authors_layer(w, features, "conv3x3", 512, 3)
    z = authors_head(w, y, m, "ocr_distri_head", bias=True)
    return m, w.conv(z, "cls_head", classes, bias=True)


def openseg_segfix(w: Weights, x, backbone):
    """Return SegFix's logits of the mask (inside, boundary) and of the eight directions."""
    features = concatenated(backbone(w, x, "backbone.", enlarge_aligned), True)

    def head(name, classes):
        norm = f"{name}.1" + ".0" * w.nested
        y = w.conv_norm_relu(features, f"{name}.0", norm, 256, leaky=w.inplace_abn)
        return w.conv(y, f"{name}.2", classes)

    return head("mask_head", 2), head("dir_head", 8)


def hrnet_ocr(w: Weights, x, classes=19, **size):
    """Return the coarse and final logits of HRNet-OCR's ``seg_hrnet_ocr``."""
    w.leaky = False
    features = concatenated(hrnet(w, x, "", enlarge_aligned, **size), True)
    m = authors_coarse(w, features, "aux_head", features.shape[1], 1, 3, classes)
    y = authors_layer(w, features, "conv3x3_ocr", 512, 3)
    z = authors_head(w, y, m, "ocr_distri_head", bias=False)
    return m, w.conv(z, "cls_head", classes, bias=True)


def nvidia_hmsa(w: Weights, x, classes=19):
    """Return the coarse logits, refined logits and attention of NVIDIA's HMSA at one scale."""
    w.nested = True
    branches = hrnet(w, x, "backbone.", lambda coarse, factor, size: bilinear(coarse, size, False))
    features = concatenated(branches, False)
    m = authors_coarse(w, features, "ocr.aux_head", features.shape[1], 1, 2, classes)
    y = authors_layer(w, features, "ocr.conv3x3_ocr", 512, 3)
    a = z = authors_head(w, y, m, "ocr.ocr_distri_head", bias=False)
    for i in (0, 1):
        a = w.conv_norm_relu(a, f"scale_attn.conv{i}", f"scale_attn.bn{i}", 256, 3)
    a = w.conv(a, "scale_attn.conv2", 1).sigmoid()
    return m, w.conv(z, "ocr.cls_head", classes, bias=True), a


def nvidia_scales(w: Weights, x, scales):
    blended = None
    for scale in sorted(scales, reverse=True):
        size = [int(scale * side) for side in x.shape[2:]]
        _, p, a = nvidia_hmsa(w, bilinear(x, size, False))
        p, a = bilinear(p, size, False), bilinear(a, size, False)
        if blended is None:
            blended = p
        elif scale >= 1:
            blended = a * p + (1 - a) * bilinear(blended, size, False)
        else:
            full = blended.shape[2:]
            blended = bilinear(a * p, full, False) + (1 - bilinear(a, full, False)) * blended
    return blended


def mmseg_network(w: Weights, coarse, x, hidden, kernel, classes):
    """Return the coarse and final logits for the two maps of a backbone."""

    def layer(y, name, channels, kernel=1):
        name = f"decode_head.{name}"
        return w.conv_norm_relu(y, f"{name}.conv", f"{name}.bn", channels, kernel)

    two = ("project.0", "project.1")
    roles = {"phi": ("query_", *two), "psi": ("key_", *two)}
    roles |= {"delta": ("value_", "project"), "rho": ("out_", "project")}

    def transform(y, role):
        start, *ends = roles[role]
        for end in ends:
            name = f"1.object_context_block.{start}{end}"
            y = layer(y, name, 512 if role == "rho" else 256)
        return y

    m = layer(coarse, "0.convs.0", hidden, kernel)
    m = w.conv(m, "decode_head.0.conv_seg", classes, bias=True)
    x = layer(x, "1.bottleneck", 512, 3)
    y = torch.cat([object_context(x, m, transform), x], dim=1)
    y = layer(y, "1.object_context_block.bottleneck", 512)
    return m, w.conv(y, "decode_head.1.conv_seg", classes, bias=True)


def mmseg_hrnet(w: Weights, x, classes=19, **size):
    features = concatenated(hrnet(w, x, "backbone.", enlarge_twice, **size), False)
    return mmseg_network(w, features, features, features.shape[1], 1, classes)


def mmseg_resnet(w: Weights, x, depth=101, classes=19):
    stem = [(f"backbone.stem.{i}", f"backbone.stem.{i + 1}", c)
            for i, c in ((0, 32), (3, 32), (6, 64))]  # fmt: skip
    stage3, stage4 = dilated_resnet(w, x, depth, stem, ceil_mode=False)
    return mmseg_network(w, stage3, stage4, 256, 3, classes)
