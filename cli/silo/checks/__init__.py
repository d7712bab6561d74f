"""What `chorale silo check` finds."""
