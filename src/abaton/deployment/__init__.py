"""What a finished run is good for: its model as a file that other programs use."""

from abaton.deployment.model_card import card_of
from abaton.results.export import FORMS, export
from abaton.deployment.prediction import Predictions, Unfit, predict
from abaton.deployment.portable_model import Layer, UsableModel, usable
from abaton.results.weights import load_model

__all__ = [
    "FORMS",
    "Layer",
    "Predictions",
    "Unfit",
    "UsableModel",
    "card_of",
    "export",
    "load_model",
    "predict",
    "usable",
]
