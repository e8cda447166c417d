"""Other formats, to samples and back.

`plan` reads the plans of tarcreate (tables, recipes), `jsonl` those in JSON lines, `folder` plans what a folder has;
`plan` makes the samples, too. `textrows` reads rows of text, for tarjoin as fields; `textwrite` writes them.
`parquetread` and `parquetwrite` are for Parquet files with payloads, `zipfiles` for zip files, `tfrecord`
for TFRecord files. Begin reading at `plan`.
"""
