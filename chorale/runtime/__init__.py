"""What long-lived processes stand on: files, database, audit log, work outside the event loop."""
