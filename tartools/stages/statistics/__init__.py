"""Statistics of shards: `counting` counts the samples of a batch, `totals` adds the counts of parts of the input."""
