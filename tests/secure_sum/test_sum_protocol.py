"""Check secure sums of honest parties: equal to the clear sum, repeatable, uniform, nothing but the listed fields."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import chi2
from tests.secure_sum.in_process import (
    SEGMENTS,
    InProcess,
    contributor,
    make_settings,
    opened_values,
    random_values,
    site_names,
)

from abaton.errors import AbatonError, PayloadError, RefusedError, StoreError
from abaton.secure_sum import (
    FileLog,
    KeyAdvertisement,
    KeyDirectory,
    MaskedInput,
    MaskRequest,
    MemoryLog,
    RevealedShares,
    RevealRequest,
    SumCentre,
    SumContext,
    SumPhase,
    SumSegment,
    SumSite,
)
from abaton.secure_sum.modular_vectors import ModularSum
from abaton.secure_sum.sum_keys import derive_key, self_mask_key


@pytest.mark.parametrize(("n", "c"), [(3, 0), (3, 1), (4, 1), (10, 1), (10, 3), (50, 16)])
def test_secure_sums_are_bit_equal_to_clear_sums(n, c):
    parties, rng = InProcess(make_settings(n, c)).enrol(), np.random.default_rng(n)
    for version in (1, 2):
        parties.record_all(rng, version)
        context = parties.run(parties.begin(version=version))
        assert parties.centre.phase(context) is SumPhase.OPENED
        assert opened_values(parties, context) == parties.clear_sum(context)
        assert parties.centre.result(context).mismatches == ()


def test_other_seeds_give_other_payloads_and_the_same_sum():
    result = []
    for seed in (1, 2):
        parties = InProcess(make_settings(4), seed=seed).enrol()
        parties.record_all(np.random.default_rng(0))
        context = parties.begin()
        payload = parties.sites["site-00"].mask(context).payload
        parties.run(context)
        result.append((payload, opened_values(parties, context)))
    assert result[0][0] != result[1][0]
    assert result[0][1] == result[1][1]


def test_any_threshold_of_holders_opens_the_same_sum():
    values = []
    for absent in range(4):
        parties = InProcess(make_settings(4)).enrol()
        parties.record_all(np.random.default_rng(0))
        context = parties.begin()
        for request in parties.centre.requests(context):
            parties.step(request)
        parties.alive.discard(site_names(4)[absent])
        values.append(opened_values(parties, parties.run(context)))
    assert all(value == values[0] for value in values)


def test_sites_that_did_not_contribute_help_to_open():
    parties = InProcess(make_settings(6)).enrol()
    group = sorted(parties.settings.groups[0])
    parties.record_all(np.random.default_rng(3))
    context = parties.begin(group)
    for request in parties.centre.requests(context):
        assert request.site in group
        parties.step(request)
    holders = {request.site for request in parties.centre.requests(context)}
    assert holders == set(parties.settings.sites)
    parties.alive -= set(group[:2])
    parties.run(context)
    assert opened_values(parties, context) == parties.clear_sum(context)


def test_a_run_needs_only_the_threshold_of_sites():
    parties = InProcess(make_settings(7, fixed_groups=False))
    parties.alive -= set(site_names(7)[:2])
    parties.enrol()
    parties.record_all(np.random.default_rng(3))
    context = parties.run(parties.begin(sorted(parties.alive)))
    assert opened_values(parties, context) == parties.clear_sum(context)


def test_fewer_sites_than_the_threshold_have_no_directory():
    parties = InProcess(make_settings(7))
    parties.alive -= set(site_names(7)[:3])
    with pytest.raises(RefusedError, match="4 sites have advertised keys, 5 are needed"):
        parties.enrol()


def test_a_site_that_drops_out_after_masking_starts_is_excluded_by_a_new_context():
    parties = InProcess(make_settings(5, fixed_groups=False)).enrol()
    parties.record_all(np.random.default_rng(5))
    first = parties.begin()
    parties.alive.discard("site-03")
    parties.run(first)
    assert [request.site for request in parties.centre.requests(first)] == ["site-03"]
    parties.centre.abandon(first)
    second = parties.run(parties.begin(sorted(parties.alive)))
    assert opened_values(parties, second) == parties.clear_sum(second)
    # The late answer to the abandoned context opens nothing.
    parties.alive.add("site-03")
    late = parties.sites["site-03"].mask(first)
    with pytest.raises(RefusedError, match="abandoned"):
        parties.centre.receive_input(late)


def test_an_abandoned_sum_may_begin_again():
    parties = InProcess(make_settings(4)).enrol()
    parties.record_all(np.random.default_rng(5))
    first = parties.begin()
    parties.step(parties.centre.requests(first)[0])
    parties.centre.abandon(first)
    parties.centre.abandon(first)
    again = parties.run(parties.begin())
    assert again.digest == first.digest
    assert opened_values(parties, again) == parties.clear_sum(again)


def test_a_sum_that_is_being_opened_cannot_be_abandoned_and_its_tasks_are_in_no_other():
    parties = InProcess(make_settings(4, fixed_groups=False)).enrol()
    parties.record_all(np.random.default_rng(5))
    context = parties.begin()
    with pytest.raises(RefusedError, match="part of another sum"):
        parties.begin(site_names(3))
    for request in parties.centre.requests(context):
        parties.step(request)
    assert parties.centre.phase(context) is SumPhase.OPENING
    with pytest.raises(RefusedError, match="the sum is opening"):
        parties.centre.abandon(context)
    with pytest.raises(RefusedError, match="the sum is opening"):
        parties.centre.result(context)
    parties.run(context)
    with pytest.raises(RefusedError, match="the sum is opened"):
        parties.centre.abandon(context)
    with pytest.raises(RefusedError, match="part of another sum"):
        parties.begin(site_names(3))


def test_every_answer_is_repeated_to_the_bit():
    parties = InProcess(make_settings(4)).enrol()
    parties.record_all(np.random.default_rng(5))
    context = parties.begin()
    site = parties.sites["site-01"]
    assert site.advertise(100) == site.advertise(5) == parties.make_site("site-01").advertise(7)
    first = site.mask(context).to_bytes()
    assert first == site.mask(context).to_bytes() == parties.make_site("site-01").mask(context).to_bytes()
    for request in parties.centre.requests(context):
        parties.step(request)
    request = next(r for r in parties.centre.requests(context) if r.site == "site-01")
    revealed = site.reveal(request)
    assert revealed == site.reveal(request) == parties.make_site("site-01").reveal(request)
    assert len(site.state.opened) == 4
    parties.run(context)
    # After the opening, too.
    assert site.mask(context).to_bytes() == first
    assert site.reveal(request) == revealed


def test_duplicated_and_late_messages_change_nothing():
    parties = InProcess(make_settings(4)).enrol()
    parties.record_all(np.random.default_rng(5))
    context = parties.begin()
    messages = []
    while requests := parties.centre.requests(context):
        for request in requests:
            message = parties.answer(request)
            messages.append(message)
            parties.deliver(message)
            parties.deliver(message)
    count = len(parties.logs["centre"].inner.events)
    for message in messages:
        parties.deliver(message)
    assert len(parties.logs["centre"].inner.events) == count
    assert opened_values(parties, context) == parties.clear_sum(context)


def test_versions_may_differ_only_where_the_study_allows_it():
    rng = np.random.default_rng(1)
    for same_version in (True, False):
        parties = InProcess(make_settings(4, same_version=same_version)).enrol()
        lines = [contributor(site, 1 + (site == "site-02")) for site in site_names(4)]
        for line in lines:
            parties.record(line.site, random_values(rng), line.version)
        if same_version:
            with pytest.raises(RefusedError, match="different versions"):
                parties.centre.begin("train", lines, SEGMENTS)
        else:
            context = parties.run(parties.centre.begin("train", lines, SEGMENTS))
            assert opened_values(parties, context) == parties.clear_sum(context)


def test_values_are_encoded_when_the_settings_of_the_sum_are_known():
    settings = make_settings(3)
    segment = SumSegment(name="update", size=4, bits=32)

    def encode(values, context):
        step = float.fromhex(context.settings["step"])
        return {"update": np.rint(values["update"] / step).astype(np.int64)}

    parties = InProcess(settings)
    vectors = {site: np.random.default_rng(i).normal(size=4) for i, site in enumerate(settings.sites)}
    for site in settings.sites:
        log = parties.logs[site]
        parties.sites[site] = SumSite(
            settings, site, parties.sites[site]._signing_key, settings.sites, log, bytes, encode
        )
    parties.enrol()
    for site in settings.sites:
        parties.sites[site].record(contributor(site), "train", [segment], {"update": vectors[site]})
    step = 2.0**-10
    context = parties.centre.begin(
        "train", [contributor(site) for site in settings.sites], [segment], {"step": step.hex()}
    )
    parties.run(context)
    mean = parties.centre.result(context).values["update"] * step
    assert np.abs(mean - sum(vectors.values())).max() <= 3 * step / 2


def test_payloads_are_uniform_have_one_size_and_do_not_depend_on_the_values():
    segment = SumSegment(name="update", size=40_000, bits=8)
    settings = make_settings(3)
    for value in (0, 42):
        parties = InProcess(settings).enrol()
        for site in settings.sites:
            vector = np.full(segment.size, value)
            parties.sites[site].record(contributor(site), "train", [segment], {"update": vector})
        context = parties.centre.begin("train", [contributor(s) for s in settings.sites], [segment])
        payloads = [parties.sites[site].mask(context).payload[8:] for site in sorted(settings.sites)]
        for payload in payloads:
            counts = np.bincount(np.frombuffer(payload, np.uint8), minlength=256)
            statistic = ((counts - len(payload) / 256) ** 2 / (len(payload) / 256)).sum()
            assert chi2.ppf(1e-6, 255) < statistic < chi2.ppf(1 - 1e-6, 255)
        # Not even two of three sites together show anything: the self mask and the third site's pair masks remain.
        both = np.frombuffer(payloads[0], np.uint8) + np.frombuffer(payloads[1], np.uint8)
        counts = np.bincount(both, minlength=256)
        assert ((counts - len(both) / 256) ** 2 / (len(both) / 256)).sum() < chi2.ppf(1 - 1e-6, 255)


def test_self_masks_alone_do_not_open_a_contribution():
    # Without self masks a payload is still covered by pair masks; without pair masks by the self mask.
    settings = make_settings(3)
    segment = SumSegment(name="update", size=1000, bits=16)
    parties = InProcess(settings).enrol()
    for site in settings.sites:
        parties.sites[site].record(
            contributor(site), "train", [segment], {"update": np.zeros(1000, np.int64)}
        )
    context = parties.centre.begin("train", [contributor(s) for s in settings.sites], [segment])
    masked = {site: parties.sites[site].mask(context) for site in settings.sites}
    site = parties.sites["site-00"]
    seed = derive_key(site.state.created.secret, context.digest, b"self-mask", length=31)
    total = ModularSum(context.all_segments)
    total.add_payload(masked["site-00"].payload)
    total.add_stream(self_mask_key(seed, context.digest), negative=True)
    values, _ = total.to_values(3, 3)
    assert np.count_nonzero(values["update"]) > 950


FIELDS = {
    KeyAdvertisement: {"study", "run", "site", "exchange_key", "subjects", "signing_key", "signature"},
    MaskedInput: {
        "site",
        "context_digest",
        "commitment",
        "sealed_shares",
        "share_digests",
        "payload",
        "signature",
    },
    RevealedShares: {"site", "context_digest", "shares"},
}


def test_a_site_sends_the_listed_fields_and_no_other():
    for message, names in FIELDS.items():
        if dataclasses.is_dataclass(message):
            assert {field.name for field in dataclasses.fields(message)} == names
        else:
            assert set(message.model_fields) == names


def test_messages_survive_their_byte_form_and_nothing_else_is_read():
    parties = InProcess(make_settings(4)).enrol()
    parties.record_all(np.random.default_rng(5))
    context = parties.begin(step="0x1p-3")
    masked = parties.sites["site-00"].mask(context)
    directory = parties.centre.state.directory
    request = RevealRequest("site-01", context, masked.sealed_shares)
    revealed = RevealedShares("site-01", context.digest, masked.sealed_shares)
    for message in (context, masked, directory, directory.advertisements[0], request, revealed):
        raw = message.to_bytes()
        assert type(message).from_bytes(raw) == message
        assert type(message).from_bytes(raw).to_bytes() == raw
    for kind in (SumContext, KeyDirectory, KeyAdvertisement, RevealRequest, RevealedShares, MaskedInput):
        for raw in (b"", b"{}", b"\xff" * 40, b"[" * 1000):
            with pytest.raises(PayloadError):
                kind.from_bytes(raw)
    raw = context.to_bytes()
    for changed in (raw + b" ", raw.replace(b'"run"', b'"run" '), raw[:-1] + b',"x":1}'):
        with pytest.raises(PayloadError, match="malformed"):
            SumContext.from_bytes(changed)


def mutated(raw: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.integers(1, 4)):
        start = int(rng.integers(0, len(changed) + 1))
        kind = rng.integers(0, 3)
        if kind == 0 and start < len(changed):
            changed[start] = int(rng.integers(0, 256))
        elif kind == 1:
            changed[start:start] = rng.bytes(int(rng.integers(1, 9)))
        else:
            del changed[start : start + int(rng.integers(1, 9))]
    return bytes(changed)


def test_mutated_messages_are_refused_with_an_error_of_the_package():
    parties = InProcess(make_settings(4)).enrol()
    parties.record_all(np.random.default_rng(5))
    context = parties.begin(step="0x1p-3")
    masked = [parties.sites[site].mask(context) for site in site_names(4)]
    request = RevealRequest("site-01", context, tuple(one.sealed_shares[1] for one in masked))
    revealed = RevealedShares("site-01", context.digest, request.sealed_shares)
    directory = parties.centre.state.directory
    site, centre, rng, counts = parties.sites["site-01"], parties.centre, np.random.default_rng(0), [0, 0]
    receivers = [
        (context, lambda message: site.mask(message)),
        (request, lambda message: site.reveal(message)),
        (directory, lambda message: site.accept_directory(message)),
        (directory.advertisements[0], lambda message: centre.accept_key(message)),
        (masked[0], lambda message: centre.receive_input(message)),
        (revealed, lambda message: centre.receive_shares(message)),
    ]
    for message, receive in receivers:
        for _ in range(150):
            raw = mutated(message.to_bytes(), rng)
            if raw == message.to_bytes():
                continue
            try:
                receive(type(message).from_bytes(raw))
                counts[1] += 1
            except AbatonError:
                counts[0] += 1
    # A holder answers for any encrypted share, so changed bytes of shares are not refused by it.
    assert counts[0] > 700
    for one in masked:
        centre.receive_input(one)
    parties.run(context)
    assert opened_values(parties, context) == parties.clear_sum(context)


def test_a_copied_context_has_a_digest_of_its_own():
    parties = InProcess(make_settings(4)).enrol()
    context = parties.begin()
    assert context.model_copy(update={"purpose": "other"}).digest != context.digest


def test_secrets_and_inputs_are_gone_after_the_end(tmp_path):
    parties = InProcess(make_settings(3), make_log=lambda name: FileLog(tmp_path / name / "sums.db")).enrol()
    parties.record_all(np.random.default_rng(5))
    context = parties.begin()
    stale = parties.make_site("site-00")
    parties.run(context)
    secret = parties.sites["site-00"].state.created.secret
    assert secret.hex().encode() in (tmp_path / "site-00" / "sums.db").read_bytes()
    assert (tmp_path / "site-00" / "sums.db").stat().st_mode & 0o777 == 0o600
    site = parties.sites["site-00"]
    site.erase()
    parties.centre.erase()
    assert [path for name in ("site-00", "centre") for path in (tmp_path / name).iterdir()] == []
    with pytest.raises(RefusedError, match="no key directory"):
        site.mask(context)
    with pytest.raises(RefusedError, match="has ended"):
        site.advertise(5)
    # Another process of the site notices that the state is gone.
    with pytest.raises(StoreError, match="missing"):
        stale.mask(context)


def test_inputs_are_deleted_when_the_sum_is_open_or_abandoned(tmp_path):
    parties = InProcess(make_settings(3), make_log=lambda name: FileLog(tmp_path / f"{name}.db")).enrol()
    parties.record_all(np.random.default_rng(5))
    context = parties.begin()
    for request in parties.centre.requests(context):
        parties.step(request)
    payload = parties.sites["site-00"].mask(context).payload
    file = tmp_path / "centre.db"
    assert payload in file.read_bytes()
    parties.run(context)
    assert payload not in file.read_bytes()
    assert opened_values(parties, context) == parties.clear_sum(context)
    # The site deletes its values when it hears that the sum is open.
    raw = parties.values["site-00", "train-1"]["moments"].tobytes()
    assert raw in (tmp_path / "site-00.db").read_bytes()
    parties.sites["site-00"].drop("train-1")
    parties.sites["site-00"].drop("train-1")
    assert raw not in (tmp_path / "site-00.db").read_bytes()
    with pytest.raises(RefusedError, match="deleted"):
        parties.sites["site-00"].mask(context)


def test_the_state_of_another_run_is_refused():
    log = MemoryLog()
    InProcess(make_settings(3), make_log=lambda name: log if name == "site-00" else MemoryLog())
    other = dataclasses.replace(make_settings(3), run="run-2")
    with pytest.raises(RefusedError, match="another study, run or site"):
        InProcess(other, make_log=lambda name: log if name == "site-00" else MemoryLog())


def test_requests_are_those_that_are_still_open():
    parties = InProcess(make_settings(4)).enrol()
    parties.record_all(np.random.default_rng(5))
    context = parties.begin()
    assert all(isinstance(request, MaskRequest) for request in parties.centre.requests(context))
    with pytest.raises(RefusedError, match="not begun"):
        SumCentre(parties.settings, MemoryLog()).requests(context)
    parties.run(context)
    assert parties.centre.requests(context) == []
