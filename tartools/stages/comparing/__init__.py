"""Comparing two data sets: `digests` makes a record or a digest of each sample, `changes` compares sorted records.

Begin reading at `changes`.
"""
