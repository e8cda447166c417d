"""Stages: generator functions from samples to samples. They know nothing of commands, URLs or each other.

The first argument is the samples, then come options; docstrings say order, memory and errors. Begin reading at
`shuffle`, which holds the shuffle buffer.
"""
