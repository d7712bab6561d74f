"""What both pages stand on: serving, sessions, templates, headers."""
