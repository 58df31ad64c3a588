"""Common column names with their usual codes and units, for mapping suggestions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from abaton.fhir.terminology import SHORT_NAMES
from abaton.study import Study

Names = tuple[frozenset[str], ...]
"""Possible names of a column, each as a set of tokens."""

_TOKEN = re.compile(r"[^\W\d_]+|\d+")
_ENTRY_TYPES = ("observation", "condition")
_SYSTEM_NAMES = {address: name for name, address in SHORT_NAMES.items()}


@dataclass(frozen=True, slots=True)
class DictionaryUnit:
    """Code and unit of a variable, and the plausible range of its median."""

    code: str
    unit: str = ""
    min_median: float = float("-inf")
    max_median: float = float("inf")


@dataclass(frozen=True, slots=True)
class DictionaryEntry:
    """Variable that a column may contain.

    Attributes:
        names: Names of such a column, each as a set of tokens.
        units: Codes and units in which it occurs.
        type: Type of event, a key of `TYPES` of the mapping.
        values: Codes of its text values.
    """

    names: Names
    units: tuple[DictionaryUnit, ...]
    type: str = "observation"
    values: Mapping[str, str] = field(default_factory=dict)

    def matches(self, column: str) -> bool:
        """Return whether a column name is one of the names of the data dictionary's entry."""
        return name_tokens(column) in self.names


def name_tokens(text: str) -> frozenset[str]:
    """Return the tokens of a column name in lower case, to look it up in the data dictionary.

    >>> sorted(name_tokens("Heart_Rate (bpm)"))
    ['bpm', 'heart', 'rate']
    """
    return frozenset(_TOKEN.findall(text.lower()))


def _parse_names(names: str) -> Names:
    return tuple(name_tokens(name) for name in names.split(","))


SUBJECT = _parse_names(
    "patient,patient id,patientid,pid,subject,subject id,person id,mrn,id,case id,patient number,patient no,patient nr,"
    "patnr,pat nr,patienten id,patienten nr,patientennummer,patientnummer,person,subjectid,personid,study id"
)
SEX = _parse_names("sex,gender,geschlecht,sexe")
BIRTH_DATE = _parse_names("born,birth date,birthdate,date of birth,dob,birth,geburtsdatum")
DEATH_DATE = _parse_names("died,death date,date of death,death,deceased,todesdatum")
CODE = _parse_names(
    "code,concept,concept code,analyte,test,loinc,icd,icd 10,icd10,icd code,icd10 code,atc,atc code,snomed,diagnosis,"
    "diagnosis code,diag,dx,diagnose"
)
SYSTEM = _parse_names("system,code system,coding system,vocabulary,terminology")
VALUE = _parse_names("value,result,wert,measurement,ergebnis,finding")
UNIT = _parse_names("unit,units,einheit,uom")
END = _parse_names("end,ended,end date,discharge,discharged,discharge date,until,stop,resolved")
RECORDED = _parse_names("recorded,recorded date,entered,documented")


def _measurement(names: str, *units: tuple[str, str, float, float]) -> DictionaryEntry:
    return DictionaryEntry(
        _parse_names(names),
        tuple(
            DictionaryUnit(f"loinc|{code}", unit, min_median, max_median)
            for code, unit, min_median, max_median in units
        ),
    )


def _diagnosis(names: str, code: str) -> DictionaryEntry:
    return DictionaryEntry(_parse_names(names), (DictionaryUnit(f"snomed|{code}"),), "condition")


DICTIONARY: tuple[DictionaryEntry, ...] = (
    _measurement("age,alter,age at visit", ("30525-0", "a", 0, 120)),
    _measurement(
        "systolic,sbp,systolic bp,systolic blood pressure,sysbp,systolisch,rr syst,rr systolisch",
        ("8480-6", "mm[Hg]", 60, 250)
    ),
    _measurement(
        "diastolic,dbp,diastolic bp,diastolic blood pressure,diabp,diastolisch,rr diast,rr diastolisch",
        ("8462-4", "mm[Hg]", 30, 150)
    ),
    _measurement("heart rate,heartrate,pulse,hr", ("8867-4", "/min", 30, 220)),
    _measurement("bmi,body mass index", ("39156-5", "kg/m2", 10, 70)),
    _measurement("weight,body weight,gewicht", ("29463-7", "kg", 20, 250)),
    _measurement("height,body height,groesse,größe", ("8302-2", "cm", 100, 230), ("8302-2", "m", 1, 2.5)),
    _measurement("temperature,temp,body temperature", ("8310-5", "Cel", 30, 43)),
    _measurement(
        "cholesterol,chol,total cholesterol", ("2093-3", "mg/dL", 60, 500), ("14647-2", "mmol/L", 1.5, 13)
    ),
    _measurement("hdl,hdl cholesterol", ("2085-9", "mg/dL", 15, 150), ("14646-4", "mmol/L", 0.4, 4)),
    _measurement("ldl,ldl cholesterol", ("13457-7", "mg/dL", 20, 400), ("22748-8", "mmol/L", 0.5, 10)),
    _measurement("triglycerides,tg", ("2571-8", "mg/dL", 25, 1000), ("14927-8", "mmol/L", 0.3, 12)),
    _measurement(
        "creatinine,kreatinin,serum creatinine", ("2160-0", "mg/dL", 0.2, 12), ("14682-9", "umol/L", 20, 1000)
    ),
    _measurement("glucose,glukose,blood glucose", ("2345-7", "mg/dL", 40, 500), ("14749-6", "mmol/L", 2, 30)),
    _measurement("hba1c,a1c", ("4548-4", "%", 3, 18)),
    _measurement("hemoglobin,haemoglobin,hb,hgb", ("718-7", "g/dL", 5, 22)),
    _measurement("sodium,natrium,na", ("2951-2", "mmol/L", 100, 180)),
    _measurement("potassium,kalium,k", ("2823-3", "mmol/L", 2, 8)),
    _measurement("crp,c reactive protein", ("1988-5", "mg/L", 0, 500)),
    _diagnosis("diabetes,diabetes mellitus", "73211009"),
    _diagnosis("hypertension,high blood pressure", "38341003"),
    _diagnosis("heart failure,hf,chf", "84114007"),
    _diagnosis("stroke", "230690007"),
    _diagnosis("copd", "13645005"),
    _diagnosis("myocardial infarction,mi", "22298006"),
    DictionaryEntry(
        _parse_names("smoking,smoker,smoking status,tobacco,raucher,rauchen"),
        (DictionaryUnit("loinc|72166-2"),),
        values={
            **dict.fromkeys(("daily", "current", "yes", "smoker", "ja"), "snomed|449868002"),
            **dict.fromkeys(("former", "ex", "quit", "ex-smoker"), "snomed|8517006"),
            **dict.fromkeys(("never", "no", "non-smoker", "nein"), "snomed|266919005"),
        },
    ),
)  # fmt: skip
"""Common variables, with codes of LOINC and SNOMED CT."""


def study_entries(study: Study) -> Iterator[DictionaryEntry]:
    """Yield the numeric, categorical and diagnosis inputs of a study as data dictionary entries."""
    codings = {coding.code: coding for part in study.data for codes in part.codes for coding in codes.any_of}
    diagnoses = {
        coding.code
        for part in study.data
        if part.type == "Condition"
        for codes in part.codes
        for coding in codes.any_of
    }
    for spec in study.feature_spec().inputs if study.features is not None else ():
        where = spec.where
        matches = [coding.code for coding in where.codes if coding.code in codings] if where else []
        matches += [code for code in where.values if code in codings] if where else []
        if spec.kind == "category":
            # If only the view contains the code of the observation, the displays of the study's codes identify it.
            matches += [
                coding.code
                for coding in codings.values()
                if coding.display and name_tokens(spec.name) <= name_tokens(coding.display)
            ]
        if matches and (
            spec.kind in ("number", "category") or (spec.kind == "flag" and matches[0] in diagnoses)
        ):
            values = {
                category.name: format_code(coding.system, coding.code)
                for category in spec.categories
                for coding in category.codes[:1]
            }
            unit = DictionaryUnit(format_code(codings[matches[0]].system, matches[0]), spec.unit or "")
            yield DictionaryEntry(
                (name_tokens(spec.name),), (unit,), _ENTRY_TYPES[spec.kind == "flag"], values
            )


def study_codes(study: Study) -> frozenset[str]:
    """Return every code of a study in the notation of a mapping, for the data dictionary."""
    return frozenset(
        format_code(coding.system, coding.code)
        for part in study.data
        for codes in part.codes
        for coding in codes.any_of
    )


def format_code(system: str, code: str) -> str:
    """Return a code of the data dictionary in the notation of a mapping.

    >>> format_code("http://loinc.org", "8480-6")
    'loinc|8480-6'
    """
    return f"{_SYSTEM_NAMES.get(system, system)}|{code}"
