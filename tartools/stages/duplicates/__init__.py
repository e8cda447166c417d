"""Samples that occur again: `comparison` finds equal ones by digests, `near` pictures by hashes.

Begin reading at `comparison.find_duplicates`.
"""

AGAINST_SIDE, INPUT_SIDE = 0, 1  # the sides: samples that are only compared with, and those that may be left out
