"""Tables: a data set as one Parquet file, with a row for each sample that says where its bytes are.

`schema` has the columns, their types, and the names of shards in a table. Making one: `rows` finds the rows of samples
and collects them, `facts` finds what columns say of samples, `foreignindexes` writes the indexes of other tools.

Four nouns for rows of samples. `Extents` (`extents`): shard, begin and end of each row, as arrays. `ShardCatalog`
(`catalog`): the shards by number, which turns rows into extents. `VerifiedReader` (`verified`): reads extents, and
compares each sample with its row; the bytes come from `localshards` or `remote`, and `bulk` locates payloads for many
samples at once. `RowStream` (`inputs`): rows as record batches, of a table, of shards, or of many of both in the same
columns, in any order; `tablewriter` writes them.

`source` opens a table, and `tablesamples` gives its samples; `listed` has what a table knows of samples, which are not
read unless somebody asks. `table` is for single samples, in Python. Begin reading at `tablesamples.table_batches`.

Only this package imports pyarrow.
"""
