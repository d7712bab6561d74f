"""What coordinator, silo and CLI share: jobs, privacy, global state, the wire, TLS, files, audit, logs,
probes, traces."""
