"""Tables: a data set as one Parquet file, with a row for each sample that says where its bytes are.

`schema` has the columns and the names of shards in a table. Making one: `rows` finds the rows of samples, `facts` what
columns say of them, `kinds` the types of these; `spool` collects rows, `foreign` writes the indexes of other tools.

Reading one: `reading` gives the samples that a table lists; `places` has where they are, `local` and `remote` read
them, `checking` compares them with the rows; `choosing` and `table` do so for single samples. `columns` has what a
table knows of samples that are not read. Begin reading at `tablesamples.table_batches`.

Tables from tables: `inputs` has the rows of many, in the columns that `unified` makes of them, `order` brings them into
another order, `writing` writes them.

Only this room imports pyarrow.
"""
