"""Study document as the FHIR Bundle of InteropEHRate, read and written."""

from abaton.study.fhir_bundle.bundle_reader import read_bundle
from abaton.study.fhir_bundle.bundle_writer import write_bundle

__all__ = ["read_bundle", "write_bundle"]
