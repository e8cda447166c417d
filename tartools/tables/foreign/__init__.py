"""Indexes that other tools read in place of shards' headers: DALI, wids, webshart and Energon.

`places` says where the files of an index go, `listing` what is in the shards, and each other module writes the files of
one tool. Begin reading at `indexes.write`.
"""
