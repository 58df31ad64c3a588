"""What a finished run is good for: its model as a file that other programs use."""

from abaton.results.card import card_of
from abaton.results.export import FORMS, export
from abaton.results.predicting import Predictions, Unfit, predict
from abaton.results.usable import Layer, UsableModel, usable
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
