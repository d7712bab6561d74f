"""The operators' console: the federation, its jobs, a job as it runs. It asks the coordinator as one operator."""
