import doctest
import tomllib

import pytest

from abaton.errors import SettingsError
from abaton.anonymity import BandHierarchy, Closeness, DateHierarchy, Diversity, FileHierarchy, FlatHierarchy, PrefixHierarchy, TableHierarchy, settings_reader, read_settings, settings_from

WHOLE = """
[privacy.anonymity]
k = 7
suppression_limit = 0.1
local_floor = 3
method = "mondrian"
keep = ["outcome"]
missing = ["?"]
population = 100000

[[privacy.anonymity.quasi_identifiers]]
column = "age"
hierarchy = { bands = [[18, 40, 65], [40]] }

[[privacy.anonymity.quasi_identifiers]]
column = "postcode"
hierarchy = { prefix = [3, 1] }

[[privacy.anonymity.quasi_identifiers]]
column = "born"
hierarchy = { dates = ["year", "decade"] }

[[privacy.anonymity.quasi_identifiers]]
column = "job"
hierarchy = "job.csv"

[[privacy.anonymity.quasi_identifiers]]
column = "sex"

[[privacy.anonymity.quasi_identifiers]]
column = "race"
hierarchy = { rows = [["a", "*"], ["b", "*"]] }

[[privacy.anonymity.sensitive]]
column = "diagnosis"
diversity = { l = 3, kind = "recursive", c = 2 }
closeness = { t = 0.2, distance = "ordered", order = ["low", "high"] }
"""


def test_a_whole_table_is_read(tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(WHOLE)
    made = read_settings(study)
    assert (made.k, made.local_floor, made.method, made.population) == (7, 3, "mondrian", 100000)
    assert [q.hierarchy for q in made.quasi_identifiers] == [
        BandHierarchy(((18, 40, 65), (40,))),
        PrefixHierarchy((3, 1)),
        DateHierarchy(("year", "decade")),
        FileHierarchy("job.csv"),
        FlatHierarchy(),
        TableHierarchy((("a", "*"), ("b", "*"))),
    ]
    assert made.sensitive[0].diversity == Diversity(3, "recursive", 2.0)
    assert made.sensitive[0].closeness == Closeness(0.2, "ordered", ("low", "high"))
    assert made.columns[-2:] == ("diagnosis", "outcome")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"k": "5"}, "'k' must be a whole number"),
        ({"k": True}, "'k' must be a whole number"),
        ({"k": 0}, "k must be at least 1"),
        ({"suppression_limit": 2}, "a share lies between 0 and 1"),
        ({"method": "magic"}, "one of 'recode', 'mondrian' or 'measure'"),
        ({"supression_limit": 0.1}, "'supression_limit' is not a known key"),
        ({"keep": ["age"]}, "column 'age' has two roles"),
        ({"population": 10, "sampling_fraction": 0.1}, "twice"),
        ({"quasi_identifiers": []}, "no quasi-identifier"),
        ({"quasi_identifiers": None}, "'quasi_identifiers' must be given"),
        ({"quasi_identifiers": 3}, "'quasi_identifiers' must be a list"),
        ({"quasi_identifiers": [3]}, "'quasi_identifiers' must be a table"),
        ({"quasi_identifiers": [{"column": "age", "hierarchy": {"bins": [5, 12]}}]}, "multiple"),
        ({"quasi_identifiers": [{"column": "age", "hierarchy": {"bands": [[1, 2], [3]]}}]}, "keep some"),
        ({"quasi_identifiers": [{"column": "age", "hierarchy": {"prefix": [2, 3]}}]}, "fall"),
        ({"quasi_identifiers": [{"column": "age", "hierarchy": {"dates": ["decade", "year"]}}]}, "coarser"),
        (
            {"quasi_identifiers": [{"column": "age", "hierarchy": {"dates": ["week"]}}]},
            "'dates' must be one of 'month'",
        ),
        ({"quasi_identifiers": [{"column": "age", "hierarchy": {"bin": [5]}}]}, "exactly one of file"),
        ({"quasi_identifiers": [{"columns": "age"}]}, "did you mean 'column'"),
        ({"quasi_identifiers": [{"column": "age", "wieght": 2}]}, "did you mean 'weight'"),
        ({"quasi_identifiers": [{"column": "age", "weight": -1}]}, "weights are positive"),
        ({"quasi_identifiers": [{"column": "age", "weight": 0}]}, "weights are positive"),
        ({"subject": "age"}, "it tells which rows are of one person"),
        ({"subject": "patient", "keep": ["patient"]}, "it tells which rows are of one person"),
        ({"subject": "patient", "rows_are_people": True}, "exclude each other"),
        ({"rows_are_people": 1}, "'rows_are_people' must be true or false"),
        ({"sensitive": [{"column": "x", "diversity": {"l": 2.5}}]}, "whole number, except"),
        ({"sensitive": [{"column": "x", "diversity": {"kind": "entropy"}}]}, "'l' must be given"),
        ({"sensitive": [{"column": "x", "closeness": {"t": 3}}]}, "t lies between"),
        ({"sensitive": [{"column": "x", "closeness": {"t": 0.3, "order": ["a"]}}]}, "has none"),
    ],
)
def test_what_is_not_understood_is_refused(change, complaint):
    table = {"quasi_identifiers": [{"column": "age"}]} | change
    with pytest.raises(SettingsError, match=complaint):
        settings_from({key: value for key, value in table.items() if value is not None})


def test_a_study_without_the_table_says_so(tmp_path):
    study = tmp_path / "study.toml"
    study.write_text("[privacy]\nx = 1\n")
    with pytest.raises(SettingsError, match="has no table"):
        read_settings(study)
    study.write_text("[privacy")
    with pytest.raises(SettingsError, match="not TOML"):
        read_settings(study)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_settings(tmp_path / "none.toml")


def test_examples_run():
    assert doctest.testmod(settings_reader).failed == 0
    assert tomllib.loads(WHOLE)
