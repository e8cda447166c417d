"""Choose samples: `conditions` has the filter with all conditions, `expression` expressions in Python's syntax."""
