"""``abaton site check``, ``policy``, ``releases``, ``new`` and ``suggest-mapping``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli import membership, site_intake
from abaton.cli.output import emit, note, print_path, table, write_first
from abaton.cli.runs import JsonOption
from abaton.errors import AbatonError, SettingsError

if TYPE_CHECKING:
    from abaton.site import PreflightResult


def suggest_mapping(
    files: list[Path] = typer.Argument(
        ..., metavar="FILE...", help="Tables, or folders of tables", show_default=False
    ),
    *,
    study: Path | None = typer.Option(
        None, "--study", help="Also match columns with the names and codes of this study's inputs"
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write the mapping to this new file (default: print it)"
    ),
    json: bool = JsonOption,
) -> None:
    """Suggest a mapping of table columns to FHIR and print the reason for each suggestion.

    Column names, date formats, codes and value ranges of the first 5,000 rows are used. Values of a column are written
    to the mapping only if they are few and each occurs at least 5 times. Review every line.
    """
    from abaton.site.sources.tabular.data_dictionary import study_codes, study_entries
    from abaton.site.sources.tabular.mapping_suggestion import suggest_mapping as suggest
    from abaton.study import load_study

    document = load_study(study) if study is not None else None
    suggestion = (
        suggest(files, study_entries(document), study_codes(document))
        if document is not None
        else suggest(files)
    )
    if out is not None:
        write_first(out, suggestion.text)
    if json:
        guesses = [
            {"file": guess.file, "column": guess.column, "meaning": guess.meaning, "reason": guess.reason}
            for guess in suggestion.guesses
        ]
        emit({"mapping": suggestion.text, "guesses": guesses, "file": str(out) if out else None})
        return
    if out is None:
        typer.echo(suggestion.text)
        for guess in suggestion.guesses:
            note(f"{guess.file}, {guess.column or 'table'}: {guess.meaning} ({guess.reason})")
        return
    rows = [(guess.file, guess.column, guess.meaning, guess.reason) for guess in suggestion.guesses]
    table(f"suggestions in {out}", ["file", "column", "meaning", "reason"], rows)


app = typer.Typer(
    help="Operate a site: check its records for a study, enrol, send, join, withdraw.", no_args_is_help=True
)
for command in (
    site_intake.enrol,
    site_intake.import_consents,
    site_intake.send,
    site_intake.withdraw,
    site_intake.status,
    membership.join,
):
    app.command()(command)
app.command("suggest-mapping")(suggest_mapping)


_SUMMARY_RULES = ("disclosure", "rows of an update", "scores", "privacy budget", "small sites")


@app.command()
def check(
    study: Path = typer.Argument(..., metavar="STUDY", help="Study document", show_default=False),
    *,
    site: Path = typer.Option(Path("site.toml"), "--site", help="Configuration of the site"),
    json: bool = JsonOption,
) -> None:
    """Print a site's attrition for a study (read, eligible, consented, retained) with reasons, without values.

    The counts are exact, for the site itself; nothing of this leaves the site. Exit code 1: no subject remains.
    """
    from abaton.site import SiteConfigError, build_site, check_site, load_site
    from abaton.study import load_study
    from abaton.study_run.policy_text import policy_statements

    document = load_study(study)
    try:
        file = load_site(site)
        preflight = check_site(build_site(file, document, datetime.now(UTC), on_progress=note))
    except SiteConfigError as error:
        if json:
            emit({"ok": False, "problems": [str(problem) for problem in error.problems]})
        for problem in error.problems:
            note(str(problem))
        raise typer.Exit(SettingsError.exit_code) from None
    if json:
        emit(
            {
                "site": file.config.site.id,
                "study": document.study.id,
                "hash": document.hash,
                **preflight.to_row(),
                "policy": {rule.topic: rule.setting for rule in policy_statements(file, document)},
            }
        )
    else:
        _print_preflight(preflight, f"{file.config.site.name} in {document.study.title}")
        applies = [
            f"{rule.topic} {rule.setting}"
            for rule in policy_statements(file, document)
            if rule.topic in _SUMMARY_RULES
        ]
        note(f"policy: {'; '.join(applies)}; 'abaton site policy STUDY --explain' explains the rules")
    if not preflight.may_participate:
        raise typer.Exit(1)


@app.command()
def policy(
    study: Path | None = typer.Argument(
        None,
        metavar="[STUDY]",
        help="Study document; also show the rules that follow from it",
        show_default=False,
    ),
    *,
    site: Path = typer.Option(Path("site.toml"), "--site", help="Configuration of the site"),
    explain: bool = typer.Option(False, "--explain", help="Explain the rules in plain language"),
    json: bool = JsonOption,
) -> None:
    """Show what a centre may request from the site, what may leave it, and what is refused.

    The rules apply on every engine, independently of the centre. The site's signing key is created if it does not
    exist.
    """
    from dataclasses import asdict

    from abaton.site import load_site
    from abaton.study import load_study
    from abaton.study_run.model_signatures import signing_key
    from abaton.study_run.policy_text import policy_as_text, policy_statements

    file = load_site(site)
    try:
        key_id = signing_key(file).id
    except AbatonError as error:  # the rules are shown without access to the keys, too
        note(f"the site's signing key is not shown: {error}")
        key_id = ""
    rules = policy_statements(file, None if study is None else load_study(study), key_id)
    if json:
        emit([asdict(rule) for rule in rules])
    elif explain:
        typer.echo("\n\n".join(policy_as_text(rules)))
    else:
        table(f"policy of {file.config.site.name}", ["rule", "value"], [(r.topic, r.setting) for r in rules])


@app.command()
def releases(
    *,
    site: Path = typer.Option(Path("site.toml"), "--site", help="Configuration of the site"),
    confirm_loss: bool = typer.Option(
        False, "--confirm-loss", help="Start again after a loss; the budget of this year counts as used up"
    ),
    json: bool = JsonOption,
) -> None:
    """Show which numbers about groups of subjects left the site, when, to which study, and what remains.

    At level 'noisy' each new answer uses a part of the privacy budget: a table of counts with noise of standard
    deviation 3 uses 1/18 = 0.056. A repeated answer uses nothing. A study may use 1 and all studies of a year 2; the
    policy section of the site's configuration sets both. When a budget is used up, nothing more is released. 'abaton
    site policy --explain' says what a budget means for one subject. At level 'exact' nothing is used, because nothing
    is promised.

    The register is the file SITE.release-register, its key is beside it; back up both. If one is lost, the site
    releases nothing until you restore it, or confirm the loss.
    """
    from abaton.disclosure.release_register import ReleaseRegister
    from abaton.site import load_site, release_register_paths

    file, now = load_site(site), datetime.now(UTC)
    paths = release_register_paths(file)
    if confirm_loss:
        ReleaseRegister.confirm_loss(*paths, now).close()
        note(f"the privacy budget of {now.year} counts as used up")
    # Without any file nothing was released yet; looking at it creates none.
    register = ReleaseRegister(*paths) if any(path.exists() for path in paths) else None
    settings = file.config.policy.noise_settings()
    recorded = [] if register is None else register.releases()
    budgets = [
        {
            "budget": study,
            "limit": settings.study_budget,
            "remaining": float(register.remaining(study, now.year, settings)),
        }
        for study in sorted({release.study for release in recorded})
        if register is not None
    ]
    of_year = (
        settings.yearly_budget if register is None else float(register.remaining_in_year(now.year, settings))
    )
    budgets.append(
        {"budget": f"all studies in {now.year}", "limit": settings.yearly_budget, "remaining": of_year}
    )
    lost = [] if register is None else register.loss_years()
    if json:
        rows = [
            {
                "time": release.time.isoformat(),
                "study": release.study,
                "kind": release.kind,
                "level": release.level.value,
                "cost": float(release.cost),
                "question": release.question,
            }
            for release in recorded
        ]
        emit({"site": file.config.site.id, "releases": rows, "budgets": budgets, "lost": lost})
        return
    if recorded:
        table(
            f"releases of {file.config.site.name}",
            ["time", "study", "what", "level", "cost"],
            [
                (f"{r.time:%Y-%m-%d %H:%M}", r.study, r.kind, r.level.value, f"{float(r.cost):.3f}")
                for r in recorded
            ],
        )
    else:
        note("nothing was released yet")
    table(
        "privacy budget",
        ["budget", "limit", "remaining"],
        [(str(b["budget"]), f"{b['limit']:g}", f"{b['remaining']:.3f}") for b in budgets],
    )
    if lost:
        note(
            f"a loss of the register was confirmed in {', '.join(map(str, lost))}: that year's budget is used up"
        )


@app.command()
def new(
    file: Path = typer.Argument(Path("site.toml"), help="Path of the new file"),
    *,
    identifier: str = typer.Option("my-site", "--id", help="Id of the site"),
    source: str = typer.Option("ndjson", help="Record source: ndjson, directory, csv, omop, fhir or bulk"),
    records: str = typer.Option(
        "", help="Folder, file, server or database of the records (default: an example)"
    ),
    json: bool = JsonOption,
) -> None:
    """Write a commented site configuration as a template."""
    from abaton.site import site_from_toml, site_template

    text = site_template(file.name, identifier=identifier, source=source, location=records)
    site_from_toml(text, str(file))
    write_first(file, text)
    print_path(file, json=json)


def _print_preflight(preflight: PreflightResult, title: str) -> None:
    rows: list[tuple[str, str, str]] = []
    attrition = preflight.attrition
    for stage in attrition.stages:
        excluded = sorted(attrition.excluded.get(stage, {}).items())
        rows += [("", reason, str(count)) for reason, count in excluded]
        rows.append((stage.value, "", str(attrition.reached[stage])))
    table(title, ["stage", "excluded because", "subjects"], rows)
    table("records read", ["type", "records"], [(n, str(c)) for n, c in preflight.records_read.items()])
    if preflight.withheld:
        table("records withheld", ["reason", "records"], [(n, str(c)) for n, c in preflight.withheld.items()])
    if preflight.skipped:
        skipped = [
            (reason, str(count), ", ".join(locations))
            for reason, (count, locations) in preflight.skipped.items()
        ]
        table("skipped", ["reason", "count", "where"], skipped)
    for remark in preflight.remarks:
        note(remark)
    note("the counts are exact and for this site only; nothing of this leaves the site")
