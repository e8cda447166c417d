"""Loaders of 2026 beside ours: the tables of `python -m tests.bench peers`.

`libraries` knows how each is used, `streams` those that read tar shards as a stream, `sets` makes the data, `rows` is
the process that measures one row of one library, `table` starts these and writes the tables.
"""
