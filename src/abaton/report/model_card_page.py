"""The model card as a text: Markdown, or a page that opens anywhere and fetches nothing; both say the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abaton.report.evaluation_figures import said, told
from abaton.report.html_renderer import page
from abaton.report.training_curves import measure_name


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a card: a heading, a sentence, and facts, a list, or a table."""

    heading: str
    words: str = ""
    facts: Mapping[str, str | None] | None = None
    points: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Mapping[str, Any]] = ()

    @property
    def known(self) -> dict[str, str]:
        """The facts that are there."""
        return {name: value for name, value in (self.facts or {}).items() if value}

    @property
    def names(self) -> dict[str, str]:
        """The facts as a table of two columns wants them: each by its own name."""
        return {name: name for name in self.known}

    @property
    def cells(self) -> list[list[Any]]:
        """The table, row by row."""
        return [[row.get(name, "–") for name in self.columns] for row in self.rows]


def card_parts(card: Mapping[str, Any]) -> list[Part]:
    """Everything that a card says, in its order."""
    use, model, privacy, origin = (card[key] for key in ("intended_use", "model", "privacy", "provenance"))
    measures = list(dict.fromkeys(name for each in card["performance"] for name in each["measures"] or ()))
    performance = [
        {**each, **{measure_name(name): told(each["measures"], name) for name in measures}}
        for each in card["performance"]
    ]
    return [
        Part("In short", _in_short(card["performance"], measures)),
        Part(
            "What it is for",
            facts={
                "Question": use["question"],
                "Learns": str(use["learns"] or "").replace("_", " "),
                "Purpose": use["purpose"],
                "Asked by": use["asked_by"],
                "Not for": use["not_for"],
            },
        ),
        Part(
            "Model",
            facts={
                "Network": f"{model['network']}, {model['parameters']:,} parameters",
                "Reads": ", ".join(model["columns"]),
                "Tells": ", ".join(model["classes"]) or "a value",
            },
        ),
        Part(
            "Whom it was learned from",
            columns=list(dict.fromkeys(key for each in card["cohort"] for key in each)),
            rows=card["cohort"],
        ),
        Part(
            "How good it is",
            "People whom no training has seen; in brackets the interval.",
            columns=["group", "people", "sites", *map(measure_name, measures)],
            rows=performance,
        ),
        *_more(card),
        Part("Limits", points=card["limits"]),
        Part(
            "Privacy",
            facts={
                "Records": privacy["records"],
                "Counts below this are masked": str(privacy["smallest_count"]),
                "Everybody hides among": _anonymity(privacy["anonymity"]),
            },
        ),
        Part(
            "Where it comes from",
            facts={
                "Run": card["run"],
                "Made": origin["made"][:16].replace("T", " "),
                "Study document": f"{origin['study']}, {origin['document']}",
                "Weights": origin["model"],
                "Software": ", ".join(f"{name} {version}" for name, version in origin["software"].items()),
                **{f"Table of {site}": digest for site, digest in origin["tables"].items()},
            },
        ),
    ]


def _in_short(performance: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> str:
    """How good the model is, in one sentence."""
    whole = performance[0] if performance else None  # people of all sites
    found = said(((whole or {}).get("measures") or {}).get(measures[0])) if measures else "–"
    if whole is None or found == "–":
        return "Too few people could be tested to say how good the model is."
    return (
        f"{measure_name(measures[0])} {found} in {whole['people']} people of "
        f"{whole['sites']} {'site' if whole['sites'] == 1 else 'sites'} whom no training has seen."
    )


def _more(card: Mapping[str, Any]) -> Iterable[Part]:
    """What not every run has: calibration, what the model goes by, and what sites make of it."""
    calibration = card["calibration"]
    if calibration["points"]:
        line = calibration["correction"]
        words = "People in groups of about the same size, by what the model says of them."
        if line is not None:
            words += (
                f" Log odds are right once they are multiplied by {line['slope']:.3f} and "
                f"{line['intercept']:+.3f} is added; 'abaton model predict' does that."
            )
        rows = [
            {"predicted": f"{each['predicted']:.3f}", "happened": said(each["happened"])}
            for each in calibration["points"]
        ]
        yield Part("Calibration", words, columns=["predicted", "happened"], rows=rows)
    if card["goes_by"]:
        rows = [{"input": each["input"], "worse by": said(each["loses"])} for each in card["goes_by"]]
        words = (
            "How much worse it is if an input is shuffled among people; in brackets the least and the most."
        )
        yield Part("What it goes by", words, columns=["input", "worse by"], rows=rows)
    if card["personal"]:
        rows = [
            {
                "site": each["site"],
                "model": each["model"],
                "people": each["subjects"],
                "better than the site's own by": said(each["gain"]),
            }
            for each in card["personal"]
            if each["model"] != "own"
        ]
        words = "On each site's own test people, against the model that the site has of its own rows alone."
        yield Part("What each site gains", words, columns=list(rows[0]) if rows else [], rows=rows)


def card_markdown(card: Mapping[str, Any]) -> str:
    """A model card as Markdown."""
    made = [f"# {_plain(card['title'])}: model card"]
    for part in card_parts(card):
        made.append(f"## {part.heading}")
        if part.words:
            made.append(part.words)
        if part.known:
            made.append("\n".join(f"- **{name}**: {_plain(value)}" for name, value in part.known.items()))
        if part.points:
            made.append("\n".join(f"- {_plain(each)}" for each in part.points))
        if part.columns:
            lines = ["| " + " | ".join(part.columns) + " |", "|" + "---|" * len(part.columns)]
            lines += ["| " + " | ".join(map(_plain, row)) + " |" for row in part.cells]
            made.append("\n".join(lines))
    return "\n\n".join(made) + "\n"


def card_page(card: Mapping[str, Any]) -> str:
    """A model card as one HTML page."""
    return page("card.html", title=f"{card['title']}: model card", card=card, sections=card_parts(card))


def _anonymity(told: Mapping[str, Any] | None) -> str:
    if not told:
        return "not asked for"
    return f"{told['k']} people, by {', '.join(told['columns'])}"


def _plain(value: Any) -> str:
    """A study's own words, so that they cannot change the page around them."""
    text = " ".join(str(value).split())
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, "\\" + sign)
    return text
