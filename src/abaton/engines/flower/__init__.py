"""Flower engine for networks of sites; Flower is imported on first use."""

from abaton.engines.flower.flower_engine import FlowerEngine, FlowerNetwork
from abaton.engines.flower.flower_messages import Message, MessageLost, MessageTransport

__all__ = ["FlowerEngine", "FlowerNetwork", "Message", "MessageLost", "MessageTransport"]
