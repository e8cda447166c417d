"""Trials of the commands with real servers: each trial with each server that is installed, in the exhaustive tier.

`trials` has the trials, `conftest.SERVERS` the servers; `page` writes what passed into docs/servers.md. To add a
server, write a module with a context manager that starts it and gives a `Server`, and name it in `SERVERS`.
"""
