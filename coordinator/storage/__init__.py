"""What the coordinator keeps on disk: its database, global states, uploads."""
