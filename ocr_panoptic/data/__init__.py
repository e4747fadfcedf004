"""
Data sets: description files, checks, registration with Detectron2, and loading.

The data check and the conversion of other annotation formats work without loading PyTorch.
"""
