"""Draws segments and heat maps over images."""
