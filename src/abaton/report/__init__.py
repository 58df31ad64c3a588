"""Figures and pages about studies and runs: pure functions from rows and arrays to pictures."""

from abaton.report.codecs import accuracy_curves, error_curves, heat_maps, kernel_map

__all__ = ["accuracy_curves", "error_curves", "heat_maps", "kernel_map"]
