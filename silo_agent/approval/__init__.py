"""What a person at an institution is shown of a job, and what that person says to it."""
