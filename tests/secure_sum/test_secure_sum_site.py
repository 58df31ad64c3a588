"""Check deviations of a site: ignored, refused at the site, or named by the centre."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.secure_sum.in_process import (
    SEGMENTS,
    SIGNING_KEYS,
    InProcess,
    contributor,
    make_settings,
    opened_values,
    random_values,
    site_names,
)

from abaton.errors import RefusedError, SettingsError
from abaton.secure_sum import (
    KeyAdvertisement,
    MaskedInput,
    MemoryLog,
    RevealedShares,
    SiteFaultError,
    SumCentre,
    SumPhase,
    SumSegment,
    SumSite,
)
from abaton.secure_sum.modular_vectors import ModularSum, content_digest
from abaton.secure_sum.sum_keys import (
    PRIME,
    SHARE_BYTES,
    derive_key,
    seed_commitment,
    share_digest,
    share_pad,
)

BYZANTINE = "site-01"


def collecting(n: int = 4, c: int = 1):
    parties = InProcess(make_settings(n, c)).enrol()
    parties.record_all(np.random.default_rng(n))
    return parties, parties.begin()


def opening(n: int = 4, c: int = 1, changed=None):
    """A sum that is being opened; `changed` replaces the input of the Byzantine site."""
    parties, context = collecting(n, c)
    for request in parties.centre.requests(context):
        masked = parties.answer(request)
        parties.deliver(
            changed(parties, context, masked) if changed and request.site == BYZANTINE else masked
        )
    assert parties.centre.phase(context) is SumPhase.OPENING
    return parties, context


def signed(masked: MaskedInput, **fields: object) -> MaskedInput:
    masked = replace(masked, **fields)
    signature = SIGNING_KEYS[masked.site].sign(masked.signed_bytes(content_digest(masked.payload)))
    return replace(masked, signature=signature)


def named(parties: InProcess, masked: MaskedInput, what: str) -> None:
    before = parties.centre.state
    with pytest.raises(SiteFaultError, match=what) as caught:
        parties.centre.receive_input(masked)
    assert caught.value.site == masked.site
    assert parties.centre.state == before


def test_inputs_of_another_length_form_context_or_signature_are_named():
    parties, context = collecting()
    masked = parties.sites[BYZANTINE].mask(context)
    named(parties, signed(masked, payload=masked.payload + b"\0"), "another length")
    named(parties, signed(masked, payload=masked.payload[:-1]), "another length")
    named(parties, signed(masked, context_digest=bytes(32)), "not requested")
    named(parties, signed(masked, sealed_shares=masked.sealed_shares[1:]), "another number of shares")
    named(parties, signed(masked, share_digests=masked.share_digests[1:]), "another number of shares")
    named(parties, replace(masked, commitment=bytes(32)), "valid signature")
    named(parties, replace(masked, payload=bytes(len(masked.payload))), "valid signature")
    named(parties, replace(masked, site="site-02"), "valid signature")
    named(parties, replace(masked, signature=bytes(64)), "valid signature")
    outsider = InProcess(make_settings(6)).enrol()
    group = sorted(outsider.settings.groups[0])
    stranger = sorted(outsider.settings.groups[1])[0]
    context = outsider.begin(group)
    named(outsider, signed(replace(masked, site=stranger), context_digest=context.digest), "a sum of others")


def test_two_different_signed_inputs_for_one_context_are_named():
    parties, context = collecting()
    masked = parties.sites[BYZANTINE].mask(context)
    parties.centre.receive_input(masked)
    named(parties, signed(masked, payload=bytes(len(masked.payload))), "two different masked inputs")
    parties.run(context)
    assert opened_values(parties, context) == parties.clear_sum(context)


@pytest.mark.parametrize(("n", "c"), [(4, 1), (10, 3)])
def test_wrong_shares_of_c_holders_are_ignored(n, c):
    parties, context = opening(n, c)
    byzantine = site_names(n)[1 : 1 + c]
    for request in parties.centre.requests(context):
        revealed = parties.answer(request)
        if request.site in byzantine:
            revealed = replace(revealed, shares=tuple(bytes(SHARE_BYTES) for _ in revealed.shares))
        parties.deliver(revealed)
    assert opened_values(parties, context) == parties.clear_sum(context)
    mismatches = parties.centre.result(context).mismatches
    assert {holder for _, holder in mismatches} == set(byzantine)
    assert len(mismatches) == n * c


def test_a_holder_may_correct_a_wrong_share():
    parties, context = opening()
    requests = {request.site: request for request in parties.centre.requests(context)}
    right = parties.answer(requests[BYZANTINE])
    parties.deliver(replace(right, shares=(bytes(SHARE_BYTES), *right.shares[1:])))
    assert BYZANTINE in {request.site for request in parties.centre.requests(context)}
    parties.deliver(right)
    parties.deliver(replace(right, shares=(bytes(SHARE_BYTES), *right.shares[1:])))  # too late
    parties.alive -= {"site-03"}
    parties.run(context)
    assert opened_values(parties, context) == parties.clear_sum(context)
    assert parties.centre.result(context).mismatches == ()


def test_shares_that_were_not_requested_or_of_another_number_are_named():
    parties, context = collecting()
    shares = (bytes(SHARE_BYTES),) * 4
    for digest in (bytes(32), context.digest):
        with pytest.raises(SiteFaultError, match=f"'{BYZANTINE}' revealed shares that were not requested"):
            parties.centre.receive_shares(RevealedShares(BYZANTINE, digest, shares))
    parties, context = opening()
    for site, answer in [(BYZANTINE, shares[:3]), ("zakynthos", shares)]:
        with pytest.raises(SiteFaultError, match="another number of shares"):
            parties.centre.receive_shares(RevealedShares(site, context.digest, answer))


def wrong_shares(parties, context, masked):
    """Sealed shares that do not match their digests."""
    sealed = tuple(
        ((int.from_bytes(share, "little") + 1) % PRIME).to_bytes(SHARE_BYTES, "little")
        for share in masked.sealed_shares
    )
    return signed(masked, sealed_shares=sealed)


def wrong_polynomial(parties, context, masked):
    """Shares that match their digests and lie on no polynomial of the right degree."""
    site = parties.sites[BYZANTINE]
    pairs = site._secrets_of_pairs(site.state, site.state.directory)
    sealed, digests = [], []
    for holder in site.state.directory.holders:
        share = int.from_bytes(content_digest(holder.encode()), "little") % PRIME
        pad = share_pad(pairs[holder], context.digest, BYZANTINE, holder)
        sealed.append(((share + pad) % PRIME).to_bytes(SHARE_BYTES, "little"))
        digests.append(share_digest(context.digest, BYZANTINE, holder, share.to_bytes(SHARE_BYTES, "little")))
    return signed(masked, sealed_shares=tuple(sealed), share_digests=tuple(digests))


def wrong_commitment(parties, context, masked):
    return signed(masked, commitment=seed_commitment(context.digest, BYZANTINE, bytes(31)))


@pytest.mark.parametrize("changed", [wrong_shares, wrong_polynomial, wrong_commitment])
@pytest.mark.parametrize(("n", "c"), [(4, 1), (10, 3)])
def test_a_site_that_makes_wrong_shares_is_named(changed, n, c):
    parties, context = opening(n, c, changed)
    parties.run(context)
    assert parties.centre.phase(context) is SumPhase.FAILED
    with pytest.raises(SiteFaultError, match=f"'{BYZANTINE}' made shares") as caught:
        parties.centre.result(context)
    assert caught.value.site == BYZANTINE
    # The fault outlives a restart, the inputs do not.
    again = SumCentre(parties.settings, parties.logs["centre"])
    with pytest.raises(SiteFaultError, match=BYZANTINE):
        again.result(context)
    assert not [name for name in parties.logs["centre"].inner.attachments if name.startswith("payload")]


def test_a_dealer_is_named_by_c_plus_one_holders():
    parties, context = opening(10, 3, wrong_shares)
    phases = []
    for request in parties.centre.requests(context)[:4]:
        parties.deliver(parties.answer(request))
        phases.append(parties.centre.phase(context))
    assert phases == [SumPhase.OPENING] * 3 + [SumPhase.FAILED]


def test_holders_cannot_have_an_honest_dealer_named():
    parties, context = opening(10, 3)
    for request in parties.centre.requests(context)[:3]:
        revealed = parties.answer(request)
        parties.deliver(replace(revealed, shares=(bytes(SHARE_BYTES), *revealed.shares[1:])))
    assert parties.centre.phase(context) is SumPhase.OPENING
    parties.run(context)
    assert opened_values(parties, context) == parties.clear_sum(context)


def test_wrong_masks_are_noticed():
    """A Byzantine site's payload is random: the check segment does not open to the number of contributors."""

    def changed(parties, context, masked):
        return signed(masked, payload=bytes(len(masked.payload)))

    parties, context = opening(4, 1, changed)
    parties.run(context)
    with pytest.raises(SiteFaultError, match="other masks"):
        parties.centre.result(context)


def test_a_sum_out_of_range_is_noticed():
    """Noticed is only what the contributors of this sum cannot have given together."""
    settings = make_settings(10, fixed_groups=False)
    parties = InProcess(settings).enrol()
    parties.record_all(np.random.default_rng(2))
    context = parties.begin(site_names(3))
    for request in parties.centre.requests(context):
        masked = parties.answer(request)
        if request.site == BYZANTINE:
            total = ModularSum(context.all_segments)
            total.add_payload(masked.payload)
            total.add_payload(payload_of(context, "update", 3000))  # three sites of at most 409
            masked = signed(masked, payload=total.to_payload())
        parties.deliver(masked)
    parties.run(context)
    with pytest.raises(SiteFaultError, match="one of the contributors masked .* out of range"):
        parties.centre.result(context)


def payload_of(context, name: str, number: int) -> bytes:
    """A payload with a number in the first place of a segment, without any limit."""
    total = ModularSum(context.all_segments)
    index = [segment.name for segment in context.all_segments].index(name)
    total._sums[index][0] = number
    return total.to_payload()


def test_a_lie_within_the_range_is_not_noticed():
    """What is not guaranteed: a site may add any numbers of the allowed size."""

    def changed(parties, context, masked):
        total = ModularSum(context.all_segments)
        total.add_payload(masked.payload)
        total.add_payload(payload_of(context, "counts", 10**9))
        return signed(masked, payload=total.to_payload())

    parties, context = opening(4, 1, changed)
    parties.run(context)
    result, clear = opened_values(parties, context), parties.clear_sum(context)
    assert result["counts"][0] == clear["counts"][0] + 10**9
    assert result["update"] == clear["update"]


def test_silence_after_masking_needs_t_others():
    for silent, phase in [(1, SumPhase.OPENED), (2, SumPhase.OPENING)]:
        parties, context = opening()
        parties.alive -= set(site_names(4)[:silent])
        parties.run(context)
        assert parties.centre.phase(context) is phase


def test_keys_of_strangers_and_second_keys_are_named():
    parties = InProcess(make_settings(4))
    genuine = parties.sites[BYZANTINE].advertise(100)
    parties.centre.accept_key(genuine)
    parties.centre.accept_key(genuine)

    def refused(changed: KeyAdvertisement, what: str) -> None:
        with pytest.raises(SiteFaultError, match=what) as caught:
            parties.centre.accept_key(changed)
        assert caught.value.site == changed.site

    refused(genuine.model_copy(update={"subjects": 7}), "without the signature")
    refused(genuine.model_copy(update={"subjects": 7}).sign(SIGNING_KEYS[BYZANTINE]), "another key before")
    refused(genuine.model_copy(update={"site": "zakynthos"}).sign(SIGNING_KEYS[BYZANTINE]), "not listed")
    refused(genuine.model_copy(update={"run": "run-2"}).sign(SIGNING_KEYS[BYZANTINE]), "another study or run")
    refused(genuine.model_copy(update={"signing_key": bytes(32)}), "without the signature")  # of small order
    parties.enrol()
    late = InProcess(make_settings(5))
    late.alive.discard("site-04")
    late.enrol()
    with pytest.raises(RefusedError, match="directory of this run is fixed"):
        late.centre.accept_key(late.sites["site-04"].advertise(100))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_at_the_site(value):
    parties = InProcess(make_settings(4)).enrol()
    values = dict(random_values(np.random.default_rng(0)))
    values["moments"] = np.array([value, 1.0])
    with pytest.raises(SettingsError, match="not finite"):
        parties.record("site-00", values)
    assert not parties.sites["site-00"].state.contributions


def test_values_out_of_range_are_refused_at_the_site_before_anything_leaves():
    parties = InProcess(make_settings(4)).enrol()
    values = dict(random_values(np.random.default_rng(0)))
    values["update"] = np.full(11, 1024)  # at most 1023 with 13 bits and four sites
    parties.record("site-00", values)
    for site in site_names(4)[1:]:
        parties.record(site, random_values(np.random.default_rng(1)))
    context = parties.begin()
    with pytest.raises(SettingsError, match="too large"):
        parties.sites["site-00"].mask(context)
    assert not parties.sites["site-00"].state.payload_digests


def test_an_encoder_that_gives_other_values_is_refused():
    """The same masks over two different vectors would show their difference."""
    settings = make_settings(3)
    calls = []

    def encode(values, context):
        calls.append(1)
        return {"x": values["x"] + len(calls)}

    parties = InProcess(settings)
    parties.sites["site-00"] = site = SumSite(
        settings, "site-00", SIGNING_KEYS["site-00"], settings.sites, MemoryLog(), bytes, encode
    )
    parties.enrol()
    segment = SumSegment(name="x", size=1, bits=64)
    for name in site_names(3):
        parties.sites[name].record(contributor(name), "train", [segment], {"x": np.array([5])})
    context = parties.centre.begin("train", [contributor(name) for name in site_names(3)], [segment])
    site.mask(context)
    with pytest.raises(RefusedError, match="other values were masked"):
        site.mask(context)


def test_errors_name_no_value():
    parties = InProcess(make_settings(4)).enrol()
    values = {"update": np.full(11, 987_654_321), "counts": np.arange(3), "moments": np.ones(2)}
    parties.record("site-00", values)
    for site in site_names(4)[1:]:
        parties.record(site, random_values(np.random.default_rng(1)))
    with pytest.raises(SettingsError) as caught:
        parties.sites["site-00"].mask(parties.begin())
    assert "987654321" not in str(caught.value)


def test_derived_secrets_differ_for_every_use():
    parties, context = collecting()
    secret = parties.sites[BYZANTINE].state.created.secret
    uses = (b"self-mask", b"polynomial", b"pair", b"share", b"exchange")
    assert len({derive_key(secret, context.digest, use) for use in uses}) == len(uses)
    assert SEGMENTS[0].bits == 13
