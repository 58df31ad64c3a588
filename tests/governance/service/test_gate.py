"""The gate and the listening, without a network: where it may listen, and what gets past."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from abaton.errors import Refused, SettingsError
from abaton.governance.intake import Listen, make_app
from abaton.governance.intake.middleware import STATUS, Rates, Refusal, Trouble
from abaton.governance.identifiers import RefusalCode


def test_it_listens_to_the_network_only_over_tls(tmp_path):
    for host in ("127.0.0.1", "::1", "localhost"):
        Listen(host).check()
    for host in ("0.0.0.0", "::", "192.0.2.1", "centre.example", ""):
        with pytest.raises(Refused, match="unencrypted"):
            Listen(host).check()
        Listen(host, behind_proxy=True).check()
    certificate = tmp_path / "chain.pem"
    with pytest.raises(SettingsError, match="only half"):
        Listen("0.0.0.0", certificate=certificate).check()
    with pytest.raises(SettingsError, match="cannot be read"):
        Listen("0.0.0.0", certificate=certificate, key=certificate).check()
    certificate.write_text("x")
    Listen("0.0.0.0", certificate=certificate, key=certificate).check()


def test_every_code_has_a_status():
    assert set(STATUS) == set(RefusalCode)
    for trouble in Trouble:
        assert 400 <= Refusal.by(trouble, 1.2).status < 600
    assert Refusal.by(Trouble.TOO_MANY, 1.2).headers == {"retry-after": "2"}


def test_a_bucket_fills_while_one_waits():
    now = [0.0]
    rates = Rates(2, 4, lambda: now[0])
    assert [rates.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    now[0] = 0.5
    assert [rates.take("a") for _ in range(2)] == [0, 0.5]
    for number in range(20_000):
        rates.take(str(number))
    assert len(rates._buckets) <= 10_001


def test_public_addresses_need_no_signature_and_all_others_do(house):
    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app=make_app(house()))
        async with httpx.AsyncClient(transport=transport, base_url="http://centre") as client:
            found = [
                (await client.get(path)).status_code for path in ("/v1/health", "/v1/centre", "/v1/studies")
            ]
            found.append((await client.get("/v1/account")).status_code)
            found.append((await client.post("/v1/consents", json={"name": "Peter"})).status_code)
            return found

    assert asyncio.run(ask()) == [200, 200, 200, 401, 401]
