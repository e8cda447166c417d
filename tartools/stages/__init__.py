"""Stages: generator functions from samples to samples, and what computes positions of samples in a data set.

They know nothing of commands or each other.
The first argument is the samples, then come options; docstrings say order, memory and errors. Begin reading at
`shuffle`, which holds the shuffle buffer.

What several stages count and sort by is beside them: `summary`, the account of fields, sizes and what is wrong;
`shares` of keys, `combinations` of fields, `externalsort` of records that do not fit into memory.
"""
