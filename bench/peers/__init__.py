"""Other systems' secure aggregation, measured on the same input in the same run."""
