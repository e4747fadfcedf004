from .launch import launch
from .trainer import ResumableTrainer

__all__ = ["ResumableTrainer", "launch"]
