"""What coordinator, silo and CLI share: jobs, privacy, the wire, files, audit, logs, probes, traces."""
