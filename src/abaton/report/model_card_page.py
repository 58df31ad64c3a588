"""Model card as Markdown and as an HTML page with the same content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from abaton.report.evaluation_figures import format_estimate, format_interval
from abaton.report.html_renderer import page
from abaton.report.performance_tables import (
    calibration_facts,
    events_table,
    group_table,
    heterogeneity_table,
    heterogeneity_text,
    recalibration_text,
    validation_table,
)
from abaton.report.run_tables import Table
from abaton.report.training_curves import metric_label


@dataclass(frozen=True, slots=True)
class CardSection:
    """Section of a card: a heading, a text, and facts, a list or a table."""

    heading: str
    text: str = ""
    facts: Mapping[str, str | None] | None = None
    points: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Mapping[str, Any]] = ()

    @property
    def known(self) -> dict[str, str]:
        """Facts of a section of the model card page that have a value."""
        return {name: value for name, value in (self.facts or {}).items() if value}

    @property
    def names(self) -> dict[str, str]:
        """Labels of the facts of a model card page's section, for a table of two columns."""
        return {name: name for name in self.known}

    @property
    def cells(self) -> list[list[Any]]:
        """Cells of the table of a model card page's section, by row."""
        return [[row.get(name, "–") for name in self.columns] for row in self.rows]


def card_sections(card: Mapping[str, Any]) -> list[CardSection]:
    """Return all sections of the model card page in order."""
    use, model, privacy, origin = (card[key] for key in ("intended_use", "model", "privacy", "provenance"))
    metrics = list(dict.fromkeys(name for row in card["performance"] for name in row["metrics"] or ()))
    performance = [
        {**row, **{metric_label(name): format_estimate(row["metrics"], name) for name in metrics}}
        for row in card["performance"]
    ]
    return [
        CardSection("Summary", _summary(card["performance"], metrics)),
        CardSection(
            "Intended use",
            facts={
                "Question": use["question"],
                "Outcome": str(use["outcome"] or "").replace("_", " "),
                "Purpose": use["purpose"],
                "Research centre": use["centre"],
                "Not for": use["not_for"],
            },
        ),
        CardSection(
            "Model",
            facts={
                "Model": f"{model['architecture']}, {model['parameters']:,} parameters",
                "Inputs": ", ".join(model["columns"]),
                "Output": ", ".join(model["classes"]) or "a value",
            },
        ),
        CardSection(
            "Training subjects",
            columns=list(dict.fromkeys(key for row in card["cohort"] for key in row)),
            rows=card["cohort"],
        ),
        CardSection(
            "Performance",
            "On held-out test subjects, with confidence intervals.",
            columns=["group", "subjects", "sites", *map(metric_label, metrics)],
            rows=performance,
        ),
        *_optional_sections(card),
        CardSection("Limitations", points=card["limitations"]),
        CardSection(
            "Privacy",
            facts={
                "Records": privacy["records"],
                "Minimum cell count": str(privacy["min_cell_count"]),
                "Anonymity": _anonymity(privacy["anonymity"]),
            },
        ),
        CardSection(
            "Provenance",
            facts={
                "Run": card["run"],
                "Created": origin["created"][:16].replace("T", " "),
                "Study document": f"{origin['study']}, {origin['document']}",
                "Model digest": origin["model"],
                "Software": ", ".join(f"{name} {version}" for name, version in origin["software"].items()),
                **{f"Table digest of {site}": digest for site, digest in origin["tables"].items()},
            },
        ),
    ]


def _summary(performance: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> str:
    """Return the main metric as one sentence of the model card page."""
    overall = performance[0] if performance else None  # all sites
    estimate = format_interval(((overall or {}).get("metrics") or {}).get(metrics[0])) if metrics else "–"
    if overall is None or estimate in ("–", "not estimable"):
        return "There are too few test subjects to evaluate the model."
    return (
        f"{metric_label(metrics[0])} {estimate} in {overall['subjects']} held-out test subjects of "
        f"{overall['sites']} {'site' if overall['sites'] == 1 else 'sites'}."
    )


def _optional_sections(card: Mapping[str, Any]) -> Iterable[CardSection]:
    """Yield optional sections of the model card page: calibration, importance, personal models."""
    calibration = card["calibration"]
    points, recalibration = calibration["points"], calibration["recalibration"]
    if points or recalibration is not None:
        text = "Test subjects in bins of about equal size by predicted probability. " if points else ""
        if recalibration is not None:
            text += recalibration_text(recalibration)
        rows = [
            {
                "predicted probability": f"{row['predicted']:.3f}",
                "observed proportion": format_interval(row["observed"]),
            }
            for row in points
        ]
        yield CardSection(
            "Calibration", text, columns=["predicted probability", "observed proportion"], rows=rows
        )
    yield from _exact_sections(card)
    if card["permutation_importance"]:
        rows = [
            {"input": row["input"], "importance": format_interval(row["importance"])}
            for row in card["permutation_importance"]
        ]
        text = "Decrease of the metric when an input is permuted among subjects; minimum and maximum in brackets."
        yield CardSection("Permutation importance", text, columns=["input", "importance"], rows=rows)
    if card["personal_models"]:
        rows = [
            {
                "site": row["site"],
                "model": row["model"],
                "subjects": row["subjects"],
                "difference to local-only": format_interval(row["gain_over_local_only"]),
            }
            for row in card["personal_models"]
            if row["model"] != "local_only"
        ]
        text = "Paired differences to the local-only model on each site's test subjects."
        yield CardSection("Local benefit", text, columns=list(rows[0]) if rows else [], rows=rows)


def _exact_sections(card: Mapping[str, Any]) -> Iterable[CardSection]:
    """Yield sections of the model card page that need single predictions; they are absent after a network run."""
    performance, events, validation = (
        card.get(key) for key in ("exact_performance", "events_per_parameter", "internal_external_validation")
    )
    if performance and performance["calibration"]:
        yield CardSection("Calibration measures", facts=calibration_facts(performance["calibration"]))
    if performance:
        heterogeneity = performance["heterogeneity"]
        text = heterogeneity_text(heterogeneity["auroc"])
        yield _table_section("Heterogeneity between sites", text, heterogeneity_table(heterogeneity))
        if performance["groups"]:
            text = "Differences are to all subjects outside the group."
            yield _table_section("Performance by group", text, group_table(performance["groups"]))
    if validation:
        text = "For each site the federation was run without it and evaluated on all its subjects."
        yield _table_section("Internal-external validation", text, validation_table(validation))
    if events:
        text = f"The model has {events['parameters']} parameters and {events['columns']} input columns."
        yield _table_section("Events per parameter", text, events_table(events))


def _table_section(heading: str, text: str, table: Table) -> CardSection:
    columns, rows = table
    return CardSection(
        heading, text, columns=columns, rows=[dict(zip(columns, row, strict=True)) for row in rows]
    )


def render_card_markdown(card: Mapping[str, Any]) -> str:
    """Render a model card as a Markdown page."""
    blocks = [f"# {_escape_markdown(card['title'])}: model card"]
    for section in card_sections(card):
        blocks.append(f"## {section.heading}")
        if section.text:
            blocks.append(section.text)
        if section.known:
            blocks.append(
                "\n".join(f"- **{name}**: {_escape_markdown(value)}" for name, value in section.known.items())
            )
        if section.points:
            blocks.append("\n".join(f"- {_escape_markdown(point)}" for point in section.points))
        if section.columns:
            table_lines = ["| " + " | ".join(section.columns) + " |", "|" + "---|" * len(section.columns)]
            table_lines += ["| " + " | ".join(map(_escape_markdown, row)) + " |" for row in section.cells]
            blocks.append("\n".join(table_lines))
    return "\n\n".join(blocks) + "\n"


def render_card_html(card: Mapping[str, Any]) -> str:
    """Render a model card as an HTML page."""
    return page(
        "model_card.html", title=f"{card['title']}: model card", card=card, sections=card_sections(card)
    )


def _anonymity(anonymity: Mapping[str, Any] | None) -> str:
    if not anonymity:
        return "none"
    return f"k-anonymity, k = {anonymity['k']}; quasi-identifiers: {', '.join(anonymity['columns'])}"


def _escape_markdown(value: Any) -> str:
    """Return a value of the model card page with Markdown characters escaped."""
    text = " ".join(str(value).split())
    for character in "\\`*_[]<>|#":
        text = text.replace(character, "\\" + character)
    return text
