import json
import re
from html.parser import HTMLParser

import polars as pl
import pytest

from abaton.anonymity import (
    AnonymitySettings,
    BinHierarchy,
    LDiversity,
    QuasiIdentifier,
    SensitiveAttribute,
    TCloseness,
    examine,
)
from abaton.errors import SettingsError
from abaton.report import (
    CheckSummary,
    ConsentSummary,
    CustodySummary,
    ModelUtility,
    PrivacyElement,
    PrivacyInputs,
    ResidualSummary,
    Signature,
    StudyFacts,
    inputs_from,
    make_privacy_report,
    render_privacy_report,
)
from abaton.report.privacy_report import digest


def row(**options):
    settings = AnonymitySettings(
        (QuasiIdentifier("age", BinHierarchy((10.0,))),),
        k=2,
        sensitive=(SensitiveAttribute("outcome", LDiversity(2), TCloseness(0.9)),),
        suppression_limit=0.4,
        **options,
        one_row_per_subject=True,
    )
    return examine(pl.DataFrame({"age": [31, 34, 52, 57, 90], "outcome": list("xyxyx")}), settings).row()


def full():
    return PrivacyInputs(
        row(population=1000),
        StudyFacts("Heart <study>", "Predict", "Art. 9(2)(j) GDPR", "ab" * 32, "Hospital"),
        ConsentSummary(10, 7, 2, 1),
        (PrivacyElement("Patient.gender", 7, "rule keep"),),
        (
            PrivacyElement("Patient.name", 7, "direct identifier"),
            PrivacyElement("Patient.photo", 2, "no rule keeps it"),
        ),
        ResidualSummary(3, 0, "texts were scrubbed with the subject's own names"),
        CustodySummary("the controller", "the controller", "the study", "10 years", ("RC Athens",)),
        CheckSummary(100, 0, 500, 0, 4),
        (ModelUtility("AUC", 0.91, 0.9),),
    )


def page(inputs):
    return render_privacy_report(
        make_privacy_report(inputs, software="abaton 0.1", created="2026-01-01T00:00:00+00:00")
    )


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


def test_everything_supplied_is_on_the_page():
    reader = read(page(full()))
    text = " ".join(reader.text)
    for expected in (
        "Heart <study>", "Predict", "Art. 9(2)(j)", "ab" * 32, "in force", "withdrawn", "Patient.gender",
        "prosecutor, highest", "journalist, highest", "marketer", "unique", "below 11", "suppressed records",
        "scrubbed", "10 years", "RC Athens", "pseudonymising secrets", "pseudonymisation domain", "AUC", "abaton 0.1",
        "Pseudonymised data is personal data", "distinct l-diversity, l = 2", "t-closeness, t = 0.9", "Patient.photo",
        "discernibility",
    ):  # fmt: skip
        assert expected in text, expected


def test_missing_sections_are_reported_as_not_supplied():
    report = make_privacy_report(PrivacyInputs(), software="abaton", created="2026-01-01")
    assert len(report["not_supplied"]) == 9
    text = render_privacy_report(report)
    assert text.count("Not supplied.") >= 11
    assert not re.search(r"<td[^>]*>0</td>", text)


def test_the_page_is_self_contained_and_accessible():
    reader = read(page(full()))
    names = [tag for tag, _ in reader.tags]
    assert not {"script", "img", "link", "iframe"} & set(names)
    assert all(link.startswith("#") for link in reader.links)
    assert ("html", {"lang": "en"}) in reader.tags
    assert names.count("h1") == 1
    assert names.count("table") == names.count("caption")
    assert all("scope" in attrs for tag, attrs in reader.tags if tag == "th")
    assert all("aria-label" in attrs for _, attrs in reader.tags if attrs.get("role") == "img")
    text = page(full())
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "url(" not in text


def test_the_page_without_any_release_says_so():
    refused = row() | {"after": None, "node": None, "method": None}
    assert "not releasable" in page(PrivacyInputs(refused))


def test_the_digest_covers_everything_but_the_signature():
    signature = Signature("dpo", "Ed25519", "aa")
    options = {"software": "abaton", "created": "2026-01-01"}
    unsigned = make_privacy_report(full(), **options)
    signed = make_privacy_report(full(), **options, signature=signature)
    assert unsigned["sha256"] == signed["sha256"] == digest(json.loads(json.dumps(signed)))
    assert make_privacy_report(full(), software="other", created="2026-01-01")["sha256"] != unsigned["sha256"]
    assert "Ed25519: aa" in render_privacy_report(signed)


def test_inputs_are_read_from_json_values():
    inputs = inputs_from(
        {"retained": [{"path": "a", "count": 1, "reason": "b"}], "custody": {"retention": "1 year"}}
    )
    assert inputs == PrivacyInputs(
        retained=(PrivacyElement("a", 1, "b"),), custody=CustodySummary(retention="1 year")
    )


@pytest.mark.parametrize(
    "sections", [{"consent": {}}, {"consents": {"counted": 1}}, {"retained": [{"where": 1}]}, {"retained": 3}]
)
def test_unknown_inputs_are_refused(sections):
    with pytest.raises(SettingsError):
        inputs_from(sections)
