"""Samples that occur again: `comparison` finds equal ones by digests, `near` pictures by hashes.

Begin reading at `comparison.find`.
"""
