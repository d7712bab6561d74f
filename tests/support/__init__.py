"""What several test suites share: local federations of real processes, relays, one-hot silos."""
