"""Who is who: certificates, signatures with a purpose, the roster, and what the authority issues."""
