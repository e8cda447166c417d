"""The works of training: our loaders beside those of others, random reads, objects and checkpoints on a server.

Their lines are run by `tests.bench.loading`, for a second each, and their figures are for 1,000 samples (or MB). They
are not run unless asked for: `python -m tests.bench training` is all of them.
"""

from __future__ import annotations

from tests.bench.works import Goal, Line, Work

TOLD = {
    "table": "loader",
    "stream": "train.WebDataset",
    "zipped": "zip",
    "decoding": "decoding alone",
    "pread": "pread",
    "pread_kept": "pread, a batch kept",
    "webshart": "webshart",
    "litdata": "litdata",
    "streaming": "streaming (MDS)",
    "webdataset": "webdataset",
}
NEEDS = {"litdata": "litdata", "streaming": "mosaicml-streaming", "webshart": "webshart"}  # what to install
FOLDERS = {"A": "A16", "B": "B16", "photos": "PHOTOS"}
LOADERS = ("litdata", "webshart", "streaming", "webdataset", "zipped")
AHEAD = 1.0


def line(library: str, way: str, workers: int, data: str, decoded: str = "") -> Line:
    words = f'{library} {way} {workers} "${FOLDERS[data]}" {decoded}'.rstrip()
    return Line(TOLD[library], words, told="samples", needs=NEEDS.get(library, ""))


def work(name: str, ours: str, way: str, workers: int, data: str, beside: dict[str, float], decoded: str = "") -> Work:
    """Return the work of our library *ours*, with the ratio to reach for each of those *beside* it; 0 for none."""
    bare = decoded and "bare"
    return Work(
        name,
        line(ours, way, workers, data, decoded),
        tuple(
            line(peer, way, 0, data, bare) if peer == "decoding" else line(peer, way, workers, data, decoded)
            for peer in beside
        ),
        tuple(Goal(most, TOLD[peer]) for peer, most in beside.items() if most),
        check="",
        by_name=True,
    )


def loaders(data: str) -> list[Work]:
    """Bytes of the data set *data*: by table, in order, at random and by two workers; and without a table."""
    every = dict.fromkeys(LOADERS, AHEAD)
    in_order = every | {"litdata": 1 / 1.2 if data == "B" else AHEAD, "pread": 0, "pread_kept": 0}
    at_random = {"pread": 1 / 0.6, "pread_kept": 0} | {peer: AHEAD for peer in LOADERS if peer != "webdataset"}
    by_two = dict.fromkeys(LOADERS, 0.5 if data == "A" else AHEAD)
    return [
        work(f"order-{data}", "table", "order", 0, data, in_order),
        work(f"random-{data}", "table", "random", 0, data, at_random),
        work(f"order-{data}-2", "table", "order", 2, data, by_two),
        work(f"stream-{data}-0", "stream", "order", 0, data, {"webdataset": 1 / 6 if data == "B" else AHEAD}),
        work(f"stream-{data}-2", "stream", "order", 2, data, {"webdataset": AHEAD}),
    ]


def decoded() -> list[Work]:
    """Photographs, decoded and resized to 224 x 224 pixels: by peers as they document it, and by our function."""
    works = []
    for workers, end in ((0, ""), (2, "-2")):
        for how, most in (("Pillow", 1 / 2.5), ("ours", AHEAD)):
            beside = {"decoding": 1 / 0.9 if how == "ours" and not workers else 0.0} | dict.fromkeys(LOADERS, most)
            more = "-ours" if how == "ours" else ""
            works.append(work(f"decoded{more}{end}", "table", "order", workers, "photos", beside, how))
    beside = {"webdataset": 1 / 2.5}
    return [*works, work("decoded-stream-2", "stream", "order", 2, "photos", beside, "Pillow")]


def opening() -> Work:
    """Import, open 1,000 shards by their table, and take a sample; beside importing what that needs."""
    names = 'head -n 1000 "$TINY/list" | sed "s|^|$TINY/|" >"$OUT/list"'
    return Work(
        "open-1000",
        Line(
            "TableDataset",
            'python -P "$READERS" first "$OUT/t.parquet"',
            before=f'{names} && tarindex -q -T "$OUT/list" -o "$OUT/t.parquet"',
        ),
        (
            Line("import torch, pyarrow", 'python -c "import torch, pyarrow.parquet" "$TINY"'),
            Line("webdataset", 'python -P "$READERS" first_of_webdataset "$OUT/list"', before=names),
        ),
        (Goal(1.2, "import torch, pyarrow"), Goal(AHEAD, "webdataset")),
        'test "$(python -P "$READERS" first "$OUT/t.parquet")" = "$(head -n 1000 "$OUT/list" | wc -l) 1"',
        by_name=True,
    )


def remote() -> list[Work]:
    """1,000 objects of 100 KiB, 5 ms away, and a checkpoint of 1 GiB, 30 ms away."""

    def told(name: str, words: str, unit: str, rounds: int = 0) -> Line:
        return Line(name, words, rounds=rounds, told=unit, needs="nginx")

    one, many, shard = (
        told(name, f'objects {way} "$OBJECTS"', "objects")
        for name, way in (("one at a time", "one"), ("ObjectDataset", "many"), ("a shard's table", "shard"))
    )
    works = [
        Work("objects", many, (one,), (Goal(0.1, one.name),), "", by_name=True),
        Work("objects-shard", shard, (many,), (Goal(0.5, many.name),), "", by_name=True),
    ]
    for way in ("read", "write"):
        ours, tarcat = (
            told(name, f'checkpoint {who} {way} "$SCALE"', "MB", 1)
            for name, who in (("train.checkpoint", "ours"), ("tarcat", "tarcat"))
        )
        works.append(Work(f"checkpoint-{way}", ours, (tarcat,), (Goal(1.1, "tarcat"),), "", by_name=True))
    return works


TRAINING = {
    each.name: each for each in (*loaders("A"), *loaders("B"), *loaders("photos"), *decoded(), opening(), *remote())
}
