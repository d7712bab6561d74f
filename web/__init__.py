"""Pages for people: the operators' console, and each silo's own page."""
