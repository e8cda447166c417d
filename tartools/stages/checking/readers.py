"""What readers of other projects do with what was found: only what was seen when they ran."""

from __future__ import annotations

STOPS = "stops with an error there"
REST = "takes it for the end of the archive: the rest is missing, without an error"
SKIPS = "leaves it out, without an error"
PARTS = "reads several samples with this key, each with a part of the fields"
TWICE = "reads both samples"
TAKES = "reads it as it is"

# reader -> code -> what it does; webdataset 1.0.2, datasets 5.2.0, megatron-energon 7.4.1, DALI's index
READERS = {
    "webdataset": {
        "cut-shard": "reads the samples before; then stops with an error, or without one if a header is cut",
        "no-end": "reads what is there, a sample that lacks members too, without an error",
        "empty-shard": STOPS,
        "not-tar": STOPS,
        "bad-header": f"{REST} (an error if it is the first header)",
        "bad-size": REST,
        "garbage-after-end": "does not read it",
        "archive-after-end": "does not read what follows the first end, without an error",
        "cut-compressed": "stops with an error, or loses the rest without one",
        "garbage-after-compressed": "does not read it",
        "no-samples": "goes on with the next shard",
        "link": SKIPS,
        "device": SKIPS,
        "volume": SKIPS,
        "sparse": TAKES,
        "torn-sample": PARTS,
        "split-sample": PARTS,
        "key-twice": TWICE,
        "key-in-two-shards": TWICE,
        "field-twice": STOPS,
        "case-twice": f"makes fields small letters; {STOPS}",
        "missing-field": TAKES,
        "unexpected-field": TAKES,
        "empty-field": TAKES,
        "not-a-number": f"reads it as it is; with .decode() it {STOPS}",
        "dotted-name": "takes all that follows the first dot for the field",
        "upper-case": "makes the field small letters",
        "unsafe-path": TAKES,
        "control-character": TAKES,
        "no-field": SKIPS,
        "reserved-name": "leaves out names that begin with __X__/, without an error",
    },
    "hf": {
        "cut-shard": "reads the samples before; the rest is missing, without an error",
        "bad-header": REST,
        "not-a-number": STOPS,
        "missing-shard": STOPS,
    },
    "dali": {"cut-shard": "indexes what is there, without an error"},
    "energon": {
        "cut-shard": "indexes what is there, without an error; reading stops with an error",
        "bad-header": STOPS,
        "missing-shard": STOPS,
    },
}
