"""Every config key that this project adds to Detectron2's.

Where a comment names no reader, both architectures read the key: ``PanopticFPN`` with
``OCRSemSegFPNHead``, and ``OCRSemanticSegmentor`` with ``ContextSemSegHead``. A key that the chosen
model does not read must keep its default, see :mod:`ocr_panoptic.engine.unread_keys`.
"""

from detectron2.config import CfgNode as CN


def add_ocr_config(cfg: CN) -> None:
    """
    Add the project's keys to a Detectron2 config, and let MODEL.DEVICE follow the machine.

    ``NUM_CLASSES: 0`` of ROI_HEADS and SEM_SEG_HEAD means "as the training data have it", see
    :mod:`ocr_panoptic.engine.task`.
    """
    # "cuda" (Detectron2's default), "cpu", or "auto": a GPU where there is one. A run's config.yaml
    # then serves on every machine; engine/setup.py puts the device of this one in its place.
    cfg.MODEL.DEVICE = "auto"
    # Allow MODEL.WEIGHTS to be a pickle that runs code when it is read. Only for files that you
    # trust; plain tensors and arrays, Detectron2's model zoo among them, load without it.
    cfg.MODEL.TRUST_PICKLE = False
    # Least share of the backbone's tensors (those of an FPN left out) that MODEL.WEIGHTS has to
    # fill where a training starts from them: those of another network have a few names in common.
    # Heads may always be others. 0 starts from any weights.
    cfg.MODEL.WEIGHTS_MIN_SHARE = 0.9

    _add_ocr(cfg)
    _add_context_schemes(cfg)
    _add_semantic_heads(cfg)
    _add_segmentors(cfg)
    _add_backbones(cfg)
    _add_input(cfg)
    _add_solver(cfg)
    _add_ema(cfg)
    _add_test(cfg)


def _add_ocr(cfg: CN) -> None:
    """The OCR head."""
    cfg.MODEL.OCR = CN()
    # Channels of the pixel representations (after the 3x3 convolution) and of the augmented ones.
    cfg.MODEL.OCR.CHANNELS = 512
    # Channels of phi, psi and delta.
    cfg.MODEL.OCR.KEY_CHANNELS = 256
    # 1x1 conv-norm-ReLU in each of phi and psi: 1 in the paper's text, 2 in the published code.
    # Of "OCR", "ASP-OCR" and "PPM-OCR", as the next.
    cfg.MODEL.OCR.TRANSFORM_CONVS = 2
    # Scale the pixel-region relation by 1 / sqrt(KEY_CHANNELS), as the published code does; False
    # is the paper's equation.
    cfg.MODEL.OCR.SCALE_RELATION = True
    # Channel dropout of the augmented representations, in training.
    cfg.MODEL.OCR.DROPOUT = 0.05
    # Norm of the OCR head. SyncBN becomes BN where nothing is to be synchronised.
    cfg.MODEL.OCR.NORM = "SyncBN"
    # Slope of the ReLUs of the OCR head, of every scheme and of SegFix's head for negative values:
    # 0.01 for weights of openseg.pytorch that were trained with InPlaceABN.
    cfg.MODEL.OCR.NEGATIVE_SLOPE = 0.0
    # The coarse prediction, which has a loss, is the soft object regions. False is the paper's
    # ablation: a second branch of the same form predicts them without a loss of its own.
    cfg.MODEL.OCR.REGION_SUPERVISION = True
    # Refined logits are the coarse ones plus a correction by the scheme, whose classifier starts at
    # 0. Not in the paper; for trainings that are short (docs/short_trainings.md), as the next.
    cfg.MODEL.OCR.RESIDUAL = False
    # First weights of the coarse classifier: "pytorch", as the published codes have it, or
    # "detectron2", sqrt(6 C / K) times as large.
    cfg.MODEL.OCR.COARSE_START = "pytorch"
    # Compute the semantic head again in the backward pass instead of keeping what it computed: less
    # memory for more time (docs/memory.md).
    cfg.MODEL.OCR.RECOMPUTE = False
    # Weight of the coarse prediction's loss; MODEL.SEM_SEG_HEAD.LOSS_WEIGHT is the refined one's.
    cfg.MODEL.OCR.COARSE_LOSS_WEIGHT = 0.25


def _add_context_schemes(cfg: CN) -> None:
    """The choice of the context scheme, and what one of them alone reads."""
    # Context scheme: "OCR", "none" (the plain baseline), or one of those listed in
    # docs/context_schemes.md. "GT-OCR" (regions and relations from the ground truth, the paper's
    # upper bound) works in OCRSemanticSegmentor alone.
    cfg.MODEL.CONTEXT = CN()
    cfg.MODEL.CONTEXT.NAME = "OCR"
    # What is the truth in "GT-OCR": "both", or one of "gather" (the regions) and "relation", the
    # other being that of OCR with its default keys.
    cfg.MODEL.CONTEXT.TRUE_PART = "both"
    # Optional units of "Segmentation-Transformer": self-attention among the pixels, and among the
    # categories "before" the decoder's cross-attention or "after" it, or "none".
    cfg.MODEL.CONTEXT.ENCODER_SELF_ATTENTION = False
    cfg.MODEL.CONTEXT.DECODER_SELF_ATTENTION = "none"
    # Number of blocks of "Joint-Transformer".
    cfg.MODEL.CONTEXT.JOINT_BLOCKS = 2
    # Dilations of "ASPP" and "ASP-OCR", for features of stride 8. Twice as large ones see as far
    # at stride 4, which is that of the panoptic head and of HRNet.
    cfg.MODEL.CONTEXT.DILATIONS = [12, 24, 36]
    # Number of regions of "Double-Attention".
    cfg.MODEL.CONTEXT.NUM_REGIONS = 64


def _add_semantic_heads(cfg: CN) -> None:
    """Losses of both heads, and the coarse branch of one."""
    # Weight of each class in both losses, as the published Cityscapes recipes have it; [] for none.
    cfg.MODEL.SEM_SEG_HEAD.CLASS_WEIGHTS = []
    # Losses of the refined and of the coarse prediction: "cross_entropy", "ohem" (below),
    # "binary_cross_entropy", "dice", "lovasz", "rmi", or a sum of several with their weights:
    # "0.8 cross_entropy + 0.2 lovasz". docs/losses.md says what each is.
    cfg.MODEL.SEM_SEG_HEAD.LOSS_TYPE = "cross_entropy"
    cfg.MODEL.SEM_SEG_HEAD.COARSE_LOSS_TYPE = "cross_entropy"
    # "ohem" is the cross-entropy of the pixels whose probability of the true class is below
    # OHEM_THRESHOLD, but at least OHEM_MIN_KEPT of them. The number is of the pixels that a process
    # sees at once, those of SOLVER.IMS_PER_BATCH / (processes * SOLVER.ACCUMULATION_STEPS) images:
    # on twice as many GPUs it is twice the share of the batch.
    cfg.MODEL.SEM_SEG_HEAD.OHEM_THRESHOLD = 0.9
    cfg.MODEL.SEM_SEG_HEAD.OHEM_MIN_KEPT = 100000

    # ContextSemSegHead alone, as the coarse prediction of OCRSemSegFPNHead is Detectron2's head.
    # Features of the coarse prediction; MODEL.SEM_SEG_HEAD.IN_FEATURES are those of the pixels.
    cfg.MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES = ["res4"]
    # Kernel and channels of the convolution before the coarse classifier: 3 and 512 for ResNet in
    # the published code; 720 for HRNet-W48, with 3 in openseg.pytorch and 1 in HRNet-OCR and
    # mmsegmentation. Kernel 0 is the paper's linear classifier.
    cfg.MODEL.SEM_SEG_HEAD.COARSE_KERNEL = 3
    cfg.MODEL.SEM_SEG_HEAD.COARSE_CHANNELS = 512
    # Channel dropout after it, in training: 0.05 for ResNet, 0 for HRNet in the published code.
    cfg.MODEL.SEM_SEG_HEAD.COARSE_DROPOUT = 0.05


def _add_segmentors(cfg: CN) -> None:
    """The semantic architecture, and SegFix."""
    # OCRSemanticSegmentor and SegFix. Resizing of features and logits: True maps corner pixels onto
    # each other by their centres, as the authors' code does, False by their outer corners.
    cfg.MODEL.ALIGN_CORNERS = False
    # Pad its images to multiples of this. 0: of the stride of the logits, so that a logit lies in
    # the middle of the pixels that it stands for. 1: not at all, as the published codes.
    cfg.MODEL.PAD_TO_MULTIPLE = 0

    # OCRSemanticSegmentor alone. Hierarchical multi-scale attention (docs/hmsa.md): the network is
    # trained on images of half and full size, and says itself where to trust the lower one; at test
    # time TEST.SCALES, with 1.0 among them, are blended so instead of averaged.
    cfg.MODEL.HMSA = CN()
    cfg.MODEL.HMSA.ENABLED = False
    # Weight of the losses of each scale's own prediction; 0 for none.
    cfg.MODEL.HMSA.SCALE_LOSS_WEIGHT = 0.05

    # SegFix alone, which predicts offsets for the predictions of others (docs/segfix.md). A pixel
    # lies near a boundary where its distance from the nearest pixel of another region, rounded
    # down, is at most BOUNDARY_DISTANCE.
    cfg.MODEL.SEGFIX = CN()
    cfg.MODEL.SEGFIX.BOUNDARY_DISTANCE = 5
    # Channels and norm between the two convolutions of each of its branches.
    cfg.MODEL.SEGFIX.CHANNELS = 256
    cfg.MODEL.SEGFIX.NORM = "SyncBN"


def _add_backbones(cfg: CN) -> None:
    """Dilated ResNets, and networks of timm."""
    # Dilated ResNet ("build_dilated_resnet_backbone", which is Detectron2's DeepLab project's):
    # stride 8 with RES4_DILATION 2 and RES5_DILATION 4.
    cfg.MODEL.RESNETS.RES4_DILATION = 1
    cfg.MODEL.RESNETS.RES5_MULTI_GRID = [1, 1, 1]
    # Stem of it: "deeplab" (three 3x3 convolutions) or "basic" (one 7x7).
    cfg.MODEL.RESNETS.STEM_TYPE = "deeplab"
    # Half the dilation in the first block of each dilated stage, as in openseg.pytorch and
    # mmsegmentation; Detectron2 has the same in all blocks.
    cfg.MODEL.RESNETS.CONTRACT_DILATION = False
    # Round the size after the stem's pooling up instead of down, as openseg.pytorch does.
    cfg.MODEL.RESNETS.STEM_CEIL_MODE = False

    # Network of timm (docs/backbones.md), alone ("build_timm_backbone": HRNet, a ResNet or
    # EfficientNet that is dilated to OUTPUT_STRIDE ...), under an FPN ("build_timm_fpn_backbone":
    # any of strides 4 to 32), or a plain ViT under ViTDet's simple feature pyramid
    # ("build_timm_simple_fpn_backbone").
    # NORM is that of its batch norms: "BN", "SyncBN" or "FrozenBN". Other norms stay as they are.
    cfg.MODEL.TIMM = CN()
    cfg.MODEL.TIMM.NAME = "hrnet_w48"
    cfg.MODEL.TIMM.OUTPUT_STRIDE = 32
    cfg.MODEL.TIMM.NORM = "SyncBN"
    # "LN": a layer norm over the channels of each feature that is read, as the published segmenters
    # and detectors with ConvNeXt and Swin have it; of a plain ViT its own last norm. "" for none.
    cfg.MODEL.TIMM.OUTPUT_NORM = ""
    # Patches of a plain ViT, in pixels: the pyramid needs 16, and DINOv2 has 14. The patch
    # embedding of MODEL.WEIGHTS is resampled as timm does. 0 for that of its weights.
    cfg.MODEL.TIMM.PATCH_SIZE = 0
    # Train the heads alone, on the features of MODEL.WEIGHTS: the network has no gradient, and its
    # batch norms use their running statistics. (MODEL.BACKBONE.FREEZE_AT, which is of Detectron2's
    # ResNets, freezes nothing here; other values than 0 and Detectron2's default are refused.)
    cfg.MODEL.TIMM.FROZEN = False
    # Drop path (stochastic depth) of its residual blocks in training: the chance of the last one,
    # rising to it linearly from the first. Networks of timm without it are refused.
    cfg.MODEL.TIMM.DROP_PATH = 0.0

    # OCRSemanticSegmentor with MODEL.TIMM.FROZEN alone. Folder in which the features of all images
    # are kept, so that training a head does not compute them again (docs/studies.md). "": none.
    cfg.MODEL.FEATURE_CACHE = ""


def _add_input(cfg: CN) -> None:
    """Images."""
    # Channels of the images, and values in MODEL.PIXEL_MEAN and PIXEL_STD. 3: colours, whatever the
    # file is. Any other number: as the file has them (datasets/README.md), uint8 or numbers, from
    # TIFF, .npy and what Pillow reads; of 4 or more the first three are RGB, which INPUT.FORMAT
    # "BGR" reverses. Of weights for 3 channels the first convolution is adapted as timm does it.
    cfg.INPUT.CHANNELS = 3

    # Files that describe data sets (data/data_file.py), whose splits DATASETS.TRAIN and
    # DATASETS.TEST name as <name>_<split>; --data sets all three.
    cfg.DATASETS.FILES = ()

    # PanopticFPN alone. Where INPUT.CROP.ENABLED crops: after the image was resized to one of
    # MIN_SIZE_TRAIN, so that crops are of one size; Detectron2 crops before. The others always do.
    cfg.INPUT.CROP.AFTER_RESIZE = False

    # OCRSemanticSegmentor and SegFix. Images (data/semantic/augmentation.py): resized to
    # MIN_SIZE_TRAIN or MIN_SIZE_TEST (0: not at all), or to this height and width if it is not [].
    cfg.INPUT.FIXED_SIZE = []
    # "bicubic", as openseg.pytorch trains, or "bilinear", as HRNet-OCR and mmsegmentation.
    cfg.INPUT.INTERPOLATION = "bicubic"
    # In training, next, by a uniform factor, and by the root of a uniform factor wider and lower.
    cfg.INPUT.RANDOM_SCALE = [1.0, 1.0]
    cfg.INPUT.RANDOM_ASPECT = [1.0, 1.0]
    # Largest share of a crop that one class may have, with ten tries (INPUT.CROP.TYPE "absolute");
    # OCRSemanticSegmentor alone.
    cfg.INPUT.CROP.SINGLE_CATEGORY_MAX_AREA = 1.0
    # Largest brightness shift of the colours, up or down, in steps of 1 of 255.
    cfg.INPUT.BRIGHTNESS_SHIFT = 0


def _add_solver(cfg: CN) -> None:
    """Training."""
    # Run each batch of SOLVER.IMS_PER_BATCH images in this many parts and step once, for the
    # published batch sizes on a small GPU. Iterations and schedule stay as they are.
    cfg.SOLVER.ACCUMULATION_STEPS = 1
    # Learning rate of everything outside the backbone, of which the FPN is a part, as a multiple of
    # SOLVER.BASE_LR: 10 on PASCAL-Context and COCO-Stuff in the published code.
    cfg.SOLVER.HEAD_LR_FACTOR = 1.0
    # "SGD" (with MOMENTUM and NESTEROV) or "AdamW". With AdamW what has one dimension, and what a
    # timm network exempts (position embeddings, tokens, tables of relative positions), has
    # WEIGHT_DECAY_NORM, which is 0 in Detectron2; biases too, unless WEIGHT_DECAY_BIAS is set.
    cfg.SOLVER.OPTIMIZER = "SGD"
    # Learning rate of each layer of a timm network as a multiple of that of the next one; that of
    # the last is this multiple of BASE_LR. What a layer is, timm says (its group_matcher): mostly a
    # block. 1 trains all layers alike.
    cfg.SOLVER.LAYER_DECAY = 1.0
    # Number of model_<iteration>.pth that are kept, the last ones; 0 for all. model_final.pth and
    # model_best.pth always are.
    cfg.SOLVER.CHECKPOINTS_TO_KEEP = 0
    # Precision of SOLVER.AMP.ENABLED: "float16" (GPUs alone, with loss scaling), "bfloat16", or
    # "auto": float16 on a GPU, bfloat16 on a CPU.
    cfg.SOLVER.AMP.PRECISION = "auto"
    # Losses are gathered from all processes, logged and checked to be finite every so many
    # iterations; in the others the CPU does not wait for the GPU.
    cfg.SOLVER.GATHER_METRIC_PERIOD = 1
    # SOLVER.LR_SCHEDULER_NAME "WarmupPolyLR" (Detectron2's DeepLab project) alone: the learning
    # rate is BASE_LR * (1 - iteration / MAX_ITER) ** POLY_LR_POWER, but at least the share
    # POLY_LR_CONSTANT_ENDING of BASE_LR.
    cfg.SOLVER.POLY_LR_POWER = 0.9
    cfg.SOLVER.POLY_LR_CONSTANT_ENDING = 0.0


def _add_ema(cfg: CN) -> None:
    """Averaging of the weights."""
    # Keep an exponential moving average of the weights, and of the statistics of batch norms. It is
    # what is evaluated, what "model" in every checkpoint is, and so what predictions and other
    # trainings read. The weights that are trained lie beside it, and --resume goes on with both.
    cfg.MODEL.EMA = CN()
    cfg.MODEL.EMA.ENABLED = False
    # After each iteration: average = DECAY * average + (1 - DECAY) * weights. It looks back over
    # about 1 / (1 - DECAY) iterations.
    cfg.MODEL.EMA.DECAY = 0.999


def _add_test(cfg: CN) -> None:
    """Evaluation and prediction."""
    # Write the predictions of an evaluation to OUTPUT_DIR/inference/<data set>: panoptic ones in
    # the format of the panopticapi command, semantic-only ones as PNGs in the labels of the data
    # set's files, which is what the server of Cityscapes takes.
    cfg.TEST.SAVE_PREDICTIONS = False

    # Metric of the evaluations during training by which model_best.pth is kept, the highest value
    # being the best: "panoptic_seg/PQ" or "sem_seg/mIoU", say, after the name of the data set where
    # DATASETS.TEST has several. "" for none.
    cfg.TEST.BEST_CHECKPOINT = ""

    # Evaluate, draw and predict with a copy of the model that is made for inference
    # (modeling/inference_model.py): norms folded into convolutions, channels-last memory. Same
    # results; False is the model as it is trained.
    cfg.TEST.OPTIMIZED = True
    # Precision of it: "float32", "bfloat16" (for CPUs with such instructions, and GPUs), or
    # "float16" (GPUs). What it changes: docs/inference.md.
    cfg.TEST.PRECISION = "float32"

    # OCRSemanticSegmentor and SegFix, at test time (modeling/inference.py). Logits are averaged
    # over these factors on the size of the image (or blended, MODEL.HMSA), and with those of the
    # image mirrored left to right.
    cfg.TEST.SCALES = [1.0]
    cfg.TEST.FLIP = False
    # Height and width in pixels, at every scale, of the windows that the network sees, and the
    # steps between them. [] for both: the whole image at once.
    cfg.TEST.SLIDING_WINDOW = CN()
    cfg.TEST.SLIDING_WINDOW.SIZE = []
    cfg.TEST.SLIDING_WINDOW.STRIDE = []
    # Device of the running sum of several scales or windows, all classes at full resolution.
    # "": that of the model; "cpu" where its memory is too small.
    cfg.TEST.ACCUMULATOR_DEVICE = ""

    # Refine what a PanopticFPN or OCRSemanticSegmentor predicts, in evaluations, demo.py and
    # ocr-panoptic predict, by the offsets of a trained SegFix: its weights, "" for none. Labels and
    # segments move by SCALE offsets.
    cfg.TEST.SEGFIX = CN()
    cfg.TEST.SEGFIX.WEIGHTS = ""
    # Its config; "" for config.yaml beside the weights, as a training leaves it.
    cfg.TEST.SEGFIX.CONFIG_FILE = ""
    cfg.TEST.SEGFIX.SCALE = 2
