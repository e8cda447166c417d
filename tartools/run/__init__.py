"""Commands and functions over samples and shards: tarproc's shells, tarjob's tasks, `map_samples` and `map_shards`.

tarproc: `directories` writes samples as files, `shells` runs the command, in a `warmshell` if possible, `keyedlines`
passes on what it prints, and `results` reads the files back. tarjob: `tasks` says what is run, `localjobs` and `ray`
run it, and `log` records it. Both have a `guard`. Python functions: `functions` calls them, by `engines` or `ray`. Only
this package, `storage.children` and `shards.forks` start processes. Begin reading at `tasks`.
"""
