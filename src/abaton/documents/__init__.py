"""Strict reading of TOML and JSON documents, with line, key and remedy of every problem.

Study and site documents are pydantic models built from the fields defined here; this package depends on neither.
"""
