"""Statistics of shards and tables: `counting` counts the samples of a batch, `fromcolumns` those that a table lists.

The counts are a `stages.summary`. Begin reading at `fromcolumns.summarize`.
"""
