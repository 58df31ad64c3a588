"""A study in plain words, for a screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from abaton.study.criteria import Criterion
from abaton.study.document import Study
from abaton.study.features import Feature, Features, Filter
from abaton.study.learning import Learning
from abaton.study.requirements import CodeRule, DateRule, Requirement
from abaton.study.tables import ViewTable
from abaton.study.values import Frequency, Match, Period, Term


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
    yield from (f"  {i}. {_requirement(item)}" for i, item in enumerate(study.data, 1))
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
        yield f"  {i}. {each.name}: {_input(each)}"
    label = features.label
    bounds = [f"above {label.above:g}" if label.above is not None else "", _unit(label.unit)]
    bounds += [f"within {label.window}" if label.window else "", _where(label.where)]
    names = " or ".join(bucket.name for bucket in label.classes)
    words = [label.kind.value, names, f"of {label.view}", *bounds]
    yield f"  label {label.name}: {' '.join(word for word in words if word)}"


def _input(each: Feature) -> str:
    words = [each.kind.value, _unit(each.unit), "/".join(bucket.name for bucket in each.categories)]
    words += [f"from {each.view}.{each.column or '*'}", _where(each.where), each.join or ""]
    words += [f"at {each.at}" if each.at else "", f"in bands of {each.band:g}" if each.band else ""]
    fill = f" {each.fill}" if each.fill is not None else ""
    words += [f"(missing: {each.missing.value}{fill}{' and indicator' if each.indicator else ''})"]
    return " ".join(word for word in words if word)


def _unit(unit: str | None) -> str:
    return f"in {unit}" if unit else ""


def _where(where: Filter | None) -> str:
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
            ("codec", learning.codec),
            (
                "training",
                f"{training.epochs} epochs of {training.batch_size} at {training.learning_rate:g}, {training.solver}",
            ),
            ("validation", f"{learning.validation:g} of each site, {learning.evaluation.test:g} to test"),
            ("measures", ", ".join(learning.metrics)),
            ("groups", ", ".join(group.input for group in learning.evaluation.groups) or "none"),
        ]
    )


def _pairs(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"  {name:<16}{value}" for name, value in rows)


def _contact(name: str | None, ways: list[str]) -> str:
    return ", ".join([name or "unnamed", *ways])


def _period(period: Period) -> str:
    return f"{period.start or '...'} to {period.end or '...'}"


def _terms(terms: Iterable[Term]) -> str:
    return " or ".join(
        (term.display or "") + f" [{term.code}{'*' if term.match is Match.STARTS_WITH else ''}]"
        for term in terms
    ).strip()


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


def _requirement(item: Requirement) -> str:
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
