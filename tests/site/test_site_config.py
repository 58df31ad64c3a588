"""``site.toml``: problems with lines, no secrets, and no settings weaker than the study's."""

from __future__ import annotations

import pytest
from tests.site.site_cohort import study

from abaton.deid import DateHandling
from abaton.site import SiteConfigError, load_site, min_cell_count, site_from_toml, site_template
from abaton.site.config import WorkingHours
from abaton.study.sections import PrivacySection

GOOD = """
[site]
id = "pisa"
name = "Hospital"
[records]
source = "ndjson"
paths = ["records"]
[consent]
legal_basis = "vote 7"
"""
PERMIT = f"""
[consent.permit]
number = "HDAB-2026-17"
authority = "Health Data Access Body"
start = 2026-01-01
end = 2028-12-31
purposes = ["diagnostic"]
document = "{"ab" * 32}"
"""
FORM = """
[[consent.forms]]
name = "Form"
resources = ["consents"]
policies = ["urn:x"]
actions = { collect = ["*"] }
"""
WEB = GOOD.replace('source = "ndjson"\npaths = ["records"]', 'source = "fhir"\nurl = "https://h.example/r4"')


def problems_of(text: str) -> str:
    with pytest.raises(SiteConfigError) as error:
        site_from_toml(text)
    return " | ".join(str(problem) for problem in error.value.problems)


def test_template_and_its_commented_sources_are_valid():
    text = site_template("site.toml")
    assert site_from_toml(text).site.id == "my-site"
    for kind in ("directory", "fhir", "bulk"):
        head, _, rest = text.partition('source = "ndjson"')
        _, start, block = rest.partition(f'# source = "{kind}"')
        section, _, after = block.partition("\n\n")
        opened = "\n".join(line.removeprefix("# ") for line in (start + section).splitlines())
        smart = after if kind in ("fhir", "bulk") else ""
        tail = after[after.index("# Requirements beyond") :]
        access = smart.partition("# [records.smart]")[2].partition("\n\n")[0] if smart else ""
        lines = "\n".join(line.removeprefix("# ") for line in access.splitlines())
        config = site_from_toml(f"{head}{opened}\n{'[records.smart]' if smart else ''}{lines}\n{tail}")
        assert config.records.source.value == kind


def test_commented_rules_of_the_template_are_valid():
    text = site_template("site.toml")
    for line in ("# k = 10", "# min_cell_count", "# dates", "# max_batch_size", "# working_hours"):
        text = text.replace(line, line.removeprefix("# "))
    head, start, block = text.partition("# [[rules.deidentification]]")
    rule, _, tail = (start + block).partition("\n\n")
    opened = "\n".join(line.removeprefix("# ") for line in rule.splitlines())
    config = site_from_toml(f"{head}{opened}\n\n{tail}")
    assert config.rules.k == 10
    assert config.rules.dates is DateHandling.REMOVE
    assert config.rules.deidentification[0].method == "generalise"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD.replace("[consent]", "[consnt]"), "'consnt' is not a known key; did you mean 'consent'?"),
        (GOOD.replace('id = "pisa"', 'id = "p i"'), "site.toml:3: site.id"),
        (
            GOOD.replace('name = "Hospital"', ""),
            "'name' is missing; add it; 'abaton site new' writes an example",
        ),
        (GOOD.replace("ndjson", "ndjsn"), "did you mean 'ndjson'?"),
        (GOOD.replace('paths = ["records"]', ""), "'paths' is missing; add paths = ['records']"),
        (GOOD.replace('source = "ndjson"', 'source = "fhir"'), "'paths' does not apply to source = 'fhir'"),
        (WEB.replace("https://h", "http://h"), "the URL is not encrypted"),
        (WEB.replace("https://h", "https://me:hush@h"), "the URL contains a user name or a password"),
        (WEB.replace("https://h.example/r4", "file:///etc/passwd"), "the value is not the URL of a server"),
        (WEB.replace("https://h.example/r4", "https://["), "the value is not the URL of a server"),
        (GOOD.replace('legal_basis = "vote 7"', ""), "no legal basis is configured"),
        (GOOD + PERMIT, "both 'legal_basis' and [consent.permit] are set"),
        (GOOD + PERMIT.replace("2028", "2025"), "the permit ends (2025-12-31) before it starts (2026-01-01)"),
        (GOOD + "[consent.opt_outs]", "exactly one location of the opt-out list is required"),
        (GOOD + '[consent.opt_outs]\nfile = "out.txt"', "consents and opt-outs require keys.registry"),
        (GOOD + FORM, "[[consent.forms]] has no effect with a permit or a legal basis"),
        (GOOD + '[keys]\nstudy = """\n-----BEGIN PRIVATE KEY-----\nabc"""', "the value is not a path"),
        (GOOD + '[rules]\nexcluded_types = ["Patent"]', "this is not an R4 resource type"),
        (GOOD + "[rules]\nk = 1", "rules.k"),
        (
            GOOD + '[limits]\nworking_hours = { start = "25:00", end = "06:00" }',
            "start and end are not two different times",
        ),
        (WEB + '[keys]\nstudy = "work/study.key"', "a key is inside records.work_dir"),
        ("[site", "this is not TOML"),
    ],
)
def test_problems_have_a_remedy(text, problem):
    assert problem in problems_of(text)


def test_errors_do_not_repeat_a_secret():
    assert "hush" not in problems_of(WEB.replace("https://h", "https://me:hush@h"))
    assert "abc" not in problems_of(GOOD + '[keys]\nstudy = """\n-----BEGIN PRIVATE KEY-----\nabc"""')


def test_problems_have_a_line():
    problems = problems_of(GOOD + "[limits]\nthreads = 0\n")
    assert problems.startswith("site.toml:11: limits.threads")


@pytest.mark.parametrize("method", ["keep", "shift", "terminology", "substitute", "mask", "pseudonymise"])
def test_a_rule_that_could_be_weaker_is_refused_by_name(method):
    rule = f'[[rules.deidentification]]\npath = "Patient.name"\nmethod = "{method}"\n'
    assert "the rule could be weaker than the study's" in problems_of(GOOD + rule)


def test_invalid_rule_is_refused():
    rule = '[[rules.deidentification]]\npath = "Patient.nme"\nmethod = "redact"\n'
    assert "the rule is invalid: the rule path is invalid: R4 has no such element" in problems_of(GOOD + rule)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("k = 3", "rules.k: rules.k = 3 is weaker than the study's k = 5"),
        ("min_cell_count = 2", "min_cell_count = 2 is weaker than the study's 5"),
        ('dates = "shift"', "dates = 'shift' is weaker than the study's 'year'"),
    ],
)
def test_settings_weaker_than_the_study_are_refused_with_line(tmp_path, rule, expected):
    (tmp_path / "site.toml").write_text(f"{GOOD}[rules]\n{rule}\n")
    with pytest.raises(SiteConfigError) as error:
        load_site(tmp_path / "site.toml").check_against(study())
    (problem,) = error.value.problems
    assert expected in str(problem)
    assert problem.line == 11


def test_k_without_quasi_identifiers_is_refused(tmp_path):
    (tmp_path / "site.toml").write_text(f"{GOOD}[rules]\nk = 7\n")
    bare = study().model_copy(update={"privacy": PrivacySection()})
    with pytest.raises(SiteConfigError, match="k = 7 cannot be applied"):
        load_site(tmp_path / "site.toml").check_against(bare)


def test_stricter_settings_apply(tmp_path):
    (tmp_path / "site.toml").write_text(f'{GOOD}[rules]\nk = 11\nmin_cell_count = 12\ndates = "remove"\n')
    file = load_site(tmp_path / "site.toml")
    file.check_against(study())
    assert min_cell_count(file.config, study()) == 12


def test_missing_or_binary_file_is_refused(tmp_path):
    with pytest.raises(SiteConfigError, match="cannot be read"):
        load_site(tmp_path / "none.toml")
    (tmp_path / "site.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SiteConfigError, match="not UTF-8"):
        load_site(tmp_path / "site.toml")


@pytest.mark.parametrize(
    ("start", "end", "inside", "outside"),
    [
        ("20:00", "06:00", ("23:59", "00:00", "05:59", "20:00"), ("06:00", "12:00")),
        ("08:00", "18:00", ("08:00",), ("18:00", "07:59")),
    ],
)
def test_working_hours_may_pass_midnight(start, end, inside, outside):
    from datetime import time

    hours = WorkingHours(start=start, end=end)
    assert all(hours.is_open_at(time.fromisoformat(text)) for text in inside)
    assert not any(hours.is_open_at(time.fromisoformat(text)) for text in outside)
