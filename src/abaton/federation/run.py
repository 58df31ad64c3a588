"""`Run`: model, metrics, versions, predictions and report of a run; traffic and sampled versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from abaton.atomic_files import atomic_write, map_os_errors
from abaton.controller import EvaluationReceived, UpdateReceived, event_from_row
from abaton.errors import SettingsError
from abaton.federation.participants import check_shape
from abaton.layout import Layout, Vector
from abaton.learners import PersonalLayersModel
from abaton.models import Examples, Model
from abaton.store import Journal, ModelRow, RunRow, Store, visible_activity

if TYPE_CHECKING:
    from abaton.features import SplineBasis

COMMUNITY = "community"
"""Name of the community model where models are compared."""

_NOT_METRICS = ("version", "timestamp")


class Run:
    """Run in a store, finished or not.

    Args:
        store: The store.
        name: Name of the run, or a unique part of it.
        model: Model that was trained; needed for a run that another Python process created.
    """

    def __init__(self, store: Store, name: str, model: Model | None = None) -> None:
        self.store, self._model = store, model
        self.name = store.run(name).run

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name} {value:.3f}" for name, value in list(self.metrics.items())[:3])
        return f"Run({self.name}, {self.status}, {len(self.versions)} versions{', ' if metrics else ''}{metrics})"

    def _repr_html_(self) -> str:
        """Return the result of the run as an HTML table for notebooks."""
        row, result = self.row, self.row.result or {}
        values: dict[str, Any] = {
            "status": row.status,
            "engine": row.engine,
            "versions": len(self.versions) - 1,
        }
        values |= {
            key: result[key] for key in ("updates", "bytes_up", "bytes_down", "seconds") if key in result
        }
        values |= self.metrics
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(str(key))}</th><td>{escape(_format_value(value))}</td></tr>"
            for key, value in values.items()
        )
        return f"<table><caption>run {escape(self.name)}</caption>{cells}</table>"

    @property
    def row(self) -> RunRow:
        """Current row of the run in the store."""
        return self.store.run(self.name)

    @property
    def status(self) -> str:
        """Status of the run: running, finished, stopped or failed."""
        return self.row.status

    @property
    def result(self) -> Mapping[str, Any]:
        """Result of the run; empty until it has finished."""
        return self.row.result or {}

    @property
    def versions(self) -> list[ModelRow]:
        """All versions of the run's community model with timestamp, digest and metrics.

        Versions that were evaluated after the run, as those of a study, have the metrics of its progress.
        """
        evaluated = {
            point["version"]: {
                name: value for name, value in point.items() if name not in _NOT_METRICS and value is not None
            }
            for point in self.result.get("progress", ())
        }
        rows = self.store.models(self.name)
        return [replace(row, metrics={**evaluated.get(row.version, {}), **row.metrics}) for row in rows]

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the run's last community model."""
        result = self.result
        if "metrics" in result:
            return dict(result["metrics"])
        for row in result.get("evaluation", {}).get("rows", ()):
            if row["model"] == COMMUNITY and row["grouping"] == "all" and row["metrics"]:
                values = {name: metric["value"] for name, metric in row["metrics"].items()}
                return {name: value for name, value in values.items() if value is not None}
        if progress := result.get("progress"):
            return {name: value for name, value in progress[-1].items() if name not in _NOT_METRICS}
        return dict(versions[-1].metrics) if (versions := self.versions) else {}

    def vector(self, version: int | None = None) -> Vector:
        """Return the parameters of a version of the run's model, by default the last, as one vector."""
        versions = [row for row in self.versions if version is None or row.version == version]
        if not versions:
            label = f"version {version}" if version is not None else "version"
            raise SettingsError(
                f"run '{self.name}' has no {label}", where="run", remedy="use one of run.versions"
            )
        return self.store.model_files.get(versions[-1].digest)

    @property
    def model(self) -> Any:
        """The run's trained community model: a PyTorch module or a scikit-learn estimator.

        For a study its inputs are the scaled columns of `run.row.recipe["deployment"]`; `predict` scales by itself.
        """
        native_model = getattr(self.model_definition, "native_model", None)
        if native_model is None:
            raise SettingsError(
                f"{type(self.model_definition).__name__} has no method 'native_model'",
                where="model",
                remedy="add one, or use run.vector()",
            )
        return native_model(self.vector())

    def predict(self, x: Any) -> NDArray[Any]:
        """Predict new rows with the run's model: class probabilities, values, or probabilities of the event.

        Args:
            x: Rows as an array; for a study its columns before recoding and scaling, with NaN for missing values, as an
                array, a data frame, or lists by column name.

        Raises:
            SettingsError: The model cannot read the rows, or has personal layers that only sites have.
        """
        deployment = self.row.recipe["deployment"]
        if isinstance(self.model_definition, PersonalLayersModel):
            raise SettingsError(
                "the model has personal layers, which only the sites have",
                where="predict",
                remedy="predict at a site, or use run.vector() for the shared parameters",
            )
        rows = self.scale_rows(x) if "columns" in deployment else check_shape(np.asarray(x), deployment)
        predictions = self.model_definition.score(
            self.vector(), Examples(rows, np.zeros(len(rows), np.int64))
        ).predictions
        mean, std = deployment.get("label", (0.0, 1.0))
        return predictions if deployment.get("classes") or predictions.ndim > 1 else predictions * std + mean

    def report(self, out: Path | None = None) -> dict[str, Any]:
        """Return the report of the run as JSON values; also write it as one HTML page if a path is given."""
        from abaton.report import make_report, render_report

        events = Journal(self.store, self.name).rows()
        report = make_report(
            self.row, self.versions, events, visible_activity(self.store, self.name, first=True)
        )
        if out is not None:
            with map_os_errors(out.parent), atomic_write(out) as temporary_path:
                temporary_path.write_text(render_report(report), encoding="utf-8")
        return report

    @cached_property
    def model_definition(self) -> Model:
        """Model that was trained in the run, without its parameters."""
        if self._model is not None:
            return self._model
        recipe = self.row.recipe
        if "method" in recipe:
            from abaton.study import LearningSection

            deployment = recipe["deployment"]
            learning = LearningSection.model_validate(recipe["method"])
            splines = self._splines(deployment)
            width = sum(spline.width if spline else 1 for spline in splines)
            return learning.build_model(features=width, classes=len(deployment["classes"]))
        raise SettingsError(
            f"the model of run '{self.name}' is defined by the program that created the run",
            where="model",
            remedy="give it as Run(store, name, model)",
        )

    @staticmethod
    def _splines(deployment: Mapping[str, Any]) -> list[SplineBasis | None]:
        """Return the spline of each column of the run's study, or None."""
        from abaton.features import SplineBasis

        rows = deployment.get("splines", {})
        return [SplineBasis.from_row(rows[name]) if name in rows else None for name in deployment["columns"]]

    def _recode(self, values: NDArray[np.float64], deployment: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return rows for the run's model recoded to the ranges of the training data, if it was anonymised."""
        if "ranges" not in deployment or not len(values):
            return values
        from abaton.features import FeatureTable, feature_columns, recode_new_rows
        from abaton.study import study_from_toml

        study = study_from_toml(self.row.recipe["settings"]["study"])
        assert study.privacy.anonymity is not None
        subjects = tuple(map(str, range(len(values))))
        features, no_labels = study.feature_spec(), np.zeros(len(values), np.int64)
        names = tuple(features.label.class_names)
        table = FeatureTable(
            feature_columns(features), values, no_labels, names, subjects, label=features.label.name
        )
        return recode_new_rows(table, deployment["ranges"], study.privacy.anonymity).x

    def scale_rows(self, x: Any) -> NDArray[np.float32]:
        """Return a study's columns as the run's model reads them: recoded, imputed, and scaled or splined.

        Raises:
            SettingsError: The model cannot read the rows.
        """
        from abaton.features import expand_splines

        deployment = self.row.recipe["deployment"]
        rows = self._recode(_columns(x, deployment["columns"]).astype(np.float64), deployment)
        for i, name in enumerate(deployment["columns"]):
            if (scale := deployment["scale"].get(name)) is None:
                continue
            mean, std, is_measured = scale
            rows[:, i] = np.where(np.isnan(rows[:, i]), mean, rows[:, i])
            if is_measured and name not in deployment.get("splines", {}):
                rows[:, i] = (rows[:, i] - mean) / std
        if np.isnan(rows).any():
            raise SettingsError(
                "a value is missing and the study does not impute it", where="predict", remedy="add the value"
            )
        return expand_splines(rows, self._splines(deployment)).astype(np.float32)


def _columns(x: Any, names: Sequence[str]) -> NDArray[Any]:
    """Return rows as an array in the column order of the run's study."""
    frame_columns = getattr(x, "columns", None)
    known = (
        list(x)
        if isinstance(x, Mapping)
        else None
        if frame_columns is None
        else [str(name) for name in frame_columns]
    )
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


def _format_value(value: Any) -> str:
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
    )


_CURVE_POINTS = 20  # versions of the community model that are evaluated for the curve over time


def traffic_by_site(journal: Journal, layout: Layout) -> dict[str, dict[str, int]]:
    """Return each site's traffic in a run: updates and received models, with encoded and uncompressed bytes."""
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    bytes_up: Counter[str] = Counter()
    bytes_down: Counter[str] = Counter()
    for event_type, body in journal.rows():
        event = event_from_row(event_type, body)
        if isinstance(event, UpdateReceived):
            sent[event.learner] += 1
            bytes_up[event.learner] += event.payload_bytes
        if isinstance(event, UpdateReceived | EvaluationReceived):
            received[event.learner] += 1
            bytes_down[event.learner] += event.downlink_bytes
    return {
        name: {
            "updates": sent[name],
            "bytes_up": bytes_up[name],
            "uncompressed": sent[name] * layout.update_size * 4,
            "models": received[name],
            "bytes_down": bytes_down[name],
            "uncompressed_down": received[name] * layout.size * 4,
        }
        for name in sorted(received)
    }


def sampled_versions(store: Store, run: str) -> Iterator[tuple[ModelRow, Vector]]:
    """Yield sampled versions of a run's community model that are on disk, the last among them."""
    versions = store.models(run)
    stride = max(1, -(-len(versions) // _CURVE_POINTS))
    for version in [*versions[:-1:stride], *versions[-1:]]:
        if store.model_files.path(version.digest).exists():
            yield version, store.model_files.get(version.digest)


def metric_point(version: ModelRow, evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the main metric of a version in a run, the first that the study names, if it is available."""
    row = next((row for row in evaluation["rows"] if row["grouping"] == "all"), None)
    if row is None or row["metrics"] is None:
        return []
    name, metric = next(iter(row["metrics"].items()))
    return [{"version": version.version, "timestamp": version.timestamp, name: metric["value"]}]
