"""Samples that occur again: `exact` finds them by digests, `near` by hashes of pictures; `pairs` names them.

Begin reading at `exact`.
"""
