"""The coordinator: members, jobs, storage, gRPC services. It sees sums alone and runs no model code."""
