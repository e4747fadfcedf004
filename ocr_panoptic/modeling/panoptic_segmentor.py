"""The meta-architecture for panoptic segmentation."""

from detectron2.config import CfgNode, configurable
from detectron2.modeling import META_ARCH_REGISTRY
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN

from ocr_panoptic.errors import UserError

from .panoptic_merge import MergeRules, rules_of_config
from .refined_head import check_features


@META_ARCH_REGISTRY.register()
class PanopticSegmentor(PanopticFPN):
    """
    Detectron2's ``PanopticFPN`` with merge thresholds for each class and test-time augmentation.

    Parameters and float32 results are the same as in ``PanopticFPN``. The configs also name
    :class:`.ExactROIHeads` and :class:`.ExactMaskHead`, so that the coordinates of boxes and of
    pasted masks stay float32 in mixed precision.

    Args:
        merge_rules: thresholds for merging instances and semantic labels.
        augmentation: config that sets TEST.AUG; None for no test-time augmentation.
    """

    @configurable
    def __init__(self, *, merge_rules: MergeRules, augmentation: CfgNode | None = None, **kwargs):
        super().__init__(**kwargs)
        self.merge_rules, self.augmentation = merge_rules, augmentation

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        try:
            parts = super().from_config(cfg)
        except KeyError as error:  # Detectron2's error does not name the config key
            for section in ("FPN", "RPN", "ROI_HEADS"):
                if error.args[0] in (names := cfg.MODEL[section].IN_FEATURES):
                    raise UserError(
                        f"MODEL.{section}.IN_FEATURES is {names}, but the backbone has no feature "
                        f"{error}"
                    ) from error
            raise
        # Detectron2's semantic head leaves out unknown names.
        names = cfg.MODEL.SEM_SEG_HEAD.IN_FEATURES
        check_features("MODEL.SEM_SEG_HEAD.IN_FEATURES", names, parts["backbone"].output_shape())
        return {
            **parts,
            "merge_rules": rules_of_config(cfg),
            "augmentation": cfg.clone() if cfg.TEST.AUG.ENABLED else None,
        }
