"""Shapes: what happens to the keys of one kind of object, written out as one function when it is met often.

A function is put together only from the names in R4's element table and from the texts that methods state
here; nothing that was read from a record ever becomes part of it (``docs/adr/0024-*.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import Template
from textwrap import indent
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from abaton.records.scope import Dropped, Handler, Scope

_OFTEN = 24
_HEAD = """\
def run(value, scope):
    seen, by_code, targets = scope.seen, scope.codes.by_code, scope.targets
"""
_STEP = """\
v = value[$key]
$body
made_$number = made
"""
_END = """\
if $all:
    $done
out = {}
$some
return finish(out, value, scope, full)
"""
_LIST = """\
if v.__class__ is list and len(v) == 1:
    (v,) = v
$one
    if made is not None:
        made = [made]
elif v.__class__ is list:
    many = []
    for v in v:
$body
        if made is not None:
            many.append(made)
    made = many or None
else:
    made = $$slow(v, scope)"""
_CALL = "made = $slow(v, scope)"

Run = Callable[[dict[str, Any], Scope], Any]
Finish = Callable[[dict[str, Any], dict[str, Any], Scope, int], Any]


class Usual(NamedTuple):
    """The usual case of a handler as text: it finds ``v`` and leaves what stays in ``made``.

    ``$slow`` is the handler itself, for everything unusual; other ``$names`` are values it needs.
    """

    text: str
    values: Mapping[str, Any]


_USUAL: WeakKeyDictionary[Handler, Usual] = WeakKeyDictionary()


def usual(handler: Handler, text: str, **values: Any) -> Handler:
    """State the usual case of a handler; the handler itself must give the same.

    >>> def whole(value, scope):
    ...     return value if value.__class__ is int else None
    >>> usual(whole, "made = v if v.__class__ is int else $slow(v, scope)") is whole
    True
    """
    _USUAL[handler] = Usual(text, values)
    return handler


def usual_list(handler: Handler, one: Handler) -> Handler:
    """State that a list's handler does with each value what ``one`` does."""
    known = _USUAL.get(one) or Usual("made = $one(v, scope)", {"one": one})
    # Inside a list the slow way for a value is the value's handler, outside it is the list's.
    inner = Template(known.text).safe_substitute(slow="$inner")
    text = Template(_LIST).substitute(one=indent(inner, " " * 4), body=indent(inner, " " * 8))
    return usual(handler, text, inner=one, **known.values)


class Shape(Dropped):
    """The keys of one kind of object: those with a handler, and those that are dropped.

    Args:
        steps: The keys that may stay, each with its handler.
        drops: The keys that are dropped, as they are counted.
        full: How many elements an object has that lacks nothing; -1 if every one lacks something.
        finish: Makes what is left of an object valid.
        settled: Whether an object that lacks nothing is valid as it is.
        instead: Told the function that takes over from the steps.

    >>> shape = Shape((("a", lambda value, scope: value),), (), 1, lambda out, *_: out, settled=True)
    >>> shape.step_by_step({"a": 1}, None)
    {'a': 1}
    """

    __slots__ = ("_instead", "_left", "finish", "full", "settled", "steps")

    def __init__(
        self,
        steps: tuple[tuple[str, Handler], ...],
        drops: tuple[tuple[str, str], ...],
        full: int,
        finish: Finish,
        *,
        settled: bool,
        instead: Callable[[Run], None] = lambda run: None,
    ) -> None:
        super().__init__(drops)
        self.steps, self.full, self.finish, self.settled = steps, full, finish, settled
        self._left, self._instead = _OFTEN, instead

    def step_by_step(self, value: dict[str, Any], scope: Scope) -> Any:
        """What stays of an object; after some times a function of its own takes over."""
        self._left -= 1
        if self._left == 0:
            self._instead(written_out(self))
        if self.drops:
            scope.seen(self)
        out = {}
        for key, handler in self.steps:
            made = handler(value[key], scope)
            if made is not None:
                out[key] = made
        return self.finish(out, value, scope, self.full)


def written_out(shape: Shape) -> Run:
    """A function that does what the shape's steps do, one after the other."""
    names: dict[str, Any] = {"shape": shape, "finish": shape.finish, "full": shape.full}
    text = _HEAD + ("    seen(shape)\n" if shape.drops else "")
    for number, (key, handler) in enumerate(shape.steps):
        stated = _USUAL.get(handler) or Usual(_CALL, {})
        values = {"slow": handler, **stated.values}
        own = {name: f"{name}_{number}" for name in values}
        names |= {own[name]: each for name, each in values.items()}
        body = Template(stated.text).substitute(own)
        text += indent(Template(_STEP).substitute(key=repr(key), body=body, number=number), "    ")
    keys = [repr(key) for key, _ in shape.steps]
    # An object whose elements all stay is made in one go; otherwise one by one.
    whole = "{" + ", ".join(f"{key}: made_{n}" for n, key in enumerate(keys)) + "}"
    end = Template(_END).substitute(
        all=" and ".join(f"made_{n} is not None" for n in range(len(keys))) or "True",
        done=f"return {whole}" if shape.settled else f"return finish({whole}, value, scope, full)",
        some="\n".join(f"if made_{n} is not None:\n    out[{key}] = made_{n}" for n, key in enumerate(keys)),
    )
    exec(compile(text + indent(end, "    "), "<shape>", "exec"), names)  # noqa: S102 - made of our own texts
    made: Run = names["run"]
    return made
