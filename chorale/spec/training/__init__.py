"""What the file of a training says, part by part: `job_spec` joins them."""
