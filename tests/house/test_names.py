"""Every public name is exported in order, documented, and its examples are true."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import abaton

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    m.name for m in pkgutil.walk_packages(abaton.__path__, "abaton.") if ".benchmarks" not in m.name
)


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_documented_and_exports_sorted(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    exported = getattr(module, "__all__", None)
    if exported is not None:
        # constants, then classes, then the rest, each by name: the order that ruff keeps
        assert list(exported) == sorted(exported, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
        assert all(hasattr(module, public) for public in exported)


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_documented(name):
    module = importlib.import_module(name)
    for public, thing in vars(module).items():
        if public.startswith("_") or getattr(thing, "__module__", None) != name:
            continue
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name}.{public} has no docstring"
            first = inspect.getdoc(thing).splitlines()[0]
            assert first[0].isupper() or not first[0].isalpha(), (
                f"{name}.{public}: '{first}' is not a sentence"
            )


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name):
    failed, _ = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    )
    assert not failed


def test_the_package_has_a_version_in_the_changelog():
    assert (
        f"[{abaton.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
        or "[Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
    )
