from .figures import ImageFigures, image_figures, png_source
from .ground_truth import PanopticTruth, semantic_truth
from .inputs import find_images, output_paths, read_image
from .predictions import draw_images, draw_prediction, draw_video
from .report import render_report
from .run_records import Evaluation, read_evaluation, read_training_log
from .scene import Inspection, Segments
from .study_tables import study_curves, study_table
from .video import VideoReader, video_output

__all__ = [
    "Evaluation",
    "ImageFigures",
    "Inspection",
    "PanopticTruth",
    "Segments",
    "VideoReader",
    "draw_images",
    "draw_prediction",
    "draw_video",
    "find_images",
    "image_figures",
    "output_paths",
    "png_source",
    "read_evaluation",
    "read_image",
    "read_training_log",
    "render_report",
    "semantic_truth",
    "study_curves",
    "study_table",
    "video_output",
]
