"""A site's policy as text: complete, and consistent with the settings."""

from __future__ import annotations

from tests.cli_runner import abaton

from abaton.site import load_site
from abaton.study_run.messages import FIELDS
from abaton.study_run.model_signatures import signing_key
from abaton.study_run.policy_text import policy_as_text, policy_statements


def statements_of(file, study) -> dict[str, str]:
    return {
        statement.topic: f"{statement.setting}. {statement.meaning}"
        for statement in policy_statements(file, study)
    }


def test_policy_text_covers_releases_recipient_frequency_and_withdrawal(four):
    statements = statements_of(load_site(four.sites[0]), four.study)
    topics = {
        "released data",
        "recipient",
        "frequency",
        "versions",
        "withdrawal",
        "who decides",
        "min_cell_count",
    }
    assert topics <= statements.keys()
    assert statements["recipient"].startswith(four.study.centre.name)
    assert "cannot be recalled" in statements["withdrawal"]


def test_policy_text_describes_the_released_histogram(four):
    statements = statements_of(load_site(four.sites[0]), four.study)
    assert "combination of age, sex, generalised so that" in statements["k-anonymity"]
    assert "at least min_cell_count subjects" in statements["k-anonymity"]
    assert "No released count is about fewer subjects" in statements["min_cell_count"]
    assert "at least min_cell_count subjects" in FIELDS["ingest"]["body/histogram"]


def test_policy_text_without_registry_states_that_consents_are_not_checked(four):
    site = four.sites[0]
    withdrawal = statements_of(load_site(site), four.study)["withdrawal"]
    site.write_text(site.read_text().replace('registry = "consents.db"', 'legal_basis = "a vote"'))
    assert "checks its registry" in withdrawal
    assert statements_of(load_site(site), four.study)["withdrawal"].startswith(
        "not recorded here. Consents are not checked"
    )


def test_the_command_prints_the_same_policy_text(four):
    site, document = four.sites[0], four.sites[0].parent.parent / "study.toml"
    file = load_site(site)
    sentences = list(policy_as_text(policy_statements(file, four.study, signing_key(file).id)))
    shown = abaton("site", "policy", document, "--site", site, "--explain")
    assert shown.stdout.strip() == "\n\n".join(sentences)
