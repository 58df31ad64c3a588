"""The privacy report as one page: no script, no network, readable by a screen reader, printable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from abaton.report.html import ABSENT, head, pairs, table, text


def privacy_page(report: Mapping[str, Any]) -> str:
    """Turn a privacy report into a page a data-protection officer can read, print and sign.

    Args:
        report: What :func:`abaton.report.privacy.privacy_report` made.

    Returns:
        One HTML document that needs nothing else.
    """
    study = report["study"] or {}
    title = f"Privacy report: {study.get('title') or 'study without a title'}"
    anonymity = report["anonymity"]
    sections = [
        ("Purpose and legal basis", pairs("The study", _STUDY, report["study"])),
        ("Consents", pairs("Consents counted for this report", _CONSENTS, report["consents"])),
        ("Elements kept", _elements("Every element kept, and why", report["kept"])),
        ("Elements removed", _elements("Every element removed, and why", report["removed"])),
        ("Quasi-identifiers and sensitive columns", _columns(anonymity)),
        ("Anonymity reached", _anonymity(anonymity)),
        ("Class sizes", _histogram(anonymity)),
        ("Risk of re-identification", _risks(anonymity)),
        ("Usefulness", _utility(anonymity, report["models"])),
        ("Free text and attachments", pairs("What is left", _RESIDUAL, report["residual"])),
        ("Keys, tables, retention, recipients", pairs("Who holds what", _CUSTODY, report["custody"])),
        ("Validation and leak scan", pairs("Checks of the output", _CHECKS, report["checks"])),
        ("Limits", "<ul>" + "".join(f"<li>{text(limit)}</li>" for limit in report["limits"]) + "</ul>"),
        ("Software and signature", _signed(report)),
    ]
    body = "".join(
        f'<section aria-labelledby="s{i}"><h2 id="s{i}">{text(name)}</h2>{content}</section>'
        for i, (name, content) in enumerate(sections, 1)
    )
    return (
        f"{head(title)}<body>"
        '<a class="skip" href="#main">Skip to the report</a>'
        f"<header><h1>{text(title)}</h1><p>{text(report['made_at'])}, {text(report['software'])}</p></header>"
        f'<main id="main">{body}</main></body></html>\n'
    )


def _elements(caption: str, rows: Sequence[Mapping[str, Any]] | None) -> str:
    if rows is None:
        return ABSENT
    return table(caption, ("element", "count", "why"), [(r["path"], r["count"], r["reason"]) for r in rows])


def _columns(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ABSENT
    quasi = [(q["column"], q["level"], q["height"], q["names"]) for q in row["quasi_identifiers"]]
    if row["node"] is None:
        quasi = [(column, "differs", height, names) for column, _, height, names in quasi]
    asked = [(s["column"], _asked(s)) for s in row["asked"]["sensitive"]]
    heads = ("column", "level shown", "highest level", "different names shown")
    made = table("Quasi-identifiers: level 0 is the value itself", heads, quasi)
    none = "<p>No sensitive column is named.</p>"
    return made + (table("Sensitive columns", ("column", "asked of every class"), asked) if asked else none)


def _asked(sensitive: Mapping[str, Any]) -> str:
    wishes = []
    if diversity := sensitive["diversity"]:
        c = f", c = {diversity['c']:g}" if diversity["kind"] == "recursive" else ""
        wishes.append(f"{diversity['kind']} l-diversity, l = {diversity['l']}{c}")
    if closeness := sensitive["closeness"]:
        wishes.append(f"t-closeness, t = {closeness['t']:g}, {closeness['distance']} distance")
    return "; ".join(wishes) or "nothing"


def _anonymity(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ABSENT
    before, after = row["before"], row["after"] or {}
    rows = [(text, before[key], after.get(key)) for key, text in _REACHED.items()]
    for i, old in enumerate(before["sensitive"]):
        new = after["sensitive"][i] if after.get("sensitive") else {}
        # No c is large enough where a class has fewer than l values.
        old, new = (m | {"recursive_c": m.get("recursive_c") or "none is enough"} for m in (old, new))
        rows += [(f"{old['column']}: {text}", old[key], new.get(key)) for key, text in _SENSITIVE.items()]
    asked = row["asked"]
    words = f"Asked: k = {asked['k']}, at most {asked['suppression_limit']:.2%} of the records left out."
    subject = asked["subject"]
    words += (
        f" People are told apart by the column '{subject}'; classes, diversity, closeness and risks count people."
        if subject is not None
        else " It was said that no two rows are of one person; nothing checks that."
    )
    if not after:
        words += " No release satisfies this: nothing may be shown."
    return f"<p>{text(words)}</p>" + table("Before and after", ("what", "before", "after"), rows)


def _histogram(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ABSENT
    made = ""
    for name in ("before", "after"):
        measured = row[name]
        if measured is None:
            continue
        bars = measured["histogram"]
        total = max(sum(people for _, _, people in bars), 1)
        ends = [f"–{nxt[0] - 1}" if nxt[0] - 1 > bar[0] else "" for bar, nxt in pairwise(bars)]
        lines = "".join(
            f'<tr><th scope="row">{low}{end}</th><td class="n">{classes:,}</td><td class="n">{people:,}</td>'
            f'<td><div class="meter" role="img" aria-label="{people / total:.1%} of the people">'
            f'<span style="width:{100 * people / total:.2f}%"></span></div> {people / total:.1%}</td></tr>'
            for (low, classes, people), end in zip(bars, [*ends, " and more"], strict=True)
        )
        made += (
            f'<div class="scroll"><table><caption>Class sizes {name}</caption><thead><tr>'
            '<th scope="col">people in a class</th><th scope="col" class="n">classes</th>'
            '<th scope="col" class="n">people</th><th scope="col">share of the people</th></tr></thead>'
            f"<tbody>{lines}</tbody></table></div>"
        )
    return made


def _risks(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ABSENT
    before, after = row["before"]["risk"], (row["after"] or {}).get("risk", {})
    asked = row["asked"]
    if asked["population"] is not None:
        people = f"a population of {asked['population']:,} people"
    elif asked["sampling_fraction"] is not None:
        people = f"a sample of {asked['sampling_fraction']:.4%} of the population"
    else:
        people = "no stated population (journalist risk cannot be given; marketer risk is that of the table)"
    rows = [(text, before[key], after.get(key)) for key, text in _RISKS.items()]
    return table(f"Probability of finding a person, with {people}", ("risk", "before", "after"), rows)


def _utility(row: Mapping[str, Any] | None, models: Sequence[Mapping[str, Any]] | None) -> str:
    made = ABSENT
    if row is not None:
        before, after = row["before"]["utility"], (row["after"] or {}).get("utility", {})
        rows = [(text, before[key], after.get(key)) for key, text in _UTILITY.items()]
        made = table("What anonymity costs", ("measure", "before", "after"), rows)
    if models is None:
        return made + "<p>Change in the community model's quality: " + text(None) + ".</p>"
    quality = [(m["measure"], m["original"], m["anonymous"], m["anonymous"] - m["original"]) for m in models]
    heads = ("measure", "original records", "anonymous records", "change")
    return made + table("The community model", heads, quality)


def _signed(report: Mapping[str, Any]) -> str:
    signature = report["signature"] or {}
    rows = [
        ("software", report["software"]),
        ("format", report["format"]),
        ("SHA-256 of the content", report["sha256"]),
        ("signed by", signature.get("signer")),
        ("signature", f"{signature['algorithm']}: {signature['value']}" if signature else None),
        ("not supplied to this report", report["not_supplied"] or "nothing"),
    ]
    lines = "<div>Place and date</div><div>Data-protection officer</div><div>Data controller</div>"
    return table("This document", ("what", "value"), rows) + f'<div class="sign">{lines}</div>'


_STUDY = {
    "title": "title",
    "purpose": "purpose",
    "legal_basis": "legal basis",
    "controller": "data controller",
    "document_sha256": "SHA-256 of the study document",
}
_CONSENTS = {"counted": "counted", "in_force": "in force", "expired": "expired", "withdrawn": "withdrawn"}
_RESIDUAL = {"texts": "free texts", "attachments": "attachments", "statement": "what was done about them"}
_CUSTODY = {
    "pseudonymising_secrets": "pseudonymising secrets held by",
    "mapping_table": "mapping table held by",
    "pseudonymisation_domain": "pseudonymisation domain",
    "retention": "retention",
    "recipients": "recipients",
}
_CHECKS = {
    "resources_validated": "resources validated",
    "resources_invalid": "of them invalid",
    "outputs_scanned": "outputs scanned for leaks",
    "identifiers_sought": "identifiers sought in the output",
    "identifiers_found": "values that hold one of them",
}
_REACHED = {
    "holds": "satisfies the study",
    "records": "records shown",
    "suppressed": "records left out",
    "people": "people shown",
    "people_left_out": "people left out",
    "classes": "classes",
    "k": "k: smallest class",
}
_SENSITIVE = {
    "distinct": "l, distinct values",
    "entropy": "l, effective values (entropy)",
    "recursive_c": "c of recursive diversity",
    "equal": "t, equal distance",
    "ordered": "t, ordered distance",
    "certain": "most certain guess",
}
_RISKS = {
    "prosecutor_highest": "prosecutor, highest (1 / smallest class)",
    "prosecutor_average": "prosecutor, average (classes / people)",
    "journalist_highest": "journalist, highest",
    "journalist_average": "journalist, average",
    "marketer": "marketer, average",
    "unique": "share of unique people (alone in their class)",
    "below_2": "share of people in classes below 2",
    "below_5": "share of people in classes below 5",
    "below_11": "share of people in classes below 11",
}
_UTILITY = {
    "loss": "loss (0 nothing, 1 everything)",
    "ncp": "normalised certainty penalty",
    "discernibility": "discernibility",
    "average_class_size": "average class size in multiples of k",
}
