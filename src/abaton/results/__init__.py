"""What a finished run is good for: its model as a file that other programs use."""

from abaton.results.card import card_of
from abaton.results.card_pages import card_markdown, card_page
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
    "card_markdown",
    "card_of",
    "card_page",
    "export",
    "load_model",
    "predict",
    "usable",
]
