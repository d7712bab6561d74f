"""The operators' console: federation and jobs as they run, asked of the coordinator as one operator."""
