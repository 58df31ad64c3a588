"""Compiled numerical kernels."""
