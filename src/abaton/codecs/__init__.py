"""Update codecs: updates as payloads and back."""

from abaton.codecs.base import Accumulator, Codec, CodecKey, KeyPurpose
from abaton.codecs.downlink import Downlink, ModelDelta, apply_deltas, make_downlink, missing_deltas
from abaton.codecs.ecdq import Ecdq
from abaton.codecs.eden import Drive, Eden
from abaton.codecs.float_formats import Fp16, RawCodec
from abaton.codecs.hadamard import Hadamard
from abaton.codecs.kashin import Kashin
from abaton.codecs.pipeline import CodecPipeline, Transform, TransformState, build_pipeline
from abaton.codecs.qsgd import Qsgd
from abaton.codecs.quicfl import QuicFL
from abaton.codecs.registry import parse_codec
from abaton.codecs.sstc import Sstc
from abaton.codecs.stc import Stc
from abaton.codecs.tcdq import Tcdq
from abaton.codecs.transforms import Clip, ErrorFeedback, GaussianNoise, with_error_feedback

__all__ = [
    "Accumulator",
    "Clip",
    "Codec",
    "CodecKey",
    "CodecPipeline",
    "Downlink",
    "Drive",
    "Ecdq",
    "Eden",
    "ErrorFeedback",
    "Fp16",
    "GaussianNoise",
    "Hadamard",
    "Kashin",
    "KeyPurpose",
    "ModelDelta",
    "Qsgd",
    "QuicFL",
    "RawCodec",
    "Sstc",
    "Stc",
    "Tcdq",
    "Transform",
    "TransformState",
    "apply_deltas",
    "build_pipeline",
    "make_downlink",
    "missing_deltas",
    "parse_codec",
    "with_error_feedback",
]
