"""Write synthetic patients with blood pressures and diagnoses in the form of a hospital's export."""

import json
import random
from datetime import date, timedelta
from pathlib import Path

ICD, LOINC = "http://hl7.org/fhir/sid/icd-10-cm", "http://loinc.org"
FAMILY_NAMES = ("Chalmers", "Windsor", "Levin", "Notsowell", "Solo")

rng = random.Random(1990)
resources = []
for number in range(1, 61):
    subject = {"reference": f"Patient/mrn-{number}"}
    years = rng.randrange(30, 80)
    resources.append(
        {
            "resourceType": "Patient",
            "id": f"mrn-{number}",
            "gender": rng.choice(("female", "male")),
            "birthDate": (date.today() - timedelta(days=365 * years + rng.randrange(365))).isoformat(),
            "name": [{"family": rng.choice(FAMILY_NAMES)}],
        }
    )
    codes = ["I10", "I50.9"] if rng.random() < 0.3 else ["I10"]
    resources += [
        {
            "resourceType": "Condition",
            "id": f"c-{number}-{code}",
            "subject": subject,
            "code": {"coding": [{"system": ICD, "code": code}]},
        }
        for code in codes
    ]
    resources.append(
        {
            "resourceType": "Observation",
            "id": f"o-{number}",
            "status": "final",
            "subject": subject,
            "code": {"coding": [{"system": LOINC, "code": "8480-6"}]},
            "effectiveDateTime": (date.today() - timedelta(days=rng.randrange(300))).isoformat(),
            "valueQuantity": {
                "value": rng.randrange(110, 180),
                "unit": "mmHg",
                "system": "http://unitsofmeasure.org",
                "code": "mm[Hg]",
            },
        }
    )
Path("records").mkdir(exist_ok=True)
Path("records/all.ndjson").write_text("".join(json.dumps(resource) + "\n" for resource in resources))
Path("patient.json").write_text(json.dumps(resources[0]))

# 200 stays of 150 patients
patients = [(f"p{i}", rng.randrange(30, 80), rng.choice(("female", "male"))) for i in range(150)]
stays = [*patients, *(rng.choice(patients) for _ in range(50))]
rows = ["patient,age,sex,systolic"]
rows += [f"{patient},{age},{sex},{rng.randrange(110, 180)}" for patient, age, sex in stays]
Path("table.csv").write_text("\n".join(rows) + "\n")
