"""The study document as the FHIR Bundle of InteropEHRate, read and written."""

from abaton.study.bundle.reading import read_bundle
from abaton.study.bundle.writing import write_bundle

__all__ = ["read_bundle", "write_bundle"]
