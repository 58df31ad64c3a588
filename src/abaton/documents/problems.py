"""What is wrong with a document: every problem with its place and its remedy."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from abaton.documents.line_numbers import KeyPath
from abaton.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where it is, what it is, and what to do."""

    file: str
    key: str
    what: str
    remedy: str = ""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{place}: {self.key + ': ' if self.key else ''}{self.what}" + (
            f"; {self.remedy}" if self.remedy else ""
        )


class DocumentError(SettingsError):
    """A document that cannot be used, with every problem found in it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        first, more = problems[0], len(problems) - 1
        what = f"{first.key + ': ' if first.key else ''}{first.what}"
        place = ":".join(str(part) for part in (first.file, first.line, first.column) if part is not None)
        rest = f" (and {more} more{self.all_told(first.file)})" if more else ""
        super().__init__(what, where=place, remedy=(first.remedy or "correct the document") + rest)

    @classmethod
    def all_told(cls, file: str) -> str:
        """How to see every problem, said at the end of the first."""
        return ""


class Guide(NamedTuple):
    """Where a person finds the keys of a document: the command that writes an example, and the page.

    ``more`` are sections that a document may have beyond its model, because something else is made of them.
    """

    example: str
    page: str
    more: tuple[str, ...] = ()


def problems_of(
    error: ValidationError,
    model: type[BaseModel],
    place: Callable[[KeyPath], tuple[str, int | None]],
    file: str,
    guide: Guide,
) -> list[Problem]:
    """The problems behind a validation error, in the words of the document.

    Args:
        error: What pydantic found.
        model: The model that was checked, for the names of its keys.
        place: From a key path to how the file names it and, if the file has lines, its line.
        file: The file's name.
        guide: Where the keys of this kind of document are explained.

    Returns:
        One problem per finding, in the order of the file.
    """
    found = []
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and detail["input"]:
            continue  # the items are there, each with its own problem
        within, context = tuple(detail["loc"]), detail.get("ctx", {})
        told = [(context.get("path", ()), *_told(detail, model, guide)), *context.get("more", ())]
        for inner, what, remedy in told:
            key, line = place(within + tuple(inner))
            found.append(Problem(file, key, what, remedy, line))
    return sorted(found, key=lambda problem: problem.line or 0)


def dotted(path: KeyPath) -> str:
    """A key path as people write it.

    >>> dotted(("data", 1, "type"))
    'data[1].type'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _told(detail: ErrorDetails, model: type[BaseModel], guide: Guide) -> tuple[str, str]:
    kind, context, path = detail["type"], detail.get("ctx", {}), tuple(detail["loc"])
    name = path[-1] if path else "the document"
    if kind == "document":
        return str(context["what"]), str(context["remedy"])
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = [*keys_at(model, path[:-1]), *(guide.more if len(path) == 1 else ())]
        close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
        guess = f"did you mean '{close[0]}'?" if close else f"known keys here are {', '.join(known)}"
        return f"'{name}' is not a known key", guess
    if kind == "missing":
        return f"'{name}' is missing", f"add it; '{guide.example}' writes an example of every section"
    if kind in ("enum", "literal_error"):
        return _choice(detail, str(context["expected"]))
    if kind.startswith("date"):
        return "this is not a date", "write it as YYYY-MM-DD"
    if kind == "string_pattern_mismatch":
        return "this text does not have the form that is asked for", f"it must match {context['pattern']}"
    if kind == "too_short":
        return "the list is empty", "give at least one"
    return _plain(detail["msg"]), f"see {guide.page}"


def _choice(detail: ErrorDetails, expected: str) -> tuple[str, str]:
    choices = [choice.strip(" '") for choice in expected.replace(" or ", ",").split(",")]
    close = difflib.get_close_matches(str(detail.get("input")), choices, n=1, cutoff=0.6)
    guess = f"did you mean '{close[0]}'? " if close else ""
    return "this value is not one of those allowed", f"{guess}choose {', '.join(choices)}"


def _plain(message: str) -> str:
    text = message[:1].lower() + message[1:]
    return text.replace("input should be", "this must be").replace("a valid", "a").replace("string", "text")


def keys_at(model: Any, path: KeyPath) -> list[str]:
    """The keys that a table at a path may have."""
    for part in path:
        if isinstance(part, int):
            continue
        if get_origin(model) is dict:  # whatever its keys are, their values are alike
            model = _inside(get_args(model)[1])
            continue
        fields = _fields(model)
        if part not in fields:
            return []
        model = _inside(fields[part])
    return list(_fields(model))


def _fields(model: Any) -> dict[str, Any]:
    if isinstance(model, type) and issubclass(model, BaseModel):
        return {name: info.annotation for name, info in model.model_fields.items()}
    if dataclasses.is_dataclass(model):
        from typing import get_type_hints

        return dict(get_type_hints(model))
    return {}


def _inside(annotation: Any) -> Any:
    """The model inside Optional, Annotated and tuple."""
    origin = get_origin(annotation)
    if origin is Annotated or origin is tuple:
        return _inside(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _inside(next(arg for arg in get_args(annotation) if arg is not type(None)))
    return annotation
