"""Choose samples: `conditions` has all conditions, `expression` those that are written in Python's syntax."""
