"""Stages: generator functions from samples to samples, which know nothing of commands, URLs or each other."""
