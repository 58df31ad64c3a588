"""Summary of a study document as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from abaton.disclosure.levels import DisclosureLevel
from abaton.documents.fields import CodePrefix, Coding, DatePeriod
from abaton.features.specification import FeatureSpec, InputSpec, LabelKind, LabelSpec, RowFilter, ViewColumn
from abaton.study.criteria import Criterion
from abaton.study.data_requirements import CodeRequirement, DateRequirement, Frequency, RequirementSection
from abaton.study.document import Study
from abaton.study.learning import LearningSection
from abaton.study.sections import ViewSection
from abaton.study.shorthand.codes import SYSTEMS

_DISCLOSURE = {
    DisclosureLevel.NOISY: "counts and sums with noise, within each site's privacy budget",
    DisclosureLevel.SUMMED: "exact sums over at least three sites",
    DisclosureLevel.EXACT: "exact numbers of each site; differencing is not prevented",
}


def describe(study: Study) -> str:
    """Return the summary of a study: one page of text with its hash."""
    return "\n".join(_lines(study))


def _lines(study: Study) -> Iterator[str]:
    identification, centre = study.study, study.centre
    version = f"version {identification.version}, {identification.status.value}"
    yield f"{identification.title}  ({identification.id}, {version})"
    yield ""
    if identification.question:
        yield from (f"  {line}" for line in identification.question.splitlines())
    yield from _pairs(
        [
            ("purpose", identification.purpose.value),
            ("legal basis", identification.legal_basis or "not stated"),
            ("shared data", " and ".join(shared.value for shared in identification.shared_data)),
            ("regions", _codings(identification.regions)),
            ("period", _period(identification.period)),
            ("enrolment", _period(identification.enrolment)),
            ("retention", identification.retention or "not stated"),
            ("centre", f"{centre.name}, {centre.endpoint.url}"),
            ("contact", "; ".join(_contact(c.name, [t.value for t in c.telecom]) for c in study.contacts)),
        ]
    )
    yield "\nEligibility (all criteria must be met)"
    yield from (f"  {i}. {_criterion(item)}" for i, item in enumerate(study.eligibility.criteria, 1))
    yield "\nData requirements (all other data are removed)"
    yield from (f"  {i}. {describe_requirement(item)}" for i, item in enumerate(study.data, 1))
    yield "\nDe-identification and disclosure control"
    deidentification, anonymity = study.deidentification, study.privacy.anonymity
    yield from _pairs(
        [
            ("mechanism", f"{deidentification.mechanism.value}, {deidentification.identity.value}"),
            ("dates", deidentification.dates.value),
            ("rules", f"preset {deidentification.preset.value}, {len(deidentification.rules)} further"),
            ("disclosure", f"{study.privacy.disclosure.value}: {_DISCLOSURE[study.privacy.disclosure]}"),
            ("min cell count", str(study.privacy.min_cell_count)),
            ("anonymity", f"k = {anonymity.k}, {anonymity.method}" if anonymity else "not required"),
        ]
    )
    if study.features:
        yield from _features(study.features, study.views)
    if study.learning:
        yield from _learning(study.learning)
    yield "\nConsent"
    if study.consent:
        yield from (f"  {line}" for line in study.consent.text.splitlines())
        yield from (f"  - {text}" for text in study.consent.statements.values())
    else:
        yield "  no consent text"
    yield f"\nhash {study.hash}"


def _features(features: FeatureSpec, views: tuple[ViewSection, ...]) -> Iterator[str]:
    yield "\nFeatures (one row per subject)"
    yield from (f"  {view.name:<16}{view.resource}: {', '.join(view.columns)}" for view in views)
    for i, spec in enumerate(features.inputs, 1):
        yield f"  {i}. {spec.name}: {describe_input(spec)}"
    yield f"  {describe_label(features.label)}"


def describe_view(view: ViewSection) -> str:
    """Summarise a view of a study: name, resource type and columns."""
    return f"{view.name} of {view.resource}: {', '.join(view.columns)}"


def describe_label(label: LabelSpec) -> str:
    """Summarise the label of a study as text."""
    bounds = [f"above {label.threshold:g}" if label.threshold is not None else "", _unit(label.unit)]
    preposition = "up to" if label.kind is LabelKind.TIME else "within"
    bounds += [f"{preposition} {label.outcome_window}" if label.outcome_window else "", _where(label.where)]
    bounds += [f"with follow-up from {label.follow_up.view}" if label.follow_up else ""]
    bounds += [f"censored by {label.death.view}" if label.death else ""]
    names = " or ".join(category.name for category in label.classes)
    parts = [label.kind.value, names, f"of {label.view}", *bounds]
    return f"label {label.name}: {' '.join(word for word in parts if word)}"


def describe_source(source: ViewColumn) -> str:
    """Summarise where a value of a study comes from and how rows are aggregated."""
    parts = [
        source.aggregation.value if source.aggregation else "",
        f"{source.view}.{source.column}",
        _where(source.where),
    ]
    return " ".join(word for word in parts if word)


def describe_input(spec: InputSpec) -> str:
    """Summarise an input of a study: kind, source, filter, aggregation and imputation."""
    parts = [spec.kind.value, _unit(spec.unit), "/".join(category.name for category in spec.categories)]
    parts += [f"from {spec.view}.{spec.column or '*'}", _where(spec.where), spec.aggregation or ""]
    parts += [f"at {spec.reference_date}" if spec.reference_date else ""]
    parts += [f"in bands of {spec.band_width:g}" if spec.band_width else ""]
    if spec.plausible:
        parts += ["plausible from {:g} to {:g}".format(*spec.plausible)]
    parts += ["with implausible values" if spec.on_implausible == "keep" else ""]
    if spec.spline:
        parts += [
            f"{spec.scale or ''} spline with knots {', '.join(f'{knot:g}' for knot in spec.spline)}".strip()
        ]
    fill = f" {spec.fill_value}" if spec.fill_value is not None else ""
    indicator = " and indicator" if spec.missing_indicator else ""
    parts += [f"(imputation: {spec.imputation.value}{fill}{indicator})"]
    return " ".join(word for word in parts if word)


def _unit(unit: str | None) -> str:
    return f"in {unit}" if unit else ""


def _where(where: RowFilter | None) -> str:
    if where is None:
        return ""
    values = " or ".join(where.values)
    return f"where {where.column} is {' or '.join(part for part in (_codings(where.codes), values) if part)}"


def _learning(learning: LearningSection) -> Iterator[str]:
    limit = f"{learning.rounds} rounds" + (f", {learning.max_seconds:g} s" if learning.max_seconds else "")
    training = learning.training
    yield "\nTraining and evaluation"
    yield from _pairs(
        [
            ("model", f"{learning.model}, for {learning.task}"),
            ("strategy", f"{learning.strategy.name}, {limit}"),
            *_optional_settings(learning),
            ("codec", learning.codec),
            ("downlink", learning.downlink or "full versions"),
            (
                "training",
                f"{training.epochs} epochs, batch size {training.batch_size}, "
                f"learning rate {training.learning_rate:g}, {training.optimiser}",
            ),
            (
                "validation",
                f"fraction {learning.validation_fraction:g}, test fraction {learning.evaluation.test_fraction:g}",
            ),
            ("metrics", ", ".join(learning.metrics)),
            ("groups", ", ".join(group.input for group in learning.evaluation.groups) or "none"),
        ]
    )


def _optional_settings(learning: LearningSection) -> Iterator[tuple[str, str]]:
    """Yield, for the summary, the settings in which the study differs from its strategy."""
    if different := learning.strategy.model_dump(exclude={"name"}, exclude_none=True):
        yield "strategy keys", ", ".join(f"{key} = {value}" for key, value in different.items())
    if learning.scheduler:
        yield "scheduler", learning.scheduler.spec
    if learning.weighting:
        yield "weighting", " times ".join(factor.spec for factor in learning.weighting)
    if learning.robust_aggregation:
        yield "robust aggregation", learning.robust_aggregation.spec
    if learning.robustness:
        yield "robustness", learning.robustness
    if learning.server_optimiser:
        yield "server optimiser", learning.server_optimiser.spec
    if (budget := learning.privacy) is not None:
        yield (
            "privacy budget",
            f"epsilon {budget.epsilon:g} at delta {budget.delta:g}, adversary {budget.adversary}, "
            f"noise multiplier {budget.noise_multiplier:g}, clip norm {budget.clip_norm:g}",
        )
    if learning.personal_layers:
        yield "personal layers", ", ".join(learning.personal_layers.layers)
    if learning.personalise:
        yield "personal models", ", ".join(learning.personalise)
    if (interpretability := learning.interpretability) is not None:
        curves = (
            f"; partial dependence of {', '.join(interpretability.partial_dependence)}"
            if interpretability.partial_dependence
            else ""
        )
        yield "interpretability", f"{interpretability.permutation_repeats} permutations per input{curves}"
    if learning.plugins:
        yield "plugins", ", ".join(f"{name} {version}" for name, version in learning.plugins.items())


def _pairs(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"  {name:<20}{value}" for name, value in rows)


def _contact(name: str | None, telecom: list[str]) -> str:
    return ", ".join([name or "unnamed", *telecom])


def _period(period: DatePeriod) -> str:
    return f"{period.start or '...'} to {period.end or '...'}"


def _codings(codings: Iterable[Coding]) -> str:
    return " or ".join(
        f"{coding.display or ''} [{_system(coding)}{coding.code}{_star(coding)}]".strip()
        for coding in codings
    )


def _star(coding: Coding) -> str:
    return "*" if coding.match is CodePrefix.STARTS_WITH else ""


def _system(coding: Coding) -> str:
    """Return the short name of a code's system for the summary, if it has one."""
    return next((f"{name} " for name, system in SYSTEMS.items() if system == coding.system), "")


def _criterion(item: Criterion) -> str:
    parts = ["not" if item.exclude else "", item.type, _codings(item.codes), " or ".join(item.sex)]
    signs = ("at least", "at most", "above", "below", "exactly")
    parts += [
        f"{sign} {bound:g} {item.unit or ''}".strip()
        for sign, bound in zip(signs, item.bounds, strict=True)
        if bound is not None
    ]
    parts += [f"is {_codings(item.values)}" if item.values else ""]
    parts += ["" if item.flag is None else f"is {'true' if item.flag else 'false'}"]
    parts += [f"in {_period(item.period)}" if item.period else ""]
    return " ".join(word for word in parts if word)


def describe_requirement(item: RequirementSection) -> str:
    """Summarise a data requirement of a study: resource type, elements, codes and dates."""
    parts = [f"{item.type}: {item.purpose.value} {', '.join(item.elements)}".rstrip()]
    parts += [_code_rule(rule) for rule in item.codes] + [_date_rule(rule) for rule in item.dates]
    parts += [_frequency(item.frequency)] if item.frequency else []
    return "; ".join(parts)


def _code_rule(rule: CodeRequirement) -> str:
    return f"{rule.path} is {_codings(rule.any_of) or 'in ' + str(rule.value_set)}"


def _date_rule(rule: DateRequirement) -> str:
    if rule.last:
        return f"{rule.path} within the last {rule.last}"
    return (
        f"{rule.path} on {rule.on}"
        if rule.on
        else f"{rule.path} in {rule.start or '...'} to {rule.end or '...'}"
    )


def _frequency(frequency: Frequency) -> str:
    parts = [
        f"{frequency.times or 1} times every {frequency.every:g} {frequency.unit}" if frequency.every else ""
    ]
    parts += [f"at most {frequency.count} times" if frequency.count else ""]
    parts += ["on " + ", ".join(day.isoformat() for day in frequency.on) if frequency.on else ""]
    return ", ".join(part for part in parts if part)
