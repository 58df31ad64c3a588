"""A site's policy in plain words: what a centre may ask, what may leave, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from abaton.federation.contract import Contract
from abaton.site import PolicyPart, SiteFile, smallest_count
from abaton.study import Study


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what it is about, what holds here, and what that means."""

    about: str
    holds: str
    means: str


def explained(file: SiteFile, study: Study | None = None, signs: str = "") -> list[Rule]:
    """The rules by which a site answers; with a study, also what the site derives from its document.

    Args:
        file: The site's document.
        study: The study.
        signs: The fingerprint of the site's signing key, if it is to be told.
    """
    terms = file.document.policy
    floor = file.document.rules.smallest_count or 5 if study is None else smallest_count(file.document, study)
    made = [*_bounds(terms, floor), *_signatures(terms, signs)]
    if study is not None and study.learning is not None:
        made += _derived(Contract(study), terms)
    return made


def _bounds(terms: PolicyPart, floor: int) -> Iterator[Rule]:
    yield Rule(
        "smallest count",
        f"{floor} people",
        "No number that leaves the site tells of fewer people, also not by subtraction from anything that "
        "left before, "
        "in this run or an earlier one. If somebody withdraws, training goes on without them at once; what is "
        "counted is "
        f"told as it was, or not at all, until at least {floor} people have changed.",
    )
    yield Rule(
        "counts",
        f"in steps of {floor} or more",
        "How well a model does is told in coarse steps. A class with fewer people is not counted. Predicted "
        "chances are "
        f"told for groups of at least {floor} people, never for one.",
    )
    yield Rule(
        "rows of an update",
        f"at least {terms.fewest_rows}",
        "A model's change that leaves rests on at least so many people. With fewer, the site takes part only "
        "in a study "
        "that goes in rounds, scores no models at other sites, and adds noise within a privacy budget.",
    )
    yield Rule(
        "order of rows",
        "a secret of the site",
        "Whoever knows in which order people are trained on can work out their rows from as many updates as there are "
        "people. In our own attacks a centre that knew it rebuilt the rows of all 88 people of a site, and one that "
        "did not know it of nobody. That is what was measured, on logistic models; it is not a proof.",
    )
    yield Rule(
        "rows of a step",
        f"at least {terms.smallest_batch}",
        "Training goes in batches of at least so many people; only the last batch of a pass may be smaller.",
    )
    yield Rule(
        "models",
        f"within {terms.reach:g} times the site's own steps",
        "A model that was made up, rather than trained, could ask after one person. The first model follows "
        "from the study "
        "document; each later one must lie close to the one before it, or it is refused. A model that is right "
        f"about all but a few people, so that fewer than {terms.smallest_batch} would count, gets no answer.",
    )
    yield Rule(
        "how often",
        f"{terms.scored} models scored beyond one a version, {terms.judged} judged",
        "Each version of the model is trained on once and each model is scored once; asked again, the site "
        "repeats its "
        "answer to the bit.",
    )


def _signatures(terms: PolicyPart, signs: str) -> Iterator[Rule]:
    names = ", ".join(sorted(terms.peers))
    yield Rule(
        "models of other sites",
        f"signed by {names}" if names else "signed, each site by the key that it was first seen with",
        "Over a network a model of another site is scored only if that site has signed that it learned it, in this "
        "study and run, from this version; of each site and version one model, and no other. "
        + (
            "Only sites whose keys stand under [policy.peers] are believed."
            if names
            else "The site lists no keys of others, so a centre could make up sites that do not exist. List the "
            "fingerprints that the other sites read out to you under [policy.peers], and it cannot."
        ),
    )
    if signs:
        yield Rule(
            "own signature",
            signs,
            "What this site has learned leaves with a signature by the key that has this fingerprint. Read it out to "
            "the other sites, by telephone and not through the centre: they list it under [policy.peers].",
        )


def _derived(contract: Contract, terms: PolicyPart) -> Iterator[Rule]:
    learning = contract.learning
    yield Rule(
        "the contract",
        contract.study.hash,
        "The study document with this fingerprint is what the site agreed to. How is trained, with which "
        "columns, how often "
        "and how results are judged is read from it here; the centre can start, order and stop, and nothing else.",
    )
    yield Rule(
        "versions",
        f"at most {contract.versions}",
        f"The site trains on at most so many versions of the model ({learning.training.epochs} passes over "
        f"the rows each, "
        f"{learning.training.batch_size} rows at a time).",
    )
    yield Rule(
        "scores",
        "told" if contract.scores else "refused",
        "Other sites' models are scored here, and this site's model is shown to the other sites."
        if contract.scores
        else "No model of another site is scored here.",
    )
    yield Rule(
        "privacy budget",
        f"{contract.updates} updates, over all runs" if contract.rules.privacy else "none",
        "Every update carries noise; when the budget is spent the site stops, whatever the centre asks."
        if contract.rules.privacy
        else "Updates carry no noise. That they rest on many people, in an order that only the site knows, is what "
        "protects each of them: our own attacks found nobody, and nobody has proven that none can.",
    )
    yield Rule(
        "small sites",
        "may take part" if contract.small_sites else f"not below {terms.fewest_rows} training rows",
        "The study goes in rounds, without scores and with a privacy budget."
        if contract.small_sites
        else "The study lacks rounds, or a privacy budget, or lets sites score models.",
    )


def in_words(rules: list[Rule]) -> Iterator[str]:
    """The rules as sentences, for somebody who does not read settings."""
    for rule in rules:
        yield f"{rule.about[0].upper()}{rule.about[1:]} ({rule.holds}). {rule.means}"
