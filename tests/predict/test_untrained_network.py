"""ocr_panoptic.build gives the untrained network of a config, without data."""

import pytest
import torch

import ocr_panoptic

CONFIG = "Custom-PanopticSegmentation/panoptic_fpn_ocr_R_50"
COUNTS = {"MODEL.ROI_HEADS.NUM_CLASSES": 3, "MODEL.SEM_SEG_HEAD.NUM_CLASSES": 7}
SMALL = {"MODEL.RESNETS.RES2_OUT_CHANNELS": 32, "MODEL.ROI_BOX_HEAD.FC_DIM": 32}


def test_network_of_a_config():
    torch.manual_seed(0)
    network = ocr_panoptic.build(CONFIG, **COUNTS, **SMALL, **{"MODEL.DEVICE": "cpu"})
    assert type(network).__name__ == "PanopticSegmentor" and network.training
    assert network.sem_seg_head.refined_predictor.out_channels == 7
    with torch.no_grad():
        (found,) = network.eval()([{"image": torch.rand(3, 64, 96), "height": 50, "width": 75}])
    assert found["sem_seg"].shape == (7, 50, 75)


@pytest.mark.parametrize("key", COUNTS)
def test_classes_that_the_data_would_give(key):
    others = {name: count for name, count in COUNTS.items() if name != key}
    with pytest.raises(ValueError, match=f"from a data set, but .*Set {key},"):
        ocr_panoptic.build(CONFIG, **others)
