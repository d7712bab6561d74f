"""What coordinator, silo and CLI share: jobs, global state, the wire, TLS, files, audit, logs."""
