"""Updates to bytes and back: small, honest, safe to decode."""

from abaton.codecs.chain import Memory, Pipeline, Step, chain
from abaton.codecs.contract import Accumulator, Codec, Key, Purpose
from abaton.codecs.downlink import Difference, Downlink, Parcel, receive
from abaton.codecs.fp16 import Fp16
from abaton.codecs.raw import Raw
from abaton.codecs.spec import CODECS, STEPS, parse
from abaton.codecs.sstc import Sstc
from abaton.codecs.stc import Stc
from abaton.codecs.steps import Clip, ErrorFeedback, GaussianNoise, with_error_feedback

__all__ = [
    "CODECS",
    "STEPS",
    "Accumulator",
    "Clip",
    "Codec",
    "Difference",
    "Downlink",
    "ErrorFeedback",
    "Fp16",
    "GaussianNoise",
    "Key",
    "Memory",
    "Parcel",
    "Pipeline",
    "Purpose",
    "Raw",
    "Sstc",
    "Stc",
    "Step",
    "chain",
    "parse",
    "receive",
    "with_error_feedback",
]
