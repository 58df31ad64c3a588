"""Updates to bytes and back: small, honest, safe to decode."""

from abaton.codecs.base import Accumulator, Codec, Key, KeyPurpose
from abaton.codecs.downlink import Difference, Downlink, downlink_of, follow, lacking
from abaton.codecs.ecdq import Ecdq
from abaton.codecs.eden import Drive, Eden
from abaton.codecs.float_formats import Fp16, Raw
from abaton.codecs.hadamard import Hadamard
from abaton.codecs.kashin import Kashin
from abaton.codecs.pipeline import Memory, Pipeline, Step, chain
from abaton.codecs.qsgd import Qsgd
from abaton.codecs.quicfl import QuicFL
from abaton.codecs.registry import parse
from abaton.codecs.sstc import Sstc
from abaton.codecs.stc import Stc
from abaton.codecs.transforms import Clip, ErrorFeedback, GaussianNoise, with_error_feedback

__all__ = [
    "Accumulator",
    "Clip",
    "Codec",
    "Difference",
    "Downlink",
    "Drive",
    "Ecdq",
    "Eden",
    "ErrorFeedback",
    "Fp16",
    "GaussianNoise",
    "Hadamard",
    "Kashin",
    "Key",
    "KeyPurpose",
    "Memory",
    "Pipeline",
    "Qsgd",
    "QuicFL",
    "Raw",
    "Sstc",
    "Stc",
    "Step",
    "chain",
    "downlink_of",
    "follow",
    "lacking",
    "parse",
    "with_error_feedback",
]
