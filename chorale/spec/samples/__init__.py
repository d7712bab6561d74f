"""What a job says of its samples: columns of tables, and images."""
