"""The plan: the rule table turned, once, into closures for every place in a record that is ever met.

A place is compiled when it is first met. Objects with the same keys in the same order share a *shape*:
which keys have a handler, which are dropped. So a dropped element costs nothing but one count for the whole
object.

Invariants:
(1) what no rule keeps is dropped and counted; an element that R4 does not know is dropped and counted
without its name;
(2) the first rule of the table that finds an element decides about it;
(3) a required element that does not survive is replaced by the least that is valid;
(4) nothing empty is left: no empty object, list or text (ele-1);
(5) an unknown modifierExtension leaves the whole resource out, because it may turn its meaning round; the other
resources of the document stay.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from abaton.deid.coded_values import absent_reason, concept
from abaton.deid.context import Dropped, Handler, Node, Scope, masked
from abaton.deid.methods import METHODS, SETTINGS, WHOLE
from abaton.deid.repair import FIXUPS, Repair, idle
from abaton.deid.rules import Line, Where, understand
from abaton.deid.settings import Rule
from abaton.errors import SettingsError
from abaton.fhir.elements import Element, is_primitive, is_resource_slot, table
from abaton.fhir.versions import other_form, refuse, version_of

State = tuple[int, int]  # a rule that has matched so far, and how many of its steps
States = tuple[State, ...]
_MOST_SHAPES = 4096
STRUCTURAL = frozenset({"id", "meta", "contained", "identifier", "implicitRules"})
"""Elements of a resource that no rule decides about: they are made new, or go."""


class Under(NamedTuple):
    """What an earlier rule for a whole element means for the elements in it.

    ``keep``: they stay as they are; ``limit``: only lines above this one may say otherwise.
    """

    keep: bool
    limit: int


class Shape(NamedTuple):
    """What happens to the keys of an object, decided once for all objects that have the same keys.

    ``full`` is how many elements an object has that lacks nothing (-1 if every one lacks something); ``settled``
    says that such an object is valid as it is.
    """

    steps: tuple[tuple[str, Handler], ...]
    dropped: Dropped | None
    full: int
    settled: bool


class LeftOut(Exception):
    """A resource that must not leave although its document may; carries the place and the reason, never a value."""


class Plan:
    """A rule table, compiled.

    Args:
        rules: The table, most important line first.
        resource: How a resource inside a resource is treated; given by the de-identifier.
        trace: Whether to count kept elements too, for ``explain``.
    """

    def __init__(
        self, rules: tuple[Rule, ...], resource: Handler | None = None, *, trace: bool = False
    ) -> None:
        self.lines = understand(rules)
        self.trace = trace
        self._resource = resource
        self._bodies: dict[str, Handler] = {}
        self._nodes: dict[tuple[Node, States, Under], Handler] = {}
        self._free = Under(keep=False, limit=len(self.lines))
        self._by_type: dict[str, list[int]] = {}
        for index, line in enumerate(self.lines):
            _check(line)
            if line.path.by_type:
                self._by_type.setdefault(line.path.root, []).append(index)

        codes = [self.lines[index] for index in self._by_type.get("Coding", ())]
        self._usual_codes = (
            [(line.method, line.path.steps) for line in codes] == [("terminology", ())]
            and "CodeableConcept" not in self._by_type
            and "string" not in self._by_type
        )

    def body(self, kind: str) -> Handler:
        """The handler for the elements of a resource type."""
        made = self._bodies.get(kind)
        if made is None:
            node = Node(kind, kind, "", "")
            made = self._bodies[kind] = self._conditional(node, self._start(kind), under=self._free)
        return made

    def extensions(self, value: Any, scope: Scope) -> Any:
        """What stays of a list of extensions on a plain value: only why a value is missing."""
        if value.__class__ is not list:
            return None
        return [kept for each in value if (kept := absent_reason(each)) is not None] or None

    def _start(self, kind: str) -> States:
        roots = {kind, "Resource"} | ({"DomainResource"} if "contained" in table()[kind] else set())
        return tuple(
            (index, 0)
            for index, line in enumerate(self.lines)
            if not line.path.by_type and line.path.root in roots
        )

    # One value

    def _node(self, node: Node, states: States, *, under: Under) -> Handler:
        key = (node, states, under)
        made = self._nodes.get(key)
        if made is None:
            made = self._nodes[key] = self._conditional(node, states + self._rooted(node, under), under=under)
        return made

    def _conditional(self, node: Node, states: States, *, under: Under) -> Handler:
        """Conditions are looked at once per value; each outcome has a handler of its own."""
        asked = [state for state in states if isinstance(self._next(state), Where)]
        if not asked:
            return self._decided(node, states, under=under)
        conditions = [self._next(state) for state in asked]
        rest = tuple(state for state in states if state not in asked)
        variants: dict[tuple[bool, ...], Handler] = {}

        def run(value: Any, scope: Scope) -> Any:
            outcome = tuple(isinstance(each, Where) and each.holds(value) for each in conditions)
            handler = variants.get(outcome)
            if handler is None:
                held = tuple((i, n + 1) for (i, n), yes in zip(asked, outcome, strict=True) if yes)
                handler = variants[outcome] = self._conditional(node, rest + held, under=under)
            return handler(value, scope)

        return run

    def _next(self, state: State) -> str | Where | None:
        steps = self.lines[state[0]].path.steps
        return steps[state[1]] if state[1] < len(steps) else None

    def _decided(self, node: Node, states: States, *, under: Under) -> Handler:
        if node.parent == "":  # a resource itself: no rule decides about it whole
            return self._object(node, states, under=under)
        winner = min((index for index, n in states if self._next((index, n)) is None), default=None)
        deeper = tuple(sorted(state for state in states if self._next(state) is not None))
        if winner is None:
            return self._fallback(node, deeper, under=under)
        line = self.lines[winner]
        if not is_primitive(node.type):
            earlier = any(index < winner for index, _ in deeper)
            above = tuple(state for state in deeper if state[0] < winner)
            if line.method == "keep":
                return self._fallback(node, above, under=Under(keep=True, limit=winner))
            if line.method == "mask":
                return _masking(self._object(node, deeper, under=under))
            if line.method == "redact" and earlier:
                return self._object(node, above, under=Under(keep=False, limit=winner))
            if earlier and line.method in ("terminology", "measure"):
                return self._object(node, deeper, under=under)
        return METHODS[line.method](dict(line.settings), node)

    def _fallback(self, node: Node, deeper: States, *, under: Under) -> Handler:
        if is_resource_slot(node.type):
            return self._slot(node)
        if node.type == "Extension" and not under.keep:
            return self._extension(node, deeper)
        if not is_primitive(node.type):
            general = self._object(node, deeper, under=under)
            usual = (
                node.type == "CodeableConcept"
                and not (deeper or under.keep or self.trace)
                and self._usual_codes
            )
            return concept(node, general) if usual else general
        if under.keep:
            return METHODS["keep"]({}, node)
        return lambda v, scope: scope.drop(node, "no rule")

    def _slot(self, node: Node) -> Handler:
        def run(value: Any, scope: Scope) -> Any:
            if self._resource is None or value.__class__ is not dict:
                return scope.drop(node, "malformed")
            return self._resource(value, scope)

        return run

    def _extension(self, node: Node, deeper: States) -> Handler:
        inner = self._object(node, deeper, under=self._free) if deeper else None

        def run(value: Any, scope: Scope) -> Any:
            kept = absent_reason(value)
            if kept is None and inner is not None:
                made = inner(value, scope)
                # An extension is nothing without its address, and its address nothing without a value.
                kept = made if made and len(made) > 1 and "url" in made else None
            return kept if kept is not None else scope.drop(node, "extension not allowed")

        return run

    # One object

    def _object(self, node: Node, states: States, *, under: Under) -> Handler:
        fields = table()[node.type]
        shapes: dict[tuple[str, ...], Shape] = {}
        last_keys: tuple[str, ...] | None = None  # most objects look like the one before
        last = Shape((), None, -1, settled=False)
        repair = Repair(node.type)
        fixup = FIXUPS.get(node.type)

        def learn(keys: tuple[str, ...]) -> Shape:
            steps: list[tuple[str, Handler]] = []
            drops: list[tuple[str, str]] = []
            for key in keys:
                if key == "resourceType" and node.parent == "":
                    continue
                found = self._element(node, fields, key, states, under=under)
                if isinstance(found, str):
                    known = key.removeprefix("_") in fields
                    drops.append((f"{node.path}.{key}" if known else f"{node.path}.(unknown)", found))
                else:
                    steps.append((key, found))
            full = -1 if repair.needs([k for k, _ in steps]) else len(steps)
            settled = full > 0 and idle(node.type, [k for k, _ in steps])
            if node.type in ("Observation", "Observation.component"):
                # Whether a value is an age is noted where its code is looked at in the usual way, and only there.
                settled = (
                    settled and self._usual_codes and "code" in keys and any(k == "code" for k, _ in steps)
                )
            made = Shape(tuple(steps), Dropped(tuple(drops)) if drops else None, full, settled)
            if len(shapes) < _MOST_SHAPES:
                shapes[keys] = made
            return made

        def run(value: Any, scope: Scope) -> Any:
            if value.__class__ is not dict:
                return scope.drop(node, "malformed")
            nonlocal last, last_keys
            keys = tuple(value)
            if keys != last_keys:
                last, last_keys = shapes.get(keys) or learn(keys), keys
            steps, dropped, full, settled = last
            if dropped is not None:
                scope.seen(dropped)
            out = {}
            for key, handler in steps:
                if (made := handler(value[key], scope)) is not None:
                    out[key] = made
            if settled and len(out) == full and not scope.tells:
                return out
            return finish(out, value, scope, full)

        def finish(out: dict[str, Any], value: dict[str, Any], scope: Scope, full: int) -> Any:
            """Make what is left of an object valid."""
            if not out:
                return None
            size = len(out)
            if size != full:
                repair(out, value, scope)
            whole = len(out)
            fixed = out if fixup is None else fixup(out, value, scope)
            # What was put in takes the place R4 gives it, so that a second run finds nothing to move.
            if fixed is None or size == whole == len(fixed):
                return fixed
            return repair.in_order(fixed)

        return run

    def _element(
        self, node: Node, fields: dict[str, Element], key: str, states: States, *, under: Under
    ) -> Handler | str:
        """The handler of one key, or the reason why it is dropped."""
        element = fields.get(key)
        top = node.parent == ""
        if element is None:
            if top and (version := version_of(f"{node.path}.{key}")):
                return lambda value, scope: refuse(version)
            return self._beside(node, fields, key)
        if top and key in STRUCTURAL and not (key == "identifier" and element.type != "Identifier"):
            return "made new"
        if key == "modifierExtension":
            return _leave_out
        if key == "id" and not top:
            return "no rule"
        below = Node(f"{node.path}.{key}", element.type, node.type, key)
        deeper = self._advance(states, element)
        if "." in element.type and element.type != below.path:
            # A block that contains itself (Questionnaire.item.item): the rules of its first level hold again.
            below = Node(element.type, element.type, node.type, key)
            deeper = self._canonical(element.type)
        handler = self._node(below, deeper, under=under)
        reason = self._plain_drop(below, deeper, under=under)
        if reason is not None and not self.trace:
            return reason
        line = self._winner(below, deeper, under)
        whole = line is not None and line.method in WHOLE
        handler = handler if whole or not element.many else _each(handler, below)
        if top and (form := other_form(below.path)):
            handler = _not_in_form(handler, *form)
        return self._traced(handler, below, line) if self.trace else handler

    def _advance(self, states: States, element: Element) -> States:
        names = (element.name, element.stem)
        return tuple((index, n + 1) for index, n in states if self._next((index, n)) in names)

    def _canonical(self, type_name: str) -> States:
        kind, *names = type_name.split(".")
        states, here = self._start(kind), kind
        for name in names:
            states = self._advance(states, table()[here][name])
            here = f"{here}.{name}"
        return states

    def _rooted(self, node: Node, under: Under) -> States:
        """The lines that start at a type; references are remapped whatever an earlier line keeps."""
        found = self._by_type.get(node.type, ())
        return tuple((i, 0) for i in found if i < under.limit or (under.keep and node.type == "Reference"))

    def _winner(self, node: Node, states: States, under: Under) -> Line | None:
        """The line that decides about an element, if that can be said before its value is seen."""
        both = states + self._rooted(node, under)
        if any(isinstance(self._next(state), Where) for state in both):
            return None
        first = min((index for index, n in both if self._next((index, n)) is None), default=None)
        if first is None:
            return None
        earlier = any(index < first for index, n in both if self._next((index, n)) is not None)
        return None if earlier and not is_primitive(node.type) else self.lines[first]

    def _plain_drop(self, node: Node, states: States, *, under: Under) -> str | None:
        """The reason if an element is always dropped whole, whatever is in it."""
        line = self._winner(node, states, under)
        if line is not None:
            return line.name if line.method == "redact" else None
        asked = any(isinstance(self._next(s), Where) for s in (*states, *self._rooted(node, under)))
        return "no rule" if is_primitive(node.type) and not under.keep and not asked else None

    def _beside(self, node: Node, fields: dict[str, Element], key: str) -> Handler | str:
        """The extension of a plain value (``_birthDate``): only the reason of its absence stays."""
        element = fields.get(key[1:]) if key[:1] == "_" else None
        if element is None or not is_primitive(element.type) or element.many:
            return "unknown element" if element is None else "no rule"
        place = Node(f"{node.path}.{key}", "Extension", node.type, key)

        def run(value: Any, scope: Scope) -> Any:
            kept = self.extensions(value.get("extension"), scope) if value.__class__ is dict else None
            return {"extension": kept} if kept else scope.drop(place, "extension not allowed")

        return run

    def _traced(self, handler: Handler, node: Node, line: Line | None) -> Handler:
        reason = "no rule of its own" if line is None else line.name

        def run(value: Any, scope: Scope) -> Any:
            made = handler(value, scope)
            if made is not None:
                scope.document.notes.passes.append((node.path, reason))
            return made

        return run


def _each(handler: Handler, node: Node) -> Handler:
    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is not list:
            return scope.drop(node, "malformed")
        if len(value) == 1:
            made = handler(value[0], scope)
            return None if made is None else [made]
        return [made for each in value if (made := handler(each, scope)) is not None] or None

    return run


def _not_in_form(handler: Handler, version: str, form: type) -> Handler:
    """Refuse a record that writes an element as another version of FHIR does."""
    return lambda value, scope: refuse(version) if value.__class__ is form else handler(value, scope)


def _masking(handler: Handler) -> Handler:
    def run(value: Any, scope: Scope) -> Any:
        made = handler(value, scope) or {}
        made["extension"] = masked()
        return made

    return run


def _leave_out(value: Any, scope: Scope) -> Any:
    raise LeftOut("modifierExtension that may change its meaning")


def _check(line: Line) -> None:
    maker = METHODS.get(line.method)
    if maker is None:
        raise SettingsError(
            f"there is no method '{line.method}'",
            where=line.path.text,
            remedy=f"use one of {', '.join(METHODS)}",
        )
    strange = {name for name, _ in line.settings} - SETTINGS.get(line.method, frozenset())
    if strange:
        raise SettingsError(
            f"the method '{line.method}' has no setting '{min(strange)}'",
            where=line.path.text,
            remedy="correct the rule",
        )
    if not line.path.by_type and not line.path.steps:
        raise SettingsError(
            "a rule for a whole resource type does not exist",
            where=line.path.text,
            remedy="leave types out through the study's list of what it needs",
        )
    if not line.path.by_type and len(line.path.steps) == 1 and line.path.steps[0] in STRUCTURAL:
        raise SettingsError(
            "no rule decides about the identity of a resource", where=line.path.text, remedy="remove the rule"
        )
    names = [step for step in line.path.steps if isinstance(step, str)]
    for end, owner in (
        product(line.path.ends, line.path.owners) if line.method not in ("redact", "mask") else ()
    ):
        if line.method != "keep" or is_primitive(end):
            maker(dict(line.settings), Node(line.path.text, end, owner, names[-1] if names else ""))
