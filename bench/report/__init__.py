"""What `bench.suite` makes of the results: comparison with earlier ones, tables, plots."""
