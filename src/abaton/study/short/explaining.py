"""What was derived from the short parts of a study, a line for each part, for whoever wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abaton.documents.line_numbers import KeyPath
from abaton.documents.problems import dotted
from abaton.study.short.expanding import Expanded
from abaton.study.summary import input_words, label_words, requirement_words, source_words, view_words

if TYPE_CHECKING:
    from abaton.study.document import Study


@dataclass(frozen=True, slots=True)
class Derived:
    """One derived part: the line and key that it comes from, and what it is in words."""

    line: int
    key: str
    words: str


def explained(study: Study, made: Expanded, line: Callable[[KeyPath], int]) -> Iterator[Derived]:
    """Every derived part of a study: what each short line became, in the order of the long form."""

    def told(path: KeyPath, words: str) -> Iterator[Derived]:
        written = made.origins.get(path)
        if written is not None and written != path:
            yield Derived(line(written), dotted(written), words)

    yield from told(("contacts",), f"contact: {', '.join(str(each.name) for each in study.contacts)}")
    for i, need in enumerate(study.data):
        yield from told(("data", i), f"may be known: {requirement_words(need)}")
    for i, view in enumerate(study.views):
        yield from told(("views", i), f"standard view {view_words(view)}")
    if features := study.features:
        if features.index:
            yield from told(("features", "index"), f"index date: {source_words(features.index)}")
        for i, each in enumerate(features.inputs):
            path: KeyPath = ("features", "inputs", i)
            if made.origins.get(path, ("",))[0] != "features":  # a long input that only moved
                yield from told(path, f"input {each.name}: {input_words(each)}")
        yield from told(("features", "label"), label_words(features.label))
    if study.consent:
        names = ", ".join(each.value for each in study.consent.statements)
        yield from told(("consent", "statements"), f"people are told, in proposed words: {names}")
