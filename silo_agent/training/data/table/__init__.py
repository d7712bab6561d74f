"""What the silo's settings say of a table: how it is written, and what its numbers and days mean."""
