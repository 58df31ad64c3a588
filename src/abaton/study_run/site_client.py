"""The centre's questions to the sites of a study, before training and after it; sites that cannot answer are left out.

The same steps as on one machine (`federation.members`), with sites that only tell sums, masked counts and digests:
read everything, enforce anonymity over the union, deal subjects, scale columns together; in the end, judge.

Each site is asked by one message to its node. A message that gets lost is sent again when the node is back; a site that
is away for too long, or whose processes keep ending, has not answered.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from abaton.anonymity import AnonymitySettings
from abaton.anonymity.federated_recoding import Choice, Histogram, merge
from abaton.engines.base import DIED, LATE, UNREADABLE_ANSWER
from abaton.engines.flower.flower_engine import MOST_EVALUATIONS
from abaton.engines.flower.flower_messages import NODE_GONE, Lost, Parcel, Post, Shelf
from abaton.engines.task_queue import MOST_DEATHS
from abaton.errors import AbatonError
from abaton.features import columns
from abaton.kernels import Vector
from abaton.study import Study
from abaton.study_run.evaluation import Told
from abaton.study_run.interpretability import SiteExplained
from abaton.study_run.local_benefit import SiteGain
from abaton.study_run.messages import (
    body_of,
    cohort_told,
    explained_from,
    gain_from,
    histogram_told,
    sums_from,
    text,
    told_from,
    unreadable,
    whole,
    worded,
)
from abaton.study_run.preparation import (
    FEWEST,
    NOBODY_HIDES,
    NOTHING_TOLD,
    Sums,
    check_enough,
    chosen,
    scale_of,
    told_of,
)
from abaton.study_run.preparation_state import Scale
from abaton.study_run.response_checks import check_explained, check_gain, check_told
from abaton.study_run.site_releases import check_scale

Step = Callable[[str], None]

LARGEST_FLOOR = 100
"""Results are told by the largest smallest count of all sites: one that asks for more would silence everybody."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What the sites of a run told before it began.

    Attributes:
        tables, cohorts, floors: Of every site that takes part: fingerprints, and the smallest count it tells.
        left_out: Why others do not take part.
        told: What there is to tell of every site, masked.
        anonymity: What was asked of the union and what was chosen; none if nothing was asked.
        scale: What all sites scale by.
        choice: The ranges that were chosen for all sites, if anonymity was asked for.
    """

    tables: Mapping[str, str]
    cohorts: Mapping[str, str]
    floors: Mapping[str, int]
    left_out: Mapping[str, str]
    told: Mapping[str, Mapping[str, Any]]
    anonymity: Mapping[str, Any] | None
    scale: Scale
    choice: Choice | None


@dataclass(slots=True)
class Preparation:
    """Asks the sites of a study, step by step, and leaves out those that cannot take part.

    Args:
        study: The study.
        survey: Asks and waits.
        run: The run's name.
        seed: Decides who is dealt where.
        step: Told of progress, in words without content.
    """

    study: Study
    survey: Survey
    run: str
    seed: int
    step: Step
    left_out: dict[str, str] = field(default_factory=dict)

    def __call__(self, names: Sequence[str]) -> Ready:
        """Make members of the sites that can take part.

        Raises:
            Refused: Too few sites are left, or anonymity cannot be had; nothing was trained.
        """
        assert self.study.learning is not None
        self.step(f"{', '.join(names)} read their records")
        read = self._ask("read", names, {}, self._read)
        told = {name: each["told"] for name, each in read.items()}
        able = {name: each for name, each in read.items() if self._is_able(name, each)}
        self._check(able)
        hidden = self._hide(able)
        body: dict[str, Any] = {"seed": self.seed}
        if hidden is not None:
            body |= {"k": hidden[1].k, "choice": hidden[0].row()}
        self.step("sites deal their subjects and tell sums for scaling")
        dealt = self._ask("deal", list(able), body, self._sums)
        self._check(dealt)
        scale = self._scale(dealt)
        made = self._ask("scale", list(dealt), {**body, "scale": scale.row()}, self._member)
        self._check(made)
        shared = {name: able[name]["histogram"] for name in sorted(able)} if hidden is not None else {}
        return self._ready(made, told, scale, hidden, shared)

    def _ready(
        self,
        made: Mapping[str, Mapping[str, Any]],
        told: Mapping[str, Any],
        scale: Scale,
        hidden: tuple[Choice, AnonymitySettings] | None,
        shared: Mapping[str, Histogram],
    ) -> Ready:
        floors = {name: each["floor"] for name, each in made.items()}
        anonymity = None if hidden is None else told_of(*hidden, min(floors.values()), shared)
        return Ready(
            {name: each["table"] for name, each in made.items()},
            {name: each["cohort"] for name, each in made.items()},
            floors,
            dict(sorted(self.left_out.items())),
            {name: told.get(name, {}) for name in sorted({*told, *self.left_out})},
            anonymity,
            scale,
            None if hidden is None else hidden[0],
        )

    def _ask(
        self,
        kind: str,
        names: Sequence[str],
        body: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], Any],
    ) -> dict[str, Any]:
        """What sites say to a question, read with care; those that do not say it readably are left out."""
        about = {"run": self.run, "terms": self.study.hash}
        answers = self.survey.ask({name: worded(kind, about, body) for name in names})
        made = {}
        for name, answer in answers.items():
            try:
                if answer.reason is not None:
                    self._leave(name, answer.reason)
                else:
                    made[name] = read(body_of(answer))
            except _Unable as unable:
                self._leave(name, unable.what)
            except _SPOILT:
                self._leave(name, UNREADABLE_ANSWER)
        return made

    def _leave(self, name: str, why: str) -> None:
        self.left_out[name] = why
        self.step(f"{name} is left out: {why}")

    def _check(self, able: Mapping[str, Any]) -> None:
        check_enough(list(able), self.left_out)

    def _is_able(self, name: str, read: Mapping[str, Any]) -> bool:
        if read["problem"]:
            self._leave(name, read["problem"])
        return not read["problem"]

    def _read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {"told": cohort_told(body["told"]), "problem": text(body["problem"])}
        asked = self.study.privacy.anonymity
        if asked is not None and not made["problem"]:
            made["k"] = max(asked.k, whole(body["k"]))
            made["histogram"] = histogram_told(body["histogram"])
            if not made["histogram"].cells:
                raise _Unable(NOTHING_TOLD)
            merge([made["histogram"]], replace(asked, k=made["k"]))  # a spoilt one spoils nobody else's
        return made

    def _hide(self, able: dict[str, Any]) -> tuple[Choice, AnonymitySettings] | None:
        """The ranges in which everybody hides; a site is left out if there are none with it, and some without."""
        asked = self.study.privacy.anonymity
        if asked is None:
            return None
        told = {name: each["histogram"] for name, each in able.items()}
        choice, settings, left = chosen(told, {name: each["k"] for name, each in able.items()}, asked)
        if left:
            self._leave(left, NOBODY_HIDES)
            del able[left]
        return choice, settings

    def _scale(self, dealt: dict[str, Sums]) -> Scale:
        """What all scale by; a site whose sums carry it so far away that others would refuse it is left out."""
        while (refusing := self._refusing(dealt)) and len(dealt) > FEWEST:
            without = {name: self._refusing(dealt, name) for name in sorted(dealt)}
            worst = min(without, key=without.__getitem__)
            if without[worst] >= refusing:
                break
            self._leave(worst, "its sums are far from those of the others")
            del dealt[worst]
        return self._pooled(dealt)

    def _pooled(self, dealt: Mapping[str, Sums], without: str = "") -> Scale:
        assert self.study.learning is not None
        return scale_of(
            self.study.learning, [each for name, each in sorted(dealt.items()) if name != without]
        )

    def _refusing(self, dealt: Mapping[str, Sums], without: str = "") -> int:
        """How many sites would refuse the scale that all have together, or all but one."""
        assert self.study.learning is not None
        scale, count = self._pooled(dealt, without), 0
        for name, own in dealt.items():
            try:
                check_scale(self.study.learning, scale, own)
            except AbatonError:
                count += name != without
        return count

    def _sums(self, body: Mapping[str, Any]) -> Sums:
        if body["problem"]:
            raise _Unable(text(body["problem"]))
        made = sums_from(body["sums"])
        if list(made.columns.of) != [each.name for each in columns(self.study.plan()) if each.pooled]:
            raise unreadable()
        return made

    def _member(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "table": _digest(body["table"]),
            "cohort": _digest(body["cohort"]),
            "floor": whole(body["floor"], LARGEST_FLOOR),
        }


class _Unable(AbatonError):
    """A site that says why it cannot take part."""


_SPOILT = (Exception,)  # whatever a reader does over a site's bytes: they are not an answer


def _digest(said: object) -> str:
    if not isinstance(said, str) or not re.fullmatch("[0-9a-f]{64}", said):
        raise unreadable()
    return said


def judged(
    survey: Survey, about: Mapping[str, Any], names: Sequence[str], models: Sequence[Vector], study: Study
) -> list[list[Told]]:
    """What sites tell of some models: for each model a list, one of each site that answered.

    A site that lets everybody wait for nothing is not asked again.

    Args:
        survey: Asks and waits.
        about: The run, its study and its layout.
        names: The sites.
        models: The models.
        study: The study, which says of what is told.
    """
    made: list[list[Told]] = []
    for start in range(0, len(models), MOST_EVALUATIONS):
        some = models[start : start + MOST_EVALUATIONS]
        parcel = _judging(about, some)
        answers = survey.ask(dict.fromkeys(names, parcel))
        names = [name for name in names if answers[name].reason != LATE]
        read = (_told(answer, len(some), name, study) for name, answer in answers.items())
        told = [each for each in read if each is not None]
        made += [[site[i] for site in told] for i in range(len(some))]
    return made


def gained(
    survey: Survey,
    about: Mapping[str, Any],
    names: Sequence[str],
    model: Vector,
    settings: Mapping[str, int],
    study: Study,
) -> dict[str, SiteGain]:
    """What each site gains by the community model; a site that does not say so readably is left out.

    Args:
        survey: Asks and waits.
        about: The run, its study and its layout.
        names: The sites.
        model: The community model.
        settings: How long sites train their own models, and how the intervals are drawn.
        study: The study, which says how sites may make the community model their own.
    """
    assert study.learning is not None
    parcel = _judging({**about, **settings}, [model], "gain")
    made = {}
    for name, answer in survey.ask(dict.fromkeys(names, parcel)).items():
        if answer.reason is None:
            with suppress(*_SPOILT):
                made[name] = check_gain(gain_from(body_of(answer), study.learning.personalise), study)
    return made


def explained(
    survey: Survey, about: Mapping[str, Any], names: Sequence[str], model: Vector, study: Study
) -> dict[str, SiteExplained | str]:
    """What sites tell of what a model goes by, or why they do not.

    Args:
        survey: Asks and waits.
        about: The run, its study and its layout.
        names: The sites.
        model: The model.
        study: The study, which says what is asked.
    """
    answers = survey.ask(dict.fromkeys(names, _judging(about, [model], "explain")))
    return {name: _explained(answers.get(name), name, study) for name in names}


def _explained(answer: Parcel | None, site: str, study: Study) -> SiteExplained | str:
    assert study.learning is not None
    asked, plan = study.learning.explanation, study.plan()
    assert asked is not None
    if answer is None or answer.reason is not None:
        return "the site did not answer"
    try:
        body = body_of(answer)
        if why := text(body["why"]):
            return why
        told = explained_from(body["explained"], asked, columns(plan), cases_of(plan.label.names))
        return check_explained(told, site, study)
    except _SPOILT:
        return UNREADABLE_ANSWER


def cases_of(classes: Sequence[str]) -> int:
    """Of how many classes is told, each against the rest; none for values, one of two."""
    return len(classes) if len(classes) != 2 else 1


def _judging(about: Mapping[str, Any], models: Sequence[Vector], kind: str = "judge") -> Parcel:
    shelf = Shelf()
    parcels = [shelf.parcel(model, ()) for model in models]
    tasks = [named for named, _ in parcels]
    return Parcel(kind, {**about, "tasks": tasks}, {f"model/{i}": p[1] for i, p in enumerate(parcels)})


def _told(answer: Parcel, models: int, site: str, study: Study) -> list[Told] | None:
    """What a site tells of each model; nothing if it does not say so readably."""
    if answer.reason is not None:
        return None
    try:
        cases = cases_of(study.plan().label.names)
        told = [check_told(told_from(rows, cases), site, study) for rows in body_of(answer)["told"]]
    except _SPOILT:
        return None
    return told if len(told) == models else None


# ---- asking all sites at once -------------------------------------------------------------------------------------

_SLOWER, _SLOWEST = (
    1.3,
    5.0,
)  # looks are further apart while nothing happens, up to so many times the first pause

Admitted = Callable[[], Mapping[int, str]]


@dataclass(slots=True)
class _Asked:
    """A question that has not been answered."""

    parcel: Parcel
    since: float
    letter: str = ""
    deaths: int = 0


class Survey:
    """Asks and waits.

    Args:
        post: what carries the messages.
        admitted: whose each registered node is now.
        patience: seconds after which a message without an answer is given up.
        absence: seconds after which a node that is away is given up.
        clock: the time in seconds.
        sleep: waits so many seconds.
        poll: seconds between looks, the first of them.
    """

    def __init__(
        self,
        post: Post,
        admitted: Admitted,
        *,
        patience: float = 3600.0,
        absence: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        poll: float = 0.1,
    ) -> None:
        self._post, self._admitted = post, admitted
        self._patience, self._absence = patience, absence
        self._clock, self._sleep, self._poll = clock, sleep, poll

    def there(self) -> tuple[str, ...]:
        """The sites whose node is connected, by name."""
        return tuple(sorted(self._nodes()))

    def wait(self, fewest: int) -> tuple[str, ...]:
        """Wait, as long as it takes, until so many sites are there; all that are there then."""
        while len(found := self.there()) < fewest:
            self._sleep(_SLOWEST * self._poll)
        return found

    def ask(self, questions: Mapping[str, Parcel]) -> dict[str, Parcel]:
        """The answers of all sites that are asked, by name; one that does not answer has a reason in its place."""
        asked = {site: _Asked(parcel, self._clock()) for site, parcel in questions.items()}
        answers: dict[str, Parcel] = {}
        pause = self._poll
        while asked:
            self._send(asked)
            self._collect(asked, answers)
            for site in [site for site, each in asked.items() if self._is_over(each)]:
                del asked[site]
                answers[site] = Parcel("answer", {"reason": LATE})
            if asked:
                self._sleep(pause)
                pause = min(_SLOWER * pause, _SLOWEST * self._poll)
        return dict(sorted(answers.items()))

    def _nodes(self) -> dict[str, int]:
        admitted = self._admitted()
        return {admitted[node]: node for node in self._post.nodes() if node in admitted}

    def _send(self, asked: Mapping[str, _Asked]) -> None:
        waiting = [(site, each) for site, each in asked.items() if not each.letter]
        nodes = self._nodes() if waiting else {}
        for site, each in waiting:
            node = nodes.get(site)
            if node is not None:
                each.letter, each.since = self._post.send(node, each.parcel, self._patience), self._clock()

    def _collect(self, asked: dict[str, _Asked], answers: dict[str, Parcel]) -> None:
        letters = {each.letter: site for site, each in asked.items() if each.letter}
        found = self._post.collect(list(letters)) if letters else {}
        for letter, answer in found.items():
            site = letters[letter]
            if isinstance(answer, Lost) or answer.reason == DIED:
                asked[site].letter, asked[site].since = "", self._clock()
                asked[site].deaths += not isinstance(answer, Lost) or answer.code != NODE_GONE
            else:
                del asked[site]
                answers[site] = answer

    def _is_over(self, each: _Asked) -> bool:
        limit = self._patience if each.letter else self._absence
        return each.deaths > MOST_DEATHS or self._clock() > each.since + limit
