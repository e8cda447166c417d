"""Tables: a data set as one Parquet file, with a row for each sample that says where its bytes are.

`schema` has the columns and the names of shards in a table. `rows` finds the rows of samples, `spool` collects them,
`writing` writes tables. `reading` gives the samples that a table lists: `places` has where they are, `local` and
`remote` read them, `checking` compares them with the rows; `choosing` and `table` do so for single samples.
`columns` has what a table knows of samples that are not read. Begin reading at `reading.table_batches`. Only this room
imports pyarrow.
"""
