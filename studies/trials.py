"""
Train with an experimental change that ``ocr_panoptic`` does not have.

    python -m studies.trials TRIAL --config-file CONFIG ...

The command replaces functions of the package, and then trains like train_net.py. The results are in
studies/docs/short_trainings.md. A study file selects a trial with `trial: [trials.py, TRIAL]`.
"""

import sys
from pathlib import Path

import torch
from detectron2.modeling.meta_arch.semantic_seg import SemSegFPNHead
from detectron2.utils.events import get_event_storage
from fvcore.nn.weight_init import c2_msra_fill
from torch import Tensor, nn

if not __package__:  # a study runs this file
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from ocr_panoptic.cli.train import argument_parser
from ocr_panoptic.layers import OCR, resize  # noqa: E402
from ocr_panoptic.layers import ocr as ocr_layer  # noqa: E402
from ocr_panoptic.modeling import ContextSemSegHead, OCRSemSegFPNHead  # noqa: E402
from ocr_panoptic.modeling.losses import SemSegCriterion  # noqa: E402
from ocr_panoptic.modeling.refined_head import RefinedHead  # noqa: E402
from ocr_panoptic.program import run_program
from studies.train import keep_features  # noqa: E402
from train_net import main as train  # noqa: E402

prepare, refine, losses = RefinedHead.prepare, RefinedHead._refine, SemSegCriterion.forward


def small_start_of_the_plain_head() -> None:
    """Make Detectron2's semantic head start with smaller classifier weights, PyTorch's default."""
    init = SemSegFPNHead.__init__

    def smaller(self: SemSegFPNHead, *args, **kwargs) -> None:
        init(self, *args, **kwargs)
        self.predictor.reset_parameters()

    SemSegFPNHead.__init__ = smaller


def large_start_of_the_refined_classifier() -> None:
    """Make OCR's refined classifier start with large weights (MSRA initialisation)."""
    add = RefinedHead.__init__

    def larger(self: RefinedHead, *args, **kwargs) -> None:
        add(self, *args, **kwargs)
        c2_msra_fill(self.refined_predictor)

    RefinedHead.__init__ = larger


def correction_left_out() -> None:
    """Make a residual head predict only its coarse logits, to evaluate a trained model."""
    RefinedHead.with_coarse = lambda self, refined, coarse: resize(
        coarse, refined.shape[2:], self.align_corners
    )


def correction_times_4(factor: float = 4.0) -> None:
    """
    Make a residual head multiply its refined logits by ``factor``.

    A residual head adds the refined logits to the coarse logits, as a correction.
    """

    def scaled(self: RefinedHead, refined: Tensor, coarse: Tensor) -> Tensor:
        return factor * refined + resize(coarse, refined.shape[2:], self.align_corners)

    RefinedHead.with_coarse = scaled


def correction_times_10() -> None:
    """Make a residual head multiply its refined logits, which correct the coarse ones, by 10."""
    correction_times_4(10.0)


def regions_detached() -> None:
    """Stop the refined logits' loss from training the coarse classifier through OCR's regions."""
    RefinedHead._refine = lambda self, x, regions: refine(self, x, regions.detach())


def trunk_detached() -> None:
    """Let the loss of the refined logits train only the OCR head, not the backbone."""

    def detached(self: RefinedHead, features: dict[str, Tensor], truth: Tensor | None = None):
        stage, pixels = self.representations(features)
        coarse = self.coarse_predictor(self.coarse(stage))
        x = self.bottleneck(pixels.detach())
        return coarse, x, resize(coarse.detach(), x.shape[2:], self.align_corners)

    RefinedHead.prepare = detached


def refined_loss_warmed_up(iterations: int = 150) -> None:
    """Make the refined logits' loss weight grow linearly from 0 during the first iterations."""

    def warmed_up(self: SemSegCriterion, *args) -> dict[str, Tensor]:
        found = losses(self, *args)
        factor = min(1.0, get_event_storage().iter / iterations)
        return {**found, "loss_sem_seg": factor * found["loss_sem_seg"]}

    SemSegCriterion.forward = warmed_up


def posterior_in_relation() -> None:
    """Make OCR add each pixel's coarse log probabilities to its pixel-region relation's logits."""
    _biased_relation(lambda m: m.log_softmax(dim=1).flatten(2))


def presence_mean() -> None:
    """Make OCR add each class's log mean probability in the image to its relation logits."""
    _biased_relation(lambda m: m.softmax(dim=1).flatten(2).mean(dim=2, keepdim=True).log())


def presence_max() -> None:
    """Make OCR add each class's largest log probability in the image to its relation logits."""
    _biased_relation(lambda m: m.log_softmax(dim=1).flatten(2).amax(dim=2, keepdim=True))


def _biased_relation(bias) -> None:
    def relation(self: OCR, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        keys = (self.psi(f) * self.scale).flatten(2).transpose(1, 2)
        kappa = keys.float() @ self.phi(x).flatten(2).float() + bias(m.float().detach())
        return kappa.softmax(dim=1).to(x.dtype)

    OCR.relation = relation


def gather_by_masks() -> None:
    """
    Make OCR weight a region's pixels by their class probability, not by a spatial softmax.

    Each class's probabilities are divided by their sum over the pixels.
    """

    def by_masks(x: Tensor, m: Tensor) -> Tensor:
        weights = m.flatten(2).float().softmax(dim=1)
        weights = weights / weights.sum(dim=2, keepdim=True).clamp(min=1e-3)
        return ocr_layer.weighted_sum(x, weights)

    ocr_layer.gather_regions = by_masks


def skip() -> None:
    """Make OCR add the pixel representations to its result, the augmented representations."""
    augmented = ocr_layer.RegionContext._augment

    def with_x(self: OCR, x: Tensor, *args) -> Tensor:
        return augmented(self, x, *args) + x

    ocr_layer.RegionContext._augment = with_x


def two_rounds() -> None:
    """Make OCR run twice; the first run's refined logits define the second run's regions."""

    def twice(self: RefinedHead, x: Tensor, regions: Tensor) -> Tensor:
        first = refine(self, x, regions)
        return refine(self, x, regions + first if self.residual else first)

    RefinedHead._refine = twice


def presence_classifier() -> None:
    """Make OCR predict which classes an image has, and weaken relations to absent classes."""
    add, forward = RefinedHead.__init__, RefinedHead.losses

    def added(self: RefinedHead, *args, **kwargs) -> None:
        add(self, *args, **kwargs)
        self.context.presence = nn.Linear(
            self.context.delta.in_channels, self.refined_predictor.out_channels
        )

    def relation(self: OCR, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        self.seen = self.presence(x.mean(dim=(2, 3)).to(self.presence.weight.dtype))
        keys = (self.psi(f) * self.scale).flatten(2).transpose(1, 2)
        kappa = keys.float() @ self.phi(x).flatten(2).float()
        kappa = kappa + nn.functional.logsigmoid(self.seen.detach().float())[:, :, None]
        return kappa.softmax(dim=1).to(x.dtype)

    def with_presence(self: RefinedHead, predictions, targets: Tensor) -> dict[str, Tensor]:
        seen = self.context.__dict__.pop("seen").float()  # a copy for evaluation cannot keep it
        truth = torch.stack([(targets == k).flatten(1).any(1) for k in range(seen.shape[1])], 1)
        loss = nn.functional.binary_cross_entropy_with_logits(seen, truth.float())
        return {**forward(self, predictions, targets), "loss_presence": 0.2 * loss}

    RefinedHead.__init__, RefinedHead.losses = added, with_presence
    OCR.relation = relation


def adapted(teacher: bool = False) -> None:
    """
    Make OCR classify pixels by cosine similarity to class weights that are adapted to each image.

    Args:
        teacher: whether to distil from a second classifier, trained at the same time, whose
            weights are adapted with the ground truth.
    """
    add = RefinedHead.__init__

    def mlp(channels: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(2 * channels, channels // 2, bias=False),
            nn.ReLU(),
            nn.Linear(channels // 2, channels),
        )

    def added(self: RefinedHead, *args, **kwargs) -> None:
        add(self, *args, **kwargs)
        self.adapt = mlp(self.context.out_channels)
        if teacher:
            self.teach = mlp(self.context.out_channels)

    def cosines(z: Tensor, classifiers: Tensor) -> Tensor:
        z, classifiers = (nn.functional.normalize(t.float(), dim=1) for t in (z, classifiers))
        return 15 * torch.einsum("nchw,nck->nkhw", z, classifiers)

    def classifiers(network: nn.Module, e: Tensor, own: Tensor) -> Tensor:
        own = own.t().expand(e.shape[0], -1, -1)
        return network(torch.cat([e, own], dim=1).transpose(1, 2)).transpose(1, 2)

    def layers(self: RefinedHead, features: dict[str, Tensor], targets: Tensor | None = None):
        coarse, x, regions = self.prepare(features, None)
        z = torch.cat(list(self.context.in_bands(x, regions)), dim=2)
        p = self.with_coarse(self.refined_predictor(z), coarse)
        s = p.float().softmax(dim=1)
        e = torch.einsum("nchw,nkhw->nck", z.float(), s) / s.sum(dim=(2, 3))[:, None].clamp(min=1)
        own = self.refined_predictor.weight[:, :, 0, 0]
        q = cosines(z, classifiers(self.adapt, e, own))
        self.kept = z, p, own
        return coarse, q

    def losses_of_all(self: RefinedHead, predictions, targets: Tensor) -> dict[str, Tensor]:
        coarse, q = predictions
        z, p, own = self.__dict__.pop("kept")
        criterion = self.criterion
        found = criterion(coarse, q, targets, self.align_corners)
        found["loss_before"] = criterion(coarse, p, targets)["loss_sem_seg"]
        if teacher:
            small = targets[:, None].float()
            small = nn.functional.interpolate(small, size=z.shape[2:], mode="nearest")[:, 0].long()
            k = own.shape[0]
            valid = small != criterion.ignore_value
            one = nn.functional.one_hot(small.where(valid, k), k + 1)[..., :k].float()
            count = one.sum(dim=(0, 1, 2))
            e = torch.einsum("nchw,nhwk->ck", z.float(), one) / count.clamp(min=1)
            e = torch.where(count > 0, e, own.detach().t().float())[None].expand(len(z), -1, -1)
            t = cosines(z, classifiers(self.teach, e, own))
            found["loss_teacher"] = criterion(coarse, t, targets)["loss_sem_seg"]
            soft = t.detach().softmax(dim=1)
            entropy = -(soft * soft.clamp(min=1e-6).log()).sum(dim=1)
            aim = 0.5 * soft + 0.5 * one.permute(0, 3, 1, 2)
            each = -(aim * q.log_softmax(dim=1)).sum(dim=1)
            weight = one * entropy[..., None]
            within = (weight * each[..., None]).sum((0, 1, 2)) / weight.sum((0, 1, 2)).clamp(1e-6)
            loss = within.sum() / (count > 0).sum().clamp(min=1)
            found["loss_distilled"] = criterion.loss_weight * loss
        return found

    RefinedHead.__init__, RefinedHead.layers, RefinedHead.losses = (
        added,
        layers,
        losses_of_all,
    )


def adapted_by_teacher() -> None:
    """
    Make OCR classify pixels by class weights that are adapted to each image.

    Training distils from a second classifier, which sees the ground truth.
    """
    adapted(teacher=True)


def logged_gradients() -> None:
    """
    Log the gradient norm of each semantic loss to metrics.json.

    The gradients are with respect to the features from which all semantic logits are predicted.
    """

    def log(found: dict[str, Tensor], x: Tensor) -> None:
        for name, loss in found.items():
            gradient = torch.autograd.grad(loss, x, retain_graph=True)[0]
            norm = gradient.float().norm().item()
            get_event_storage().put_scalar(f"gradient_of_{name}", norm)

    of_both = RefinedHead.losses

    def kept(self: RefinedHead, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        self.shared, pixels = representations_of[type(self)](self, features)
        return self.shared, pixels

    def logged(self: RefinedHead, *args) -> dict[str, Tensor]:
        found = of_both(self, *args)
        log(found, self.shared)
        return found

    heads = (OCRSemSegFPNHead, ContextSemSegHead)
    representations_of = {head: head.representations for head in heads}
    for head in heads:
        head.representations = kept
    RefinedHead.losses = logged

    def layers(self: SemSegFPNHead, features: dict[str, Tensor]) -> Tensor:
        branches = zip(self.in_features, self.scale_heads)
        self.shared = sum(branch(features[name]) for name, branch in branches)
        return self.predictor(self.shared)

    of_one = SemSegFPNHead.losses

    def logged_of_one(self: SemSegFPNHead, *args) -> dict[str, Tensor]:
        found = of_one(self, *args)
        log(found, self.shared)
        return found

    SemSegFPNHead.layers, SemSegFPNHead.losses = layers, logged_of_one


TRIALS = {
    function.__name__: function
    for function in (
        small_start_of_the_plain_head,
        large_start_of_the_refined_classifier,
        correction_left_out,
        correction_times_4,
        correction_times_10,
        regions_detached,
        trunk_detached,
        refined_loss_warmed_up,
        posterior_in_relation,
        presence_mean,
        presence_max,
        presence_classifier,
        gather_by_masks,
        skip,
        two_rounds,
        adapted,
        adapted_by_teacher,
        logged_gradients,
    )
}
if __name__ == "__main__":
    names = sys.argv[1].split(",") if len(sys.argv) > 1 else [""]
    if not {*names} <= {*TRIALS}:
        sys.exit(f"{__doc__}\nThe trials are {', '.join(TRIALS)}; several are joined by commas.")
    for name in names:
        TRIALS[name]()
    keep_features()
    del sys.argv[1]
    run_program(train, argument_parser().parse_args())
