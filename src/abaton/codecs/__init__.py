"""Updates to bytes and back: small, honest, safe to decode."""

from abaton.codecs.chain import Memory, Pipeline, Step, chain
from abaton.codecs.contract import Accumulator, Codec, Key, Purpose
from abaton.codecs.raw import Raw
from abaton.codecs.spec import parse

__all__ = [
    "Accumulator",
    "Codec",
    "Key",
    "Memory",
    "Pipeline",
    "Purpose",
    "Raw",
    "Step",
    "chain",
    "parse",
]
