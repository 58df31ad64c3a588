"""The codec line of a study, for example ``clip(norm=1.0) | error_feedback | stc(sparsity=0.01)``.

Steps come first, the codec last, ``|`` between them. Settings are given by name; their values are numbers
or plain words. The line is read as data and never run. A new codec or step is one file and one name below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from abaton.codecs.ecdq import Ecdq
from abaton.codecs.eden import Drive, Eden
from abaton.codecs.float_formats import Fp16, Raw
from abaton.codecs.hadamard import Hadamard
from abaton.codecs.kashin import Kashin
from abaton.codecs.pipeline import Pipeline, chain
from abaton.codecs.qsgd import Qsgd
from abaton.codecs.quicfl import QuicFL
from abaton.codecs.sstc import Sstc
from abaton.codecs.stc import Stc
from abaton.codecs.transforms import Clip, ErrorFeedback, GaussianNoise
from abaton.errors import SettingsError
from abaton.specs import Named, find, make, read_line

CODECS: Mapping[str, type[Any]] = {
    codec.name: codec for codec in (Raw, Fp16, Stc, Sstc, QuicFL, Ecdq, Eden, Drive, Hadamard, Kashin, Qsgd)
}
STEPS: Mapping[str, type[Any]] = {step.name: step for step in (Clip, GaussianNoise, ErrorFeedback)}

Part = Callable[..., Any]
"""A class of codecs or steps, or a function that makes one of its settings."""


def parse(text: str, own: Mapping[str, Part] | None = None) -> Pipeline:
    """The pipeline that a codec line names.

    Args:
        text: the line.
        own: codecs and steps of your own by their names, besides those that ship with Abaton.

    >>> parse("stc(sparsity=0.01, coding=context)").spec
    'stc(sparsity=0.01, coding=context)'
    >>> parse("stc")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    abaton.errors.SettingsError: stc needs 'sparsity' (codec line 'stc'): its settings are sparsity, ...
    """
    try:
        more = own or {}
        *steps, codec = read_line(text)
        return chain(
            *(_make(step, STEPS, more, "step") for step in steps), _make(codec, CODECS, more, "codec")
        )
    except SettingsError as error:
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise SettingsError(error.what, where=f"codec line '{shown}'", remedy=error.remedy) from None


def _make(part: Named, ours: Mapping[str, type[Any]], own: Mapping[str, Part], what: str) -> Any:
    if part.numbers:
        raise SettingsError(
            f"{part.name} has a setting without a name", remedy="write settings as sparsity=0.01"
        )
    return make(part.name, find(what, part.name, {**ours, **own}), part.settings)
