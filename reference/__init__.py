"""The pages of docs/ that are written from the code: settings, charts' values, metrics, commands.

`python -m reference` writes them, `python -m reference --check` names those that are stale.
"""
