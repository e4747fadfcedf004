"""The keys whose values a trained model takes from its training."""

from ocr_panoptic.config.files import values_by_key
from ocr_panoptic.config.keys import is_fixed
from ocr_panoptic.engine import load_config

# Section -> its keys that a trained model may be used with at another value.
NOT_FIXED = {
    "": "DEVICE TRUST_PICKLE WEIGHTS WEIGHTS_BY_CLASS WEIGHTS_MIN_SHARE",
    "BACKBONE.": "FREEZE_AT",
    "EMA.": "DECAY ENABLED",
    "HMSA.": "SCALE_LOSS_WEIGHT",
    "OCR.": "COARSE_LOSS_WEIGHT COARSE_START DROPOUT RECOMPUTE",
    "PANOPTIC_FPN.": "INSTANCE_LOSS_WEIGHT",
    "PANOPTIC_FPN.COMBINE.": "CLASS_CONFIDENCE CLASS_STUFF_AREA ENABLED OVERLAP_THRESH "
    "INSTANCES_CONFIDENCE_THRESH STUFF_AREA_LIMIT",
    "RETINANET.": "BBOX_REG_LOSS_TYPE FOCAL_LOSS_ALPHA FOCAL_LOSS_GAMMA IOU_LABELS IOU_THRESHOLDS "
    "NMS_THRESH_TEST SCORE_THRESH_TEST SMOOTH_L1_LOSS_BETA TOPK_CANDIDATES_TEST",
    "ROI_BOX_HEAD.": "BBOX_REG_LOSS_TYPE BBOX_REG_LOSS_WEIGHT FED_LOSS_FREQ_WEIGHT_POWER "
    "FED_LOSS_NUM_CLASSES SMOOTH_L1_BETA TRAIN_ON_PRED_BOXES USE_FED_LOSS",
    "ROI_HEADS.": "BATCH_SIZE_PER_IMAGE IOU_LABELS IOU_THRESHOLDS NMS_THRESH_TEST "
    "POSITIVE_FRACTION PROPOSAL_APPEND_GT SCORE_THRESH_TEST",
    "ROI_KEYPOINT_HEAD.": "LOSS_WEIGHT NORMALIZE_LOSS_BY_VISIBLE_KEYPOINTS",
    "RPN.": "BATCH_SIZE_PER_IMAGE BBOX_REG_LOSS_TYPE BBOX_REG_LOSS_WEIGHT BOUNDARY_THRESH "
    "IOU_LABELS IOU_THRESHOLDS LOSS_WEIGHT NMS_THRESH POSITIVE_FRACTION POST_NMS_TOPK_TEST "
    "POST_NMS_TOPK_TRAIN PRE_NMS_TOPK_TEST PRE_NMS_TOPK_TRAIN SMOOTH_L1_BETA",
    "SEM_SEG_HEAD.": "CLASS_WEIGHTS COARSE_DROPOUT COARSE_LOSS_TYPE IGNORE_VALUE LOSS_TYPE "
    "LOSS_WEIGHT OHEM_MIN_KEPT OHEM_THRESHOLD",
    "TIMM.": "DROP_PATH FROZEN",
}


def test_keys_of_the_architecture_and_the_images_channels_are_fixed():
    keys = values_by_key(load_config("", []))
    free = {f"MODEL.{part}{name}" for part, names in NOT_FIXED.items() for name in names.split()}
    fixed = {key for key in keys if key.startswith("MODEL.")} - free
    assert {key for key in keys if is_fixed(key)} == fixed | {"INPUT.FORMAT", "INPUT.CHANNELS"}
    assert free < keys.keys()
