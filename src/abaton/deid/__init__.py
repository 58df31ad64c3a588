"""De-identification: the rule table and its methods, compiled; pseudonyms, references, ages, and what is counted.

Standard library only. It uses :mod:`abaton.fhir`, never the other way round.
"""
