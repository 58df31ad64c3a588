"""A site's policy as text: complete, and consistent with the settings."""

from __future__ import annotations

from tests.cli_runner import abaton

from abaton.disclosure.levels import DisclosureLevel
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
        "disclosure",
    }
    assert topics <= statements.keys()
    assert statements["recipient"].startswith(four.study.centre.name)
    assert "cannot be recalled" in statements["withdrawal"]


def test_policy_text_describes_the_released_histogram(four):
    statements = statements_of(load_site(four.sites[0]), four.study)
    assert "combination of age, sex, generalised so that" in statements["k-anonymity"]
    assert "at least min_cell_count subjects" in statements["k-anonymity"]
    assert "at least min_cell_count subjects" in FIELDS["ingest"]["body/histogram"]


def with_policy(site, text: str):
    """Return the configuration with one more line under [policy]."""
    content = site.read_text()
    line = "[policy]\n" + text + "\n"
    site.write_text(content.replace("[policy]\n", line) if "[policy]\n" in content else f"{content}\n{line}")
    return load_site(site)


def test_policy_text_states_the_promise_with_the_figures_of_the_site(four):
    file = with_policy(four.sites[0], 'disclosure = "noisy"')
    text = statements_of(file, four.study)["disclosure"]
    # Phi(sqrt(2 rho) / 2) and its variants for rho = 1 and rho = 2, from a table of the normal distribution.
    for figures in (
        "at most 76% and 84% of cases",
        "in 64% and 69% of cases",
        "at most 84% and 92% of cases",
    ):
        assert figures in text
    assert "typically off by 3." in text
    assert "no count below 10." in text
    assert "epsilon 7.8 per study and 11.7 per year, at delta 1e-06" in text
    assert "does not cover model updates" in text
    halved = with_policy(four.sites[0], "study_budget = 0.5")
    assert "at most 69% and 76% of cases" in statements_of(halved, four.study)["disclosure"]


def test_policy_text_of_exact_promises_nothing_about_differencing(four):
    exact = four.study.model_copy(
        update={"privacy": four.study.privacy.model_copy(update={"disclosure": DisclosureLevel.EXACT})}
    )
    text = statements_of(load_site(four.sites[0]), exact)["disclosure"]
    assert text.startswith("exact. ")
    assert "counts of 1 to 4 subjects are suppressed" in text
    assert "can find out about single subjects" in text
    stricter = with_policy(four.sites[0], 'disclosure = "noisy"')
    assert statements_of(stricter, exact)["disclosure"].startswith("noisy")


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
