"""`chorale init`: commented files for a new federation, coordinator or silo."""
