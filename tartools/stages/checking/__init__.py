"""Check a data set: `codes` has the kinds of findings, `stages.summary` counts them.

`checked` reads all of it. `samples` looks at each sample; `walk` goes through a shard that is not sound, and on behind
damage; `listedrows` compares the rows of a table with their shards; `across` compares keys, fields and sizes of all
samples. `fixing` writes the samples that can be saved. Begin reading at `codes`.
"""
