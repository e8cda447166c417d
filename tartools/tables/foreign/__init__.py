"""Indexes that other tools read in place of shards' headers: DALI, wids, webshart and Energon.

`indexedsamples` says what is in the shards, and where the files of an index go; `energon` writes those of Energon, and
`indexes` all others. Begin reading at `indexes.write`.
"""
