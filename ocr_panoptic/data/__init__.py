"""Data sets: files that describe them, check, registration with Detectron2, and loading.

The check of data, and import from other formats, start without PyTorch.
"""
