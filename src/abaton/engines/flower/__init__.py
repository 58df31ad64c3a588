"""Real networks: the same run over Flower, which carries the messages; nothing here imports it before it is used."""

from abaton.engines.flower.flower_engine import FlowerEngine, Network
from abaton.engines.flower.flower_messages import Lost, Parcel, Post

__all__ = ["FlowerEngine", "Lost", "Network", "Parcel", "Post"]
