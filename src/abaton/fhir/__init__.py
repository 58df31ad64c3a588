"""FHIR R4: JSON, elements, terminology, units, dates, Bundles, validation and other versions.

It does not depend on the de-identification package.
"""
