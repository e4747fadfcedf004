from .checkpointer import SafeCheckpointer

__all__ = ["SafeCheckpointer"]
