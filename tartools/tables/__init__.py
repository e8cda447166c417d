"""Tables: a data set as one Parquet file, with a row for each sample that says where its bytes are.

`schema` has the columns, their types, and the names of shards in a table. Making one: `rows` finds the rows of samples
and collects them, `facts` finds what columns say of samples, `foreignindexes` writes the indexes of other tools.

Reading one: `source` opens the file, `tablesamples` gives the samples that it lists; `rowplaces` has where they are,
and compares what is there with the rows, `localshards` and `remote` read it, and `bulk` does so for many at once.
`table` is for single samples, in Python. `listed` has what a table knows of samples, which are not read unless somebody
asks. Begin reading at `tablesamples.table_batches`.

Tables from tables: `inputs` has the rows of many, in the same columns for all, in any order; `tablewriter` writes them.

Only this room imports pyarrow.
"""
