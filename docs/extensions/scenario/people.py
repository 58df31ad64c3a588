"""Invent some people with blood pressures and diagnoses, as a hospital's export has them. Nobody is real."""

import json
import random
from datetime import date, timedelta
from pathlib import Path

ICD, LOINC = "http://hl7.org/fhir/sid/icd-10-cm", "http://loinc.org"
FAMILIES = ("Chalmers", "Windsor", "Levin", "Notsowell", "Solo")

draw = random.Random(1990)
lines = []
for number in range(1, 61):
    who = {"reference": f"Patient/mrn-{number}"}
    years = draw.randrange(30, 80)
    lines.append(
        {
            "resourceType": "Patient",
            "id": f"mrn-{number}",
            "gender": draw.choice(("female", "male")),
            "birthDate": (date.today() - timedelta(days=365 * years + draw.randrange(365))).isoformat(),
            "name": [{"family": draw.choice(FAMILIES)}],
        }
    )
    codes = ["I10", "I50.9"] if draw.random() < 0.3 else ["I10"]
    lines += [
        {
            "resourceType": "Condition",
            "id": f"c-{number}-{code}",
            "subject": who,
            "code": {"coding": [{"system": ICD, "code": code}]},
        }
        for code in codes
    ]
    lines.append(
        {
            "resourceType": "Observation",
            "id": f"o-{number}",
            "status": "final",
            "subject": who,
            "code": {"coding": [{"system": LOINC, "code": "8480-6"}]},
            "effectiveDateTime": (date.today() - timedelta(days=draw.randrange(300))).isoformat(),
            "valueQuantity": {
                "value": draw.randrange(110, 180),
                "unit": "mmHg",
                "system": "http://unitsofmeasure.org",
                "code": "mm[Hg]",
            },
        }
    )
Path("records").mkdir(exist_ok=True)
Path("records/all.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
Path("patient.json").write_text(json.dumps(lines[0]))

# 200 stays of 150 people
people = [(f"p{i}", draw.randrange(30, 80), draw.choice(("female", "male"))) for i in range(150)]
stays = [*people, *(draw.choice(people) for _ in range(50))]
rows = ["patient,age,sex,systolic"]
rows += [f"{who},{age},{sex},{draw.randrange(110, 180)}" for who, age, sex in stays]
Path("table.csv").write_text("\n".join(rows) + "\n")
