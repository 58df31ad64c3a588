"""Recipes: a name and plain values from which the lab makes a federation, kept so that a run can be made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from abaton.errors import SettingsError
from abaton.federation import Federation

# A new recipe is one function in the lab, and one line here.
RECIPES: Mapping[str, str] = {
    "policy": "abaton.lab.policies:federation",
}


def build(recipe: Mapping[str, Any]) -> Federation:
    """The federation that a recipe describes, ready to be run."""
    where = RECIPES.get(recipe["name"])
    if where is None:
        raise SettingsError(
            f"there is no recipe '{recipe['name']}'", remedy=f"this version knows {', '.join(RECIPES)}"
        )
    module, function = where.split(":")
    make: Callable[..., Federation] = getattr(import_module(module), function)
    return make(**recipe["settings"])
