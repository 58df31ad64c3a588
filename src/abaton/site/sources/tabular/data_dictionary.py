"""What columns are often called, and the code and unit that are usually meant: by these a mapping is guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from abaton.fhir.terminology import SHORT
from abaton.study import Study

Names = tuple[frozenset[str], ...]
"""What a column may be called, each name as its words."""

_WORD = re.compile(r"[^\W\d_]+|\d+")
_TYPES = ("observation", "condition")
_NAMES = {address: name for name, address in SHORT.items()}


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write something: its code, its unit, and between which numbers the middle of people usually is."""

    code: str
    unit: str = ""
    low: float = float("-inf")
    high: float = float("inf")


@dataclass(frozen=True, slots=True)
class Thing:
    """Something that a column may hold.

    Attributes:
        names: What such a column is called, each as its words.
        forms: The ways to write it; none with a unit if it is said in words.
        type: What it becomes.
        values: Words and their codes.
    """

    names: Names
    forms: tuple[Form, ...]
    type: str = "observation"
    values: Mapping[str, str] = field(default_factory=dict)

    def called(self, column: str) -> bool:
        """Whether a column is called so."""
        return words(column) in self.names


def words(text: str) -> frozenset[str]:
    """The words of a name.

    >>> sorted(words("Heart_Rate (bpm)"))
    ['bpm', 'heart', 'rate']
    """
    return frozenset(_WORD.findall(text.lower()))


def _called(names: str) -> Names:
    return tuple(words(name) for name in names.split(","))


SUBJECT = _called(
    "patient,patient id,patientid,pid,subject,subject id,person id,mrn,id,case id,patient number,patient no,patient nr,"
    "patnr,pat nr,patienten id,patienten nr,patientennummer,patientnummer,person,subjectid,personid,study id"
)
SEX = _called("sex,gender,geschlecht,sexe")
BORN = _called("born,birth date,birthdate,date of birth,dob,birth,geburtsdatum")
DIED = _called("died,death date,date of death,death,deceased,todesdatum")
CODE = _called(
    "code,concept,concept code,analyte,test,loinc,icd,icd 10,icd10,icd code,icd10 code,atc,atc code,snomed,diagnosis,"
    "diagnosis code,diag,dx,diagnose"
)
SYSTEM = _called("system,code system,coding system,vocabulary,terminology")
VALUE = _called("value,result,wert,measurement,ergebnis,finding")
UNIT = _called("unit,units,einheit,uom")
END = _called("end,ended,end date,discharge,discharged,discharge date,until,stop,resolved")
RECORDED = _called("recorded,recorded date,entered,documented")


def _measured(names: str, *forms: tuple[str, str, float, float]) -> Thing:
    return Thing(
        _called(names), tuple(Form(f"loinc|{code}", unit, low, high) for code, unit, low, high in forms)
    )


def _found(names: str, code: str) -> Thing:
    return Thing(_called(names), (Form(f"snomed|{code}"),), "condition")


THINGS: tuple[Thing, ...] = (
    _measured("age,alter,age at visit", ("30525-0", "a", 0, 120)),
    _measured(
        "systolic,sbp,systolic bp,systolic blood pressure,sysbp,systolisch,rr syst,rr systolisch",
        ("8480-6", "mm[Hg]", 60, 250)
    ),
    _measured(
        "diastolic,dbp,diastolic bp,diastolic blood pressure,diabp,diastolisch,rr diast,rr diastolisch",
        ("8462-4", "mm[Hg]", 30, 150)
    ),
    _measured("heart rate,heartrate,pulse,hr", ("8867-4", "/min", 30, 220)),
    _measured("bmi,body mass index", ("39156-5", "kg/m2", 10, 70)),
    _measured("weight,body weight,gewicht", ("29463-7", "kg", 20, 250)),
    _measured("height,body height,groesse,größe", ("8302-2", "cm", 100, 230), ("8302-2", "m", 1, 2.5)),
    _measured("temperature,temp,body temperature", ("8310-5", "Cel", 30, 43)),
    _measured(
        "cholesterol,chol,total cholesterol", ("2093-3", "mg/dL", 60, 500), ("14647-2", "mmol/L", 1.5, 13)
    ),
    _measured("hdl,hdl cholesterol", ("2085-9", "mg/dL", 15, 150), ("14646-4", "mmol/L", 0.4, 4)),
    _measured("ldl,ldl cholesterol", ("13457-7", "mg/dL", 20, 400), ("22748-8", "mmol/L", 0.5, 10)),
    _measured("triglycerides,tg", ("2571-8", "mg/dL", 25, 1000), ("14927-8", "mmol/L", 0.3, 12)),
    _measured(
        "creatinine,kreatinin,serum creatinine", ("2160-0", "mg/dL", 0.2, 12), ("14682-9", "umol/L", 20, 1000)
    ),
    _measured("glucose,glukose,blood glucose", ("2345-7", "mg/dL", 40, 500), ("14749-6", "mmol/L", 2, 30)),
    _measured("hba1c,a1c", ("4548-4", "%", 3, 18)),
    _measured("hemoglobin,haemoglobin,hb,hgb", ("718-7", "g/dL", 5, 22)),
    _measured("sodium,natrium,na", ("2951-2", "mmol/L", 100, 180)),
    _measured("potassium,kalium,k", ("2823-3", "mmol/L", 2, 8)),
    _measured("crp,c reactive protein", ("1988-5", "mg/L", 0, 500)),
    _found("diabetes,diabetes mellitus", "73211009"),
    _found("hypertension,high blood pressure", "38341003"),
    _found("heart failure,hf,chf", "84114007"),
    _found("stroke", "230690007"),
    _found("copd", "13645005"),
    _found("myocardial infarction,mi", "22298006"),
    Thing(
        _called("smoking,smoker,smoking status,tobacco,raucher,rauchen"),
        (Form("loinc|72166-2"),),
        values={
            **dict.fromkeys(("daily", "current", "yes", "smoker", "ja"), "snomed|449868002"),
            **dict.fromkeys(("former", "ex", "quit", "ex-smoker"), "snomed|8517006"),
            **dict.fromkeys(("never", "no", "non-smoker", "nein"), "snomed|266919005"),
        },
    ),
)  # fmt: skip
"""The usual ones; identifiers of LOINC and SNOMED CT, with names of our own."""


def things_of(study: Study) -> Iterator[Thing]:
    """What a study's inputs are, by their names: numbers, categories and diagnoses, with their codes."""
    terms = {t.code: t for part in study.data for some in part.codes for t in some.any}
    diagnoses = {t.code for part in study.data if part.type == "Condition" for c in part.codes for t in c.any}
    for each in study.plan().inputs if study.features is not None else ():
        where = each.where
        named = [t.code for t in where.codes if t.code in terms] if where else []
        named += [code for code in where.values if code in terms] if where else []
        if each.kind == "category":
            # Which observation it is may stand in the view alone; then the words beside the study's codes tell.
            named += [t.code for t in terms.values() if t.display and words(each.name) <= words(t.display)]
        if named and (each.kind in ("number", "category") or (each.kind == "flag" and named[0] in diagnoses)):
            values = {
                category.name: code_of(term.system, term.code)
                for category in each.categories
                for term in category.codes[:1]
            }
            form = Form(code_of(terms[named[0]].system, named[0]), each.unit or "")
            yield Thing((words(each.name),), (form,), _TYPES[each.kind == "flag"], values)


def asked_by(study: Study) -> frozenset[str]:
    """Every code that a study names, as a mapping writes it."""
    return frozenset(
        code_of(t.system, t.code) for part in study.data for some in part.codes for t in some.any
    )


def code_of(system: str, code: str) -> str:
    """A code as a mapping writes it.

    >>> code_of("http://loinc.org", "8480-6")
    'loinc|8480-6'
    """
    return f"{_NAMES.get(system, system)}|{code}"
