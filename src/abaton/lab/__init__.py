"""Experiments: partitions, heterogeneity, data sets, the papers' tables and figures."""
