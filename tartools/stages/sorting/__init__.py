"""Sorting in bounded memory: sort a small index of the samples, then gather the samples in its order.

`sort` is the stage. `index` makes a record (`records`) for each sample, `externalsort` sorts records that do not fit
into memory, `samplefiles` reads samples back, `joining` deals with equal sort keys. Begin reading at `sort`.
"""
