"""A page of invented results."""

import pytest
from detectron2.data import Metadata

from ocr_panoptic.workbench.looking.figures import ImageFigures, Picture, Relation
from ocr_panoptic.workbench.looking.report import render_report

TASKS = {
    "panoptic_seg": {"PQ": 71.23, "SQ": 82.34, "RQ": 83.45, "PQ_th": 64.56, "PQ_st": 95.67},
    "sem_seg": {"mIoU": 76.78, "fwIoU": 87.89, "pACC": 98.91},
    "bbox": {"AP": 51.12},
    "segm": {"AP": None},
}
PIXEL = "data:image/jpeg;base64,AAAA"


def log(*keys: str) -> list[dict[str, float]]:
    return [{"iteration": i, **{k: 2.0 / (i + 1) for k in keys}} for i in (19, 39, 59)]


@pytest.fixture(scope="session")
def render():
    """Return a function that renders the page with a text in all places, and with changes."""
    pages = {}

    def make(evil: str = "ball", **changes) -> str:
        if not changes and evil in pages:
            return pages[evil]
        metadata = Metadata(
            name="report",
            thing_classes=[evil],
            thing_colors=[[220, 0, 0]],
            stuff_classes=["things", "sky"],
            stuff_colors=[[80, 0, 120], [0, 120, 240]],
        )
        classes = {
            "panoptic_seg": {"PQ-sky": 95.67, "TP-sky": 12, "isthing-sky": 0}
            | {f"PQ-{evil}": 47.11, f"FN-{evil}": 3, f"isthing-{evil}": 1}
            | {"TP-absent": 0, "FP-absent": 0, "FN-absent": 0, "isthing-absent": 1},
            "sem_seg": {"IoU-sky": 93.2, "IoU-things": 0.0, "ACC-things": None},
            "bbox": {f"AP-{evil}": 51.12},
        }
        tasks = {task: values | classes.get(task, {}) for task, values in TASKS.items()}
        picture = Picture(evil, f"caption {evil}", PIXEL, "rgb(1,2,3)")
        arguments = dict(
            title=f"Title {evil}",
            description=f"Description {evil}",
            dataset=f"dataset {evil}",
            results=tasks,
            training_log=log("total_loss", "loss_sem_seg", "loss_sem_seg_coarse", "loss_mask"),
            images=[
                ImageFigures(
                    f"{evil}.jpg",
                    [picture],
                    [picture],
                    [(evil, "rgb(1,2,3)")],
                    Relation(PIXEL, evil, [(evil, "rgb(1,2,3)", 61.8)]),
                )
            ],
            metadata=metadata,
            settings={"seed": 17, f"name {evil}": f"value {evil}"},
        )
        page = render_report(**{**arguments, **changes})
        return page if changes else pages.setdefault(evil, page)

    return make
