"""Benchmarks, run by hand: `python -m tests.bench` times our commands and their peers in turn, and prints the ratios.

`data` makes the archives, `works` is the table of what is run, `measure` runs it, `__main__` prints what came out.
"""
