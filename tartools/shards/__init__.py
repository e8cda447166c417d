"""Shards: many URLs to samples, and samples to shards.

`reading` and `writing` do it in one process, `library` is for Python programs. `prefetch` reads several shards at
once, by threads; `workers` shares shards out to several processes; `forks` starts them, and one that decompresses a
shard. Begin reading at `reading.read_samples`.
"""
