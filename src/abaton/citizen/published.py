"""What the published studies say about the page: whom it may talk to besides its own server."""

from __future__ import annotations

import json

from abaton.governance import Registry
from abaton.study.persons import Persons


def reached_by(registry: Registry, study: str) -> tuple[str, ...]:
    """Whom the page of a study may talk to besides its own server; nobody if there is no such study."""
    found = registry.study(study)
    persons = json.loads(found.content).get("persons") if found else None
    return Persons.model_validate_json(json.dumps(persons)).reached if persons else ()
