"""What is wrong with a data set: `codes` has the kinds of findings, `stages.summary` counts them.

`checked` reads all of it. `samples` looks at samples, `oddities` at parts of them; `walk` goes through a shard that is
not sound, and on behind damage; `listedrows` compares the rows of a table with their shards; `keys` compares the keys
of all samples, `expected` their fields and sizes. `fixing` saves what can be saved. Begin reading at `codes`.
"""
