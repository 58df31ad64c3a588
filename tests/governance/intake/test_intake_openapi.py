"""schemathesis generates requests from the service's OpenAPI document: no server error."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.governance.conftest import NOW
from tests.governance.intake.conftest import refusals, served

from abaton.governance import AuditLog, verify
from abaton.governance.http_signatures import SignedRequest, signed_headers

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is missing: install abaton[dev]")
pytestmark = [pytest.mark.network, pytest.mark.slow]
PATIENT = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def signing(site, centre):
    """Return a function that signs a prepared request."""

    def sign(request):
        body = request.body or b""
        raw = body if isinstance(body, bytes) else body.encode()
        path, _, query = request.path_url.partition("?")
        signed_request = SignedRequest.of(centre.signing_key.id, request.method, path, query, raw)
        request.headers.update(signed_headers(site.signing_key, signed_request, NOW, os.urandom(16)))
        return request

    return sign


def strategies(operation):
    for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
        if mode is schemathesis.GenerationMode.POSITIVE or operation.body or operation.path_parameters:
            yield operation.as_strategy(generation_mode=mode)


@pytest.mark.parametrize("is_signed", [True, False])
def test_no_request_causes_a_server_error(make_centre, inbox, site, centre, is_signed):
    checks = pytest.importorskip("schemathesis.specs.openapi.checks")
    wanted = [
        schemathesis.checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    seen: Counter[tuple[str, int]] = Counter()
    with served(make_centre(address_rate=1e6, sender_rate=1e6, enrolments_per_minute=10**6)) as address:
        document = schemathesis.openapi.from_url(f"{address}/openapi.json")
        auth = signing(site, centre) if is_signed else None

        def attempt(case):
            response = case.call(base_url=address, auth=auth, timeout=60)
            seen[case.operation.label, response.status_code] += 1
            case.validate_response(response, checks=wanted)

        for result in document.get_all_operations():
            for strategy in strategies(result.ok()):
                PATIENT(given(case=strategy)(attempt))()
    assert sum(seen.values()) > 100
    assert max(status for _, status in seen) < 500
    assert len({label for label, _ in seen}) == 14
    assert verify(AuditLog(inbox.database).rows()) == []
    assert {status for _, status in refusals(inbox.database)} <= {401, 403, 404, 405, 408, 409, 413, 422}
