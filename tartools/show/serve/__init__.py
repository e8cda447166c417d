"""The page of `tarshow --serve`: all samples of a data set in the browser, by an HTTP server on this machine.

    inputs ─shards/shardrows→ rows ─rowindex→ DuckDB, in a scratch file ─queries→ positions ─answers→ JSON
                                                       └ places of members ─payloads→ bytes, thumbnails

Begin reading at `server`, which checks requests, then at `routes`, which answers them. `page.html`, `page.css` and
`page.js`, with the modules that it imports, are the page; `docs/browse.md` lists its keys.
"""
