"""The start of each command: a run on ten pictures with labels, beside `python -c pass`. `start-all` runs them all."""

from __future__ import annotations

from tests.bench.works import Goal, Line, Work

LINES = {  # command -> its line
    "tarcat": 'tarcat "$FEW" >"$OUT/x"',
    "tarpcat": 'tarpcat "$FEW" >"$OUT/x"',
    "tarls": 'tarls "$FEW" >"$OUT/x"',
    "tarstat": 'tarstat "$FEW" >"$OUT/x"',
    "tarshow": 'tarshow "$FEW" >"$OUT/x"',
    "tarfirst": 'tarfirst "$FEW" >"$OUT/x"',
    "tarcheck": 'tarcheck "$FEW" >"$OUT/x"',
    "tardedup": 'tardedup "$FEW" >"$OUT/x"',
    "tardiff": 'tardiff --digest "$FEW" >"$OUT/x"',
    "tarcreate": r"""printf '__key__\tcls\na\t1\n' | tarcreate >"$OUT/x" """,
    "tarindex": 'tarindex "$FEW" -o "$OUT/x"',
    "tarfilter": 'tarfilter --share 0:0.5 "$FEW" >"$OUT/x"',
    "tarjoin": r"""printf '__key__\ttxt\n000001\ta\n' | tarjoin "$FEW" --with - --format tsv >"$OUT/x" """,
    "tarmix": 'tarmix 1 "$FEW" >"$OUT/x"',
    "tarsort": 'tarsort "$FEW" >"$OUT/x"',
    "tarsplit": 'tarsplit -n 2 "$FEW" -o "$OUT/x" >/dev/null',
    "tarproc": 'tarproc -c true "$FEW" >"$OUT/x"',
    "tarjob": 'tarjob -q --spec 1 -- echo {} >"$OUT/x"',
    "tar2tsv": 'tar2tsv -f cls "$FEW" >"$OUT/x"',
    "tar2jsonl": 'tar2jsonl "$FEW" >"$OUT/x"',
    "tar2parquet": 'tar2parquet "$FEW" >"$OUT/x"',
    "tar2tfrecord": 'tar2tfrecord "$FEW" >"$OUT/x"',
    "tar2zip": 'tar2zip "$FEW" >"$OUT/x"',
    "tar2folder": 'tar2folder "$FEW" -o "$OUT/x"',
    "tarbench": 'tarbench --dry-run "$FEW" >"$OUT/x"',
}
NOTHING = Line("python", "python -c pass")
STARTS = {
    f"start-{name}": Work(
        f"start-{name}",
        Line(name, line),
        (NOTHING,),
        (Goal(3, NOTHING.name), Goal(3, NOTHING.name, "cpu")),
        'test -n "$(find "$OUT" -type f -size +0)"',
        by_name=True,
    )
    for name, line in LINES.items()
}
