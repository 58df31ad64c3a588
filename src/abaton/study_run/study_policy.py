"""A site's policy in a study: every task is held against the contract, every answer is made coarse before it leaves.

Whatever engine carries the task, its worker asks here. Refusals are counted; their reasons go to the site's own log.

Invariants:
(1) no task is done that trains otherwise than the study document says, or from a model far from the last;
(2) a version is answered once, and a model is scored once: over a network one that a site known here has signed, and
    one of each site and version;
(3) no update rests on fewer rows than the site allows, none on a few that a model singles out, and none leaves beyond
    the privacy budget, over all runs;
(4) what is counted leaves in stretches no finer than the smallest count, and only of people that `site.ledger` allows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from abaton.codecs import Key
from abaton.disclosure.rounding import coarse_score, rounded
from abaton.errors import Refused
from abaton.kernels import Vector
from abaton.learners import Learner, Reply, Request, SitePolicy
from abaton.learners.site_policy import ADMITS_ALL
from abaton.site import Ledger, PolicyPart, SiteFile
from abaton.study import Study
from abaton.study_run.consented_learner import ConsentedLearner
from abaton.study_run.model_signatures import Signing
from abaton.study_run.site_run_state import Notes
from abaton.study_run.task_contract import Contract, small
from abaton.training import round_key

_START = 100.0  # learning rates that each number of a model may move before the site has sent anything, in the mean
_BETWEEN = 16  # versions that may lie between two trainings of a site, for models that it only scores


@dataclass
class StudyPolicy(SitePolicy):
    """The policy of one site in one run.

    Args:
        contract: What the study document lets the centre ask.
        terms: What the site bounds by itself.
        ledger: What has left the site before.
        notes: What was asked and answered in this run.
        learner: The site's learner.
        also: A policy of the site's own that is asked first.
        signing: What is signed here, and whose signatures are taken; nothing where all sites are on one machine.
    """

    contract: Contract
    terms: PolicyPart
    ledger: Ledger
    notes: Notes
    learner: Learner
    also: SitePolicy = field(default_factory=lambda: ADMITS_ALL)
    signing: Signing | None = None

    def admits(self, asked: Request) -> None:
        """Let a task begin that the contract allows."""
        self.also.admits(asked)
        try:
            if asked.kind == "train":
                self._admit_training(asked)
            elif asked.kind == "evaluate":
                self._admit_scoring(asked)
        except Refused:
            self.notes.refused()
            raise

    def releases(self, asked: Request, reply: Reply) -> Reply:
        """What leaves of an answer: coarse, and nothing that rests on too few."""
        reply = self.also.releases(asked, reply)
        try:
            if asked.kind == "train":
                return self._release_update(asked, reply)
            if asked.kind == "evaluate":
                return Reply({**reply.about, "score": self._score(reply.about["score"])}, reply.payload)
        except Refused:
            self.notes.refused()
            raise
        return reply

    def judges(self, models: Iterable[Vector]) -> None:
        """Let some versions of the community model be judged on test rows.

        Raises:
            Refused: They are too many, or not of this run.
        """
        for model in models:
            try:
                self._near(model, _BETWEEN)
                if not self.notes.once("judged", _digest(model), self.terms.judged):
                    raise _refused(f"more than {self.terms.judged} models would be judged")
            except Refused:
                self.notes.refused()
                raise

    def answers_once(self, kind: str, model: Vector, *settings: int) -> None:
        """Let a question of some kind be asked of one model of a run; the same one again as often as it gets lost.

        Raises:
            Refused: It was answered for another model, or with other settings.
        """
        self.judges([model])
        if not self.notes.once(kind, f"{_digest(model)}/{settings}", 1):
            self.notes.refused()
            raise _refused(f"'{kind}' was answered for another model, or with other settings")

    # ---- training ---------------------------------------------------------------------------------------------------

    def _admit_training(self, asked: Request) -> None:
        assert asked.settings is not None
        assert asked.version is not None
        assert asked.model is not None
        self.contract.check(asked.version, asked.settings)
        last_version, last_key = self.notes.answered
        again = asked.version < last_version or (asked.version == last_version and not self.contract.repeats)
        if again and asked.key != last_key:
            raise _refused("an update for this version of the model, or a later one, has been given")
        rows = len(self.learner.examples)
        if rows < self.terms.fewest_rows and not self.contract.small_sites:
            raise _refused(small(self.terms))
        batch = self._batch(asked)
        if batch < min(self.terms.smallest_batch, rows):
            raise _refused(f"a step would rest on {batch} rows, fewer than {self.terms.smallest_batch}")
        last = self.notes.given
        self._near(asked.model, max(1, asked.version - (last[0] if last else 0)))
        if asked.version == 0 and not np.array_equal(asked.model, self._initial()):
            raise _refused("the first model is not the one that the study document and the seed give")
        self.notes.give(asked.version, asked.model)

    def _release_update(self, asked: Request, reply: Reply) -> Reply:
        assert asked.settings is not None
        assert asked.version is not None
        about, rows = dict(reply.about), self.learner.size(asked.settings)
        floor = 1 if self.contract.small_sites else min(rows, self.terms.fewest_rows)
        if about["steps"] * self._batch(asked) < floor:
            raise _refused(f"the update would rest on fewer than {floor} rows")
        self._single_nobody_out(asked)
        self._spend(asked)
        about["examples"] = self.people_told(rows, complete=asked.settings.complete)
        about["loss"] = None if about["loss"] is None else rounded(about["loss"])
        about["score"] = self._score(about["score"])
        if self.signing is not None and "signature" not in about:  # what is sent again was signed before
            assert asked.model is not None
            signature = self.signing.sign(self.learner, asked.version, asked.model, reply.payload)
            about["signature"] = signature
        if asked.key != self.notes.answered[1]:
            self.notes.answer(asked.version, asked.key, self._length(asked.version, reply.payload))
        return Reply(about, reply.payload)

    def _single_nobody_out(self, asked: Request) -> None:
        """Refuse an update from a model that is right about all rows but a few: it would be those few rows."""
        assert asked.settings is not None
        assert asked.model is not None
        if self.contract.small_sites:
            return  # the noise of the privacy budget hides single rows
        least = min(self.terms.smallest_batch, self.learner.size(asked.settings) / 2)
        if self.learner.resting(asked.model, asked.settings) < least:
            raise _refused(f"the model leaves fewer than {least:g} rows to learn from")

    def _spend(self, asked: Request) -> None:
        """Draw on the privacy budget, which is one for all runs over the site's people."""
        if self.contract.rules.privacy is None:
            return
        task = f"{self.notes.run}\x1f{asked.key}"
        if not self.ledger.spend(self.contract.study.hash, task, self.contract.updates):
            raise _refused("the site's privacy budget for this study is spent")

    def _batch(self, asked: Request) -> int:
        assert asked.settings is not None
        return min(self.learner.limited(asked.settings).batch_size, max(1, self.learner.size(asked.settings)))

    def people_told(self, number: int, *, complete: bool = False) -> int:
        """A number of people that are trained on: as it was told before, until it has changed by the smallest count."""
        what = f"examples/{self.contract.study.hash}/{self.learner.seed}/{complete:d}"
        return self.ledger.steady(what, number)

    # ---- models -----------------------------------------------------------------------------------------------------

    def _near(self, model: Vector, versions: int) -> None:
        """Refuse a model that lies further from the last one than versions of honest updates can carry it."""
        last = self.notes.given
        start = self._initial() if last is None else last[1]
        if len(model) != len(start):
            raise _refused("the model has another size")
        size, lesson = len(start), self.contract.rules.training
        first = math.sqrt(size) * max(1.0, _START * lesson.learning_rate)
        usual = self.notes.longest
        step = max(usual, first) if not usual or self.contract.leaps else usual
        away = float(np.linalg.norm(np.asarray(model, np.float64) - np.asarray(start, np.float64)))
        if not away <= self.terms.reach * step * versions:
            raise _refused(
                "the model lies further from the last one than honest updates could have carried it"
            )

    def _initial(self) -> Vector:
        return self.learner.model.initial(self.learner.seed)

    def _length(self, version: int, payload: bytes) -> float:
        key = Key(round_key(self.learner.seed, version), self.learner.name)
        update = self.learner.codec.decode(payload, self.learner.model.layout, key)
        return float(np.linalg.norm(update.astype(np.float64)))

    # ---- scores -----------------------------------------------------------------------------------------------------

    def _admit_scoring(self, asked: Request) -> None:
        assert asked.model is not None
        if not self.contract.scores:
            raise _refused("the study does not let sites score models")
        whose = asked.key
        if self.signing is not None:
            self.signing.check(asked.model, asked.signed)
            assert asked.signed is not None
            whose = f"{asked.signed.author}\x1f{asked.signed.version}"
        self._near(asked.model, _BETWEEN)
        most = self.terms.scored * (self.contract.versions if self.contract.synchronous else 1)
        if not self.contract.synchronous:
            most += self.contract.versions
        model = _digest(asked.model)
        if not self.notes.once("scored", f"{whose}\x1f{model}", most):
            raise _refused(f"more than {most} models would be scored")
        one = self.signing is not None and not self.contract.repeats
        if one and not self.notes.once(f"scored\x1f{whose}", model, 1):
            raise _refused("another model of the same site and version was scored")

    def _score(self, score: Any) -> tuple[float, ...]:
        """What is told of a model on validation rows; nothing, if somebody has left and too few others with them."""
        people = getattr(self.learner, "validation_people", None)
        if not score or people is None or not self.ledger.may_tell("scores", people):
            return ()
        return coarse_score(score, self.ledger.floor, loss=self.contract.tells_loss)


def policy_of(
    file: SiteFile,
    study: Study,
    learner: ConsentedLearner,
    notes: Notes,
    ledger: Ledger,
    also: SitePolicy = ADMITS_ALL,
) -> StudyPolicy:
    """The policy of a site in a run of a study, which its learner goes by from now on."""
    made = StudyPolicy(Contract(study), file.document.policy, ledger, notes, learner, also)
    learner.policy, learner.tells = made, made.people_told
    return made


def _refused(what: str) -> Refused:
    return Refused(what, where="policy", remedy="see 'abaton site policy --explain'")


def _digest(model: Vector) -> str:
    return hashlib.blake2b(np.ascontiguousarray(model).tobytes(), digest_size=16).hexdigest()
