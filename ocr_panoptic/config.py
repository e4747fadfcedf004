"""
The config keys that this project adds to Detectron2, and rules for some of Detectron2's own keys.

:data:`SECTIONS` is the only table of keys. Each row defines a key's default
(:func:`add_ocr_config`), the checks of its value (:mod:`ocr_panoptic.engine.config_files`), its
entry in docs/keys.md (``tools/keys_page.py``), and the test that it has an effect.
"""

from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from .config_rules import (
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
from .errors import UserError

if TYPE_CHECKING:
    from detectron2.config import CfgNode


class Key(NamedTuple):
    """A config key, which is a row of :data:`SECTIONS`."""

    name: str  # full name, such as "MODEL.OCR.CHANNELS"
    default: Any  # a list is copied into each config; THEIRS keeps Detectron2's default
    read_by: list[Condition]  # a model reads the key if all hold; [] if every model reads it
    allowed: Allowed
    sentence: str = ""  # Markdown; "" if Detectron2's documentation describes the key


def add_ocr_config(cfg: "CfgNode") -> None:
    """
    Add the project's keys to a Detectron2 config, and set MODEL.DEVICE to "auto".

    ``NUM_CLASSES: 0`` in ROI_HEADS and SEM_SEG_HEAD means that the number is taken from the data
    (see :mod:`ocr_panoptic.engine.task`).
    """
    for key in KEYS:
        if key.default is not THEIRS:
            *sections, name = key.name.split(".")
            node = cfg
            for section in sections:
                node = node.setdefault(section, type(cfg)())
            node[name] = copy(key.default)
    # Configs of old runs have this key, which nothing reads any more; ignore it.
    cfg.register_deprecated_key("MODEL.FEATURE_CACHE")


# Marks rows that keep Detectron2's default.
THEIRS = object()

PANOPTIC = when("MODEL.META_ARCHITECTURE", "PanopticFPN")
SEMANTIC = when("MODEL.META_ARCHITECTURE", "OCRSemanticSegmentor")
SEGFIX = when("MODEL.META_ARCHITECTURE", "SegFix")
SEMANTIC_OR_SEGFIX = when("MODEL.META_ARCHITECTURE", "OCRSemanticSegmentor", "SegFix")
NOT_SEGFIX = when("MODEL.META_ARCHITECTURE", "PanopticFPN", "OCRSemanticSegmentor")
CONTEXT_HEAD = when("MODEL.SEM_SEG_HEAD.NAME", "ContextSemSegHead")
REFINED = when("MODEL.SEM_SEG_HEAD.NAME", "OCRSemSegFPNHead", "ContextSemSegHead")
# With Detectron2's own head, these keys only give a warning, so changing MODEL.SEM_SEG_HEAD.NAME
# turns a config with OCR into its plain baseline (if its loss is the cross-entropy).
IDLE_IN_PLAIN = REFINED._replace(refuses=False)
NOT_PLAIN = when("MODEL.SEM_SEG_HEAD.NAME", "OCRSemSegFPNHead", "ContextSemSegHead", "SegFixHead")
# A placeholder: config_files.conditions replaces it by the context schemes that read the key.
SCHEME = Condition("MODEL.CONTEXT.NAME of a scheme that reads it", lambda cfg: False)
OHEM = Condition(
    "MODEL.SEM_SEG_HEAD.LOSS_TYPE or COARSE_LOSS_TYPE ohem",
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
    "MODEL.TIMM.NAME of an HRNet", lambda cfg: cfg.MODEL.TIMM.NAME.startswith("hrnet")
)
NOT_FROZEN = when("MODEL.TIMM.FROZEN", False)
POLY = when("SOLVER.LR_SCHEDULER_NAME", "WarmupPolyLR")
FREEZES = Condition(  # a timm network ignores FREEZE_AT, so only 0 (freeze nothing) is true there
    "a ResNet of Detectron2 (in networks of timm everything is learnt with 0, nothing with "
    "MODEL.TIMM.FROZEN True)",
    lambda cfg: not TIMM.holds(cfg) or cfg.MODEL.BACKBONE.FREEZE_AT == 0,
)
AUGMENTED = when("TEST.AUG.ENABLED", True)
BEST = Condition("TEST.BEST_CHECKPOINT", lambda cfg: bool(cfg.TEST.BEST_CHECKPOINT))
SEGFIX_WEIGHTS = Condition("TEST.SEGFIX.WEIGHTS", lambda cfg: bool(cfg.TEST.SEGFIX.WEIGHTS))

# Columns of a row: name, default, read_by, allowed, sentence.
# fmt: off
SECTIONS: dict[str, list[Key]] = {
"Data and images": [
    Key("DATASETS.FILES", (), [], ANY,
        "Files that describe data sets (datasets/README.md), whose splits DATASETS.TRAIN and "
        "DATASETS.TEST name as `<name>_<split>`; `--data` sets all three."),
    Key("INPUT.CHANNELS", 3, [], one_of(1, 3, 4),
        "Channels of the images, each with a value in MODEL.PIXEL_MEAN and PIXEL_STD. 3: colours, "
        "from any file. 1 or 4: grey (8 or 16 bits) or RGB with opacity, as in the file; "
        'INPUT.FORMAT "BGR" reverses the first three. Weights for 3 channels are adapted.'),
    Key("INPUT.CROP.AFTER_RESIZE", False, [PANOPTIC, when("INPUT.CROP.ENABLED", True)], ANY,
        "Crop after the image is resized to a MIN_SIZE_TRAIN, so that crops have equal sizes; "
        "Detectron2 crops before. The other architectures always crop after the resizing."),
    Key("INPUT.CROP.SINGLE_CATEGORY_MAX_AREA", 1.0, [SEMANTIC], ANY,
        "Largest share of a crop that one class may have, with ten tries (INPUT.CROP.TYPE "
        '"absolute").'),
    Key("INPUT.FIXED_SIZE", [], [SEMANTIC_OR_SEGFIX], ANY,
        "Height and width of images; [] for MIN_SIZE_TRAIN or MIN_SIZE_TEST (0: unchanged)."),
    Key("INPUT.INTERPOLATION", "bicubic", [SEMANTIC_OR_SEGFIX], ANY,
        'Resizing filter: "bicubic" (openseg.pytorch), "bilinear" (HRNet-OCR, mmsegmentation).'),
    Key("INPUT.RANDOM_SCALE", [1.0, 1.0], [SEMANTIC_OR_SEGFIX], ANY,
        "In training, then resize by a random factor, drawn uniformly between these two."),
    Key("INPUT.RANDOM_ASPECT", [1.0, 1.0], [SEMANTIC_OR_SEGFIX], ANY,
        "In training, then make wider and lower by the root of a random factor, drawn uniformly "
        "between these two."),
    Key("INPUT.RANDOM_FLIP", THEIRS, [], one_of("horizontal", "vertical", "both", "none"),
        "Mirror an image in training, with probability 0.5 in each direction."),
    Key("INPUT.RANDOM_ROTATE_90", False, [], ANY,
        "Rotate an image in training by 0, 90, 180 or 270 degrees (satellites, microscopes)."),
    Key("INPUT.COLOR_JITTER", 0.0, [], share("[0, 1)"),
        "Largest deviation from 1 of the uniform random factors on brightness, contrast and "
        "saturation, by Detectron2's transforms; 0 for no jitter."),
    Key("INPUT.BRIGHTNESS_SHIFT", 0, [SEMANTIC_OR_SEGFIX], ANY,
        "Largest brightness shift of the colours, up or down, on the scale 0..255."),
],
"Weights and machine": [
    Key("MODEL.DEVICE", "auto", [], DEVICE,
        '"cuda" (Detectron2\'s default), "cpu", or "auto": a GPU if the machine has one.'),
    Key("MODEL.TRUST_PICKLE", False, [], ANY,
        "Allow MODEL.WEIGHTS to be a pickle that may run code, if you trust the file. Tensors and "
        "arrays load without it. It counts only on the command line or as an argument."),
    Key("MODEL.WEIGHTS_MIN_SHARE", 0.9, [], ANY,
        "Smallest share of the backbone's tensors (without an FPN) that MODEL.WEIGHTS must fill at "
        "the start of training. Heads may always differ."),
    Key("MODEL.WEIGHTS_BY_CLASS", True, [], ANY,
        "If the initial weights hold their class names, classes of the data with "
        "these names keep their rows of the classifiers, and other classes start anew. False "
        "fills every classifier whose shape fits, whatever its classes are."),
],
"Networks of timm (docs/backbones.md)": [
    Key("MODEL.TIMM.NAME", "hrnet_w48", [TIMM], PLAIN_NAME,
        'Network of timm, bare ("build_timm_backbone": HRNet, a ResNet or EfficientNet that is '
        'dilated to OUTPUT_STRIDE ...), under an FPN ("build_timm_fpn_backbone": any of strides 4 '
        "to 32), or a plain ViT under ViTDet's simple feature pyramid "
        '("build_timm_simple_fpn_backbone").'),
    Key("MODEL.TIMM.OUTPUT_STRIDE", 32, [TIMM], ANY,
        "Output stride; the last stages are dilated to keep it."),
    Key("MODEL.TIMM.NORM", "SyncBN", [TIMM],
        one_of("BN", "SyncBN", "FrozenBN", "naiveSyncBN"),
        "Type of the network's batch norms. Other norms do not change."),
    Key("MODEL.TIMM.OUTPUT_NORM", "", [TIMM], one_of("", "LN"),
        '"LN": a layer norm over the channels of each feature, as published models with ConvNeXt '
        'and Swin have it, or the last norm of a plain ViT. "" for none.'),
    Key("MODEL.TIMM.PATCH_SIZE", 0, [TIMM], at_least(0, "follows the weights"),
        "Patches of a plain ViT, in pixels: the pyramid needs 16, and DINOv2 has 14. The patch "
        "embedding of MODEL.WEIGHTS is resampled as timm does."),
    Key("MODEL.TIMM.FROZEN", False, [TIMM], ANY,
        "Train only the heads, on the features of MODEL.WEIGHTS: the network has no gradient, "
        "and its batch norms use their running statistics."),
    Key("MODEL.TIMM.DROP_PATH", 0.0, [TIMM, NOT_FROZEN], share("[0, 1)"),
        "Drop path (stochastic depth) of its residual blocks in training: the chance of the last "
        "block; it rises linearly from the first. Networks of timm without it are refused."),
    Key("SOLVER.LAYER_DECAY", 1.0, [TIMM, NOT_FROZEN], share("(0, 1]"),
        "Factor from each layer's learning rate to the rate of the layer before it; the last layer "
        "has this multiple of BASE_LR. timm's group_matcher defines the layers."),
    Key("MODEL.TIMM.ENLARGE_TWICE", False, [TIMM, HRNET], ANY,
        "Enlarge the coarse maps of an HRNet by the ratio of the strides, and then to the size of "
        "the finer map, as mmsegmentation does. Other published code goes directly to that size."),
],
"Dilated ResNet of Detectron2's DeepLab project": [
    Key("MODEL.RESNETS.RES4_DILATION", 1, [DILATED], ANY,
        "Dilation of the last stage but one; with stride 8 it is 2, and RES5_DILATION is 4."),
    Key("MODEL.RESNETS.RES5_MULTI_GRID", [1, 1, 1], [DILATED], ANY,
        "Multiples of RES5_DILATION in the blocks of the last stage."),
    Key("MODEL.RESNETS.STEM_TYPE", "deeplab", [DILATED], ANY,
        'Stem: "deeplab" (three 3x3 convolutions) or "basic" (one 7x7).'),
    Key("MODEL.RESNETS.CONTRACT_DILATION", False, [DILATED], ANY,
        "Half the dilation in the first block of each dilated stage, as in openseg.pytorch and "
        "mmsegmentation; Detectron2 has the same in all blocks."),
    Key("MODEL.RESNETS.STEM_CEIL_MODE", False, [DILATED], ANY,
        "Round the size after the stem's pooling up instead of down, as openseg.pytorch does."),
],
"The refined head": [
    Key("MODEL.OCR.CHANNELS", 512, [IDLE_IN_PLAIN], at_least(1),
        "Channels of the pixel representations and of the augmented representations."),
    Key("MODEL.OCR.KEY_CHANNELS", 256, [IDLE_IN_PLAIN], at_least(1),
        "Channels of φ, ψ and δ; of each branch in ASPP and ASP-OCR."),
    Key("MODEL.OCR.DROPOUT", 0.05, [IDLE_IN_PLAIN], ANY,
        "Channel dropout of the augmented representations, in training."),
    Key("MODEL.OCR.NORM", "SyncBN", [IDLE_IN_PLAIN], NORM,
        "Norm of the head. With a single process SyncBN becomes BN."),
    Key("MODEL.OCR.RESIDUAL", False, [IDLE_IN_PLAIN], ANY,
        "Refined logits are coarse logits plus a correction by the scheme, whose classifier "
        "starts at 0. Not in the paper; for short runs (studies/docs/short_trainings.md)."),
    Key("MODEL.OCR.COARSE_START", "pytorch", [IDLE_IN_PLAIN], one_of("pytorch", "he", "detectron2"),
        'Initial weights of the coarse classifier: "pytorch", as in published code, "he", sqrt(6) '
        'times as large, or "detectron2", sqrt(6 channels / classes) times as large.'),
    Key("MODEL.OCR.RECOMPUTE", False, [IDLE_IN_PLAIN], ANY,
        "Compute the semantic head again in the backward pass instead of keeping its results: "
        "less memory for more time (docs/memory.md)."),
    Key("MODEL.OCR.COARSE_LOSS_WEIGHT", 0.25, [IDLE_IN_PLAIN], ANY,
        "Weight of the coarse loss; MODEL.SEM_SEG_HEAD.LOSS_WEIGHT belongs to the refined loss."),
    Key("MODEL.OCR.DOWNSAMPLE", 1, [IDLE_IN_PLAIN, PANOPTIC], one_of(1, 2),
        "With 2, the context scheme sees means of 2x2 cells of FPN's sum (stride 8 instead of 4), "
        "at a quarter of the cost, and the refined logits are enlarged. Not in the paper."),
    Key("MODEL.OCR.REGION_SUPERVISION", True, [REFINED], ANY,
        "The soft object regions are the coarse prediction, which has a loss. False is the paper's "
        "ablation: a second branch predicts them without a loss."),
    Key("MODEL.CONTEXT.NAME", "OCR", [REFINED], ANY,
        'Context scheme: "OCR", "none" (plain), or another of docs/context_schemes.md.'),
    Key("MODEL.SEM_SEG_HEAD.CLASS_WEIGHTS", [], [REFINED], ANY,
        "Weight of each class in both losses, as in published Cityscapes recipes; [] for none."),
    Key("MODEL.SEM_SEG_HEAD.LOSS_TYPE", "cross_entropy", [REFINED], ANY,
        'Loss of the refined prediction: "cross_entropy", "ohem" (below), '
        '"binary_cross_entropy", "dice", "lovasz", "rmi", or a sum of several with their weights: '
        '"0.8 cross_entropy + 0.2 lovasz" (docs/losses.md).'),
    Key("MODEL.SEM_SEG_HEAD.COARSE_LOSS_TYPE", "cross_entropy", [REFINED], ANY,
        "Loss of the coarse prediction, of the same form."),
    Key("MODEL.SEM_SEG_HEAD.OHEM_THRESHOLD", 0.9, [REFINED, OHEM], share("(0, 1]"),
        '"ohem" is the cross-entropy of the pixels whose probability of the true class is below '
        "this, or of at least OHEM_MIN_KEPT pixels."),
    Key("MODEL.SEM_SEG_HEAD.OHEM_MIN_KEPT", 100000, [REFINED, OHEM], ANY,
        "Least number of pixels that count in the images that a process sees at once, "
        "SOLVER.IMS_PER_BATCH / (processes * SOLVER.ACCUMULATION_STEPS)."),
    Key("MODEL.OCR.NEGATIVE_SLOPE", 0.0, [NOT_PLAIN], ANY,
        "Slope for negative values of the ReLUs in every head and scheme: 0.01 for "
        "openseg.pytorch's weights that were trained with InPlaceABN."),
],
"The coarse prediction of semantic segmentation (Panoptic-FPN has Detectron2's head)": [
    Key("MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES", ["res4"], [CONTEXT_HEAD], ANY,
        "Features for the coarse prediction. If [], it is made from the pixel representations; "
        "these use MODEL.SEM_SEG_HEAD.IN_FEATURES."),
    Key("MODEL.SEM_SEG_HEAD.COARSE_KERNEL", 3, [CONTEXT_HEAD], ANY,
        "Kernel before the coarse classifier: 3 for ResNet; for HRNet-W48 3 in openseg.pytorch, 1 "
        "in HRNet-OCR and mmsegmentation. 0 is the paper's linear classifier."),
    Key("MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", 512, [CONTEXT_HEAD], ANY,
        "Channels of this convolution: 512 for ResNet, 720 for HRNet-W48."),
    Key("MODEL.SEM_SEG_HEAD.COARSE_DROPOUT", 0.05, [CONTEXT_HEAD], ANY,
        "Channel dropout after this convolution: 0.05 for ResNet, 0 for HRNet in published code."),
],
"Context schemes (docs/context_schemes.md)": [
    Key("MODEL.OCR.TRANSFORM_CONVS", 2, [IDLE_IN_PLAIN, SCHEME], at_least(1),
        "1x1 conv-norm-ReLU in each of φ and ψ: 1 in the paper's text, 2 in the published code."),
    Key("MODEL.OCR.SCALE_RELATION", True, [IDLE_IN_PLAIN, SCHEME], ANY,
        "Scale the pixel-region relation by 1 / sqrt(KEY_CHANNELS), as the published code does; "
        "False is the paper's equation."),
    Key("MODEL.CONTEXT.TRUE_PART", "both", [REFINED, SCHEME], one_of("both", "gather", "relation"),
        'Part of GT-OCR that is the truth: "both", "gather" (the regions) or "relation".'),
    Key("MODEL.CONTEXT.ENCODER_SELF_ATTENTION", False, [REFINED, SCHEME], ANY,
        "Self-attention among the pixels, of Segmentation-Transformer."),
    Key("MODEL.CONTEXT.DECODER_SELF_ATTENTION", "none", [REFINED, SCHEME],
        one_of("none", "before", "after"),
        'Self-attention among the categories of Segmentation-Transformer: "before" the decoder\'s '
        'cross-attention, "after" it, or "none".'),
    Key("MODEL.CONTEXT.JOINT_BLOCKS", 2, [REFINED, SCHEME], at_least(1),
        "Blocks of Joint-Transformer."),
    Key("MODEL.CONTEXT.DILATIONS", [12, 24, 36], [REFINED, SCHEME], ANY,
        "Dilations of ASPP and ASP-OCR, for features of stride 8. At stride 4 (panoptic head, "
        "HRNet), doubled dilations reach as far."),
    Key("MODEL.CONTEXT.NUM_REGIONS", 64, [REFINED, SCHEME], ANY,
        "Regions of Double-Attention."),
],
"Semantic segmentation and SegFix": [
    Key("MODEL.ALIGN_CORNERS", False, [SEMANTIC_OR_SEGFIX], ANY,
        "Resizing of features and logits: True maps corner pixels onto each other by their "
        "centres, as the authors' code does, False by their outer corners."),
    Key("MODEL.PAD_TO_MULTIPLE", 0, [SEMANTIC_OR_SEGFIX], at_least(0),
        "Pad images to multiples of this. 0: multiples of the logits' stride, so that a logit lies "
        "in the middle of its pixels. 1: no padding, as in the published code."),
    Key("MODEL.HMSA.ENABLED", False, [SEMANTIC], ANY,
        "Hierarchical multi-scale attention (docs/hmsa.md): the network is trained on images of "
        "half and full size, and learns how far to trust the lower scale. In tests the predictions "
        "at TEST.SCALES, which must include 1.0, are blended in this way instead of averaged."),
    Key("MODEL.HMSA.SCALE_LOSS_WEIGHT", 0.05, [SEMANTIC, when("MODEL.HMSA.ENABLED", True)],
        at_least(0),
        "Weight of the losses of each scale's own prediction; 0 for none."),
    Key("MODEL.SEGFIX.BOUNDARY_DISTANCE", 5, [SEGFIX], at_least(1),
        "A pixel lies near a boundary if its distance from the nearest pixel of another "
        "region, rounded down, is at most this (docs/segfix.md)."),
    Key("MODEL.SEGFIX.CHANNELS", 256, [SEGFIX], at_least(1),
        "Channels between the two convolutions of each branch."),
    Key("MODEL.SEGFIX.NORM", "SyncBN", [SEGFIX], NORM,
        "Norm between these convolutions."),
],
"Training": [
    Key("SOLVER.EPOCHS", 0.0, [], at_least(0, most=10**9),
        "Passes over the training images. They define MAX_ITER if SOLVER.MAX_ITER is 0, and the "
        "warm-up is then at most a tenth of the training."),
    Key("SOLVER.ACCUMULATION_STEPS", 1, [], ANY,
        "Split each batch of SOLVER.IMS_PER_BATCH images into this many parts with a single step, "
        "for published batch sizes on a small GPU. Iterations and schedule do not change."),
    Key("SOLVER.HEAD_LR_FACTOR", 1.0, [], ABOVE_0,
        "Learning rate of everything outside the backbone, to which the FPN belongs, as a "
        "multiple of SOLVER.BASE_LR: 10 on PASCAL-Context and COCO-Stuff in the published code."),
    Key("SOLVER.OPTIMIZER", "SGD", [], one_of("SGD", "AdamW"),
        "With AdamW, WEIGHT_DECAY_NORM (0 in Detectron2) holds for one-dimensional parameters, "
        "and for others that a timm network exempts: position embeddings, tokens, tables of "
        "relative positions. WEIGHT_DECAY_BIAS, if set, holds for biases."),
    Key("SOLVER.GATHER_METRIC_PERIOD", 20, [], at_least(1),
        "Losses are gathered from all processes, logged and checked to be finite every so many "
        "iterations, at least once for each line of progress."),
    Key("LOGGERS", [], [], some_of("wandb", "mlflow"),
        "Services that also receive the values of metrics.json (docs/long_runs.md)."),
    Key("SOLVER.CHECKPOINTS_TO_KEEP", 0, [], at_least(0, "keeps all"),
        "Latest `model_<iteration>.pth` to keep, besides `model_final.pth` and `model_best.pth`."),
    Key("MODEL.EMA.ENABLED", False, [], ANY,
        "Keep an exponential moving average of the weights, and of the statistics of batch norms. "
        'Evaluations, "model" in every checkpoint, and so predictions and other runs have '
        "the average. The trained weights lie beside it, and `--resume` goes on with both."),
    Key("SOLVER.AMP.PRECISION", "auto", [when("SOLVER.AMP.ENABLED", True)],
        one_of("auto", "float16", "bfloat16"),
        'Precision of mixed training: "float16" (only GPUs, with loss scaling), "bfloat16", or '
        '"auto": float16 on a GPU, bfloat16 on a CPU.'),
    Key("SOLVER.POLY_LR_POWER", 0.9, [POLY], ANY,
        "The learning rate is BASE_LR * (1 - iteration / MAX_ITER) ** POLY_LR_POWER."),
    Key("SOLVER.POLY_LR_CONSTANT_ENDING", 0.0, [POLY], ANY,
        "The learning rate is at least this share of BASE_LR."),
    Key("MODEL.EMA.DECAY", 0.999, [when("MODEL.EMA.ENABLED", True)], share("[0, 1)"),
        "After each iteration: average = DECAY * average + (1 - DECAY) * weights."),
],
"Evaluation and prediction": [
    Key("MODEL.PANOPTIC_FPN.COMBINE.CLASS_CONFIDENCE", [], [PANOPTIC], FROM_0,
        "Least score of an instance for each thing class; [] for INSTANCES_CONFIDENCE_THRESH in "
        "all. `ocr-panoptic fit-merge` finds good values for this key and the next."),
    Key("MODEL.PANOPTIC_FPN.COMBINE.CLASS_STUFF_AREA", [], [PANOPTIC], FROM_0,
        "Least number of pixels of a stuff segment for each semantic class (the first stands for "
        "things); [] for STUFF_AREA_LIMIT in all."),
    Key("TEST.BEST_CHECKPOINT", "", [], ANY,
        "Metric of the evaluations during training by which `model_best.pth` is kept, the highest "
        'value being the best: "panoptic_seg/PQ" or "sem_seg/mIoU", say, after the name of the '
        'data set if DATASETS.TEST has several. "" for none.'),
    Key("TEST.PATIENCE", 0, [BEST], at_least(0, "trains to the end"),
        "End the training after this many evaluations in a row without a higher value of "
        "TEST.BEST_CHECKPOINT."),
    Key("TEST.EVALUATIONS", 0, [], at_least(0, "evaluates only at the end"),
        "Evenly spread evaluations if TEST.EVAL_PERIOD is 0; at most one in 20 iterations."),
    Key("TEST.OPTIMIZED", True, [], ANY,
        "Evaluate, draw and predict with a copy of the model optimized for inference "
        "(docs/inference.md), with the same results; False uses the model as in training."),
    Key("TEST.PRECISION", "float32", [], one_of("auto", "float32", "bfloat16", "float16"),
        'Precision of that copy: "float32", "bfloat16" (CPUs with such instructions, GPUs), '
        '"float16" (GPUs), or "auto": bfloat16 on a CPU with AVX512-BF16 or AMX, else float32. '
        '`predict` and `load` take "auto" instead of "float32", unless the key is set for them.'),
    Key("TEST.SAVE_PREDICTIONS", False, [NOT_SEGFIX], ANY,
        "Write an evaluation's predictions to `OUTPUT_DIR/inference/<data set>`: segments for "
        "panopticapi, or PNGs of a semantic model in the labels of the data set's files."),
    Key("TEST.SEGFIX.WEIGHTS", "", [NOT_SEGFIX], ANY,
        "Weights of a trained SegFix, whose offsets refine predictions (docs/segfix.md); "
        '"" for none.'),
    Key("TEST.SEGFIX.CONFIG_FILE", "", [SEGFIX_WEIGHTS, NOT_SEGFIX], ANY,
        'Config of this SegFix; "" for config.yaml beside the weights, as training writes it.'),
    Key("TEST.SEGFIX.SCALE", 2, [SEGFIX_WEIGHTS, NOT_SEGFIX], at_least(1),
        "Factor on the offsets by which labels and segments move."),
    Key("TEST.SCALES", [1.0], [SEMANTIC_OR_SEGFIX], ANY,
        "Average the logits over these factors on the size of the image (MODEL.HMSA blends them)."),
    Key("TEST.FLIP", False, [SEMANTIC_OR_SEGFIX], ANY,
        "Also average with the logits of the mirrored image."),
    Key("TEST.SLIDING_WINDOW.SIZE", [], [], ANY,
        "Height and width in pixels, at every scale, of the windows that the network sees; [] for "
        "the whole image at once. A panoptic model predicts larger images in such tiles "
        "(docs/prediction.md)."),
    Key("TEST.SLIDING_WINDOW.STRIDE", [], [], ANY,
        "Vertical and horizontal step between windows."),
    Key("TEST.ACCUMULATOR_DEVICE", "", [SEMANTIC_OR_SEGFIX], ANY,
        "Device of the running sum of several scales or windows, all classes at full resolution: "
        '"" for the model\'s; "cpu" if its memory is too small.'),
    Key("TEST.AUG.ENABLED", THEIRS, [PANOPTIC], ANY,
        "See an image at all TEST.AUG.MIN_SIZES and, with TEST.AUG.FLIP, mirrored: instances as by "
        "Detectron2's `GeneralizedRCNNWithTTA`, and averaged semantic logits, are merged once."),
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
    Key("INPUT.FORMAT", THEIRS, [], one_of("BGR", "RGB")),
    Key("INPUT.MIN_SIZE_TRAIN", THEIRS, [], SIZES),
    Key("INPUT.MIN_SIZE_TRAIN_SAMPLING", THEIRS, [], one_of("choice", "range")),
    Key("MODEL.BACKBONE.NAME", THEIRS, [], registered("BACKBONE_REGISTRY")),
    Key("MODEL.SEM_SEG_HEAD.NAME", THEIRS, [], registered("SEM_SEG_HEADS_REGISTRY")),
    Key("MODEL.RESNETS.DEPTH", THEIRS, [], one_of(18, 34, 50, 101, 152)),
    *(Key(f"MODEL.{part}.NORM", THEIRS, [], NORM)
      for part in ("RESNETS", "FPN", "SEM_SEG_HEAD", "ROI_BOX_HEAD", "ROI_MASK_HEAD")),
    Key("MODEL.SEM_SEG_HEAD.IGNORE_VALUE", THEIRS, [], one_of(255)),
    Key("MODEL.PIXEL_STD", THEIRS, [], numbers("above 0", lambda value: value > 0)),
    # This project's data have no proposals and no keypoints.
    Key("MODEL.LOAD_PROPOSALS", THEIRS, [], one_of(False)),
    Key("MODEL.KEYPOINT_ON", THEIRS, [], one_of(False)),
    Key("SOLVER.MAX_ITER", THEIRS, [], at_least(0, "follows from SOLVER.EPOCHS", 10**9)),
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
    Key("TEST.EVAL_PERIOD", THEIRS, [], at_least(0, "leaves it to TEST.EVALUATIONS")),
    Key("SOLVER.BASE_LR_END", THEIRS, [when("SOLVER.LR_SCHEDULER_NAME", "WarmupCosineLR")], ANY),
    Key("SOLVER.MOMENTUM", THEIRS, [when("SOLVER.OPTIMIZER", "SGD")], at_least(0)),
    Key("SOLVER.NESTEROV", THEIRS, [when("SOLVER.OPTIMIZER", "SGD")], ANY),
    Key("MODEL.BACKBONE.FREEZE_AT", THEIRS, [FREEZES], ANY),
],
}
# fmt: on

KEYS: list[Key] = [key for section in SECTIONS.values() for key in section]


def check_values(cfg: "CfgNode", *, registries: bool = True) -> None:
    """
    Refuse a config with a value that its key, or another key, does not allow.

    Args:
        registries: whether to also check names in Detectron2's registries, which imports PyTorch.
    """
    for key in KEYS:
        if key.allowed.asks_registry and not registries:
            continue
        value = value_of(cfg, key.name)
        if not key.allowed.permits(value):
            raise UserError(f"{key.name} is {value!s:.200}; it is {key.allowed.text()}.")
    for name in ("PIXEL_MEAN", "PIXEL_STD"):
        values, channels = cfg.MODEL[name], cfg.INPUT.CHANNELS
        if len(values) != channels:
            raise UserError(
                f"MODEL.{name} is {values!s:.200}, {len(values)} values, but INPUT.CHANNELS is "
                f"{channels}; each channel needs one value."
            )
    if not 0 <= cfg.SOLVER.BASE_LR_END <= cfg.SOLVER.BASE_LR:
        raise UserError(
            f"SOLVER.BASE_LR_END is {cfg.SOLVER.BASE_LR_END}; it is a number from 0 to "
            f"SOLVER.BASE_LR, {cfg.SOLVER.BASE_LR}."
        )
