"""Every table and figure of the five papers, and the jobs that express them: `python -m research.papers`."""
