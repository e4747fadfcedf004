from .figures import ImageFigures, image_figures, png_source
from .ground_truth import panoptic_truth, semantic_truth
from .inputs import find_images, output_paths
from .predictions import draw_images, draw_video
from .ranking import RankedImage, ranked_images
from .report import render_report
from .scene import Inspection, Segments
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
    "image_figures",
    "output_paths",
    "panoptic_truth",
    "png_source",
    "ranked_images",
    "render_report",
    "semantic_truth",
    "video_output",
]
