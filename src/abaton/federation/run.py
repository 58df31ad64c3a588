"""A run as one uses it: the model, how good it is, every version, predictions, and its report.

How a run went, looked at when it is over: who sent how much, and some versions of the community model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.atomic_files import replacing, writing
from abaton.controller import Arrived, Scored, from_row
from abaton.errors import SettingsError
from abaton.federation.participants import check_shape
from abaton.kernels import Vector
from abaton.learners import Examples, Model, Personal
from abaton.store import Journal, ModelRow, RunRow, Store, activity

COMMUNITY = "community"
"""What the community model is called where models are compared."""

_NO_RESULT = ("version", "at")


class Run:
    """A run in a store, ended or not.

    Args:
        store: Where it is.
        name: Its name, or the beginning of it.
        model: What was trained; needed for a run that was made in Python by another process.
    """

    def __init__(self, store: Store, name: str, model: Model | None = None) -> None:
        self.store, self._model = store, model
        self.name = store.run(name).run

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {value:.3f}" for name, value in list(self.metrics.items())[:3])
        return f"Run({self.name}, {self.status}, {len(self.versions)} versions{', ' if told else ''}{told})"

    def _repr_html_(self) -> str:
        """The run in a notebook: its result, in a small table."""
        row, result = self.row, self.row.result or {}
        told: dict[str, Any] = {
            "status": row.status,
            "engine": row.engine,
            "versions": len(self.versions) - 1,
        }
        told |= {
            key: result[key] for key in ("updates", "bytes_up", "bytes_down", "seconds") if key in result
        }
        told |= self.metrics
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(str(key))}</th><td>{escape(_shown(value))}</td></tr>"
            for key, value in told.items()
        )
        return f"<table><caption>run {escape(self.name)}</caption>{cells}</table>"

    @property
    def row(self) -> RunRow:
        """The run as the store has it now."""
        return self.store.run(self.name)

    @property
    def status(self) -> str:
        """Running, finished, stopped or failed."""
        return self.row.status

    @property
    def result(self) -> Mapping[str, Any]:
        """How it ended; nothing before."""
        return self.row.result or {}

    @property
    def versions(self) -> list[ModelRow]:
        """Every version of the community model: when it was made, its digest, what was measured."""
        return self.store.models(self.name)

    @property
    def metrics(self) -> dict[str, float]:
        """How good the last community model is, by what it was judged by."""
        result = self.result
        if "metrics" in result:
            return dict(result["metrics"])
        for line in result.get("evaluation", {}).get("lines", ()):
            if line["model"] == COMMUNITY and line["of"] == "all" and line["measures"]:
                told = {name: each["value"] for name, each in line["measures"].items()}
                return {name: value for name, value in told.items() if value is not None}
        if progress := result.get("progress"):
            return {name: value for name, value in progress[-1].items() if name not in _NO_RESULT}
        return dict(versions[-1].metrics) if (versions := self.versions) else {}

    def vector(self, version: int | None = None) -> Vector:
        """The weights of a version, the last one if none is named, as one vector."""
        found = [each for each in self.versions if version is None or each.version == version]
        if not found:
            what = f"version {version}" if version is not None else "version"
            raise SettingsError(
                f"run '{self.name}' has no {what}", where="run", remedy="look at run.versions"
            )
        return self.store.vectors.get(found[-1].digest)

    @property
    def model(self) -> Any:
        """The community model with its weights: a PyTorch module or an estimator of scikit-learn, ready to be used.

        For a study its columns are those of `run.row.recipe["use"]`, scaled; `predict` does that by itself.
        """
        ready = getattr(self.trained, "ready", None)
        if ready is None:
            raise SettingsError(
                f"{type(self.trained).__name__} has no method 'ready' that makes something to use of a vector",
                where="model",
                remedy="add one, or use run.vector()",
            )
        return ready(self.vector())

    def predict(self, x: Any) -> NDArray[Any]:
        """Chances of each class, values, or chances that it happens within the follow-up, for new rows.

        Args:
            x: Rows as an array; for a study its columns as they were before scaling and before people were hidden
                among others, with NaN where a value is missing, as an array, a data frame, or lists by the columns'
                names.

        Raises:
            SettingsError: The rows are not what the model reads, or nobody but a site has a whole model.
        """
        use = self.row.recipe["use"]
        if isinstance(self.trained, Personal):
            raise SettingsError(
                "the model has personal layers, which are at the sites",
                where="predict",
                remedy="predict at a site, or use run.vector() for what is shared",
            )
        rows = self.scaled(x) if "columns" in use else check_shape(np.asarray(x), use)
        said = self.trained.score(self.vector(), Examples(rows, np.zeros(len(rows), np.int64))).predictions
        mean, deviation = use.get("label", (0.0, 1.0))
        return said if use.get("classes") or said.ndim > 1 else said * deviation + mean

    def report(self, out: Path | None = None) -> dict[str, Any]:
        """Everything there is to tell of the run, as plain data; written as one HTML page if a path is given."""
        from abaton.report import page_of, report_of

        events = Journal(self.store, self.name).rows()
        made = report_of(self.row, self.versions, events, activity(self.store, self.name, first=True))
        if out is not None:
            with writing(out.parent), replacing(out) as begun:
                begun.write_text(page_of(made), encoding="utf-8")
        return made

    @cached_property
    def trained(self) -> Model:
        """What was trained, without its weights."""
        if self._model is not None:
            return self._model
        recipe = self.row.recipe
        if "method" in recipe:
            from abaton.study import Learning

            use = recipe["use"]
            method = Learning.model_validate(recipe["method"])
            return method.model(features=len(use["columns"]), classes=len(use["classes"]))
        raise SettingsError(
            f"what run '{self.name}' trained is known to the program that made it",
            where="model",
            remedy="give it: Run(store, name, model)",
        )

    def _in_ranges(self, made: NDArray[np.float64], use: Mapping[str, Any]) -> NDArray[np.float64]:
        """The rows in the ranges in which the model has learned, if people were hidden among others."""
        if "ranges" not in use or not len(made):
            return made
        from abaton.features import Table, columns, in_ranges
        from abaton.study import study_from_toml

        study = study_from_toml(self.row.recipe["settings"]["study"])
        assert study.privacy.anonymity is not None
        subjects = tuple(map(str, range(len(made))))
        plan, none = study.plan(), np.zeros(len(made), np.int64)
        names = tuple(plan.label.names)
        table = Table(columns(plan), made, none, names, subjects, label=plan.label.name)
        return in_ranges(table, use["ranges"], study.privacy.anonymity).x

    def scaled(self, x: Any) -> NDArray[np.float32]:
        """A study's columns as the model reads them: in ranges, filled and scaled.

        Raises:
            SettingsError: The rows are not what the model reads.
        """
        use = self.row.recipe["use"]
        made = self._in_ranges(_columns(x, use["columns"]).astype(np.float64), use)
        for i, name in enumerate(use["columns"]):
            if (scale := use["scale"].get(name)) is None:
                continue
            mean, deviation, measured = scale
            made[:, i] = np.where(np.isnan(made[:, i]), mean, made[:, i])
            if measured:
                made[:, i] = (made[:, i] - mean) / deviation
        if np.isnan(made).any():
            raise SettingsError(
                "a value is missing that the study does not fill", where="predict", remedy="give it"
            )
        return made.astype(np.float32)


def _columns(x: Any, names: Sequence[str]) -> NDArray[Any]:
    """Rows as an array in the order of the study's columns."""
    has = getattr(x, "columns", None)
    known = list(x) if isinstance(x, Mapping) else None if has is None else [str(name) for name in has]
    if known is None:
        rows = np.atleast_2d(np.asarray(x, np.float64))
        if rows.shape[1] != len(names):
            raise SettingsError(
                f"the rows have {rows.shape[1]} columns, the model reads {len(names)}",
                where="predict",
                remedy=f"give {', '.join(names)}, in this order",
            )
        return rows
    if missing := [name for name in names if name not in known]:
        raise SettingsError(
            f"there is no column '{missing[0]}'", where="predict", remedy=f"give {', '.join(names)}"
        )
    return np.stack([np.asarray(x[name], np.float64) for name in names], axis=1)


def _shown(value: Any) -> str:
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
    )


_CURVE = 20  # versions of the community model that are judged, for the curve over time


def traffic_of(journal: Journal, size: int) -> dict[str, dict[str, int]]:
    """For each site: how many updates it sent, their bytes, and how many those would be as plain numbers.

    And the same of the models that it was sent for its updates and scores.
    """
    sent: Counter[str] = Counter()
    got: Counter[str] = Counter()
    bytes_up: Counter[str] = Counter()
    bytes_down: Counter[str] = Counter()
    for kind, body in journal.rows():
        event = from_row(kind, body)
        if isinstance(event, Arrived):
            sent[event.learner] += 1
            bytes_up[event.learner] += event.size
        if isinstance(event, Arrived | Scored):
            got[event.learner] += 1
            bytes_down[event.learner] += event.down
    return {
        name: {
            "updates": sent[name],
            "bytes_up": bytes_up[name],
            "uncompressed": sent[name] * size * 4,
            "models": got[name],
            "bytes_down": bytes_down[name],
            "uncompressed_down": got[name] * size * 4,
        }
        for name in sorted(got)
    }


def some_versions(store: Store, run: str) -> Iterator[tuple[ModelRow, Vector]]:
    """Some versions of the community model, the last among them; not every version is kept forever."""
    versions = store.models(run)
    stride = max(1, -(-len(versions) // _CURVE))
    for version in [*versions[:-1:stride], *versions[-1:]]:
        if store.vectors.path(version.digest).exists():
            yield version, store.vectors.get(version.digest)


def point_of(version: ModelRow, judged: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The main measure of a version, which is the first that the study names, if there is one to tell."""
    line = next((each for each in judged["lines"] if each["of"] == "all"), None)
    if line is None or line["measures"] is None:
        return []
    name, told = next(iter(line["measures"].items()))
    return [{"version": version.version, "at": version.at, name: told["value"]}]
