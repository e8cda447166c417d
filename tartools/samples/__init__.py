"""Samples: adjacent members that share a key.

`sample` makes samples from the groups of the tar reader and from Python values; `values` reads fields as text, numbers
and JSON; `sortkeys` encodes values as bytes that sort like the values; `account` counts every sample of a run; `kinds`
describes payloads in words and checks them.
Begin reading at `sample`.
"""
