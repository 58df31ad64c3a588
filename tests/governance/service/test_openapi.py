"""schemathesis reads the service's own OpenAPI document and tries what it can think of: no server error, no surprise."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests.governance.conftest import NOW
from tests.governance.service.conftest import refusals, served

from abaton.governance import Audit, verify
from abaton.governance.signing import Asked, authorisation

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install abaton[dev]")
pytestmark = [pytest.mark.network, pytest.mark.slow]


def signing(site, centre):
    """Signs what is about to be sent, as :class:`requests.auth.AuthBase` wants it."""

    def sign(request):
        body = request.body or b""
        raw = body if isinstance(body, bytes) else body.encode()
        asked = Asked.of(centre.signing.id, request.method, request.path_url, raw)
        request.headers["authorization"] = authorisation(site.signing, asked, NOW, os.urandom(16))
        return request

    return sign


@pytest.mark.parametrize("is_signed", [True, False])
def test_nothing_that_the_document_allows_or_forbids_is_a_server_error(house, inbox, site, centre, is_signed):
    seen: dict[int, int] = {}
    with served(house(address_rate=1e6, sender_rate=1e6)) as address:
        document = schemathesis.openapi.from_url(f"{address}/openapi.json")
        for result in document.get_all_operations():
            operation = result.ok()

            @settings(max_examples=25, deadline=None, derandomize=True, phases=[Phase.generate, Phase.explicit],
                      suppress_health_check=list(HealthCheck))
            def attempt(case, operation=operation):
                auth = signing(site, centre) if is_signed else None
                response = case.call(base_url=address, auth=auth, timeout=60)
                seen[response.status_code] = seen.get(response.status_code, 0) + 1
                assert response.status_code < 500, (operation.label, response.status_code)
                case.validate_response(
                    response,
                    checks=[
                        schemathesis.checks.not_a_server_error,
                        schemathesis.specs.openapi.checks.status_code_conformance,
                        schemathesis.specs.openapi.checks.content_type_conformance,
                        schemathesis.specs.openapi.checks.response_schema_conformance,
                    ],
                )  # fmt: skip

            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                try:
                    strategy = operation.as_strategy(generation_mode=mode)
                except Exception as error:  # an operation without anything to get wrong
                    if "negative" in str(error).lower():
                        continue
                    raise
                from hypothesis import given

                given(case=strategy)(attempt)()
    assert sum(seen.values()) > 100
    assert verify(Audit(inbox.database).rows()) == []
    assert {status for _, status in refusals(inbox.database)} <= {401, 403, 404, 405, 408, 409, 413, 422, 429}
