"""The one road: sites that learn a model together, from what a run is made of to a result that can be used.

Whatever wants a community model takes it: data and a model from Python, a study on this machine or on a network, every
experiment of the lab, the demonstration. Invariants:

(1) a run has a row before anything is trained, and the row says what the run is made of (`federation.fingerprint`);
(2) under the name of a run nothing else is ever run: the same run is resumed, or it is refused with what differs;
(3) a run that has ended is not run again;
(4) what is needed to use the result is kept with it.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from abaton.codecs import Codec, Pipeline, chain, downlink_of, parse
from abaton.controller import Rules
from abaton.engines import EVERY, MEMORY, Outcome, Running, forget, live, status_of
from abaton.engines.runner import Observer, Watcher
from abaton.errors import Refused, SettingsError
from abaton.federation.engine_factory import Carrier, Here
from abaton.federation.participants import (
    Holding,
    Making,
    Participant,
    check_readable,
    holding,
    profiles_of,
    shape_of,
)
from abaton.federation.run import Run, some_versions
from abaton.federation.run_manifest import described, differences, flat, machines, versions, written
from abaton.learners import Examples, Learner, Model
from abaton.metrics.counts import MEASURES, task_of
from abaton.metrics.predictions import is_timed, measures
from abaton.protocols import missing
from abaton.store import Journal, Keep, RunRow, Store, default_folder, model_digest

PYTHON = "python"
"""What a run is called that was made of objects, not of a document or a recipe."""

Judge = Callable[[Store, RunRow, Outcome], Mapping[str, Any]]
"""What there is to say of a run's result: plain values that are kept with it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


@dataclass(frozen=True, slots=True)
class Dossier:
    """What is kept with a run besides what it is made of, and how it is judged.

    Attributes:
        maker: What made the federation: a recipe of the lab, a study, or `python`.
        settings: Plain values from which the maker makes the same federation again.
        title: What names of runs begin with; the maker if not given.
        facts: Further plain values for those who read the run.
        use: What is needed to use the model: names of columns and classes, how columns were scaled.
        observe: Scores each version of the community model as it is made.
        judge: Judges the run at its end.
        begin: Called before a new run is entered in the store, while nobody else can begin it.
        end: Called when the run has ended.
        keep: Which versions of the community model stay on disk; all of them if not given.
        memory: How many bytes of the learners' newest models stay in memory; the others go to a file.
        made_of: Further plain values that belong to what the run is made of: another one is another run.
        packages: Packages that parts of the run come from, and the version of each; told with the run's software.
    """

    maker: str = PYTHON
    settings: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    _: KW_ONLY
    made_of: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    use: Mapping[str, Any] = field(default_factory=dict)
    observe: Observer | None = None
    judge: Judge | None = None
    begin: Callable[[], None] = lambda: None
    end: Callable[[], None] = lambda: None
    keep: Keep | None = None
    memory: int = MEMORY


class Federation:
    """Sites that learn one model together; their rows stay apart.

    Args:
        model: What all sites train: a `TorchModel`, a `SklearnModel`, or anything else that is a `Model`.
        sites: Each site's examples by its name; a `Holding` where there is more to say.
        rules: What the controller goes by; ten rounds of plain federated averaging if not given.
        codec: How updates travel: a line such as `quicfl(bits=2)`, or a codec of your own.
        downlink: How versions of the community model travel to the sites, as a line such as `stc(sparsity=0.01)`; as
            they are if not given.
        test: Examples that nobody trains on; versions of the community model are judged by them.
        validation: Which share each site sets aside, if the rules need it and the site has not done so itself.
        dossier: What is kept besides.

    >>> import numpy as np, tempfile
    >>> from abaton.learners import logistic
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(80, 3)).astype(np.float32)
    >>> y = (x[:, 0] > 0).astype(np.int64)
    >>> sites = {"north": Examples(x[:50], y[:50]), "south": Examples(x[50:], y[50:])}
    >>> federation = Federation(logistic(features=3), sites, Rules(rounds=20), test=Examples(x, y))
    >>> run = federation.run("first", store=Path(tempfile.mkdtemp()))
    >>> run.status, len(run.versions), run.metrics["accuracy"] > 0.7
    ('finished', 21, True)
    """

    def __init__(
        self,
        model: Model,
        sites: Mapping[str, Examples | Participant],
        rules: Rules | None = None,
        codec: Codec | Pipeline | str = "raw",
        *,
        downlink: Pipeline | str | None = None,
        test: Examples | None = None,
        validation: float = 0.1,
        dossier: Dossier | None = None,
    ) -> None:
        _check_given(model, sites, rules, test)
        self.model, self.test = model, test
        self.codec = parse(codec) if isinstance(codec, str) else chain(codec)
        self.downlink = downlink_of(downlink)
        self.dossier = Dossier() if dossier is None else dossier
        given = Rules() if rules is None else rules
        self.rules = replace(given, learners=len(sites)) if sites and not given.learners else given
        self.sites = {name: holding(site) for name, site in sites.items()}
        if self.rules.needs_validation:
            self.sites = {name: self._set_aside(name, site, validation) for name, site in self.sites.items()}
        self._check()

    def __repr__(self) -> str:
        return f"Federation({described(self.model)}, {len(self.sites)} sites, codec {self.codec.spec})"

    def run(
        self,
        name: str = "",
        *,
        store: Store | Path | None = None,
        engine: str | Carrier = "virtual",
        watch: Watcher | None = None,
        checkpoints: int = EVERY,
    ) -> Run:
        """Run to the end, or go on with a run that was cut off; one that has ended is given back as it is.

        Args:
            name: What the run is called; a new name is made if none is given.
            store: Where it is kept; in the user's data folder if not given.
            engine: `virtual` (a simulated clock), `local` (processes of this machine), `ray` (a Ray cluster), or what
                opens another one.
            watch: Hears of every event.
            checkpoints: After how many events, at the earliest, a run in real time writes down what it would go on
                from if it were cut off; 0 for never. Writing takes a twenty-fifth of the time at most.

        Raises:
            Refused: There is a run of that name that is made of something else; the error says what differs.
        """
        if checkpoints < 0:
            raise SettingsError(
                f"checkpoints is {checkpoints}", where="run", remedy="use a number of events, or 0 for none"
            )
        carrier = Here(engine) if isinstance(engine, str) else engine
        opened = store if isinstance(store, Store) else Store(store or default_folder())
        name = checked_name(name or new_name(self.dossier.title or self.dossier.maker))
        with opened.holding(name):
            # Step 1: what the run is made of; the same as before, or nothing is run.
            row = self._row(opened, name, carrier)
            if row.status == "running":
                self._live(opened, row, carrier, watch, checkpoints)
        return Run(opened, name, self.model)

    def _row(self, store: Store, name: str, carrier: Carrier) -> RunRow:
        """The row of the run: a new one, or the one that is resumed."""
        found = store.known(name)
        made = self._fingerprint(store, name, carrier)
        if found is None:
            created = datetime.now(UTC).isoformat()
            recipe, layout = self._recipe(made), self.model.layout.digest
            found = RunRow(name, created, carrier.name, recipe, layout, "running", None)
            self.dossier.begin()
            store.add_run(found)
        elif changed := differences(found.recipe.get("fingerprint", {}), made):
            raise Refused(
                f"run '{name}' is made of something else",
                where="; ".join(changed[:5]) + (f"; and {len(changed) - 5} more" if len(changed) > 5 else ""),
                remedy="choose another name, or make it as it was to go on with it",
            )
        return found

    def _live(
        self, store: Store, row: RunRow, carrier: Carrier, watch: Watcher | None, checkpoints: int
    ) -> None:
        journal = Journal(store, row.run)
        if self.dossier.keep is not None:
            journal.retain(self.dossier.keep)
        # Step 2: an engine carries tasks and answers until the controller says that it is over.
        running = Running(
            self.rules,
            self.model,
            self.codec,
            journal,
            lambda: self._learners(store, row.run, carrier),
            states_of(store, row.run),
            profiles_of(self.sites),
            self.dossier.observe,
            self.dossier.memory,
            cut=any(site.lessened for site in self.sites.values()),
            every=checkpoints,
            downlink=self.downlink,
        )
        outcome = live(running, carrier.open(running), watch)
        # Step 3: the result is judged, and kept.
        judged = (self.dossier.judge or self._judge)(store, row, outcome)
        store.finish_run(row.run, status_of(outcome, self.rules), {**asdict(outcome), **judged})
        forget(running)
        self.dossier.end()

    def _learners(self, store: Store, run: str, carrier: Carrier) -> dict[str, Learner]:
        seed, states = self.rules.seed, states_of(store, run)
        made = {
            name: site.learner(
                Making(name, run, self.model, self.codec, seed, carrier.secret(seed, name, states))
            )
            for name, site in self.sites.items()
        }
        for learner in made.values():
            learner.downlink = self.downlink
        return made

    def _fingerprint(self, store: Store, run: str, carrier: Carrier) -> dict[str, Any]:
        seed, states = self.rules.seed, states_of(store, run)
        return {
            "engine": carrier.name,
            "rules": flat(self.rules),
            "codec": written(self.codec),
            "downlink": None if self.downlink is None else written(self.downlink),
            "model": described(self.model),
            "layout": self.model.layout.digest,
            "first weights": model_digest(self.model.initial(seed)),
            "test examples": None
            if self.test is None
            else Holding(self.test).fingerprint(carrier.secret(seed, "", states)),
            "sites": {
                name: site.fingerprint(carrier.secret(seed, name, states))
                for name, site in self.sites.items()
            },
            "machines": machines(profiles_of(self.sites)) if carrier.name == "virtual" else {},
            self.dossier.maker: flat(self.dossier.made_of),
            "software": {**versions(), **self.dossier.packages},
        }

    def _recipe(self, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
        """What is kept with the run: how to make it again, what it is made of, what its result is used with."""
        kept, layout = self.dossier, self.model.layout
        told = {"seed": int(self.rules.seed), "rounds": int(self.rules.rounds), "codec": self.codec.spec}
        if self.downlink is not None:
            told["downlink"] = self.downlink.spec
        use = {
            "layout": [[tensor.name, list(tensor.shape), str(tensor.role)] for tensor in layout],
            "training": flat(self.rules.training),
            "model": described(self.model),
            **shape_of(part for _, part in self._brought()),
            **kept.use,
        }
        return {
            "name": kept.maker,
            "settings": dict(kept.settings) or {**told, "model": use["model"], "sites": len(self.sites)},
            **kept.facts,
            "versions": fingerprint["software"],
            "use": use,
            "fingerprint": dict(fingerprint),
        }

    def _judge(self, store: Store, row: RunRow, outcome: Outcome) -> dict[str, Any]:
        """How good some versions are on the test examples."""
        test = self.test
        if test is None:
            return {}
        points = [
            {
                "version": version.version,
                "at": version.at,
                **_numbers(measures(self.model.score(vector, test), test.y)),
            }
            for version, vector in some_versions(store, row.run)
        ]
        return {
            "progress": points,
            "metrics": {k: v for k, v in points[-1].items() if k not in ("version", "at")},
        }

    def _set_aside(self, name: str, site: Participant, share: float) -> Participant:
        if not isinstance(site, Holding) or site.validation is not None or not len(site.train):
            return site
        return site.set_aside(share, name, self.rules.seed)

    def _check(self) -> None:
        """Refuse what cannot be run, before anything is started."""
        if not self.sites:
            raise SettingsError(
                "there are no sites", where="sites", remedy="give at least one site's examples"
            )
        if self.rules.learners > len(self.sites):
            raise SettingsError(
                f"learners is {self.rules.learners}, but there are {len(self.sites)} sites",
                where="rules",
                remedy=f"use a number from 1 to {len(self.sites)}",
            )
        self._check_groups()
        for name, site in self.sites.items():
            if isinstance(site, Holding):
                _check_holding(self.rules, name, site)
        if self.test is not None:
            _check_labels("test examples", self.test)
        check_readable(self.model, self._brought())

    def _brought(self) -> Iterator[tuple[str, Examples]]:
        """Whose examples are here, and which."""
        for name, site in self.sites.items():
            parts = (site.train, site.validation) if isinstance(site, Holding) else ()
            yield from ((f"learner '{name}'", part) for part in parts if part is not None)
        if self.test is not None:
            yield "test examples", self.test

    def _check_groups(self) -> None:
        thresholds = self.rules.pacing.adaptive
        if thresholds is None or "" in thresholds:
            return
        for name, site in self.sites.items():
            if site.profile.group not in thresholds:
                raise SettingsError(
                    f"pacing.adaptive has no thresholds for group '{site.profile.group}'",
                    where=f"learner '{name}'",
                    remedy="give the group some, or give some to '', which is any group",
                )


def _check_given(model: object, sites: object, rules: object, test: object) -> None:
    """Refuse what is of another kind, in words that say which kind is meant."""
    wrong = None
    if lacks := missing(model, Model):
        has = f"give a Model, such as TorchModel(lambda: my_module()); it has no {', '.join(lacks)}"
        wrong = "model", model, has
    elif not isinstance(sites, Mapping):
        wrong = "sites", sites, "give Examples(x, y) by the sites' names"
    elif not isinstance(rules, Rules | None):
        wrong = "rules", rules, "give Rules(rounds=10, ...)"
    elif not isinstance(test, Examples | None):
        wrong = "test", test, "give Examples(x, y)"
    else:
        for name, site in sites.items():
            if not isinstance(site, Examples) and not hasattr(site, "learner"):
                wrong = f"site '{name}'", site, "give Examples(x, y), or a Holding"
    if wrong is not None:
        where, given, remedy = wrong
        raise SettingsError(f"this is a {type(given).__qualname__}", where=where, remedy=remedy)


def _numbers(measured: Mapping[str, float]) -> dict[str, float]:
    """What there is to tell: the store keeps numbers, and an AUROC of one class is none."""
    return {name: value for name, value in measured.items() if math.isfinite(value)}


def _check_holding(rules: Rules, name: str, site: Holding) -> None:
    where, held, y = f"learner '{name}'", site.validation, site.train.y
    for part in (site.train, held):
        if part is not None:
            _check_labels(where, part)
    if not len(site.train):
        raise SettingsError(
            "there are no examples to train on", where=where, remedy="give it some, or leave it out"
        )
    if rules.needs_validation and (held is None or not len(held)):
        raise SettingsError(
            "there is no validation set, which weighting by validation, adaptive pacing and finishing need",
            where=where,
            remedy="set some examples aside (lab.stratified), leave it out, or weigh by examples",
        )
    measure = rules.validation.measure if rules.validation else None
    task, words = ("value", "values") if y.dtype.kind == "f" else ("classes", "classes")
    if is_timed(y):
        task, words = "time", "times"
    if measure is not None and task_of(measure) != task:
        fitting = [name for name in MEASURES if task_of(name) == task]
        raise SettingsError(
            f"weighting.measure is '{measure}', but the labels are {words}",
            where=where,
            remedy=f"use one of {', '.join(fitting)}",
        )


def _check_labels(where: str, part: Examples) -> None:
    """A column of labels would be compared with every prediction; windows of a text have a row of classes each."""
    y = np.asarray(part.y)
    if y.ndim != 1 and (y.dtype.kind == "f" or y.shape[1:] == (1,)) and not is_timed(y):
        raise SettingsError(
            f"the labels have the shape {y.shape}",
            where=where,
            remedy="give one label for each row: y.reshape(-1) makes a row of a column",
        )


def checked_name(name: str) -> str:
    """A name that can be a file's, too."""
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"'{name[:40]}' cannot be a run's name",
            where="name",
            remedy="use up to 120 letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return name


def new_name(title: str) -> str:
    """A name that no other run has."""
    return f"{title}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def states_of(store: Store, run: str) -> Path:
    """Where sites on this machine keep what they must remember in a run."""
    return store.folder / "states" / run
