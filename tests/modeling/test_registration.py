"""What ``import ocr_panoptic`` alone, in a process of its own, registers with Detectron2."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_importing_the_keys_registers_all_that_configs_name():
    program = """
from detectron2.config import get_cfg
from ocr_panoptic import add_ocr_config
add_ocr_config(get_cfg())
from detectron2.modeling import BACKBONE_REGISTRY, META_ARCH_REGISTRY, SEM_SEG_HEADS_REGISTRY
for name in ("build_dilated_resnet_backbone", "build_timm_backbone"): BACKBONE_REGISTRY.get(name)
META_ARCH_REGISTRY.get("OCRSemanticSegmentor")
for name in ("ContextSemSegHead", "OCRSemSegFPNHead"): SEM_SEG_HEADS_REGISTRY.get(name)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
