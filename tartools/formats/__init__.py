"""Other formats, to samples and back.

`plan` reads the plans of tarcreate (tables, recipes), `jsonl` those in JSON lines, `folder` plans what a folder has;
`build` makes the samples that they plan. `textrows` reads rows of text and `textfields` makes fields of them for
tarjoin; `textwrite` writes tables of text. `parquetread` and `parquetwrite` are for Parquet files with payloads,
`zipread` and `zipwrite` for zip files, `tfrecord` for TFRecord files. Begin reading at `plan`.
"""
