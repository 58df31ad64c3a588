"""A study in plain words, for a screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from abaton.documents.fields import Match, Period, Term
from abaton.features.specification import Features, Input, Label, Outcome, Source, Where
from abaton.study.criteria import Criterion
from abaton.study.data_requirements import CodeRule, DateRule, Frequency, Requirement
from abaton.study.document import Study
from abaton.study.learning import Learning
from abaton.study.sections import ViewTable
from abaton.study.shorthand.codes import SYSTEMS


def describe(study: Study) -> str:
    """The study as a page of text: question, centre, who, what, protection, consent and hash."""
    return "\n".join(_lines(study))


def _lines(study: Study) -> Iterator[str]:
    head, centre = study.study, study.centre
    yield f"{head.title}  ({head.id}, version {head.version}, {head.status.value})"
    yield ""
    if head.question:
        yield from (f"  {line}" for line in head.question.splitlines())
    yield from _pairs(
        [
            ("purpose", head.purpose.value),
            ("legal basis", head.legal_basis or "not stated"),
            ("leaves the site", " and ".join(share.value for share in head.shares)),
            ("regions", _terms(head.regions)),
            ("period", _period(head.period)),
            ("enrolment", _period(head.enrolment)),
            ("kept for", head.retention or "not stated"),
            ("centre", f"{centre.name}, {centre.endpoint.url}"),
            ("contact", "; ".join(_contact(c.name, [t.value for t in c.telecom]) for c in study.contacts)),
        ]
    )
    yield "\nWho may take part (all of these must be known to hold)"
    yield from (f"  {i}. {_criterion(item)}" for i, item in enumerate(study.eligibility.criteria, 1))
    yield "\nWhat is needed (nothing else is kept)"
    yield from (f"  {i}. {requirement_words(item)}" for i, item in enumerate(study.data, 1))
    yield "\nHow people are protected"
    protection, anonymity = study.deidentification, study.privacy.anonymity
    yield from _pairs(
        [
            ("mechanism", f"{protection.mechanism.value}, {protection.identity.value}"),
            ("dates", protection.dates.value),
            ("rules", f"preset {protection.preset.value}, {len(protection.rules)} of its own"),
            (
                "anonymity",
                f"k = {anonymity.k}, {anonymity.method}" if anonymity else "nothing asked of the whole",
            ),
        ]
    )
    if study.features:
        yield from _features(study.features, study.views)
    if study.learning:
        yield from _learning(study.learning)
    yield "\nWhat people are told"
    if study.consent:
        yield from (f"  {line}" for line in study.consent.text.splitlines())
        yield from (f"  - {text}" for text in study.consent.statements.values())
    else:
        yield "  there is no consent text yet"
    yield f"\nhash {study.hash}"


def _features(features: Features, views: tuple[ViewTable, ...]) -> Iterator[str]:
    yield "\nWhat the model is made of (one row per subject)"
    yield from (f"  {view.name:<16}{view.resource}: {', '.join(view.columns)}" for view in views)
    for i, each in enumerate(features.inputs, 1):
        yield f"  {i}. {each.name}: {input_words(each)}"
    yield f"  {label_words(features.label)}"


def view_words(view: ViewTable) -> str:
    """A view: its name, what it is made of, and its columns."""
    return f"{view.name} of {view.resource}: {', '.join(view.columns)}"


def label_words(label: Label) -> str:
    """What is learned."""
    bounds = [f"above {label.above:g}" if label.above is not None else "", _unit(label.unit)]
    bounds += [
        f"{'up to' if label.kind is Outcome.TIME else 'within'} {label.window}" if label.window else ""
    ]
    bounds += [_where(label.where), f"watched by {label.follow_up.view}" if label.follow_up else ""]
    bounds += [f"and no longer than {label.death.view} say" if label.death else ""]
    names = " or ".join(bucket.name for bucket in label.classes)
    words = [label.kind.value, names, f"of {label.view}", *bounds]
    return f"label {label.name}: {' '.join(word for word in words if word)}"


def source_words(source: Source) -> str:
    """Where a value comes from, and how several become one."""
    words = [source.join.value if source.join else "", f"{source.view}.{source.column}", _where(source.where)]
    return " ".join(word for word in words if word)


def input_words(each: Input) -> str:
    """An input: its kind, where it comes from, and what stands for what is missing."""
    words = [each.kind.value, _unit(each.unit), "/".join(bucket.name for bucket in each.categories)]
    words += [f"from {each.view}.{each.column or '*'}", _where(each.where), each.join or ""]
    words += [f"at {each.at}" if each.at else "", f"in bands of {each.band:g}" if each.band else ""]
    fill = f" {each.fill}" if each.fill is not None else ""
    words += [f"(missing: {each.missing.value}{fill}{' and indicator' if each.indicator else ''})"]
    return " ".join(word for word in words if word)


def _unit(unit: str | None) -> str:
    return f"in {unit}" if unit else ""


def _where(where: Where | None) -> str:
    if where is None:
        return ""
    values = " or ".join(where.values)
    return f"where {where.column} is {' or '.join(part for part in (_terms(where.codes), values) if part)}"


def _learning(learning: Learning) -> Iterator[str]:
    limit = f"{learning.rounds} rounds" + (f", {learning.seconds:g} s" if learning.seconds else "")
    training = learning.training
    yield "\nHow it is trained and judged"
    yield from _pairs(
        [
            ("network", f"{learning.network}, for {learning.task}"),
            ("policy", f"{learning.policy.name}, {limit}"),
            *_own_settings(learning),
            ("codec", learning.codec),
            ("downlink", learning.downlink or "versions as they are"),
            (
                "training",
                f"{training.epochs} epochs of {training.batch_size} at {training.learning_rate:g}, {training.solver}",
            ),
            ("validation", f"{learning.validation:g} of each site, {learning.evaluation.test:g} to test"),
            ("measures", ", ".join(learning.metrics)),
            ("groups", ", ".join(group.input for group in learning.evaluation.groups) or "none"),
        ]
    )


def _own_settings(learning: Learning) -> Iterator[tuple[str, str]]:
    """What the study names besides its policy and of it, as far as it names it."""
    if different := learning.policy.model_dump(exclude={"name"}, exclude_none=True):
        yield "policy's own", ", ".join(f"{key} = {value}" for key, value in different.items())
    if learning.pacing:
        yield "pacing", learning.pacing.words
    if learning.weighting:
        yield "weighting", " times ".join(part.words for part in learning.weighting)
    if learning.robust:
        yield "robust mixing", learning.robust.words
    if learning.server:
        yield "server", learning.server.words
    if (budget := learning.privacy) is not None:
        yield (
            "privacy budget",
            f"epsilon {budget.epsilon:g} at delta {budget.delta:g} against {budget.against}, noise {budget.noise:g} "
            f"of updates shortened to {budget.clip:g}",
        )
    if learning.personal:
        yield "personal layers", ", ".join(learning.personal.layers)
    if learning.personalise:
        yield "each site's own model", ", ".join(learning.personalise)
    if (told := learning.explanation) is not None:
        curves = f"; curves of {', '.join(told.dependence)}" if told.dependence else ""
        yield "explanation", f"every input shuffled {told.importance} times{curves}"
    if learning.parts:
        yield "packages", ", ".join(f"{name} {version}" for name, version in learning.parts.items())


def _pairs(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"  {name:<16}{value}" for name, value in rows)


def _contact(name: str | None, ways: list[str]) -> str:
    return ", ".join([name or "unnamed", *ways])


def _period(period: Period) -> str:
    return f"{period.start or '...'} to {period.end or '...'}"


def _terms(terms: Iterable[Term]) -> str:
    return " or ".join(
        f"{term.display or ''} [{_system(term)}{term.code}{'*' if term.match is Match.STARTS_WITH else ''}]".strip()
        for term in terms
    )


def _system(term: Term) -> str:
    """The short name of a code's system, if it has one: the same code may stand in two systems."""
    return next((f"{name} " for name, system in SYSTEMS.items() if system == term.system), "")


def _criterion(item: Criterion) -> str:
    words = ["not" if item.exclude else "", item.what, _terms(item.codes), " or ".join(item.sex)]
    signs = ("at least", "at most", "above", "below", "exactly")
    words += [
        f"{sign} {bound:g} {item.unit or ''}".strip()
        for sign, bound in zip(signs, item.bounds, strict=True)
        if bound is not None
    ]
    words += [f"is {_terms(item.values)}" if item.values else ""]
    words += ["" if item.flag is None else f"is {'true' if item.flag else 'false'}"]
    words += [f"in {_period(item.period)}" if item.period else ""]
    return " ".join(word for word in words if word)


def requirement_words(item: Requirement) -> str:
    """What may be known: of which resources, which elements, with which codes and dates."""
    words = [f"{item.type}: {item.function.value} {', '.join(item.elements)}".rstrip()]
    words += [_code_rule(rule) for rule in item.codes] + [_date_rule(rule) for rule in item.dates]
    words += [_frequency(item.frequency)] if item.frequency else []
    return "; ".join(words)


def _code_rule(rule: CodeRule) -> str:
    return f"{rule.path} is {_terms(rule.any) or 'in ' + str(rule.value_set)}"


def _date_rule(rule: DateRule) -> str:
    if rule.last:
        return f"{rule.path} within the last {rule.last}"
    return (
        f"{rule.path} on {rule.on}"
        if rule.on
        else f"{rule.path} in {rule.start or '...'} to {rule.end or '...'}"
    )


def _frequency(made: Frequency) -> str:
    parts = [f"{made.times or 1} times every {made.every:g} {made.unit}" if made.every else ""]
    parts += [f"at most {made.count} times" if made.count else ""]
    parts += ["on " + ", ".join(day.isoformat() for day in made.on) if made.on else ""]
    return ", ".join(part for part in parts if part)
