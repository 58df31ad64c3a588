"""Middleware and listener without a network: listening addresses and public paths."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from abaton.errors import RefusedError, SettingsError
from abaton.governance.intake import ListenSettings, make_app
from abaton.governance.intake.middleware import STATUS, RateLimiter, RequestProblem, RequestRefusedError
from abaton.governance.refusals import RefusalCode


def test_it_listens_on_network_addresses_only_with_tls(tmp_path):
    for host in ("127.0.0.1", "::1", "localhost"):
        ListenSettings(host).check()
    for host in ("0.0.0.0", "::", "192.0.2.1", "centre.example", ""):
        with pytest.raises(RefusedError, match="unencrypted"):
            ListenSettings(host).check()
        ListenSettings(host, behind_proxy=True).check()
    certificate = tmp_path / "chain.pem"
    with pytest.raises(SettingsError, match="only one of"):
        ListenSettings("0.0.0.0", certificate=certificate).check()
    with pytest.raises(SettingsError, match="could not be read"):
        ListenSettings("0.0.0.0", certificate=certificate, key=certificate).check()
    certificate.write_text("x")
    ListenSettings("0.0.0.0", certificate=certificate, key=certificate).check()


def test_every_code_has_a_status():
    assert set(STATUS) == set(RefusalCode)
    for problem in RequestProblem:
        assert 400 <= RequestRefusedError.from_problem(problem, 1.2).status < 600
    assert RequestRefusedError.from_problem(RequestProblem.TOO_MANY, 1.2).headers == {"retry-after": "2"}


def test_a_rate_limiter_refills_with_time():
    now = [0.0]
    rates = RateLimiter(2, 4, lambda: now[0])
    assert [rates.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    now[0] = 0.5
    assert [rates.take("a") for _ in range(2)] == [0, 0.5]
    for number in range(20_000):
        rates.take(str(number))
    assert len(rates._buckets) <= 10_001


def test_public_addresses_need_no_signature_and_all_others_do(make_centre):
    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app=make_app(make_centre()))
        async with httpx.AsyncClient(transport=transport, base_url="http://centre") as client:
            statuses = [
                (await client.get(path)).status_code for path in ("/v1/health", "/v1/centre", "/v1/studies")
            ]
            statuses.append((await client.get("/v1/usage")).status_code)
            statuses.append((await client.post("/v1/consents", json={"name": "Peter"})).status_code)
            return statuses

    assert asyncio.run(ask()) == [200, 200, 200, 401, 401]
