"""What is wrong with a data set: `codes` has the kinds of findings, `found` counts them.

`samples` looks at samples, `payloads` and `names` at parts of them; `walk` goes through a shard that is not sound, and
on behind damage; `keys` compares the keys of all samples, `fields` their fields, `outliers` sizes.
Begin reading at `codes`.
"""
