"""A site's policy in plain words: what a centre may ask, what may leave, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from abaton.site import PolicyPart, SiteFile, smallest_count
from abaton.site.config import ConsentPart
from abaton.study import Study
from abaton.study_run.task_contract import Contract


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
    made = [*_leaving(study), *_bounds(terms, floor), *_signatures(terms, signs)]
    if study is not None and study.learning is not None:
        made += _derived(Contract(study), terms)
    return [*made, *_deciding(file.document.consent)]


def _leaving(study: Study | None) -> Iterator[Rule]:
    yield Rule(
        "what leaves",
        "counts, sums and changes of a model",
        "No record, name, pseudonym or single row leaves. What leaves: the site's id; how many people there are, by "
        "stage and by reason; of each column that is scaled how many values, their sum and the sum of their squares; "
        "the change of the model after training; how well models do; digests that tell nobody. 'abaton site join "
        "--dry-run' lists every field with what it would hold now; a field that is not on that list is not sent.",
    )
    if study is None:
        return
    yield Rule(
        "to whom",
        study.centre.name,
        "This research centre receives everything that leaves, over an encrypted connection, and can read it. What "
        "it makes of it, the community model and results about all sites together and each alone, it can pass on.",
    )
    asked = study.privacy.anonymity
    if asked is not None:
        named = ", ".join(quasi.column for quasi in asked.quasi_identifiers)
        yield Rule(
            "hiding",
            f"among {asked.k} people of all sites, by {named}",
            "So that ranges can be found in which everybody hides among the people of all sites, the centre is told, "
            f"once, how many people here share each combination of {named}, in ranges so wide that no combination has "
            "fewer than the smallest count of people; of rarer ones only how many people they hold together. In the "
            "rows that are trained on these columns hold the ranges; a person who does not hide in them is left out.",
        )


def _deciding(consent: ConsentPart) -> Iterator[Rule]:
    if consent.by_person:
        asks = "Before each task the site asks its own registry who still agrees."
    elif consent.opt_outs is not None:
        asks = "Before each task the site asks its own list who has said no; nobody is asked for a yes."
    else:
        asks = (
            "Nobody is asked: the records are used on a ground that the site answers for, and it keeps no list of "
            "people who have said no."
        )
    yield Rule(
        "withdrawal",
        "from the next task on" if consent.by_person or consent.opt_outs is not None else "not kept here",
        f"{asks} Rows of whoever may not be used any more are deleted from the run's files here, and are neither "
        "trained on nor tested with again. Changes of the model that have left before cannot be taken back; the centre "
        "sees by a digest that somebody has gone, not who.",
    )
    yield Rule(
        "who decides",
        "the site",
        "These rules stand in the site's own document and are kept by the site's own programs; no message of a centre "
        "changes them. What goes beyond them is refused in one of a few fixed phrases; why, only the site's own log "
        "says. Whoever keeps the site can end 'abaton site join' at any time: from then on nothing is answered.",
    )


def _bounds(terms: PolicyPart, floor: int) -> Iterator[Rule]:
    yield Rule(
        "smallest count",
        f"{floor} people",
        f"No count that leaves the site tells of fewer people, also not by subtraction from any that left before, "
        "in this run or an earlier one. If somebody withdraws, training goes on without them at once; what is counted "
        f"is told as it was, or not at all, until at least {floor} people have changed.",
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
        f"each version once; {terms.scored} more models scored and {terms.judged} judged at most",
        "Each version of the model is trained on once and each model is scored once; asked again, the site "
        "repeats its answer to the bit. Scored means on the rows set aside to compare models by, judged on those set "
        "aside for the test at the end.",
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
        "The study document with this fingerprint is what the site agreed to. How the model is trained, on which "
        "columns, how often, and how results are judged is read from it here; the centre can start a run, say in "
        "which order sites work, and stop it, and nothing else.",
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
        "Models that other sites trained are scored here, and the other sites see and score this site's."
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
