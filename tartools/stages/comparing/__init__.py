"""Comparing two data sets: `sides` makes records or a digest of the samples, `changes` compares sorted records.

Begin reading at `changes`.
"""
