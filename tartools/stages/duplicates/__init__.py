"""Samples that occur again: `comparison` finds equal ones by digests, `near` pictures by hashes; `pairs` names them.

Begin reading at `comparison.find`.
"""
