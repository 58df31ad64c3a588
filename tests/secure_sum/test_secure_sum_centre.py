"""Check deviations of a centre that may do anything, with up to c sites that help it: nothing but one sum opens."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.secure_sum.in_process import (
    DIGEST,
    RUN,
    SEGMENTS,
    SIGNING_KEYS,
    InProcess,
    contributor,
    make_settings,
    opened_values,
    random_values,
    site_names,
    version_digest,
)

from abaton.errors import RefusedError, SettingsError
from abaton.secure_sum import (
    KeyAdvertisement,
    KeyDirectory,
    MemoryLog,
    RevealRequest,
    SiteFaultError,
    SumCentre,
    SumContext,
    SumPhase,
    SumSegment,
    SumSettings,
    SumSite,
)
from abaton.secure_sum.modular_vectors import ModularSum
from abaton.secure_sum.sum_keys import SHARE_BYTES, derive_key, self_mask_key, share_digest
from abaton.secure_sum.sum_rules import check_context


def ready(n: int = 4, c: int = 1, **changes: object) -> InProcess:
    parties = InProcess(make_settings(n, c, **changes), subjects={"site-00": 1000}).enrol()
    parties.record_all(np.random.default_rng(n))
    return parties


def second_centre(parties: InProcess) -> SumCentre:
    """A centre that forgot everything but the keys: the hostile centre's other self."""
    centre = SumCentre(parties.settings, MemoryLog())
    for advertisement in parties.centre.state.directory.advertisements:
        centre.accept_key(advertisement)
    centre.fix_directory()
    return centre


def collect(parties: InProcess, centre: SumCentre, context: SumContext) -> None:
    for request in centre.requests(context):
        centre.receive_input(parties.sites[request.site].mask(request.context))


def begin(centre: SumCentre, sites: list[str], **settings: str) -> SumContext:
    return centre.begin("train", [contributor(site) for site in sites], SEGMENTS, settings)


def refused(parties: InProcess, site: str, context: SumContext, what: str) -> None:
    """Both questions about a context are refused, and nothing is recorded."""
    before = parties.sites[site].state
    sealed = tuple(bytes(SHARE_BYTES) for _ in context.contributors)
    with pytest.raises(RefusedError, match=what):
        parties.sites[site].mask(context)
    with pytest.raises(RefusedError, match=what):
        parties.sites[site].reveal(RevealRequest(site, context, sealed))
    assert parties.sites[site].state == before


def two_contexts(parties: InProcess, first_set: list[str], second_set: list[str]):
    """Both centres hold all inputs of their own context."""
    centres = second_centre(parties), second_centre(parties)
    contexts = begin(centres[0], first_set), begin(centres[1], second_set)
    for centre, context in zip(centres, contexts, strict=True):
        collect(parties, centre, context)
    return list(zip(centres, contexts, strict=True))


def test_a_claimed_drop_out_after_everything_was_received_opens_no_second_sum():
    parties = ready(5, fixed_groups=False)
    pairs = two_contexts(parties, site_names(5), site_names(4))
    centre, context = pairs[0]
    for request in centre.requests(context):
        centre.receive_shares(parties.sites[request.site].reveal(request))
    assert centre.phase(context) is SumPhase.OPENED
    centre, context = pairs[1]
    for request in centre.requests(context):
        with pytest.raises(RefusedError, match="opened in another context"):
            parties.sites[request.site].reveal(request)
    assert centre.phase(context) is SumPhase.OPENING


@pytest.mark.parametrize(("n", "c"), [(4, 1), (5, 1), (5, 2), (6, 1), (6, 3), (7, 2)])
def test_no_split_of_honest_holders_opens_two_sums(n, c):
    """Every honest holder is first asked for one of two sums; c helpers answer both."""
    names = site_names(n)
    settings = make_settings(n, c, fixed_groups=False)
    sets = names, names[: settings.min_sites] if settings.min_sites < n else names
    both_opened = one_opened = 0
    for split in itertools.product((0, 1), repeat=n - c):
        parties = InProcess(settings).enrol()
        parties.record_all(np.random.default_rng(n))
        pairs = [second_centre(parties), second_centre(parties)]
        # Another setting makes the contexts differ where the sets cannot.
        contexts = [begin(pairs[k], sets[k], step=f"step {k}") for k in (0, 1)]
        for centre, context in zip(pairs, contexts, strict=True):
            collect(parties, centre, context)
        helpers = {site: [parties.copy_of(site) for _ in range(2)] for site in names[n - c :]}
        for k in (0, 1):
            for request in pairs[k].requests(contexts[k]):
                index = names.index(request.site)
                if request.site in helpers:
                    pairs[k].receive_shares(helpers[request.site][k].reveal(request))
                elif split[index] == k:
                    pairs[k].receive_shares(parties.sites[request.site].reveal(request))
        for k in (0, 1):  # then all are asked for the other one, too
            for request in pairs[k].requests(contexts[k]):
                if request.site not in helpers and split[names.index(request.site)] != k:
                    with pytest.raises(RefusedError, match="another context"):
                        parties.sites[request.site].reveal(request)
        opened = [pairs[k].phase(contexts[k]) is SumPhase.OPENED for k in (0, 1)]
        both_opened += all(opened)
        one_opened += any(opened)
    assert both_opened == 0
    assert one_opened >= 2  # the attack would work if a holder answered twice


def test_with_one_more_helper_than_c_two_sums_open():
    """The control: the bound is sharp, so the test above can fail."""
    parties = ready(4, 1, fixed_groups=False)
    pairs = two_contexts(parties, site_names(4), site_names(3))
    helpers = {site: [parties.copy_of(site), parties.copy_of(site)] for site in site_names(4)[2:]}
    for k, (centre, context) in enumerate(pairs):
        for request in centre.requests(context):
            if request.site in helpers:
                centre.receive_shares(helpers[request.site][k].reveal(request))
            elif request.site == site_names(4)[k]:
                centre.receive_shares(parties.sites[request.site].reveal(request))
    assert [centre.phase(context) for centre, context in pairs] == [SumPhase.OPENED, SumPhase.OPENED]


def test_a_site_restored_from_a_backup_counts_as_one_helper():
    parties = ready(4, 1, fixed_groups=False)
    pairs = two_contexts(parties, site_names(4), site_names(3))
    restored = parties.copy_of("site-03")
    centre, context = pairs[0]
    for request in centre.requests(context):
        centre.receive_shares(parties.sites[request.site].reveal(request))
    assert centre.phase(context) is SumPhase.OPENED
    centre, context = pairs[1]
    answers = 0
    for request in centre.requests(context):
        try:
            site = restored if request.site == "site-03" else parties.sites[request.site]
            centre.receive_shares(site.reveal(request))
            answers += 1
        except RefusedError:
            continue
    assert answers == 1
    assert centre.phase(context) is SumPhase.OPENING


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"step": "0x1p-4"}},
        {"settings": {"seed": "7"}},
        {"contributors": [contributor(site, task="train-1") for site in site_names(3)]},
    ],
    ids=["step", "seed", "set"],
)
def test_one_site_that_is_given_other_settings_makes_the_sum_fail(changes):
    parties = ready(4, fixed_groups=False)
    context = parties.begin(step="0x1p-3")
    changes = {k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()}
    other = context.model_copy(update=changes)
    assert other.digest != context.digest
    # The centre takes the answer of one site to the other context as one to this context.
    for site in site_names(4)[1:]:
        parties.centre.receive_input(parties.sites[site].mask(context))
    foreign = parties.sites["site-00"].mask(other)
    with pytest.raises(SiteFaultError, match="not requested"):
        parties.centre.receive_input(foreign)
    # A centre that ignores its own check still has masks that do not cancel.
    total = ModularSum(context.all_segments)
    for site in site_names(4):
        masked = foreign if site == "site-00" else parties.sites[site].mask(context)
        digest = masked.context_digest
        seed = derive_key(parties.sites[site].state.created.secret, digest, b"self-mask", length=31)
        total.add_payload(masked.payload)
        total.add_stream(self_mask_key(seed, digest), negative=True)
    values, _ = total.to_values(4, 4)
    clear = parties.clear_sum(context)
    assert sum(a == b for a, b in zip(values["update"].tolist(), clear["update"], strict=True)) <= 2


def test_another_threshold_study_run_or_directory_is_refused():
    parties = ready()
    context = parties.begin()
    for changes in ({"threshold": 2}, {"study": "s"}, {"run": "run-2"}, {"directory": "0" * 64}):
        refused(parties, "site-01", context.model_copy(update=changes), "another study, run, key directory")


def test_another_model_version_task_purpose_or_segment_is_refused():
    parties = ready()
    context = parties.begin()
    lines = context.contributors

    def changed(**fields):
        return context.model_copy(
            update={
                "contributors": tuple(
                    line.model_copy(update=fields) if line.site == "site-01" else line for line in lines
                )
            }
        )

    refused(parties, "site-01", changed(version_digest=DIGEST), "different models of one version")
    refused(parties, "site-00", changed(version_digest=DIGEST), "different models of one version")
    refused(parties, "site-01", changed(version=2), "different versions")
    refused(parties, "site-01", changed(task="other"), "not finished the task")
    everywhere = tuple(line.model_copy(update={"version_digest": DIGEST}) for line in lines)
    refused(
        parties,
        "site-01",
        context.model_copy(update={"contributors": everywhere}),
        "another version or model",
    )
    refused(parties, "site-01", context.model_copy(update={"purpose": "evaluate"}), "another purpose")
    for segments in (
        SEGMENTS[:2],
        (SEGMENTS[0].model_copy(update={"size": 12}), *SEGMENTS[1:]),
        (SEGMENTS[0].model_copy(update={"bits": 14}), *SEGMENTS[1:]),
    ):
        refused(parties, "site-01", context.model_copy(update={"segments": segments}), "other segments")
    for segments, what in [
        ((SumSegment(name="x", size=1, bits=17),), "17 bits"),
        ((SumSegment(name="x", size=1, bits=3),), "3 bits"),
        ((SEGMENTS[0], SEGMENTS[0]), "used twice"),
        ((SumSegment(name="contributors", size=1, bits=64),), "used twice"),
    ]:
        refused(parties, "site-01", context.model_copy(update={"segments": segments}), what)


def test_different_models_of_one_version_are_refused_also_with_a_buffered_scheduler():
    parties = InProcess(make_settings(4, same_version=False)).enrol()
    values = random_values(np.random.default_rng(0))
    lines = []
    for site in site_names(4):
        line = contributor(site)
        if site == "site-02":
            line = line.model_copy(update={"version_digest": DIGEST})
        parties.sites[site].record(line, "train", SEGMENTS, values)
        lines.append(line)
    with pytest.raises(RefusedError, match="different models of one version"):
        parties.centre.begin("train", lines, SEGMENTS)


def test_sets_that_are_unsorted_repeated_foreign_or_small_are_refused():
    parties = ready(4, fixed_groups=False)
    context = parties.begin()
    lines = context.contributors
    for changed, what in [
        (lines[::-1], "not sorted"),
        ((lines[0], *lines), "one occurs twice"),
        ((*lines, contributor("zakynthos")), "not in the key directory"),
        (lines[:2], "2 contributors, fewer than 3"),
        ((), "0 contributors"),
    ]:
        refused(parties, "site-00", context.model_copy(update={"contributors": changed}), what)


def test_part_of_a_group_is_refused():
    parties = ready(7)
    groups = [sorted(group) for group in parties.settings.groups]
    assert sorted(map(len, groups)) == [3, 4]
    context = parties.begin(groups[0])
    part = sorted([*groups[0], groups[1][0]])
    refused(
        parties,
        groups[0][0],
        context.model_copy(update={"contributors": tuple(contributor(site) for site in part)}),
        "not a union of whole groups",
    )


@pytest.mark.parametrize(("n", "c"), [(6, 1), (7, 1), (9, 1), (10, 3)])
def test_no_combination_of_allowed_sets_divides_a_group(n, c):
    """Every allowed set has all or none of a group, so every linear combination of sums is constant on groups."""
    parties = InProcess(make_settings(n, c)).enrol()
    directory, names = parties.centre.state.directory, site_names(n)
    context = parties.begin()
    allowed = []
    for chosen_sites in itertools.product((0, 1), repeat=n):
        lines = tuple(contributor(site) for site, bit in zip(names, chosen_sites, strict=True) if bit)
        try:
            check_context(context.model_copy(update={"contributors": lines}), parties.settings, directory)
        except RefusedError:
            continue
        allowed.append(chosen_sites)
    groups = parties.settings.groups
    assert len(allowed) == 2 ** len(groups) - 1
    indicators = np.array(allowed)
    for group in groups:
        columns = indicators[:, [names.index(site) for site in group]]
        assert (columns == columns[:, :1]).all()
    # Without the rule the difference of two sums shows one site.
    free = make_settings(n, c, fixed_groups=False)
    check_context(context, free, directory)
    check_context(context.model_copy(update={"contributors": context.contributors[1:]}), free, directory)


def test_too_few_subjects_of_the_other_sites_are_refused():
    subjects = {"site-00": 1000, "site-01": 60, "site-02": 60, "site-03": 29}
    for min_subjects, holds in [(149, True), (150, False)]:
        parties = InProcess(make_settings(4, min_subjects=min_subjects), subjects=subjects).enrol()
        parties.record_all(np.random.default_rng(0))
        if holds:
            context = parties.run(parties.begin())
            assert parties.centre.phase(context) is SumPhase.OPENED
        else:
            # A centre without the rule asks; every site refuses, also those whose own others are enough.
            lax = InProcess(make_settings(4), subjects=subjects).enrol()
            refused(parties, "site-00", lax.begin(), "fewer subjects")
            refused(parties, "site-03", lax.begin(), "fewer subjects")


def advertisement(parties: InProcess, of: str, **fields: object) -> KeyAdvertisement:
    genuine = parties.centre.state.directory.by_site[of]
    return genuine.model_copy(update=fields)


def test_directories_with_strangers_forged_replayed_or_missing_keys_are_refused():
    parties = InProcess(make_settings(5)).enrol()
    genuine = parties.centre.state.directory
    fresh = InProcess(make_settings(5))
    for site in fresh.settings.sites:
        fresh.sites[site].advertise(100)
    stranger = SIGNING_KEYS["site-40"]
    names = site_names(5)

    def directory(*advertisements: KeyAdvertisement) -> KeyDirectory:
        return KeyDirectory(advertisements=advertisements)

    by_site = genuine.by_site
    forged = advertisement(parties, "site-03", exchange_key=bytes([9]) * 32)
    replayed = advertisement(parties, "site-03", run="run-0").sign(SIGNING_KEYS["site-03"])
    resigned = advertisement(parties, "site-03", signing_key=stranger.public.raw).sign(stranger)
    invented = advertisement(parties, "site-03", site="zakynthos", signing_key=stranger.public.raw).sign(
        stranger
    )
    more_subjects = advertisement(parties, "site-03", subjects=10**6)
    rest = [by_site[name] for name in names if name != "site-03"]
    cases = [
        (directory(*rest[:3], forged, rest[3]), "without the signature"),
        (directory(*rest[:3], more_subjects, rest[3]), "without the signature"),
        (directory(*rest[:3], replayed, rest[3]), "another study or run"),
        (directory(*rest[:3], resigned, rest[3]), "without the signature"),
        (directory(*genuine.advertisements, invented), "not listed"),
        (directory(*rest[:3]), "3 sites, fewer than 4"),
        (directory(*genuine.advertisements[::-1]), "not sorted"),
        (directory(by_site["site-00"], *genuine.advertisements), "lists a site twice"),
        (directory(*genuine.advertisements[1:]), "lacks this site's own key"),
        (
            directory(advertisement(parties, "site-00", subjects=5), *genuine.advertisements[1:]),
            "lacks this site's own key",
        ),
    ]
    for changed, what in cases:
        with pytest.raises(RefusedError, match=what):
            fresh.sites["site-00"].accept_directory(changed)
        assert fresh.sites["site-00"].state.directory is None
    fresh.sites["site-00"].accept_directory(genuine)
    fresh.sites["site-00"].accept_directory(genuine)
    with pytest.raises(RefusedError, match="another key directory"):
        fresh.sites["site-00"].accept_directory(directory(*genuine.advertisements[:4]))


def test_a_key_of_small_order_is_refused():
    settings = make_settings(4)
    parties = InProcess(settings)
    honest = [parties.sites[site].advertise(100) for site in site_names(4)[:3]]
    small = honest[0].model_copy(
        update={
            "site": "site-03",
            "exchange_key": bytes(32),
            "signing_key": SIGNING_KEYS["site-03"].public.raw,
        }
    )
    directory = KeyDirectory(advertisements=(*honest, small.sign(SIGNING_KEYS["site-03"])))
    with pytest.raises(RefusedError, match="'site-03' has small order"):
        parties.sites["site-00"].accept_directory(directory)
    assert parties.sites["site-00"].state.directory is None


def test_keys_that_the_site_has_not_compared_are_refused():
    """The centre writes the study document, so its list alone is not enough."""
    parties = InProcess(make_settings(4)).enrol()
    trusted = {site: key for site, key in parties.settings.sites.items() if site != "site-02"}
    site = SumSite(
        parties.settings, "site-00", SIGNING_KEYS["site-00"], trusted, MemoryLog(), lambda count: bytes(count)
    )
    own = site.advertise(100)
    rest = parties.centre.state.directory.advertisements[1:]
    with pytest.raises(RefusedError, match="'site-02' is not among this site's trusted signers"):
        site.accept_directory(KeyDirectory(advertisements=(own, *rest)))


def test_a_contribution_is_in_one_buffer_only():
    """Two buffered sums that share a contribution, each with other partners: one opens."""
    parties = ready(7, fixed_groups=False, same_version=False)
    first, second = site_names(7)[:4], site_names(7)[3:]
    pairs = two_contexts(parties, first, second)
    for centre, context in pairs:
        for request in centre.requests(context):
            try:
                centre.receive_shares(parties.sites[request.site].reveal(request))
            except RefusedError:
                continue
    assert [centre.phase(context) for centre, context in pairs] == [SumPhase.OPENED, SumPhase.OPENING]


def test_shares_requested_before_all_inputs_open_only_this_sum():
    parties = ready(4, fixed_groups=False)
    context = parties.begin()
    sealed = (bytes(SHARE_BYTES),) * 4
    with pytest.raises(RefusedError, match="has not masked its contribution"):
        parties.sites["site-00"].reveal(RevealRequest("site-00", context, sealed))
    # A holder that is no contributor cannot know; it has then decided for this context.
    smaller = second_centre(parties)
    three = begin(smaller, site_names(3))
    parties.sites["site-03"].reveal(RevealRequest("site-03", three, sealed[:3]))
    refuse_four = RevealRequest("site-03", context, sealed)
    parties.sites["site-03"].mask(context)
    with pytest.raises(RefusedError, match="opened in another context"):
        parties.sites["site-03"].reveal(refuse_four)


def test_swapped_zero_and_foreign_shares_give_nothing_that_matches():
    parties = ready(4, fixed_groups=False)
    context = parties.begin()
    collect(parties, parties.centre, context)
    other = second_centre(parties)
    three = begin(other, site_names(3))
    foreign = [parties.sites[site].mask(three) for site in site_names(3)]
    request = next(r for r in parties.centre.requests(context) if r.site == "site-02")
    genuine = request.sealed_shares
    expected = parties.copy_of("site-02").reveal(request).shares
    cases = [
        (genuine[1], genuine[0], *genuine[2:]),
        (bytes(SHARE_BYTES),) * 4,
        (*(masked.sealed_shares[2] for masked in foreign), genuine[3]),
    ]
    for sealed in cases:
        answer = parties.copy_of("site-02").reveal(replace(request, sealed_shares=sealed))
        matching = [a == b for a, b in zip(answer.shares, expected, strict=True)]
        assert sum(matching) == sum(a == b for a, b in zip(sealed, genuine, strict=True))
        centre = SumCentre(parties.settings, _copied(parties))
        centre.receive_shares(answer)
        known = centre.state.sums[context.digest].shares["site-02"]
        assert [bool(share) for share in known] == matching
    for sealed, what in [
        (genuine[:3], "not those of this site"),
        ((b"\xff" * SHARE_BYTES, *genuine[1:]), "malformed"),
    ]:
        with pytest.raises(RefusedError, match=what):
            parties.sites["site-02"].reveal(replace(request, sealed_shares=sealed))
    with pytest.raises(RefusedError, match="not those of this site"):
        parties.sites["site-01"].reveal(request)


def _copied(parties: InProcess) -> MemoryLog:
    log = MemoryLog()
    log.events = list(parties.logs["centre"].inner.events)
    log.attachments = dict(parties.logs["centre"].inner.attachments)
    return log


def test_a_foreign_share_says_nothing_about_the_other_context():
    """What a holder answers to a share of another context is that share under two unknown pads."""
    parties = ready(4, fixed_groups=False)
    context = parties.begin()
    collect(parties, parties.centre, context)
    three = begin(second_centre(parties), site_names(3))
    sealed = parties.sites["site-00"].mask(three).sealed_shares[3]
    request = next(r for r in parties.centre.requests(context) if r.site == "site-03")
    shares = parties.sites["site-03"].reveal(replace(request, sealed_shares=(sealed,) * 4)).shares
    truth = parties.copy_of("site-03")
    # Only a holder that had not opened the four would give the share of the three.
    with pytest.raises(RefusedError, match="another context"):
        truth.reveal(RevealRequest("site-03", three, (sealed,) * 3))
    digest = parties.sites["site-00"].mask(three).share_digests[3]
    assert all(share_digest(three.digest, "site-00", "site-03", share) != digest for share in shares)


def test_an_old_version_and_the_same_model_under_a_new_version_are_refused():
    parties = ready()
    values = random_values(np.random.default_rng(1))
    site = parties.sites["site-00"]

    def record(version: int, digest: str = "", task: str = "again", purpose: str = "train") -> None:
        line = contributor("site-00", version, task)
        line = line.model_copy(update={"version_digest": digest or version_digest(version)})
        site.record(line, purpose, SEGMENTS, values)

    for version, digest in [(1, ""), (0, "")]:
        with pytest.raises(RefusedError, match="contributed to version 1"):
            record(version, digest)
    with pytest.raises(RefusedError, match="same model under another version"):
        record(2, version_digest(1))
    with pytest.raises(RefusedError, match="another contribution already"):
        record(1, task="train-1")
    record(1, task="evaluate-1", purpose="evaluate")
    record(2)
    record(2)
    with pytest.raises(RefusedError, match="that of another site"):
        site.record(contributor("site-01", 9), "train", SEGMENTS, values)


def test_a_site_does_not_mask_for_a_sum_of_others_or_twice_after_opening():
    parties = ready(5, fixed_groups=False)
    four = begin(second_centre(parties), site_names(5)[1:])
    with pytest.raises(RefusedError, match="not a contributor"):
        parties.sites["site-00"].mask(four)
    context = parties.run(parties.begin())
    assert opened_values(parties, context) == parties.clear_sum(context)
    with pytest.raises(RefusedError, match="opened in another context"):
        parties.sites["site-01"].mask(four)


def test_without_a_directory_nothing_is_answered():
    context = ready().begin()
    parties = InProcess(make_settings(4))
    parties.record_all(np.random.default_rng(4))
    refused(parties, "site-00", context, "no key directory")


def test_a_key_that_the_study_does_not_list_cannot_take_part():
    settings = make_settings(4)
    with pytest.raises(SettingsError, match="does not list the signing key"):
        SumSite(settings, "site-00", SIGNING_KEYS["site-01"], settings.sites, MemoryLog(), bytes)
    assert SumSettings(settings.study, RUN, settings.sites).threshold == 3
