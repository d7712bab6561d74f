"""A silo's data: formats, one file each, how one data set is cut into silos, and what a job gets of it."""
