"""Measure parameters, FLOPs, memory and time of context schemes and backbones."""
