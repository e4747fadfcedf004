"""Draws pictures of segments and weights, independently of any model."""
