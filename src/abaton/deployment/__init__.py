"""What a finished run is good for: its model as a file that other programs use."""

from abaton.deployment.model_card import card_of
from abaton.deployment.model_export import FORMS, export, load_model
from abaton.deployment.portable_model import Layer, UsableModel, usable
from abaton.deployment.prediction import Predictions, Unfit, predict

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
