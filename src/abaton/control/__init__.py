"""The controller: events in, instructions out."""
