"""Check the numbers that follow from the settings, for every number of sites."""

from __future__ import annotations

import itertools

import pytest
from tests.secure_sum.in_process import SIGNING_KEYS, make_settings, site_names

from abaton.errors import SettingsError
from abaton.secure_sum import SumSettings

# n, c, t, absent, m, sizes of groups, computed by hand
TABLE = [
    (3, 0, 2, 1, 3, [3]),
    (3, 1, 3, 0, 3, [3]),
    (4, 1, 3, 1, 3, [4]),
    (5, 1, 4, 1, 3, [5]),
    (6, 1, 4, 2, 3, [3, 3]),
    (8, 1, 5, 3, 3, [4, 4]),
    (10, 1, 6, 4, 3, [4, 3, 3]),
    (10, 3, 7, 3, 5, [5, 5]),
    (20, 1, 11, 9, 3, [4, 4, 3, 3, 3, 3]),
    (50, 16, 34, 16, 18, [25, 25]),
]


@pytest.mark.parametrize(("n", "c", "t", "absent", "m", "sizes"), TABLE)
def test_numbers_of_the_table(n, c, t, absent, m, sizes):
    settings = make_settings(n, c)
    assert (settings.threshold, settings.max_absent, settings.min_sites) == (t, absent, m)
    assert sorted(map(len, settings.groups), reverse=True) == sizes


def allowed_settings():
    for n in range(3, 51):
        for c in range(0 if n == 3 else 1, n - 1):
            yield make_settings(n, c)


def test_two_openings_share_an_honest_site_for_every_number_of_sites():
    count = 0
    for settings in allowed_settings():
        n, c, t = len(settings.sites), settings.colluding, settings.threshold
        assert t <= n
        # Helpers answer both contexts, every honest site one of them: both reach t only with 2 (t - c) honest sites.
        assert 2 * (t - c) > n - c
        assert settings.min_sites - c >= 2
        count += 1
    assert count > 1000


def test_a_smaller_threshold_would_allow_two_openings():
    # The threshold is the least with this property, so the check above can fail.
    for settings in allowed_settings():
        n, c, t = len(settings.sites), settings.colluding, settings.threshold - 1
        assert 2 * (t - c) <= n - c


def test_groups_are_a_partition_and_depend_on_the_study_only():
    for settings in allowed_settings():
        groups = settings.groups
        assert sorted(itertools.chain(*groups)) == sorted(settings.sites)
        assert all(len(group) >= settings.min_sites for group in groups) or len(groups) == 1
    sites = {site: SIGNING_KEYS[site].id for site in site_names(10)}
    shuffled = dict(reversed(sites.items()))
    assert SumSettings("a" * 64, "one", sites).groups == SumSettings("a" * 64, "two", shuffled).groups
    assert SumSettings("a" * 64, "one", sites).groups != SumSettings("b" * 64, "one", sites).groups


@pytest.mark.parametrize(
    ("count", "changes", "what"),
    [
        (2, {}, "2 sites are listed"),
        (3, {"colluding": 2}, "colluding = 2"),
        (4, {"colluding": 0}, "colluding = 0"),
        (4, {"colluding": 3}, "colluding = 3"),
        (4, {"min_subjects": -1}, "min_subjects"),
    ],
)
def test_impossible_settings_are_refused(count, changes, what):
    with pytest.raises(SettingsError, match=what):
        make_settings(count, **changes)


def test_more_than_fifty_sites_and_repeated_keys_are_refused():
    with pytest.raises(SettingsError, match="51 sites"):
        SumSettings("s", "r", {f"site-{i}": f"key-{i}" for i in range(51)})
    with pytest.raises(SettingsError, match="same signing key"):
        SumSettings("s", "r", {"a": "key", "b": "key", "c": "other"})
    with pytest.raises(SettingsError, match="visible ASCII"):
        SumSettings("s", "r", {"a b": "key", "b": "key2", "c": "other"})
