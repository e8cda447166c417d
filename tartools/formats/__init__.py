"""Other formats, to samples and back.

`plan` reads the plans of tarcreate, `folder` plans what a folder has, `build` makes the samples that they plan, `tsv`
writes and reads tables as TSV, CSV and JSON lines. `zipped` makes samples of zip files, which `zipread` reads, and
`zipwrite` writes them; `parquetread` and `parquetwrite` are for Parquet files with payloads. Begin reading at `plan`.
"""
