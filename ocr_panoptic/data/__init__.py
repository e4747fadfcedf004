"""
Data sets: the files that describe them, their check, registration with Detectron2, and loading.

The check of data and the import from other formats start without PyTorch.
"""
