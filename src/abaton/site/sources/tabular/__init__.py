"""Tables as a source of records: files of rows, and a mapping that says what their columns mean."""
