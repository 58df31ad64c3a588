"""Built-in components have a tag in the run manifest, so that renaming a class changes no stored run."""

from __future__ import annotations

import re
from typing import get_type_hints

import pytest

from abaton import controller
from abaton.federation.run_manifest import COMPONENT_TAGS, flatten_settings
from abaton.lab.byzantine_learners import NoiseModel
from abaton.models import SklearnModel, TorchModel

PROTOCOLS = (
    controller.Scheduler,
    controller.Weighting,
    controller.RobustAggregator,
    controller.ServerOptimiser,
)


def built_in(protocol: type) -> list[type]:
    classes = (value for value in vars(controller).values() if isinstance(value, type))
    return [cls for cls in classes if protocol in cls.__mro__ and cls is not protocol]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_built_in_component_has_a_tag(protocol):
    components = built_in(protocol)
    assert components
    assert [cls.__name__ for cls in components if cls not in COMPONENT_TAGS] == []


def test_every_settings_class_of_a_strategy_has_a_tag():
    hints = get_type_hints(controller.Strategy)
    types = {hint for hint in hints.values() for hint in getattr(hint, "__args__", (hint,))}
    settings = {cls for cls in types if isinstance(cls, type) and cls.__module__.startswith("abaton.")}
    assert settings
    assert settings - {*COMPONENT_TAGS, *PROTOCOLS} == set()


def test_every_built_in_model_has_a_description_or_a_tag():
    for model in (TorchModel, SklearnModel, NoiseModel):
        assert hasattr(model, "description"), model.__name__


def test_a_manifest_has_no_class_name():
    settings = flatten_settings(controller.strategy("FedBuffDVW", learners=3))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", tag) for tag in COMPONENT_TAGS.values())
    assert len(set(COMPONENT_TAGS.values())) == len(COMPONENT_TAGS)
    names = {cls.__name__ for cls in COMPONENT_TAGS}
    assert not [value for value in settings.values() if any(name in value for name in names)]
