"""`make release` and `make verify-release`: what is built, its statement, and how that is checked."""
