"""A sample for a person. `text.block` says what is in it, in words."""
