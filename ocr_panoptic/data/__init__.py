"""
Data sets: description files, checks, registration with Detectron2, and loading.

Checking data, and importing data from other formats, does not import PyTorch.
"""
