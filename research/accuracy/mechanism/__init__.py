"""Whether the parts do what their papers say they do: `python -m research.accuracy.mechanism`."""
