"""The proof of a job for those who check it later: how an archive is made, and how it is checked."""
