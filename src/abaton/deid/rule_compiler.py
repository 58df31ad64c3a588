"""Compiler of rule tables to closures per element position and per object shape.

A position is compiled when it first occurs. Objects with the same keys in the same order share a *shape*:
which keys have a handler, and which are dropped. Dropping elements therefore costs one count per object. The number of
cached shapes is bounded, so hostile keys cannot exhaust memory. Closures are the only fast path: generated source code
was 10 to 15 % faster in dense Bundles but needed `exec` and a second implementation of each common case.

Invariants:
(1) elements that no rule keeps are dropped and counted; elements that are not in R4 are counted
without their name;
(2) the first matching rule of the table applies;
(3) a required element that was dropped is replaced by a minimal valid value;
(4) there is no empty object, list or text (ele-1);
(5) an unknown modifierExtension drops the resource, because it may change its meaning; the other
resources of the document are kept.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from abaton.deid.coded_values import absent_reason, handle_concept
from abaton.deid.context import DroppedElements, ElementPosition, Handler, TransformContext, absent_extension
from abaton.deid.methods import METHODS, SETTINGS, WHOLE_ELEMENT
from abaton.deid.repair import FIXUPS, Repair, needs_no_fixup
from abaton.deid.rules import ParsedRule, PathCondition, parse_rules
from abaton.deid.settings import DeidentificationRule
from abaton.errors import SettingsError, shorten_name
from abaton.fhir.elements import ElementDefinition, element_table, is_primitive, is_resource_slot
from abaton.fhir.versions import foreign_form, foreign_version, refuse_version

State = tuple[int, int]  # index of a rule that matches so far, and the number of matched steps
States = tuple[State, ...]
_MAX_SHAPES = 4096
STRUCTURAL = frozenset({"id", "meta", "contained", "identifier", "implicitRules"})
"""Elements of a resource that rules do not apply to: they are replaced or dropped."""


class InheritedRule(NamedTuple):
    """Effect of a rule for a complex element on its children.

    ``keep``: they are kept; ``limit``: only rules before this index may override it.
    """

    keep: bool
    limit: int


class ObjectShape(NamedTuple):
    """Handlers and dropped keys of all objects that have the same keys.

    ``full`` is the number of elements of a complete object (-1 if required elements are always missing);
    ``is_valid`` states that a complete object needs no fixup.
    """

    steps: tuple[tuple[str, Handler], ...]
    dropped: DroppedElements | None
    full: int
    is_valid: bool


class ResourceDroppedError(Exception):
    """Drop of a resource from its document; the error has the path and the reason, not a value."""


class CompiledRules:
    """Compiled rule table.

    Args:
        rule_table: The rules; the first match wins.
        resource: Handler of resources inside resources, from the de-identifier.
        trace: Whether to count kept elements, too, for ``explain``.
    """

    def __init__(
        self,
        rule_table: tuple[DeidentificationRule, ...],
        resource: Handler | None = None,
        *,
        trace: bool = False,
    ) -> None:
        self.rules = parse_rules(rule_table)
        self.trace = trace
        self._resource = resource
        self._bodies: dict[str, Handler] = {}
        self._nodes: dict[tuple[ElementPosition, States, InheritedRule], Handler] = {}
        self._no_inherited = InheritedRule(keep=False, limit=len(self.rules))
        self._by_type: dict[str, list[int]] = {}
        for index, rule in enumerate(self.rules):
            _check_rule(rule)
            if rule.path.by_type:
                self._by_type.setdefault(rule.path.root, []).append(index)

        coding_rules = [self.rules[index] for index in self._by_type.get("Coding", ())]
        self._has_default_codes = (
            [(rule.method, rule.path.steps) for rule in coding_rules] == [("terminology", ())]
            and "CodeableConcept" not in self._by_type
            and "string" not in self._by_type
        )

    def body(self, resource_type: str) -> Handler:
        """Return the compiled handler of the elements of a resource type."""
        compiled = self._bodies.get(resource_type)
        if compiled is None:
            node = ElementPosition(resource_type, resource_type, "", "")
            compiled = self._bodies[resource_type] = self._conditional(
                node, self._start(resource_type), inherited=self._no_inherited
            )
        return compiled

    def extensions(self, value: Any, context: TransformContext) -> Any:
        """Apply the compiled rules to a primitive value's extensions: only data-absent-reason is kept."""
        if value.__class__ is not list:
            return None
        return [reason for extension in value if (reason := absent_reason(extension)) is not None] or None

    def _start(self, resource_type: str) -> States:
        roots = {resource_type, "Resource"} | (
            {"DomainResource"} if "contained" in element_table()[resource_type] else set()
        )
        return tuple(
            (index, 0)
            for index, rule in enumerate(self.rules)
            if not rule.path.by_type and rule.path.root in roots
        )

    # One value

    def _node(self, node: ElementPosition, states: States, *, inherited: InheritedRule) -> Handler:
        key = (node, states, inherited)
        compiled = self._nodes.get(key)
        if compiled is None:
            compiled = self._nodes[key] = self._conditional(
                node, states + self._type_states(node, inherited), inherited=inherited
            )
        return compiled

    def _conditional(self, node: ElementPosition, states: States, *, inherited: InheritedRule) -> Handler:
        """Compile rules with conditions to a handler that evaluates them once per value."""
        conditional = [state for state in states if isinstance(self._next(state), PathCondition)]
        if not conditional:
            return self._decided(node, states, inherited=inherited)
        conditions = [self._next(state) for state in conditional]
        unconditional = tuple(state for state in states if state not in conditional)
        variants: dict[tuple[bool, ...], Handler] = {}

        def run(value: Any, context: TransformContext) -> Any:
            outcome = tuple(
                isinstance(condition, PathCondition) and condition.holds(value) for condition in conditions
            )
            handler = variants.get(outcome)
            if handler is None:
                satisfied = tuple(
                    (i, n + 1)
                    for (i, n), is_satisfied in zip(conditional, outcome, strict=True)
                    if is_satisfied
                )
                handler = variants[outcome] = self._conditional(
                    node, unconditional + satisfied, inherited=inherited
                )
            return handler(value, context)

        return run

    def _next(self, state: State) -> str | PathCondition | None:
        steps = self.rules[state[0]].path.steps
        return steps[state[1]] if state[1] < len(steps) else None

    def _decided(self, node: ElementPosition, states: States, *, inherited: InheritedRule) -> Handler:
        if node.parent == "":  # a resource: no rule applies to it as a whole
            return self._object(node, states, inherited=inherited)
        winner = min((index for index, n in states if self._next((index, n)) is None), default=None)
        deeper = tuple(sorted(state for state in states if self._next(state) is not None))
        if winner is None:
            return self._fallback(node, deeper, inherited=inherited)
        rule = self.rules[winner]
        if not is_primitive(node.type):
            earlier = any(index < winner for index, _ in deeper)
            above = tuple(state for state in deeper if state[0] < winner)
            if rule.method == "keep":
                return self._fallback(node, above, inherited=InheritedRule(keep=True, limit=winner))
            if rule.method == "mask":
                return _mask(self._object(node, deeper, inherited=inherited))
            if rule.method == "redact" and earlier:
                return self._object(node, above, inherited=InheritedRule(keep=False, limit=winner))
            if earlier and rule.method in ("terminology", "measure"):
                return self._object(node, deeper, inherited=inherited)
        return METHODS[rule.method](dict(rule.settings), node)

    def _fallback(self, node: ElementPosition, deeper: States, *, inherited: InheritedRule) -> Handler:
        if is_resource_slot(node.type):
            return self._slot(node)
        if node.type == "Extension" and not inherited.keep:
            return self._extension(node, deeper)
        if not is_primitive(node.type):
            general = self._object(node, deeper, inherited=inherited)
            default = (
                node.type == "CodeableConcept"
                and not (deeper or inherited.keep or self.trace)
                and self._has_default_codes
            )
            return handle_concept(node, general) if default else general
        if inherited.keep:
            return METHODS["keep"]({}, node)
        return lambda v, context: context.drop(node, "no rule")

    def _slot(self, node: ElementPosition) -> Handler:
        def run(value: Any, context: TransformContext) -> Any:
            if self._resource is None or value.__class__ is not dict:
                return context.drop(node, "malformed")
            return self._resource(value, context)

        return run

    def _extension(self, node: ElementPosition, deeper: States) -> Handler:
        inner = self._object(node, deeper, inherited=self._no_inherited) if deeper else None

        def run(value: Any, context: TransformContext) -> Any:
            reason = absent_reason(value)
            if reason is None and inner is not None:
                transformed = inner(value, context)
                # An extension needs both a URL and a value.
                reason = (
                    transformed if transformed and len(transformed) > 1 and "url" in transformed else None
                )
            return reason if reason is not None else context.drop(node, "extension not allowed")

        return run

    # One object

    def _object(self, node: ElementPosition, states: States, *, inherited: InheritedRule) -> Handler:
        fields = element_table()[node.type]
        shapes: dict[tuple[str, ...], ObjectShape] = {}
        last_keys: tuple[str, ...] | None = None  # most objects have the same keys as the previous one
        last = ObjectShape((), None, -1, is_valid=False)
        repair = Repair(node.type)
        fixup = FIXUPS.get(node.type)

        def compile_shape(keys: tuple[str, ...]) -> ObjectShape:
            steps: list[tuple[str, Handler]] = []
            drops: list[tuple[str, str]] = []
            for key in keys:
                if key == "resourceType" and node.parent == "":
                    continue
                element = self._element(node, fields, key, states, inherited=inherited)
                if isinstance(element, str):
                    known = key.removeprefix("_") in fields
                    drops.append((f"{node.path}.{key}" if known else f"{node.path}.(unknown)", element))
                else:
                    steps.append((key, element))
            full = -1 if repair.is_needed([k for k, _ in steps]) else len(steps)
            is_valid = full > 0 and needs_no_fixup(node.type, [k for k, _ in steps])
            if node.type in ("Observation", "Observation.component"):
                # Whether a value is an age is only known if its code is handled by the default rule.
                is_valid = (
                    is_valid
                    and self._has_default_codes
                    and "code" in keys
                    and any(k == "code" for k, _ in steps)
                )
            shape = ObjectShape(
                tuple(steps), DroppedElements(tuple(drops)) if drops else None, full, is_valid
            )
            if len(shapes) < _MAX_SHAPES:
                shapes[keys] = shape
            return shape

        def run(value: Any, context: TransformContext) -> Any:
            if value.__class__ is not dict:
                return context.drop(node, "malformed")
            nonlocal last, last_keys
            keys = tuple(value)
            if keys != last_keys:
                last, last_keys = shapes.get(keys) or compile_shape(keys), keys
            steps, dropped, full, is_valid = last
            if dropped is not None:
                context.log_shape_drops(dropped)
            out = {}
            for key, handler in steps:
                if (element_value := handler(value[key], context)) is not None:
                    out[key] = element_value
            if is_valid and len(out) == full and not context.reveals_age:
                return out
            return finish(out, value, context, full)

        def finish(out: dict[str, Any], value: dict[str, Any], context: TransformContext, full: int) -> Any:
            """Return the kept elements as a valid object."""
            if not out:
                return None
            size = len(out)
            if size != full:
                repair(out, value, context)
            repaired_size = len(out)
            fixed = out if fixup is None else fixup(out, value, context)
            # Added elements are sorted into the order of R4, so that a second run changes nothing.
            if fixed is None or size == repaired_size == len(fixed):
                return fixed
            return repair.in_order(fixed)

        return run

    def _element(
        self,
        node: ElementPosition,
        fields: dict[str, ElementDefinition],
        key: str,
        states: States,
        *,
        inherited: InheritedRule,
    ) -> Handler | str:
        """Compile the rules of one key to a handler, or return the reason why it is dropped."""
        element = fields.get(key)
        is_top_level = node.parent == ""
        if element is None:
            if is_top_level and (version := foreign_version(f"{node.path}.{key}")):
                return lambda value, context: refuse_version(version)
            return self._primitive_extension(node, fields, key)
        if is_top_level and key in STRUCTURAL and not (key == "identifier" and element.type != "Identifier"):
            return "replaced"
        if key == "modifierExtension":
            return _drop_resource
        if key == "id" and not is_top_level:
            return "no rule"
        below = ElementPosition(f"{node.path}.{key}", element.type, node.type, key)
        deeper = self._advance(states, element)
        if "." in element.type and element.type != below.path:
            # A recursive element (Questionnaire.item.item): the rules of its first level apply again.
            below = ElementPosition(element.type, element.type, node.type, key)
            deeper = self._canonical(element.type)
        handler = self._node(below, deeper, inherited=inherited)
        reason = self._unconditional_drop(below, deeper, inherited=inherited)
        if reason is not None and not self.trace:
            return reason
        rule = self._applicable_rule(below, deeper, inherited)
        is_whole_element = rule is not None and rule.method in WHOLE_ELEMENT
        handler = handler if is_whole_element or not element.is_list else _map_items(handler, below)
        if is_top_level and (form := foreign_form(below.path)):
            handler = _refuse_foreign_form(handler, *form)
        return self._traced(handler, below, rule) if self.trace else handler

    def _advance(self, states: States, element: ElementDefinition) -> States:
        names = (element.name, element.stem)
        return tuple((index, n + 1) for index, n in states if self._next((index, n)) in names)

    def _canonical(self, type_name: str) -> States:
        resource_type, *names = type_name.split(".")
        states, path = self._start(resource_type), resource_type
        for name in names:
            states = self._advance(states, element_table()[path][name])
            path = f"{path}.{name}"
        return states

    def _type_states(self, node: ElementPosition, inherited: InheritedRule) -> States:
        """Return the rules to compile that start at a type; references are remapped even if a rule keeps them."""
        indices = self._by_type.get(node.type, ())
        return tuple(
            (i, 0) for i in indices if i < inherited.limit or (inherited.keep and node.type == "Reference")
        )

    def _applicable_rule(
        self, node: ElementPosition, states: States, inherited: InheritedRule
    ) -> ParsedRule | None:
        """Return the rule compiled for an element, if it does not depend on the element's value."""
        all_states = states + self._type_states(node, inherited)
        if any(isinstance(self._next(state), PathCondition) for state in all_states):
            return None
        first = min((index for index, n in all_states if self._next((index, n)) is None), default=None)
        if first is None:
            return None
        earlier = any(index < first for index, n in all_states if self._next((index, n)) is not None)
        return None if earlier and not is_primitive(node.type) else self.rules[first]

    def _unconditional_drop(
        self, node: ElementPosition, states: States, *, inherited: InheritedRule
    ) -> str | None:
        """Return why the compiled rules always drop an element, else None."""
        rule = self._applicable_rule(node, states, inherited)
        if rule is not None:
            return rule.name if rule.method == "redact" else None
        is_conditional = any(
            isinstance(self._next(s), PathCondition) for s in (*states, *self._type_states(node, inherited))
        )
        return "no rule" if is_primitive(node.type) and not inherited.keep and not is_conditional else None

    def _primitive_extension(
        self, node: ElementPosition, fields: dict[str, ElementDefinition], key: str
    ) -> Handler | str:
        """Compile the handler of a primitive's extension (``_birthDate``), which keeps data-absent-reason only."""
        element = fields.get(key[1:]) if key[:1] == "_" else None
        if element is None or not is_primitive(element.type) or element.is_list:
            return "unknown element" if element is None else "no rule"
        position = ElementPosition(f"{node.path}.{key}", "Extension", node.type, key)

        def run(value: Any, context: TransformContext) -> Any:
            extensions = self.extensions(value.get("extension"), context) if value.__class__ is dict else None
            return (
                {"extension": extensions} if extensions else context.drop(position, "extension not allowed")
            )

        return run

    def _traced(self, handler: Handler, node: ElementPosition, rule: ParsedRule | None) -> Handler:
        reason = "rules of its elements" if rule is None else rule.name

        def run(value: Any, context: TransformContext) -> Any:
            transformed = handler(value, context)
            if transformed is not None:
                context.document.log.passes.append((node.path, reason))
            return transformed

        return run


def _map_items(handler: Handler, node: ElementPosition) -> Handler:
    def run(value: Any, context: TransformContext) -> Any:
        if value.__class__ is not list:
            return context.drop(node, "malformed")
        if len(value) == 1:
            transformed = handler(value[0], context)
            return None if transformed is None else [transformed]
        return [transformed for item in value if (transformed := handler(item, context)) is not None] or None

    return run


def _refuse_foreign_form(handler: Handler, version: str, form: type) -> Handler:
    """Compile a handler that refuses a record with an element in the form of another FHIR version."""
    return lambda value, context: (
        refuse_version(version) if value.__class__ is form else handler(value, context)
    )


def _mask(handler: Handler) -> Handler:
    def run(value: Any, context: TransformContext) -> Any:
        element = handler(value, context) or {}
        element["extension"] = absent_extension()
        return element

    return run


def _drop_resource(value: Any, context: TransformContext) -> Any:
    raise ResourceDroppedError("modifierExtension that may change its meaning")


def _check_rule(rule: ParsedRule) -> None:
    factory = METHODS.get(rule.method)
    if factory is None:
        raise SettingsError(
            "there is no method of this name",
            where=rule.path.text,
            remedy=f"use one of {', '.join(METHODS)}",
        )
    unknown = {name for name, _ in rule.settings} - SETTINGS.get(rule.method, frozenset())
    if unknown:
        raise SettingsError(
            f"the method '{rule.method}' has no setting '{shorten_name(min(unknown))}'",
            where=rule.path.text,
            remedy="correct the rule",
        )
    if not rule.path.by_type and not rule.path.steps:
        raise SettingsError(
            "a rule cannot apply to a resource type",
            where=rule.path.text,
            remedy="select resource types by the study's data requirements",
        )
    if not rule.path.by_type and len(rule.path.steps) == 1 and rule.path.steps[0] in STRUCTURAL:
        raise SettingsError(
            "a rule cannot apply to the identity of a resource",
            where=rule.path.text,
            remedy="remove the rule",
        )
    names = [step for step in rule.path.steps if isinstance(step, str)]
    for end, owner in (
        product(rule.path.types, rule.path.parent_types) if rule.method not in ("redact", "mask") else ()
    ):
        if rule.method != "keep" or is_primitive(end):
            factory(
                dict(rule.settings), ElementPosition(rule.path.text, end, owner, names[-1] if names else "")
            )
