"""
The config keys that this project adds to Detectron2, and rules for some of Detectron2's own keys.

:data:`SECTIONS` is the only table of keys. Each row defines a key's default
(:func:`add_ocr_config`), the values that are allowed (:func:`check_values`), the models that read
the key (:mod:`ocr_panoptic.config.unread`), whether a trained model needs the value of its training
(:func:`is_fixed`), and the text about the key in docs/keys.md.
"""

import re
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from ocr_panoptic.errors import IF_OWN, UserError

from .rules import (
    ABOVE_0,
    ANY,
    DEVICE,
    FROM_0,
    NORM,
    PLAIN_NAME,
    SEED,
    SIZES,
    STEPS,
    Allowed,
    Condition,
    at_least,
    numbers,
    one_of,
    registered,
    share,
    some_of,
    value_of,
    when,
)

if TYPE_CHECKING:
    from detectron2.config import CfgNode


class Key(NamedTuple):
    """A config key, which is a row of :data:`SECTIONS`."""

    name: str  # full name, such as "MODEL.OCR.CHANNELS"
    default: Any  # a list is copied into each config; THEIRS keeps Detectron2's default
    read_by: list[Condition]  # a model reads the key if all hold; [] if every model reads it
    allowed: Allowed
    sentence: str = ""  # Markdown; "" if Detectron2's documentation describes the key
    # Whether a trained model needs the value of its training; None if the key's section decides,
    # of which MODEL is fixed.
    fixed: bool | None = None


def add_ocr_config(cfg: "CfgNode") -> None:
    """
    Add the project's keys to a Detectron2 config; keys that it already has keep their values.

    The value 0 of MODEL.ROI_HEADS.NUM_CLASSES or MODEL.SEM_SEG_HEAD.NUM_CLASSES means that
    :func:`.complete_config` takes the number of classes from the data.
    """
    for key in KEYS:
        if key.default is not THEIRS:
            *sections, name = key.name.split(".")
            node = cfg
            for section in sections:
                node = node.setdefault(section, type(cfg)())
            node.setdefault(name, copy(key.default))
    # Configs of old runs have this key, which nothing reads any more; ignore it.
    if "MODEL.FEATURE_CACHE" not in cfg.__dict__[cfg.DEPRECATED_KEYS]:  # its method would log
        cfg.register_deprecated_key("MODEL.FEATURE_CACHE")


VERSION = 2  # version 1 had no key OCR_VERSION; config/files.py translates it

# Default of the rows that keep Detectron2's default.
THEIRS = object()

IGNORING = Condition(
    "heads that can ignore pixels: MODEL.PROPOSAL_GENERATOR.NAME IgnoringRPN and "
    "MODEL.ROI_HEADS.NAME ExactROIHeads",
    # Other names may be subclasses of these.
    lambda cfg: (
        cfg.MODEL.PROPOSAL_GENERATOR.NAME != "RPN"
        and cfg.MODEL.ROI_HEADS.NAME != "StandardROIHeads"
    ),
)
PANOPTIC = when("MODEL.META_ARCHITECTURE", "PanopticSegmentor", "PanopticFPN")
SEGMENTOR = when("MODEL.META_ARCHITECTURE", "PanopticSegmentor")  # not Detectron2's PanopticFPN
SEMANTIC = when("MODEL.META_ARCHITECTURE", "OCRSemanticSegmentor")
SEGFIX = when("MODEL.META_ARCHITECTURE", "SegFix")
SEMANTIC_OR_SEGFIX = when("MODEL.META_ARCHITECTURE", "OCRSemanticSegmentor", "SegFix")
NOT_SEGFIX = when(
    "MODEL.META_ARCHITECTURE", "PanopticSegmentor", "PanopticFPN", "OCRSemanticSegmentor"
)
CONTEXT_HEAD = when("MODEL.SEM_SEG_HEAD.NAME", "ContextSemSegHead")
REFINED = when("MODEL.SEM_SEG_HEAD.NAME", "OCRSemSegFPNHead", "ContextSemSegHead")
# With Detectron2's own head, these keys only give a warning, so changing MODEL.SEM_SEG_HEAD.NAME
# turns a config with OCR into its plain baseline (if its loss is the cross-entropy).
IDLE_IN_PLAIN = REFINED._replace(refuses=False)
NOT_PLAIN = when("MODEL.SEM_SEG_HEAD.NAME", "OCRSemSegFPNHead", "ContextSemSegHead", "SegFixHead")
# A placeholder: unread.conditions replaces it by the context schemes that read the key.
SCHEME = Condition("a scheme in MODEL.CONTEXT.NAME that reads the key", lambda cfg: False)
OHEM = Condition(
    "ohem in MODEL.SEM_SEG_HEAD.LOSS_TYPE or COARSE_LOSS_TYPE",
    lambda cfg: (
        "ohem" in cfg.MODEL.SEM_SEG_HEAD.LOSS_TYPE + cfg.MODEL.SEM_SEG_HEAD.COARSE_LOSS_TYPE
    ),
)
DILATED = when("MODEL.BACKBONE.NAME", "build_dilated_resnet_backbone")
TIMM = when(
    "MODEL.BACKBONE.NAME",
    *("build_timm_backbone", "build_timm_fpn_backbone", "build_timm_simple_fpn_backbone"),
)
HRNET = Condition(
    "an HRNet in MODEL.TIMM.NAME", lambda cfg: cfg.MODEL.TIMM.NAME.startswith("hrnet")
)
NOT_FROZEN = when("MODEL.TIMM.FROZEN", False)
POLY = when("SOLVER.LR_SCHEDULER_NAME", "WarmupPolyLR")
FREEZES = Condition(  # a timm network ignores FREEZE_AT, so only 0 (freeze nothing) is true there
    "a ResNet of Detectron2 (with a timm network, set it to 0 to train all layers, and set "
    "MODEL.TIMM.FROZEN True to train none)",
    lambda cfg: not TIMM.holds(cfg) or cfg.MODEL.BACKBONE.FREEZE_AT == 0,
)
AUGMENTED = when("TEST.AUG.ENABLED", True)
BEST = Condition("TEST.BEST_CHECKPOINT", lambda cfg: bool(cfg.TEST.BEST_CHECKPOINT))
SEGFIX_WEIGHTS = Condition("TEST.SEGFIX.WEIGHTS", lambda cfg: bool(cfg.TEST.SEGFIX.WEIGHTS))

# Columns of a row: name, default, read_by, allowed, sentence, fixed.
# fmt: off
SECTIONS: dict[str, list[Key]] = {
"Data and images": [
    Key("DATASETS.FILES", (), [], ANY,
        "Data files (datasets/README.md). DATASETS.TRAIN and DATASETS.TEST name their splits as "
        "`<name>_<split>`; `--data` sets all three keys."),
    Key("INPUT.CHANNELS", 3, [], one_of(1, 3, 4),
        "Channels of the images: 3 for colours, 1 for grey (8 or 16 bits), 4 for RGB with an alpha "
        "channel. MODEL.PIXEL_MEAN and PIXEL_STD need a value for each channel. Initial weights "
        "for 3 channels are adapted.", fixed=True),
    Key("INPUT.IGNORE_VOID", False, [PANOPTIC, IGNORING], ANY,
        "In training, an anchor or a proposal is neither positive nor negative if void and crowds "
        "fill more than half of it. For Detectron2 it is background, as in COCO's configs; the "
        "configs for own data set True. Without void and crowds, results are equal. If the data "
        "have no stuff, void stays background."),
    Key("INPUT.CROP.AFTER_RESIZE", False, [PANOPTIC, when("INPUT.CROP.ENABLED", True)], ANY,
        "Crop after the image is resized to MIN_SIZE_TRAIN, so that all crops have the same size. "
        "Detectron2 crops before."),
    Key("INPUT.CROP.SINGLE_CATEGORY_MAX_AREA", 1.0, [SEMANTIC], ANY,
        "Largest share of a crop that a class may cover; up to ten crops are tried."),
    Key("INPUT.FIXED_SIZE", [], [SEMANTIC_OR_SEGFIX], ANY,
        "Height and width to which images are resized. With [], MIN_SIZE_TRAIN and MIN_SIZE_TEST "
        "give the shorter side; there, 0 keeps the size."),
    Key("INPUT.INTERPOLATION", "bicubic", [SEMANTIC_OR_SEGFIX], ANY,
        'Filter for resizing: "bicubic" (as in openseg.pytorch) or "bilinear" (HRNet-OCR, '
        "mmsegmentation)."),
    Key("INPUT.RANDOM_SCALE", [1.0, 1.0], [SEMANTIC_OR_SEGFIX], ANY,
        "In training, scale resized images by a random factor between these numbers."),
    Key("INPUT.RANDOM_ASPECT", [1.0, 1.0], [SEMANTIC_OR_SEGFIX], ANY,
        "In training, multiply width / height by a random factor between these numbers."),
    Key("INPUT.RANDOM_FLIP", THEIRS, [], one_of("horizontal", "vertical", "both", "none"),
        "Flip images in training, with probability 0.5 for each direction."),
    Key("INPUT.RANDOM_ROTATE_90", False, [], ANY,
        "Rotate images in training by 0, 90, 180 or 270 degrees (satellites, microscopes)."),
    Key("INPUT.COLOR_JITTER", 0.0, [], share("[0, 1)"),
        "In training, multiply brightness, contrast and saturation by random factors that differ "
        "from 1 by at most this."),
    Key("INPUT.BRIGHTNESS_SHIFT", 0, [SEMANTIC_OR_SEGFIX], ANY,
        "In training, raise or lower all colour values (0..255) by a random number up to this."),
],
"Weights and machine": [
    Key("OCR_VERSION", VERSION, [], one_of(VERSION),
        "Version of the keys. A run's config.yaml without this key is of an earlier version, whose "
        "names of classes are translated."),
    Key("MODEL.DEVICE", THEIRS, [], DEVICE,
        "Device of the model. If neither a config nor you name one, or with \"auto\", this "
        "project's commands use a GPU if the machine has one.", fixed=False),
    Key("MODEL.TRUST_PICKLE", False, [], ANY,
        "Load MODEL.WEIGHTS even if its pickle may run code; use this only for files that you "
        "trust. Set it on the command line or in Python; a config file cannot.", fixed=False),
    Key("MODEL.WEIGHTS_MIN_SHARE", 0.9, [], ANY,
        "Smallest share of the backbone's tensors (without an FPN) that MODEL.WEIGHTS must fill at "
        "the start of training. Heads may always differ.", fixed=False),
    Key("MODEL.WEIGHTS_BY_CLASS", True, [], ANY,
        "If the initial weights hold class names, classes of the data with the same names keep "
        "their rows of the classifiers, and all other rows are reset. False loads every classifier "
        "with a fitting shape.", fixed=False),
],
"Networks of timm (docs/backbones.md)": [
    Key("MODEL.TIMM.NAME", "hrnet_w48", [TIMM], PLAIN_NAME,
        "Name of the network in timm."),
    Key("MODEL.TIMM.OUTPUT_STRIDE", 32, [TIMM], ANY,
        "Stride of the last feature; below 32, the last stages are dilated."),
    Key("MODEL.TIMM.NORM", "SyncBN", [TIMM],
        one_of("BN", "SyncBN", "FrozenBN", "naiveSyncBN"),
        "Type of the network's batch norms. Other norms do not change."),
    Key("MODEL.TIMM.OUTPUT_NORM", "", [TIMM], one_of("", "LN"),
        '"LN" adds a layer norm to each feature, as in published models with ConvNeXt and Swin; '
        "a plain ViT applies its own last norm instead."),
    Key("MODEL.TIMM.PATCH_SIZE", 0, [TIMM], at_least(0, "takes it from the weights"),
        "Patch size of a plain ViT in pixels. The pyramid needs 16, and DINOv2 has 14; timm's "
        "method resamples the patch embedding of MODEL.WEIGHTS."),
    Key("MODEL.TIMM.FROZEN", False, [TIMM], ANY,
        "Freeze the network and train only the rest. Its batch norms use their running "
        "statistics.", fixed=False),
    Key("MODEL.TIMM.DROP_PATH", 0.0, [TIMM, NOT_FROZEN], share("[0, 1)"),
        "Drop path (stochastic depth) in training: the probability for the last residual block, "
        "which rises linearly from 0 at the first.",
        fixed=False),
    Key("SOLVER.LAYER_DECAY", 1.0, [TIMM, NOT_FROZEN], share("(0, 1]"),
        "The last layer's learning rate is this multiple of BASE_LR, and each earlier layer's is "
        "this multiple of the next layer's. timm's group_matcher defines the layers."),
    Key("MODEL.TIMM.ENLARGE_TWICE", False, [TIMM, HRNET], ANY,
        "Enlarge coarse maps first by the ratio of the strides, then to the finest map's size, as "
        "mmsegmentation does, and not directly to that size."),
],
"Dilated ResNet of Detectron2's DeepLab project": [
    Key("MODEL.RESNETS.RES4_DILATION", 1, [DILATED], ANY,
        "Dilation of stage res4. For stride 8 it is 2, and RES5_DILATION is 4."),
    Key("MODEL.RESNETS.RES5_MULTI_GRID", [1, 1, 1], [DILATED], ANY,
        "Factor by which RES5_DILATION is multiplied in each block of res5."),
    Key("MODEL.RESNETS.STEM_TYPE", "deeplab", [DILATED], ANY,
        'Stem: "deeplab" (three 3x3 convolutions) or "basic" (a 7x7 convolution).'),
    Key("MODEL.RESNETS.CONTRACT_DILATION", False, [DILATED], ANY,
        "Halve the dilation in the first block of each dilated stage, as openseg.pytorch and "
        "mmsegmentation do. Detectron2 does not."),
    Key("MODEL.RESNETS.STEM_CEIL_MODE", False, [DILATED], ANY,
        "Round the size after the stem's pooling up instead of down, as openseg.pytorch does."),
],
"The refined head": [
    Key("MODEL.OCR.CHANNELS", 512, [IDLE_IN_PLAIN], at_least(1),
        "Channels of the pixel representations and of the augmented representations."),
    Key("MODEL.OCR.KEY_CHANNELS", 256, [IDLE_IN_PLAIN], at_least(1),
        "Channels of φ, ψ and δ, and of each branch in ASPP and ASP-OCR."),
    Key("MODEL.OCR.DROPOUT", 0.05, [IDLE_IN_PLAIN], ANY,
        "Channel dropout of the augmented representations in training.", fixed=False),
    Key("MODEL.OCR.NORM", "SyncBN", [IDLE_IN_PLAIN], NORM,
        "Norm of the head. With a single process SyncBN becomes BN."),
    Key("MODEL.OCR.RESIDUAL", False, [IDLE_IN_PLAIN], ANY,
        "Add the scheme's logits to the coarse logits; the scheme's classifier starts at 0. This "
        "helps short trainings (studies/docs/panoptic_heads.md), but is not in the paper."),
    Key("MODEL.OCR.COARSE_START", "pytorch", [IDLE_IN_PLAIN], one_of("pytorch", "he", "detectron2"),
        'Initial weights of the coarse classifier: "pytorch" as in published code, "he" sqrt(6) '
        'times as large, "detectron2" sqrt(6 channels / classes) times as large.', fixed=False),
    Key("MODEL.OCR.RECOMPUTE", False, [IDLE_IN_PLAIN], ANY,
        "Save memory: compute the semantic head again in the backward pass instead of keeping its "
        "results (docs/memory.md).", fixed=False),
    Key("MODEL.OCR.COARSE_LOSS_WEIGHT", 0.25, [IDLE_IN_PLAIN], ANY,
        "Weight of the coarse loss. MODEL.SEM_SEG_HEAD.LOSS_WEIGHT is the refined loss's weight.",
        fixed=False),
    Key("MODEL.OCR.DOWNSAMPLE", 1, [IDLE_IN_PLAIN, PANOPTIC], one_of(1, 2),
        "With 2, the context scheme runs at stride 8 instead of 4, on means of 2x2 pixels, at a "
        "quarter of the cost. Its logits are enlarged afterwards. Not in the paper."),
    Key("MODEL.OCR.REGION_SUPERVISION", True, [REFINED], ANY,
        "Take the coarse prediction as soft object regions. False is the paper's ablation: a "
        "second branch predicts the regions without a loss."),
    Key("MODEL.CONTEXT.NAME", "OCR", [REFINED], ANY,
        'Context scheme: "OCR", "none" (a plain head), or another in docs/context_schemes.md.'),
    Key("MODEL.SEM_SEG_HEAD.CLASS_WEIGHTS", [], [REFINED], ANY,
        "Weight of each class in both losses, as in published Cityscapes recipes; [] for none.",
        fixed=False),
    Key("MODEL.SEM_SEG_HEAD.LOSS_TYPE", "cross_entropy", [REFINED], ANY,
        'Loss of the refined prediction: "cross_entropy", "ohem", "binary_cross_entropy", "dice", '
        '"lovasz", "rmi", or a weighted sum such as "0.8 cross_entropy + 0.2 lovasz" '
        "(docs/losses.md).", fixed=False),
    Key("MODEL.SEM_SEG_HEAD.COARSE_LOSS_TYPE", "cross_entropy", [REFINED], ANY,
        "Loss of the coarse prediction, in the same form.", fixed=False),
    Key("MODEL.SEM_SEG_HEAD.OHEM_THRESHOLD", 0.9, [REFINED, OHEM], share("(0, 1]"),
        '"ohem" is the cross-entropy of the pixels whose true class has a probability below this.',
        fixed=False),
    Key("MODEL.SEM_SEG_HEAD.OHEM_MIN_KEPT", 100000, [REFINED, OHEM], ANY,
        '"ohem" takes at least this many pixels, those with the lowest probabilities, from the '
        "SOLVER.IMS_PER_BATCH / (processes * SOLVER.ACCUMULATION_STEPS) images of a process.",
        fixed=False),
    Key("MODEL.OCR.NEGATIVE_SLOPE", 0.0, [NOT_PLAIN], ANY,
        "Slope of all ReLUs of heads and schemes for negative values. openseg.pytorch's weights "
        "with InPlaceABN need 0.01."),
],
"The coarse prediction of semantic segmentation (Panoptic-FPN has Detectron2's head)": [
    Key("MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES", ["res4"], [CONTEXT_HEAD], ANY,
        "Features for the coarse prediction; with [], it reads the pixel representations, which "
        "are made from MODEL.SEM_SEG_HEAD.IN_FEATURES."),
    Key("MODEL.SEM_SEG_HEAD.COARSE_KERNEL", 3, [CONTEXT_HEAD], ANY,
        "Kernel of the convolution before the coarse classifier; 0 for no convolution, as in the "
        "paper."),
    Key("MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", 512, [CONTEXT_HEAD], ANY,
        "Channels of this convolution: 512 for ResNet, 720 for HRNet-W48."),
    Key("MODEL.SEM_SEG_HEAD.COARSE_DROPOUT", 0.05, [CONTEXT_HEAD], ANY,
        "Channel dropout after this convolution: in published code 0.05 for ResNet, 0 for HRNet.",
        fixed=False),
],
"Context schemes (docs/context_schemes.md)": [
    Key("MODEL.OCR.TRANSFORM_CONVS", 2, [IDLE_IN_PLAIN, SCHEME], at_least(1),
        "Number of 1x1 conv-norm-ReLU in φ and in ψ: 1 in the paper's text, 2 in published code."),
    Key("MODEL.OCR.SCALE_RELATION", True, [IDLE_IN_PLAIN, SCHEME], ANY,
        "Scale the pixel-region relation by 1 / sqrt(KEY_CHANNELS), as the published code does. "
        "The paper's equation has no scale."),
    Key("MODEL.CONTEXT.TRUE_PART", "both", [REFINED, SCHEME], one_of("both", "gather", "relation"),
        'Part to compute from the ground truth: "gather" (the regions), "relation", or "both".'),
    Key("MODEL.CONTEXT.ENCODER_SELF_ATTENTION", False, [REFINED, SCHEME], ANY,
        "Add a self-attention among the pixels."),
    Key("MODEL.CONTEXT.DECODER_SELF_ATTENTION", "none", [REFINED, SCHEME],
        one_of("none", "before", "after"),
        "Add a self-attention among the categories, before or after the decoder's "
        "cross-attention."),
    Key("MODEL.CONTEXT.JOINT_BLOCKS", 2, [REFINED, SCHEME], at_least(1),
        "Number of self-attention blocks."),
    Key("MODEL.CONTEXT.DILATIONS", [12, 24, 36], [REFINED, SCHEME], ANY,
        "Dilations for features of stride 8. At stride 4 (panoptic head, HRNet), twice these "
        "dilations cover the same area."),
    Key("MODEL.CONTEXT.NUM_REGIONS", 64, [REFINED, SCHEME], ANY,
        "Number of soft regions."),
],
"Semantic segmentation and SegFix": [
    Key("MODEL.ALIGN_CORNERS", False, [SEMANTIC_OR_SEGFIX], ANY,
        "PyTorch's align_corners for the resizing of features and logits; the authors' code has "
        "True."),
    Key("MODEL.PAD_TO_MULTIPLE", 0, [SEMANTIC_OR_SEGFIX], at_least(0),
        "Pad images to multiples of this number of pixels. 0 means the logits' stride, so that a "
        "logit lies in the middle of its pixels; 1 means no padding, as in the published code."),
    Key("MODEL.HMSA.ENABLED", False, [SEMANTIC], ANY,
        "Hierarchical multi-scale attention (docs/hmsa.md). In tests, it blends the predictions at "
        "TEST.SCALES, which must include 1.0."),
    Key("MODEL.HMSA.SCALE_LOSS_WEIGHT", 0.05, [SEMANTIC, when("MODEL.HMSA.ENABLED", True)],
        at_least(0),
        "Weight of the losses of each scale's own prediction.", fixed=False),
    Key("MODEL.SEGFIX.BOUNDARY_DISTANCE", 5, [SEGFIX], at_least(1),
        "A pixel is near a boundary if its distance from the nearest pixel of another region, "
        "rounded down, is at most this (docs/segfix.md)."),
    Key("MODEL.SEGFIX.CHANNELS", 256, [SEGFIX], at_least(1),
        "Channels between the two convolutions of each branch."),
    Key("MODEL.SEGFIX.NORM", "SyncBN", [SEGFIX], NORM,
        "Norm between the two convolutions of each branch."),
],
"Training": [
    Key("SOLVER.EPOCHS", 0.0, [], at_least(0, most=10**9),
        "Passes over the training images, which define MAX_ITER if SOLVER.MAX_ITER is 0. The "
        "warm-up is then at most a tenth of the training."),
    Key("SOLVER.ACCUMULATION_STEPS", 1, [], ANY,
        "Split each batch into this many parts, and step after the last, so that a published "
        "SOLVER.IMS_PER_BATCH fits a small GPU."),
    Key("SOLVER.HEAD_LR_FACTOR", 1.0, [], ABOVE_0,
        "Factor for the learning rates outside the backbone; the FPN is part of the backbone."),
    Key("SOLVER.OPTIMIZER", "SGD", [], one_of("SGD", "AdamW"),
        "With AdamW, WEIGHT_DECAY_NORM (0 in Detectron2) is the decay of one-dimensional "
        "parameters and of others that a timm network exempts, such as position embeddings. "
        "WEIGHT_DECAY_BIAS, if set, is the decay of biases."),
    Key("SOLVER.GATHER_METRIC_PERIOD", 20, [], at_least(1),
        "Number of iterations after which losses are gathered from all processes, logged, and "
        "checked to be finite."),
    Key("LOGGERS", [], [], some_of("wandb", "mlflow"),
        "Services that also receive the values of metrics.json (docs/long_runs.md)."),
    Key("SOLVER.CHECKPOINT_MINUTES", 0, [], at_least(0, "for none"),
        "Also save a checkpoint if the last one is this many minutes old."),
    Key("SOLVER.CHECKPOINTS_TO_KEEP", 0, [], at_least(0, "keeps all"),
        "Number of the newest `model_<iteration>.pth` to keep; `model_final.pth` and "
        "`model_best.pth` are always kept."),
    Key("MODEL.EMA.ENABLED", False, [], ANY,
        "Keep an exponential moving average of the weights and of the statistics of batch norms, "
        "which evaluations and predictions use.", fixed=False),
    Key("SOLVER.AMP.PRECISION", "auto", [when("SOLVER.AMP.ENABLED", True)],
        one_of("auto", "float16", "bfloat16"),
        'Type of mixed precision: "float16" (only GPUs, with loss scaling), "bfloat16", or "auto", '
        "which is float16 on a GPU and bfloat16 on a CPU."),
    Key("SOLVER.POLY_LR_POWER", 0.9, [POLY], ANY,
        "The learning rate is BASE_LR * (1 - iteration / MAX_ITER) ** POLY_LR_POWER."),
    Key("SOLVER.POLY_LR_CONSTANT_ENDING", 0.0, [POLY], ANY,
        "The learning rate is at least this share of BASE_LR."),
    Key("MODEL.EMA.DECAY", 0.999, [when("MODEL.EMA.ENABLED", True)], share("[0, 1)"),
        "After each iteration: average = DECAY * average + (1 - DECAY) * weights.", fixed=False),
],
"Evaluation and prediction": [
    Key("MODEL.PANOPTIC_FPN.COMBINE.CLASS_CONFIDENCE", [], [SEGMENTOR], FROM_0,
        "Lowest score of an instance, for each thing class; [] for INSTANCES_CONFIDENCE_THRESH in "
        "all classes. `ocr-panoptic fit-merge` finds good values for this key and the next.",
        fixed=False),
    Key("MODEL.PANOPTIC_FPN.COMBINE.CLASS_STUFF_AREA", [], [SEGMENTOR], FROM_0,
        "Smallest number of pixels of a stuff segment, for each semantic class (the first is "
        '"things"); [] for STUFF_AREA_LIMIT in all classes.', fixed=False),
    Key("TEST.BEST_CHECKPOINT", "", [], ANY,
        'Metric, such as "panoptic_seg/PQ" or "sem_seg/mIoU". The checkpoint with the highest '
        "value is kept as `model_best.pth`. With several data sets in DATASETS.TEST, write the "
        "data set's name before the metric."),
    Key("TEST.PATIENCE", 0, [BEST], at_least(0, "trains to the end"),
        "End the training after this many evaluations in a row without a higher value of "
        "TEST.BEST_CHECKPOINT."),
    Key("TEST.EVALUATIONS", 0, [], at_least(0, "evaluates only at the end"),
        "Number of evenly spread evaluations during training, at least 20 iterations apart; read "
        "if TEST.EVAL_PERIOD is 0."),
    Key("TEST.OPTIMIZED", True, [], ANY,
        "Evaluate, draw and predict with a copy of the model that is optimized for inference and "
        "has the same results (docs/inference.md). False uses the model as in training."),
    Key("TEST.PRECISION", "float32", [], one_of("auto", "float32", "bfloat16", "float16"),
        'Precision of this copy: "float32", "bfloat16" (GPUs and some CPUs), "float16" (GPUs), or '
        '"auto", which is bfloat16 on a CPU with AVX512-BF16 or AMX, else float32.'),
    Key("TEST.SAVE_PREDICTIONS", False, [NOT_SEGFIX], ANY,
        "Write an evaluation's predictions to `OUTPUT_DIR/inference/<data set>`: panoptic segments "
        "for panopticapi, or semantic label PNGs with the numbers of the data set's files."),
    Key("TEST.SEGFIX.WEIGHTS", "", [NOT_SEGFIX], ANY,
        "Weights of a trained SegFix, which refines predictions (docs/segfix.md)."),
    Key("TEST.SEGFIX.CONFIG_FILE", "", [SEGFIX_WEIGHTS, NOT_SEGFIX], ANY,
        'Config of this SegFix model; "" for the config.yaml in the folder of its weights.'),
    Key("TEST.SEGFIX.SCALE", 2, [SEGFIX_WEIGHTS, NOT_SEGFIX], at_least(1),
        "Factor by which the offsets are multiplied."),
    Key("TEST.SCALES", [1.0], [SEMANTIC_OR_SEGFIX], ANY,
        "Scale the image by each of these factors, and average the logits (MODEL.HMSA blends "
        "them)."),
    Key("TEST.FLIP", False, [SEMANTIC_OR_SEGFIX], ANY,
        "Also average with the logits of the mirrored image."),
    Key("TEST.SLIDING_WINDOW.SIZE", [], [], ANY,
        "Height and width in pixels of the windows that the network sees, at every scale; [] for "
        "whole images. A panoptic model predicts larger images in such tiles "
        "(docs/prediction.md)."),
    Key("TEST.SLIDING_WINDOW.STRIDE", [], [], ANY,
        "Vertical and horizontal step between windows."),
    Key("TEST.ACCUMULATOR_DEVICE", "", [SEMANTIC_OR_SEGFIX], ANY,
        "Device that sums the full-size logits of several scales or windows: \"\" for the model's "
        'device, "cpu" if its memory is too small.'),
    Key("TEST.AUG.ENABLED", THEIRS, [SEGMENTOR], ANY,
        "Predict each image at all TEST.AUG.MIN_SIZES and, with TEST.AUG.FLIP, mirrored, as "
        "Detectron2's `GeneralizedRCNNWithTTA` does; semantic logits are averaged."),
    Key("TEST.AUG.MIN_SIZES", THEIRS, [AUGMENTED], SIZES),
    Key("TEST.AUG.MAX_SIZE", THEIRS, [AUGMENTED], at_least(1)),
    Key("TEST.AUG.FLIP", THEIRS, [AUGMENTED], ANY),
],
"Detectron2's keys, as far as they are checked": [
    Key("SEED", THEIRS, [], SEED),
    Key("DATALOADER.NUM_WORKERS", THEIRS, [],
        at_least(0, "loads images in the training's own process")),
    Key("DATALOADER.SAMPLER_TRAIN", THEIRS, [],
        one_of("TrainingSampler", "RepeatFactorTrainingSampler")),
    # Detectron2's and Pillow's other image formats do not have the channels that models expect.
    Key("INPUT.FORMAT", THEIRS, [], one_of("BGR", "RGB"), fixed=True),
    Key("INPUT.MIN_SIZE_TRAIN", THEIRS, [], SIZES),
    Key("INPUT.MIN_SIZE_TRAIN_SAMPLING", THEIRS, [], one_of("choice", "range")),
    Key("MODEL.BACKBONE.NAME", THEIRS, [], registered("BACKBONE_REGISTRY")),
    Key("MODEL.SEM_SEG_HEAD.NAME", THEIRS, [], registered("SEM_SEG_HEADS_REGISTRY")),
    # RPN and IgnoringRPN differ only in training.
    Key("MODEL.PROPOSAL_GENERATOR.NAME", THEIRS, [], registered("PROPOSAL_GENERATOR_REGISTRY"),
        fixed=False),
    Key("MODEL.RESNETS.DEPTH", THEIRS, [], one_of(18, 34, 50, 101, 152)),
    *(Key(f"MODEL.{part}.NORM", THEIRS, [], NORM)
      for part in ("RESNETS", "FPN", "SEM_SEG_HEAD", "ROI_BOX_HEAD", "ROI_MASK_HEAD")),
    Key("MODEL.SEM_SEG_HEAD.IGNORE_VALUE", THEIRS, [], one_of(255), fixed=False),
    Key("MODEL.PIXEL_STD", THEIRS, [], numbers("above 0", lambda value: value > 0)),
    # This project's data have no proposals and no keypoints.
    Key("MODEL.LOAD_PROPOSALS", THEIRS, [], one_of(False)),
    Key("MODEL.KEYPOINT_ON", THEIRS, [], one_of(False)),
    Key("SOLVER.MAX_ITER", THEIRS, [], at_least(0, "computes it from SOLVER.EPOCHS", 10**9)),
    *(Key(f"SOLVER.{name}", THEIRS, [], at_least(0))
      for name in ("BASE_LR", "BIAS_LR_FACTOR", "WEIGHT_DECAY", "WEIGHT_DECAY_NORM",
                   "WEIGHT_DECAY_BIAS", "GAMMA", "WARMUP_ITERS", "WARMUP_FACTOR",
                   "CLIP_GRADIENTS.CLIP_VALUE")),
    Key("SOLVER.LR_SCHEDULER_NAME", THEIRS, [],
        one_of("WarmupMultiStepLR", "WarmupCosineLR", "WarmupStepWithFixedGammaLR",
               "WarmupPolyLR")),
    Key("SOLVER.STEPS", THEIRS, [], STEPS),
    Key("SOLVER.CLIP_GRADIENTS.CLIP_TYPE", THEIRS, [], one_of("value", "norm")),
    Key("SOLVER.CHECKPOINT_PERIOD", THEIRS, [], at_least(0, "saves only at the end")),
    Key("TEST.EVAL_PERIOD", THEIRS, [], at_least(0, "uses TEST.EVALUATIONS")),
    Key("SOLVER.BASE_LR_END", THEIRS, [when("SOLVER.LR_SCHEDULER_NAME", "WarmupCosineLR")], ANY),
    Key("SOLVER.MOMENTUM", THEIRS, [when("SOLVER.OPTIMIZER", "SGD")], at_least(0)),
    Key("SOLVER.NESTEROV", THEIRS, [when("SOLVER.OPTIMIZER", "SGD")], ANY),
    Key("MODEL.BACKBONE.FREEZE_AT", THEIRS, [FREEZES], ANY, fixed=False),
],
}
# fmt: on

KEYS: list[Key] = [key for section in SECTIONS.values() for key in section]
# Words in the names of Detectron2's keys without a row that are not fixed although they are keys of
# MODEL: the losses, samples and proposals of the training, and the choice among predictions.
_NOT_FIXED = re.compile(
    r"LOSS|TRAIN|_TEST$|L1_BETA|BATCH_SIZE|POSITIVE_FRACTION|IOU_|BOUNDARY|APPEND_GT"
    r"|RPN\.NMS_THRESH|PANOPTIC_FPN|MODEL\.WEIGHTS$"
)


def is_fixed(name: str) -> bool:
    """Return whether a trained model needs the value of a key that it was trained with."""
    is_architecture = name.startswith("MODEL.")
    for key in KEYS:
        if key.name == name:
            return is_architecture if key.fixed is None else key.fixed
    return is_architecture and not _NOT_FIXED.search(name)


def check_values(cfg: "CfgNode", *, registries: bool = True) -> None:
    """
    Refuse a config with a value that is not allowed or contradicts another value.

    Args:
        registries: whether to also check the keys whose values must be names in Detectron2's
            registries; this check imports PyTorch.
    """
    for key in KEYS:
        if key.allowed.asks_registry and not registries:
            continue
        value = value_of(cfg, key.name)
        if not key.allowed.permits(value):
            hint = f" {IF_OWN}" if key.allowed.asks_registry else ""
            raise UserError(f"{key.name} is {value!s:.200}; expected {key.allowed.text()}.{hint}")
    for name in ("PIXEL_MEAN", "PIXEL_STD"):
        values, channels = cfg.MODEL[name], cfg.INPUT.CHANNELS
        if len(values) != channels:
            raise UserError(
                f"MODEL.{name} is {values!s:.200} ({len(values)} values), but INPUT.CHANNELS is "
                f"{channels}. Set one value for each channel."
            )
    if not 0 <= cfg.SOLVER.BASE_LR_END <= cfg.SOLVER.BASE_LR:
        raise UserError(
            f"SOLVER.BASE_LR_END is {cfg.SOLVER.BASE_LR_END}; expected a number from 0 to "
            f"SOLVER.BASE_LR ({cfg.SOLVER.BASE_LR})."
        )
