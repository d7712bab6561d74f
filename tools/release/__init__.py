"""`make release` and `make verify-release`: what is built, what is said of it, and how that is checked."""
