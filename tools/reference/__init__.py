"""The pages of docs/ that are written from the code: settings, charts' values, metrics, commands.

`python -m tools.reference` writes them, `python -m tools.reference --check` names those that are stale.
"""
