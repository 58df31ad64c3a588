"""``site.toml``: every problem with its line, no secret inside, and nothing weaker than the study."""

from __future__ import annotations

import pytest
from cohort import study

from abaton.records import Dates
from abaton.site import SiteError, load_site, site_from_toml, smallest_count, starter
from abaton.site.config import Hours
from abaton.study.sections import Privacy

GOOD = """
[site]
id = "pisa"
name = "Hospital"
[records]
kind = "ndjson"
paths = ["records"]
[consent]
ground = "vote 7"
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
WEB = GOOD.replace('kind = "ndjson"\npaths = ["records"]', 'kind = "fhir"\nurl = "https://h.example/r4"')


def wrong(text: str) -> str:
    with pytest.raises(SiteError) as error:
        site_from_toml(text)
    return " | ".join(str(problem) for problem in error.value.problems)


def test_the_starter_is_valid_and_every_commented_example_too():
    text = starter("site.toml")
    assert site_from_toml(text).site.id == "my-site"
    for kind in ("directory", "fhir", "bulk"):
        head, _, rest = text.partition('kind = "ndjson"')
        _, start, block = rest.partition(f'# kind = "{kind}"')
        chosen, _, after = block.partition("\n\n")
        opened = "\n".join(line.removeprefix("# ") for line in (start + chosen).splitlines())
        smart = after if kind in ("fhir", "bulk") else ""
        tail = after[after.index("# What the site asks") :]
        access = smart.partition("# [records.smart]")[2].partition("\n\n")[0] if smart else ""
        lines = "\n".join(line.removeprefix("# ") for line in access.splitlines())
        made = site_from_toml(f"{head}{opened}\n{'[records.smart]' if smart else ''}{lines}\n{tail}")
        assert made.records.kind.value == kind


def test_every_rule_of_the_starter_can_be_taken_in():
    text = starter("site.toml")
    for line in ("# k = 10", "# smallest_count", "# dates", "# batch", "# hours"):
        text = text.replace(line, line.removeprefix("# "))
    head, start, block = text.partition("# [[rules.deidentification]]")
    rule, _, tail = (start + block).partition("\n\n")
    opened = "\n".join(line.removeprefix("# ") for line in rule.splitlines())
    made = site_from_toml(f"{head}{opened}\n\n{tail}")
    assert made.rules.k == 10
    assert made.rules.dates is Dates.REMOVE
    assert made.rules.deidentification[0].method == "generalise"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GOOD.replace("[consent]", "[consnt]"), "'consnt' is not a known key; did you mean 'consent'?"),
        (GOOD.replace('id = "pisa"', 'id = "p i"'), "site.toml:3: site.id"),
        (
            GOOD.replace('name = "Hospital"', ""),
            "'name' is missing; add it; 'abaton site new' writes an example",
        ),
        (GOOD.replace("ndjson", "ndjsn"), "did you mean 'ndjson'?"),
        (GOOD.replace('paths = ["records"]', ""), "it is not said where the records are"),
        (GOOD.replace('kind = "ndjson"', 'kind = "fhir"'), "'paths' does not belong to kind = 'fhir'"),
        (WEB.replace("https://h", "http://h"), "records would travel unencrypted"),
        (WEB.replace("https://h", "https://me:hush@h"), "the address holds a name or a password"),
        (WEB.replace("https://h.example/r4", "file:///etc/passwd"), "this is not the address of a server"),
        (WEB.replace("https://h.example/r4", "https://["), "this is not the address of a server"),
        (GOOD.replace('ground = "vote 7"', ""), "nothing may be used without a consent in force"),
        (GOOD + PERMIT, "two grounds are given"),
        (GOOD + PERMIT.replace("2028", "2025"), "the permit ends before it begins"),
        (GOOD + "[consent.opt_outs]", "it is not clear where the opt-out list is"),
        (GOOD + '[consent.opt_outs]\nfile = "out.txt"', "no key for them is named"),
        (GOOD + FORM, "forms are read, but not asked for"),
        (GOOD + '[keys]\nstudy = """\n-----BEGIN PRIVATE KEY-----\nabc"""', "this is not the path of a file"),
        (GOOD + '[rules]\nnever = ["Patent"]', "R4 has no resource type 'Patent'"),
        (GOOD + "[rules]\nk = 1", "rules.k"),
        (GOOD + '[limits]\nhours = { start = "25:00", end = "06:00" }', "this is not a stretch of the day"),
        (WEB + '[keys]\nstudy = "work/study.key"', "a key lies in the folder that is emptied after use"),
        ("[site", "this is not TOML"),
    ],
)
def test_a_problem_is_told_with_its_remedy(text, told):
    assert told in wrong(text)


def test_a_secret_is_not_repeated_in_the_complaint():
    assert "hush" not in wrong(WEB.replace("https://h", "https://me:hush@h"))
    assert "abc" not in wrong(GOOD + '[keys]\nstudy = """\n-----BEGIN PRIVATE KEY-----\nabc"""')


def test_problems_carry_the_line():
    found = wrong(GOOD + "[limits]\nthreads = 0\n")
    assert found.startswith("site.toml:11: limits.threads")


@pytest.mark.parametrize("method", ["keep", "shift", "terminology", "substitute", "mask", "pseudonymise"])
def test_a_rule_that_could_be_weaker_is_refused_by_name(method):
    rule = f'[[rules.deidentification]]\npath = "Patient.name"\nmethod = "{method}"\n'
    assert f"the site's rule '{method} Patient.name' could be weaker than the study's" in wrong(GOOD + rule)


def test_a_rule_that_is_not_understood_is_refused_by_name():
    rule = '[[rules.deidentification]]\npath = "Patient.nme"\nmethod = "redact"\n'
    assert "the site's rule 'redact Patient.nme' is not understood" in wrong(GOOD + rule)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("k = 3", "rules.k: the site's rule k = 3 is weaker than the study's k = 5"),
        ("smallest_count = 2", "smallest_count = 2 is weaker than the study's count_floor = 5"),
        ('dates = "shift"', "dates = 'shift' is weaker than the study's 'year'"),
    ],
)
def test_what_is_weaker_than_the_study_is_refused_with_its_line(tmp_path, rule, told):
    (tmp_path / "site.toml").write_text(f"{GOOD}[rules]\n{rule}\n")
    with pytest.raises(SiteError) as error:
        load_site(tmp_path / "site.toml").against(study())
    (problem,) = error.value.problems
    assert told in str(problem)
    assert problem.line == 11


def test_a_k_that_nobody_can_keep_is_refused(tmp_path):
    (tmp_path / "site.toml").write_text(f"{GOOD}[rules]\nk = 7\n")
    bare = study().model_copy(update={"privacy": Privacy()})
    with pytest.raises(SiteError, match="k = 7 cannot be kept"):
        load_site(tmp_path / "site.toml").against(bare)


def test_what_is_stricter_counts(tmp_path):
    (tmp_path / "site.toml").write_text(f'{GOOD}[rules]\nk = 11\nsmallest_count = 12\ndates = "remove"\n')
    file = load_site(tmp_path / "site.toml")
    file.against(study())
    assert smallest_count(file.document, study()) == 12


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(SiteError, match="cannot be read"):
        load_site(tmp_path / "none.toml")
    (tmp_path / "site.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SiteError, match="not UTF-8"):
        load_site(tmp_path / "site.toml")


@pytest.mark.parametrize(
    ("start", "end", "inside", "outside"),
    [
        ("20:00", "06:00", ("23:59", "00:00", "05:59", "20:00"), ("06:00", "12:00")),
        ("08:00", "18:00", ("08:00",), ("18:00", "07:59")),
    ],
)
def test_hours_may_run_past_midnight(start, end, inside, outside):
    from datetime import time

    hours = Hours(start=start, end=end)
    assert all(hours.open_at(time.fromisoformat(moment)) for moment in inside)
    assert not any(hours.open_at(time.fromisoformat(moment)) for moment in outside)
