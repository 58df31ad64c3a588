"""FHIR R4 itself, once: its JSON, elements, codes, units, dates, Bundles, other versions, and what is valid.

Standard library only, and nothing here knows of de-identification.
"""
