"""Learners and evaluators: local training on one site's data."""
