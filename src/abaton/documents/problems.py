"""Problems of documents, each with its location and remedy."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from abaton.documents.line_numbers import KeyPath
from abaton.errors import SettingsError, did_you_mean, shorten_name

MAX_PROBLEMS = 100
"""Number of problems that are listed of one document."""


@dataclass(frozen=True, slots=True)
class DocumentProblem:
    """One problem: where it is, what it is, and a remedy."""

    file: str
    key: str
    what: str
    remedy: str = ""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        location = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{location}: {self.key + ': ' if self.key else ''}{self.what}" + (
            f"; {self.remedy}" if self.remedy else ""
        )


class DocumentError(SettingsError):
    """Invalid document, with every problem found in it."""

    def __init__(self, problems: Sequence[DocumentProblem]) -> None:
        self.problems = tuple(problems)
        first, more = problems[0], len(problems) - 1
        what = f"{first.key + ': ' if first.key else ''}{first.what}"
        location = ":".join(str(part) for part in (first.file, first.line, first.column) if part is not None)
        suffix = f" (and {more} more{self.show_all_hint(first.file)})" if more else ""
        super().__init__(what, where=location, remedy=(first.remedy or "correct the document") + suffix)

    @classmethod
    def show_all_hint(cls, file: str) -> str:
        """Return a hint, appended to the first problem of a document, on how to list all problems."""
        return ""


class DocumentHelp(NamedTuple):
    """Help for the keys of a document: the command that writes an example, and the documentation page.

    ``extra_sections`` are sections that a document may have besides those of its model.
    """

    example: str
    page: str
    extra_sections: tuple[str, ...] = ()


def to_problems(
    error: ValidationError,
    model: type[BaseModel],
    locate: Callable[[KeyPath], tuple[str, int | None]],
    file: str,
    guide: DocumentHelp,
) -> list[DocumentProblem]:
    """Convert a pydantic validation error to problems with the document's keys and lines.

    Args:
        error: The validation error.
        model: The validated model, for the names of its keys.
        locate: Function from a key path to its text in the file and, if the file has lines, its line.
        file: The file's name.
        guide: Help for the keys of this document.

    Returns:
        One problem per error, in the order of the file.
    """
    problems: list[DocumentProblem] = []
    omitted = 0
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and detail["input"]:
            continue  # the items have problems of their own
        path, context = tuple(detail["loc"]), detail.get("ctx", {})
        more = context.get("more", ())
        if len(problems) >= MAX_PROBLEMS:
            omitted += 1 + len(more)
            continue
        entries = [(context.get("path", ()), *_describe(detail, model, guide)), *more]
        room = MAX_PROBLEMS - len(problems)
        for inner, what, remedy in entries[:room]:
            key, line = locate(path + tuple(inner))
            problems.append(DocumentProblem(file, key, what, remedy, line))
        omitted += len(entries[room:])
    problems.sort(key=lambda problem: problem.line or 0)
    if omitted:
        remedy = "correct the others first"
        problems.append(DocumentProblem(file, "", f"{omitted:,} further problems are not listed", remedy))
    return problems


def format_key_path(path: KeyPath) -> str:
    """Format the key path of a document's problem as dotted text; long and unprintable keys are shortened.

    >>> format_key_path(("data", 1, "type"))
    'data[1].type'
    """
    return join_key_path("", path).removeprefix(".")


def join_key_path(start: str, path: KeyPath) -> str:
    """Return a location of a document's problem and the keys below it as dotted text."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{shorten_name(part)}" for part in path)
    return start + "".join(parts)


def _describe(detail: ErrorDetails, model: type[BaseModel], guide: DocumentHelp) -> tuple[str, str]:
    kind, context, path = detail["type"], detail.get("ctx", {}), tuple(detail["loc"])
    name = str(path[-1]) if path else "the document"
    if kind == "document":
        return str(context["what"]), str(context["remedy"])
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = [*keys_at(model, path[:-1]), *(guide.extra_sections if len(path) == 1 else ())]
        guess = did_you_mean(name, known, f"known keys are {', '.join(known)}")
        return f"'{shorten_name(name)}' is not a known key", guess
    if kind == "missing":
        return (
            f"'{shorten_name(name)}' is missing",
            f"add it; '{guide.example}' writes an example of every section",
        )
    if kind in ("enum", "literal_error"):
        return _describe_choice(detail, str(context["expected"]))
    if kind.startswith("date"):
        return "this is not a date", "write it as YYYY-MM-DD"
    if kind == "string_pattern_mismatch":
        return "this text does not have the required form", f"match {context['pattern']}"
    if kind == "too_short":
        return "the list is empty", "give at least one"
    return _plain_message(detail["msg"]), f"see {guide.page}"


def _describe_choice(detail: ErrorDetails, expected: str) -> tuple[str, str]:
    choices = [choice.strip(" '") for choice in expected.replace(" or ", ",").split(",")]
    guess = did_you_mean(str(detail.get("input")), choices)
    return "this value is not one of the allowed ones", f"{guess} choose {', '.join(choices)}".strip()


def _plain_message(message: str) -> str:
    text = message[:1].lower() + message[1:]
    return text.replace("input should be", "this must be").replace("a valid", "a").replace("string", "text")


def keys_at(model: Any, path: KeyPath) -> list[str]:
    """Return the keys that a document's table at a path may have, to describe a problem."""
    for part in path:
        if isinstance(part, int):
            continue
        if get_origin(model) is dict:  # any key, values of one type
            model = _inner_model(get_args(model)[1])
            continue
        fields = _field_types(model)
        if part not in fields:
            return []
        model = _inner_model(fields[part])
    return list(_field_types(model))


def _field_types(model: Any) -> dict[str, Any]:
    if isinstance(model, type) and issubclass(model, BaseModel):
        return {name: info.annotation for name, info in model.model_fields.items()}
    if dataclasses.is_dataclass(model):
        from typing import get_type_hints

        return dict(get_type_hints(model))
    return {}


def _inner_model(annotation: Any) -> Any:
    """Return the pydantic model inside Optional, Annotated and tuple, to describe a document's problem."""
    origin = get_origin(annotation)
    if origin is Annotated or origin is tuple:
        return _inner_model(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _inner_model(next(arg for arg in get_args(annotation) if arg is not type(None)))
    return annotation
