"""Stages: generator functions from samples to samples, and functions that compute positions in a data set.

They know nothing of commands or each other.
The first argument is the samples, then come options; docstrings say order, memory and errors. Begin reading at
`shuffle`, which holds the shuffle buffer.

Data structures of several stages are beside them: `summary`, the counts of fields, sizes and findings;
`shares` of keys, `combinations` of fields, `externalsort` of records that do not fit into memory.
"""
