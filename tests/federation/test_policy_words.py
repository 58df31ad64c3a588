"""A site's policy in words: what a lawyer asks is answered, and what is said is so."""

from __future__ import annotations

from tests.typed import abaton

from abaton.study_run.messages import FIELDS
from abaton.study_run.policy_text import explained, in_words
from abaton.study_run.model_signatures import signing_key
from abaton.site import load_site


def said(file, study) -> dict[str, str]:
    return {rule.about: f"{rule.holds}. {rule.means}" for rule in explained(file, study)}


def test_what_leaves_to_whom_how_often_and_who_decides_is_said(four):
    rules = said(load_site(four.sites[0]), four.study)
    questions = {
        "what leaves",
        "to whom",
        "how often",
        "versions",
        "withdrawal",
        "who decides",
        "smallest count",
    }
    assert questions <= rules.keys()
    assert rules["to whom"].startswith(four.study.centre.name)
    assert "cannot be taken back" in rules["withdrawal"]


def test_a_policy_says_what_is_told_of_combinations_and_makes_no_exception(four):
    rules = said(load_site(four.sites[0]), four.study)
    assert "combination of age, sex, in ranges so wide" in rules["hiding"]
    assert "fewer than the smallest count" in rules["hiding"]
    assert "No count that leaves the site tells of fewer people" in rules["smallest count"]
    assert "fewer people than the smallest count" in FIELDS["read"]["body/histogram"]


def test_without_a_registry_nobody_is_said_to_be_asked(four):
    site = four.sites[0]
    asked = said(load_site(site), four.study)["withdrawal"]
    site.write_text(site.read_text().replace('registry = "consents.db"', 'ground = "a vote"'))
    assert "asks its own registry" in asked
    assert said(load_site(site), four.study)["withdrawal"].startswith("not kept here. Nobody is asked")


def test_before_joining_the_same_words_are_shown(four):
    site, document = four.sites[0], four.sites[0].parent.parent / "study.toml"
    file = load_site(site)
    words = list(in_words(explained(file, four.study, signing_key(file).id)))
    shown = abaton("site", "policy", document, "--site", site, "--explain")
    assert shown.stdout.strip() == "\n\n".join(words)
