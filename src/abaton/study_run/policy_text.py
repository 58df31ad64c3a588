"""Text of a site's policy: what a centre may request, what may be released, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from abaton.disclosure.levels import DisclosureLevel
from abaton.disclosure.privacy_budget import DELTA, attacker_success, budget_epsilon
from abaton.site import LoadedSiteConfig, SitePolicySection, disclosure_level, min_cell_count
from abaton.site.consent_config import SiteConsentSection
from abaton.study import Study
from abaton.study_run.task_contract import TaskContract


@dataclass(frozen=True, slots=True)
class PolicyStatement:
    """One statement of a policy: topic, setting at this site, and its meaning."""

    topic: str
    setting: str
    meaning: str


def policy_statements(
    file: LoadedSiteConfig, study: Study | None = None, fingerprint: str = ""
) -> list[PolicyStatement]:
    """Return the statements of a site's policy; with a study, also those derived from the study document.

    Args:
        file: The site's configuration.
        study: The study.
        fingerprint: The fingerprint of the site's signing key, if it is to be shown.
    """
    policy = file.config.policy
    cell_count = (
        file.config.rules.min_cell_count or 5 if study is None else min_cell_count(file.config, study)
    )
    level = (
        policy.disclosure or DisclosureLevel.NOISY if study is None else disclosure_level(file.config, study)
    )
    statements = [
        *_releases(study),
        _disclosure(policy, level, cell_count),
        *_limits(policy),
        *_signatures(policy, fingerprint),
    ]
    if study is not None and study.learning is not None:
        statements += _contract(TaskContract(study), policy)
    return [*statements, *_consent(file.config.consent)]


def _releases(study: Study | None) -> Iterator[PolicyStatement]:
    yield PolicyStatement(
        "released data",
        "counts, sums and model updates",
        "No record, name, pseudonym or single row leaves the site. Released are: the site's id; numbers of subjects by "
        "stage and reason; of each scaled column the number of values, their sum and the sum of their squares; model "
        "updates; evaluation counts; digests that identify no subject. 'abaton site join --dry-run' lists every field "
        "with its current value; a field that is not listed is not sent.",
    )
    if study is None:
        return
    yield PolicyStatement(
        "recipient",
        study.centre.name,
        "This research centre receives everything that is released, over an encrypted connection, and can read it. It "
        "can pass on the community model and results of all sites together and of each site.",
    )
    anonymity = study.privacy.anonymity
    if anonymity is not None:
        columns = ", ".join(quasi.column for quasi in anonymity.quasi_identifiers)
        yield PolicyStatement(
            "k-anonymity",
            f"k = {anonymity.k} over all sites, by {columns}",
            "To find generalisation levels that make the subjects of all sites k-anonymous, the centre receives once "
            f"the number of subjects here with each combination of {columns}, generalised so that each combination "
            "has at least min_cell_count subjects; of rarer combinations only the total. Training rows contain the "
            "generalised values; subjects that are not k-anonymous are suppressed.",
        )


def _consent(consent: SiteConsentSection) -> Iterator[PolicyStatement]:
    if consent.is_per_subject:
        checks = "Before each task the site checks its registry for consents in force."
    elif consent.opt_outs is not None:
        checks = "Before each task the site checks its opt-out list; consents are not collected."
    else:
        checks = (
            "Consents are not checked: the records are used on a legal basis that the site is responsible for, and "
            "there is no opt-out list."
        )
    yield PolicyStatement(
        "withdrawal",
        "from the next task on"
        if consent.is_per_subject or consent.opt_outs is not None
        else "not recorded here",
        f"{checks} Rows of subjects that may no longer be used are deleted from the run's files at the site, and are "
        "not used for training or testing again. Model updates released before cannot be recalled; the centre sees "
        "from a digest that the cohort changed, not which subject withdrew.",
    )
    yield PolicyStatement(
        "who decides",
        "the site",
        "These rules are part of the site's configuration and are enforced by the site's processes; no message of a "
        "centre changes them. A request beyond them is refused with a code from a fixed list; the reason is only in "
        "the site's log. The site can stop 'abaton site join' at any time: from then on it answers no request.",
    )


def _disclosure(policy: SitePolicySection, level: DisclosureLevel, cell_count: int) -> PolicyStatement:
    """Return what the site promises about numbers of groups of subjects, with the figures of its own settings."""
    if level is DisclosureLevel.EXACT:
        return PolicyStatement(
            "disclosure",
            "exact",
            "The study and the site trust the research centre. It receives exact counts and sums of this site; counts "
            f"of 1 to {cell_count - 1} subjects are suppressed. Nothing more is promised: a reader who compares "
            "several answers about nearly the same subjects can find out about single subjects.",
        )
    if level is DisclosureLevel.SUMMED:
        return PolicyStatement(
            "disclosure",
            "summed",
            "Counts and sums are released as exact totals over at least three sites. No number of this site alone is "
            "released. A reader can compare totals of several answers about nearly the same subjects.",
        )
    study, year = attacker_success(policy.study_budget), attacker_success(policy.yearly_budget)
    cases = "{:.0%} and {:.0%} of cases"
    return PolicyStatement(
        "disclosure",
        f"noisy, privacy budget {policy.study_budget:g} per study and {policy.yearly_budget:g} per year",
        "What leaves about groups of subjects are counts and sums. To each the site adds a random number that depends "
        f"on a secret of the site; a count is typically off by {policy.table_sd:g}. Reports show no count below "
        f"{max(policy.threshold, cell_count)}. Two facts about one subject are protected: whether the subject takes "
        "part, and in which of two groups the subject is. A guess is right in 50% of cases. An attacker who knows the "
        "records of all other subjects, and uses everything that this study may ask for one of these facts, is right "
        f"in at most {cases.format(study.membership, study.group)}; without that knowledge in "
        f"{cases.format(study.membership_alone, study.group_alone)}. For all studies at this level in a year it is at "
        f"most {cases.format(year.membership, year.group)}. A repeated question has the same answer for "
        f"{policy.epoch_days} days. Every new answer uses a part of the budget ('abaton site releases' shows it); when "
        "it is used up, nothing more is released. In the terms of differential privacy: epsilon "
        f"{budget_epsilon(policy.study_budget):.1f} per study and {budget_epsilon(policy.yearly_budget):.1f} per year, "
        f"at delta {DELTA:.0e}. The promise covers numbers of subjects by stage, sizes of training and validation "
        "sets, scores of models and, on one machine, the evaluation. It does not cover model updates, the sums for "
        "scaling, evaluation counts on a network, whether the site can take part, or a subject with two Patient ids. "
        "It ends if the site's secret becomes known.",
    )


def _limits(policy: SitePolicySection) -> Iterator[PolicyStatement]:
    yield PolicyStatement(
        "rows of an update",
        f"at least {policy.min_rows}",
        "A released update is computed from at least this many subjects. With fewer, the site takes part only in a "
        "study with synchronous rounds, without evaluation of other sites' models, and with a privacy budget.",
    )
    yield PolicyStatement(
        "order of rows",
        "secret of the site",
        "A centre that knows the order of the training rows can solve for single rows from as many updates as there "
        "are subjects. In our attacks a centre that knew the order reconstructed the rows of all 88 subjects of a "
        "site, and without it no row. This was measured on logistic models; it is not a proof.",
    )
    yield PolicyStatement(
        "batch size",
        f"at least {policy.min_batch_size}",
        "Training uses batches of at least this many subjects; only the last batch of an epoch may be smaller.",
    )
    yield PolicyStatement(
        "models",
        f"within {policy.max_model_shift_ratio:g} times the site's largest update",
        "A crafted model could be used to learn about one subject. The first model is determined by the study "
        "document; each later one must be close to the one before, or it is refused. A model that is right about "
        f"almost all subjects, so that fewer than {policy.min_batch_size} affect the update, is refused.",
    )
    yield PolicyStatement(
        "frequency",
        f"each version once; at most {policy.max_scored_models} more models scored and {policy.max_test_evaluations} "
        "tested",
        "Each version of the model is trained on once, and each model is evaluated once; a repeated request receives "
        "the identical reply. Models are scored on validation rows and tested on test rows.",
    )


def _signatures(policy: SitePolicySection, fingerprint: str) -> Iterator[PolicyStatement]:
    names = ", ".join(sorted(policy.trusted_signers))
    yield PolicyStatement(
        "models of other sites",
        f"signed by {names}" if names else "signed, each site by the key that was seen first",
        "On a network a model of another site is evaluated only if that site signed it, for this study, run and "
        "version; one model of each site and version. "
        + (
            "Only keys listed under [policy.trusted_signers] are accepted."
            if names
            else "The site lists no keys of other sites, so a centre could invent sites. List the fingerprints of the "
            "other sites, confirmed over a second channel, under [policy.trusted_signers] to prevent this."
        ),
    )
    if fingerprint:
        yield PolicyStatement(
            "own signature",
            fingerprint,
            "Models of this site are signed by the key with this fingerprint. Send it to the other sites over a second "
            "channel, not through the centre; they list it under [policy.trusted_signers].",
        )


def _contract(contract: TaskContract, policy: SitePolicySection) -> Iterator[PolicyStatement]:
    learning = contract.learning
    yield PolicyStatement(
        "task contract",
        contract.study.hash,
        "The site agreed to the study document with this hash. The document determines how the model is trained, on "
        "which columns, how often, and how results are evaluated; the centre can only start, order and stop tasks.",
    )
    yield PolicyStatement(
        "versions",
        f"at most {contract.max_versions}",
        f"The site trains on at most this many versions of the model ({learning.training.epochs} epochs each, batch "
        f"size {learning.training.batch_size}).",
    )
    yield PolicyStatement(
        "evaluation of models",
        "allowed" if contract.may_score_models else "refused",
        "Models of other sites are evaluated here, and the other sites receive and evaluate this site's models."
        if contract.may_score_models
        else "No model of another site is evaluated here.",
    )
    yield PolicyStatement(
        "privacy budget",
        f"{contract.max_updates} updates, over all runs" if contract.strategy.privacy else "none",
        "Every update contains noise; when the budget is spent, the site refuses further training."
        if contract.strategy.privacy
        else "Updates contain no noise. Subjects are protected by the number of rows and their secret order: our own "
        "attacks reconstructed no row, but there is no proof.",
    )
    yield PolicyStatement(
        "small sites",
        "may take part" if contract.may_admit_small_sites else f"not below {policy.min_rows} training rows",
        "The study has synchronous rounds, no evaluation of other sites' models, and a privacy budget."
        if contract.may_admit_small_sites
        else "The study has no synchronous rounds, no privacy budget, or lets sites evaluate models.",
    )


def policy_as_text(statements: list[PolicyStatement]) -> Iterator[str]:
    """Yield the statements of a site's policy as text, one sentence each."""
    for statement in statements:
        yield f"{statement.topic[0].upper()}{statement.topic[1:]} ({statement.setting}). {statement.meaning}"
