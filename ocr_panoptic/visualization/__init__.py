"""Draws pictures and pages, without knowing any model."""
