"""Deployment of a trained model: export, predictions for new patients, model card."""

from abaton.deployment.model_card import make_model_card
from abaton.deployment.model_export import EXPORT_FORMATS, export_model, load_model
from abaton.deployment.portable_model import PortableLayer, PortableModel, to_portable_model
from abaton.deployment.prediction import NotApplicableError, Predictions, predict

__all__ = [
    "EXPORT_FORMATS",
    "NotApplicableError",
    "PortableLayer",
    "PortableModel",
    "Predictions",
    "export_model",
    "load_model",
    "make_model_card",
    "predict",
    "to_portable_model",
]
