"""Documents: TOML and JSON that people write, read strictly, with every problem at its line and with its remedy.

A study's and a site's document are models of such values; this room knows neither.
"""
