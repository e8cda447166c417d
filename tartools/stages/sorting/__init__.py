"""Sorting in bounded memory: sort a small index of the samples, then gather the samples in its order.

`sort` makes a record for each sample (see `stages.samplefiles`), and samples of sorted records; `rowsort` does the same
for rows of tables; `stages.externalsort` sorts records that do not fit into memory. Begin reading at `sort`.
"""
