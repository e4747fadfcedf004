from .figures import ImageFigures, image_figures, png_source
from .ground_truth import panoptic_truth, semantic_truth
from .inputs import find_images, output_paths
from .predictions import draw_images, draw_video
from .ranking import RankedImage, ranked_images
from .report import render_report
from .scene import Inspection, Segments
from .study_figures import gain_figure, study_curves
from .study_tables import study_report
from .video import VideoReader, video_output

__all__ = [
    "ImageFigures",
    "Inspection",
    "RankedImage",
    "Segments",
    "VideoReader",
    "draw_images",
    "draw_video",
    "find_images",
    "gain_figure",
    "image_figures",
    "output_paths",
    "panoptic_truth",
    "png_source",
    "ranked_images",
    "render_report",
    "semantic_truth",
    "study_curves",
    "study_report",
    "video_output",
]
