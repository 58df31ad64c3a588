"""Codec names and the parser of codec specs such as ``clip(norm=1.0) | error_feedback | stc(sparsity=0.01)``.

Transforms come first, the codec last, separated by ``|``. Settings are given by name; their values are numbers
or words. A spec is parsed as data and not executed. A new codec or transform is one file and one name below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from abaton.codecs.ecdq import Ecdq
from abaton.codecs.eden import Drive, Eden
from abaton.codecs.float_formats import Fp16, RawCodec
from abaton.codecs.hadamard import Hadamard
from abaton.codecs.kashin import Kashin
from abaton.codecs.pipeline import CodecPipeline, build_pipeline
from abaton.codecs.qsgd import Qsgd
from abaton.codecs.quicfl import QuicFL
from abaton.codecs.sstc import Sstc
from abaton.codecs.stc import Stc
from abaton.codecs.tcdq import Tcdq
from abaton.codecs.transforms import Clip, ErrorFeedback, GaussianNoise
from abaton.errors import SettingsError
from abaton.specs import ComponentCall, build_component, parse_spec, resolve_name

CODECS: Mapping[str, type[Any]] = {
    codec.name: codec
    for codec in (RawCodec, Fp16, Stc, Sstc, QuicFL, Ecdq, Tcdq, Eden, Drive, Hadamard, Kashin, Qsgd)
}
TRANSFORMS: Mapping[str, type[Any]] = {
    transform.name: transform for transform in (Clip, GaussianNoise, ErrorFeedback)
}

ComponentFactory = Callable[..., Any]
"""A codec or transform class, or a function that builds one from its settings."""


def parse_codec(text: str, user_defined: Mapping[str, ComponentFactory] | None = None) -> CodecPipeline:
    """Return the pipeline of a codec spec, by the registered names of codecs and transforms.

    Args:
        text: The spec.
        user_defined: Codecs and transforms by name, in addition to the built-in ones.

    >>> parse_codec("stc(sparsity=0.01, coding=context)").spec
    'stc(sparsity=0.01, coding=context)'
    >>> parse_codec("stc")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    abaton.errors.SettingsError: stc needs 'sparsity' (codec 'stc'): its settings are sparsity, ...
    """
    try:
        extensions = user_defined or {}
        *transforms, codec = parse_spec(text)
        return build_pipeline(
            *(_build(transform, TRANSFORMS, extensions, "transform") for transform in transforms),
            _build(codec, CODECS, extensions, "codec"),
        )
    except SettingsError as error:
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise SettingsError(error.what, where=f"codec '{shown}'", remedy=error.remedy) from None


def _build(
    component: ComponentCall,
    builtin: Mapping[str, type[Any]],
    extensions: Mapping[str, ComponentFactory],
    kind: str,
) -> Any:
    if component.positional:
        raise SettingsError(
            f"{component.name} has a setting without a name",
            remedy="write settings as name=value, such as sparsity=0.01",
        )
    return build_component(
        component.name, resolve_name(kind, component.name, {**builtin, **extensions}), component.settings
    )
