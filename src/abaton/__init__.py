"""Abaton takes a health study from consent to community model."""

__version__ = "0.1.0"

__all__ = ["__version__"]
