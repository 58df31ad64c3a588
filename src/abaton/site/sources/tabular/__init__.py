"""Tables as a source of records: files of rows, and a mapping of their columns to codes, units and dates."""
