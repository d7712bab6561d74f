"""What long-lived processes stand on: files, database, audit log, work beside the event loop."""
