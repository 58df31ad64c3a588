"""The privacy report as one page: no script, no network, readable by a screen reader, printable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --paper: #fff; --bar: #0b6e75;
  --bad: #a40e26; --good: #116329; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa5b1; --line: #3b434b; --paper: #0f1419;
  --bar: #4fb8bf; --bad: #ff8182; --good: #6fdd8b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem;
  border-bottom: 1px solid var(--line); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: normal; white-space: nowrap; }
.absent { color: var(--soft); font-style: italic; } .yes { color: var(--good); } .no { color: var(--bad); }
.meter { display: inline-block; width: 12rem; height: .8rem; border: 1px solid var(--line); }
.meter span { display: block; height: 100%; background: var(--bar); print-color-adjust: exact; }
code { overflow-wrap: anywhere; } .sign { display: grid; grid-template-columns: 1fr 1fr 1fr; gap: 2rem;
  margin-top: 3rem; } .sign div { border-top: 1px solid var(--ink); padding-top: .3rem; color: var(--soft); }
a.skip { position: absolute; left: -99rem; } a.skip:focus { left: 1rem; }
@media print { :root { --ink: #000; --soft: #333; --line: #999; --paper: #fff; --bar: #333; --bad: #000;
  --good: #000; } body { max-width: none; padding: 0; font-size: 10pt; } h2, caption { break-after: avoid; }
  tr { break-inside: avoid; } .scroll { overflow: visible; } a.skip { display: none; } }
"""

ABSENT = '<p class="absent">Not supplied.</p>'


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
        ("Purpose and legal basis", _pairs("The study", _STUDY, report["study"])),
        ("Consents", _pairs("Consents counted for this report", _CONSENTS, report["consents"])),
        ("Elements kept", _elements("Every element kept, and why", report["kept"])),
        ("Elements removed", _elements("Every element removed, and why", report["removed"])),
        ("Quasi-identifiers and sensitive columns", _columns(anonymity)),
        ("Anonymity reached", _anonymity(anonymity)),
        ("Class sizes", _histogram(anonymity)),
        ("Risk of re-identification", _risks(anonymity)),
        ("Usefulness", _utility(anonymity, report["models"])),
        ("Free text and attachments", _pairs("What is left", _RESIDUAL, report["residual"])),
        ("Keys, tables, retention, recipients", _pairs("Who holds what", _CUSTODY, report["custody"])),
        ("Validation and leak scan", _pairs("Checks of the output", _CHECKS, report["checks"])),
        ("Limits", "<ul>" + "".join(f"<li>{_text(limit)}</li>" for limit in report["limits"]) + "</ul>"),
        ("Software and signature", _signed(report)),
    ]
    body = "".join(
        f'<section aria-labelledby="s{i}"><h2 id="s{i}">{_text(name)}</h2>{content}</section>'
        for i, (name, content) in enumerate(sections, 1)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head><body>"
        '<a class="skip" href="#main">Skip to the report</a>'
        f"<header><h1>{_text(title)}</h1><p>{_text(report['made_at'])}, {_text(report['software'])}</p></header>"
        f'<main id="main">{body}</main></body></html>\n'
    )


def _text(value: object) -> str:
    """Any value as safe text; numbers rounded for reading, absence said."""
    if value is None or value == "" or value == []:
        return '<span class="absent">not supplied</span>'
    if isinstance(value, bool):
        return '<span class="yes">yes</span>' if value else '<span class="no">no</span>'
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return escape(", ".join(str(item) for item in value))
    return escape(str(value))


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose first column names the row; columns of numbers are set to the right."""
    listed = [tuple(row) for row in rows]
    numeric = [
        bool(listed) and all(isinstance(row[i], int | float) or row[i] is None for row in listed)
        for i in range(len(heads))
    ]
    kind = [' class="n"' if number else "" for number in numeric]
    head = "".join(f'<th scope="col"{k}>{_text(name)}</th>' for name, k in zip(heads, kind, strict=True))
    lines = "".join(
        f'<tr><th scope="row">{_text(row[0])}</th>'
        + "".join(f"<td{k}>{_text(cell)}</td>" for cell, k in zip(row[1:], kind[1:], strict=True))
        + "</tr>"
        for row in listed
    )
    return (
        f'<div class="scroll"><table><caption>{_text(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _pairs(caption: str, names: Mapping[str, str], part: Mapping[str, Any] | None) -> str:
    if part is None:
        return ABSENT
    return _table(caption, ("what", "value"), [(text, part.get(key)) for key, text in names.items()])


def _elements(caption: str, rows: Sequence[Mapping[str, Any]] | None) -> str:
    if rows is None:
        return ABSENT
    return _table(caption, ("element", "count", "why"), [(r["path"], r["count"], r["reason"]) for r in rows])


def _columns(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ABSENT
    quasi = [(q["column"], q["level"], q["height"], q["names"]) for q in row["quasi_identifiers"]]
    if row["node"] is None:
        quasi = [(column, "differs", height, names) for column, _, height, names in quasi]
    asked = [(s["column"], _asked(s)) for s in row["asked"]["sensitive"]]
    heads = ("column", "level shown", "highest level", "different names shown")
    made = _table("Quasi-identifiers: level 0 is the value itself", heads, quasi)
    none = "<p>No sensitive column is named.</p>"
    return made + (_table("Sensitive columns", ("column", "asked of every class"), asked) if asked else none)


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
    if not after:
        words += " No release satisfies this: nothing may be shown."
    return f"<p>{_text(words)}</p>" + _table("Before and after", ("what", "before", "after"), rows)


def _histogram(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ABSENT
    made = ""
    for name in ("before", "after"):
        measured = row[name]
        if measured is None:
            continue
        bars = measured["histogram"]
        total = max(measured["records"], 1)
        ends = [f"–{nxt[0] - 1}" if nxt[0] - 1 > bar[0] else "" for bar, nxt in pairwise(bars)]
        lines = "".join(
            f'<tr><th scope="row">{low}{end}</th><td class="n">{classes:,}</td><td class="n">{records:,}</td>'
            f'<td><div class="meter" role="img" aria-label="{records / total:.1%} of the records">'
            f'<span style="width:{100 * records / total:.2f}%"></span></div> {records / total:.1%}</td></tr>'
            for (low, classes, records), end in zip(bars, [*ends, " and more"], strict=True)
        )
        made += (
            f'<div class="scroll"><table><caption>Class sizes {name}</caption><thead><tr>'
            '<th scope="col">people in a class</th><th scope="col" class="n">classes</th>'
            '<th scope="col" class="n">records</th><th scope="col">share of the records</th></tr></thead>'
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
    return _table(f"Probability of finding a person, with {people}", ("risk", "before", "after"), rows)


def _utility(row: Mapping[str, Any] | None, models: Sequence[Mapping[str, Any]] | None) -> str:
    made = ABSENT
    if row is not None:
        before, after = row["before"]["utility"], (row["after"] or {}).get("utility", {})
        rows = [(text, before[key], after.get(key)) for key, text in _UTILITY.items()]
        made = _table("What anonymity costs", ("measure", "before", "after"), rows)
    if models is None:
        return made + "<p>Change in the community model's quality: " + _text(None) + ".</p>"
    quality = [(m["measure"], m["original"], m["anonymous"], m["anonymous"] - m["original"]) for m in models]
    heads = ("measure", "original records", "anonymous records", "change")
    return made + _table("The community model", heads, quality)


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
    return _table("This document", ("what", "value"), rows) + f'<div class="sign">{lines}</div>'


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
    "prosecutor_average": "prosecutor, average (classes / records)",
    "journalist_highest": "journalist, highest",
    "journalist_average": "journalist, average",
    "marketer": "marketer, average",
    "unique": "share of unique records",
    "below_2": "share of records in classes below 2",
    "below_5": "share of records in classes below 5",
    "below_11": "share of records in classes below 11",
}
_UTILITY = {
    "loss": "loss (0 nothing, 1 everything)",
    "ncp": "normalised certainty penalty",
    "discernibility": "discernibility",
    "average_class_size": "average class size in multiples of k",
}
