"""Check that every public name is exported in order and documented, and that examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import abaton

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    m.name for m in pkgutil.walk_packages(abaton.__path__, "abaton.") if ".benchmarks" not in m.name
)


def loaded(name: str) -> ModuleType:
    """Return the module; skip if it needs an extra that is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name == "flwr":
            pytest.skip("Flower is missing: install abaton[flower]")
        raise


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_documented_and_exports_sorted(name):
    module = loaded(name)
    assert module.__doc__, f"{name} has no docstring"
    exported = getattr(module, "__all__", None)
    if exported is not None:
        # constants, then classes, then the rest, each by name: the order that ruff keeps
        assert list(exported) == sorted(exported, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
        assert all(hasattr(module, public) for public in exported)


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_documented(name):
    module = loaded(name)
    for public, thing in vars(module).items():
        if public.startswith("_") or getattr(thing, "__module__", None) != name:
            continue
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name}.{public} has no docstring"
            first = inspect.getdoc(thing).splitlines()[0]
            assert first[0].isupper() or not first[0].isalpha(), (
                f"{name}.{public}: '{first}' is not a sentence"
            )


def has_examples(name: str) -> bool:
    """Return whether a module's file has an example."""
    file = ROOT / "src" / name.replace(".", "/")
    source = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    return ">>> " in source.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in MODULES if has_examples(name)])
def test_examples_in_docstrings_are_true(name):
    failed, _ = doctest.testmod(loaded(name), optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    assert not failed


def test_the_package_has_a_version_in_the_changelog():
    assert (
        f"[{abaton.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
        or "[Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
    )


ROOMS = sorted(m.name for m in pkgutil.iter_modules(abaton.__path__, "abaton.") if "benchmarks" not in m.name)


def test_exported_class_names_are_unique():
    modules_by_class: dict[str, set[str]] = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", ()):
            if inspect.isclass(thing := getattr(module, name)):
                modules_by_class.setdefault(name, set()).add(thing.__module__)
    assert not {name: sorted(where) for name, where in modules_by_class.items() if len(where) > 1}


def test_every_public_name_is_loaded_and_documented():
    page = (ROOT / "docs" / "python.md").read_text()
    for name in abaton.__all__:
        assert getattr(abaton, name) is not None
        if name != "__version__":
            assert f"`{name}" in page or f"abaton.{name}" in page, f"docs/python.md does not show {name}"
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        abaton.Nonsense  # noqa: B018
