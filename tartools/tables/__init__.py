"""Tables: a data set as one Parquet file, with a row for each sample that says where its bytes are.

`schema` has the columns and the names of shards in a table. `rows` finds the rows of samples, `facts` what columns say
of them, `kinds` the types of these; `spool` collects rows, `writing` writes tables, and `foreign` the indexes of other
tools. `reading` gives the samples that a table lists: `places` has where they are, `local` and
`remote` read them, `checking` compares them with the rows; `choosing` and `table` do so for single samples. Begin
reading at `reading.table_batches`. Only this room imports pyarrow.
"""
