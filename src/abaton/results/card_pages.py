"""The model card as a text: Markdown, or a page that opens anywhere and fetches nothing; both say the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; padding: 1.5rem; max-width: 54rem; font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; border-bottom: 1px solid; margin-top: 2rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid; vertical-align: top; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem; overflow-wrap: anywhere; }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } tr { break-inside: avoid; } }
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a card: a heading, a sentence, and facts, a list, or a table."""

    heading: str
    words: str = ""
    facts: Mapping[str, str | None] | None = None
    points: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Mapping[str, Any]] = ()


def card_parts(card: Mapping[str, Any]) -> list[Part]:
    """Everything that a card says, in its order."""
    use, model, privacy, origin = (card[key] for key in ("intended_use", "model", "privacy", "provenance"))
    measures = list(dict.fromkeys(name for each in card["performance"] for name in each["measures"] or ()))
    performance = [
        {**each, **{name: _interval((each["measures"] or {}).get(name)) for name in measures}}
        for each in card["performance"]
    ]
    return [
        Part(
            "What it is for",
            facts={
                "Question": use["question"],
                "Learns": use["learns"],
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
            columns=["group", "people", "sites", *measures],
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
                "Made": origin["made"],
                "Study document": f"{origin['study']}, {origin['document']}",
                "Weights": origin["model"],
                "Software": ", ".join(f"{name} {version}" for name, version in origin["software"].items()),
                **{f"Table of {site}": digest for site, digest in origin["tables"].items()},
            },
        ),
    ]


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
            {"predicted": f"{each['predicted']:.3f}", "happened": _interval(each["happened"])}
            for each in calibration["points"]
        ]
        yield Part("Calibration", words, columns=["predicted", "happened"], rows=rows)
    if card["goes_by"]:
        rows = [{"input": each["input"], "worse by": _interval(each["loses"])} for each in card["goes_by"]]
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
                "better than the site's own by": _interval(each["gain"]),
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
        if part.facts:
            made.append("\n".join(f"- **{name}**: {_plain(v)}" for name, v in part.facts.items() if v))
        if part.points:
            made.append("\n".join(f"- {_plain(each)}" for each in part.points))
        if part.columns:
            lines = ["| " + " | ".join(part.columns) + " |", "|" + "---|" * len(part.columns)]
            lines += [
                "| " + " | ".join(_plain(row.get(name, "–")) for name in part.columns) + " |"
                for row in part.rows
            ]
            made.append("\n".join(lines))
    return "\n\n".join(made) + "\n"


def card_page(card: Mapping[str, Any]) -> str:
    """A model card as one HTML page."""
    title = f"{card['title']}: model card"
    body = "".join(_section(part) for part in card_parts(card))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def _section(part: Part) -> str:
    made = f"<section><h2>{escape(part.heading)}</h2>"
    if part.words:
        made += f"<p>{escape(part.words)}</p>"
    if part.facts:
        pairs = (
            f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>"
            for name, value in part.facts.items()
            if value
        )
        made += f"<dl>{''.join(pairs)}</dl>"
    if part.points:
        made += f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in part.points)}</ul>"
    if part.columns:
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in part.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(str(row.get(name, '–')))}</td>" for name in part.columns) + "</tr>"
            for row in part.rows
        )
        made += (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(part.heading)}">'
            f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        )
    return made + "</section>"


def _anonymity(told: Mapping[str, Any] | None) -> str:
    if not told:
        return "not asked for"
    return f"{told['k']} people, by {', '.join(told['columns'])}"


def _interval(measure: Mapping[str, Any] | None) -> str:
    if not measure or measure.get("value") is None:
        return "–"
    said = f"{measure['value']:.3f}"
    low, high = measure.get("low"), measure.get("high")
    return said if low is None or high is None else f"{said} ({low:.3f} to {high:.3f})"


def _plain(value: Any) -> str:
    """A study's own words, so that they cannot change the page around them."""
    text = " ".join(str(value).split())
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, "\\" + sign)
    return text
