"""What an analysis published, as tables, charts and files."""
