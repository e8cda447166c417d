"""The chosen samples: the command line that copies them, a list of their keys, a table of their rows."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tartools.samples.account import Account
from tartools.shards import shardrows
from tartools.shards.writing import write_batches
from tartools.show.serve.queries import Query
from tartools.show.serve.rowindex import ROWS_TABLE, QuestionError, RowIndex, quoted_name
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tables.catalog import ShardCatalog
from tartools.tables.inputs import RowInputs

MAX_POSITIONS = 1_000_000  # of samples that are marked one by one
KEYS_FILE, CHOSEN_FILE = "keys.txt", "chosen.parquet"  # names that the page gives the files it saves
KEYS_AT_ONCE = 10_000  # that are read from the index


class ChosenSamples(NamedTuple):
    """The chosen samples: the samples at *positions* in the data set, or all of *query*. One of the two is None."""

    positions: Sequence[int] | None
    query: Query | None

    @property
    def samples(self) -> int:
        """The number of chosen samples; a position that comes twice counts twice."""
        if self.query is not None:
            return self.query.samples
        return 0 if self.positions is None else len(self.positions)

    def all_positions(self, rows: int) -> Any:
        """Return the positions of the chosen samples, in their order: a sequence, an array or a range.

        *rows*: the number of samples in the data set.
        """
        if self.query is None:
            return self.positions
        return range(rows) if self.query.positions is None else self.query.positions


def positions_in_bitmap(text: object, rows: int) -> Any:
    """Return the ascending positions of the bits that are 1 in the bitmap *text*, in base64: an array of uint32.

    Bit n % 8 of byte n // 8, from the lowest bit on, is position n. *rows*: number of samples of the data set, which is
    the number of bits, rounded up to bytes; bits from *rows* on are ignored. Raises: QuestionError for another size, or
    no base64.
    """
    import numpy as np

    try:
        data = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except ValueError:
        data = b""
    if len(data) != -(-rows // 8):
        raise QuestionError(f"a bitmap has {-(-rows // 8)} bytes, in base64")
    positions = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little"))
    return positions[positions < rows].astype(np.uint32)


def bitmap_of(positions: Any, rows: int) -> bytes:
    """Return the bitmap of *positions*: bit n % 8 of byte n // 8, from the lowest on, is 1 if position n is among them.

    *positions*: an array or a range. *rows*: number of samples of the data set, which is the number of bits; the last
    byte is filled up with 0.
    """
    import numpy as np

    bits = np.zeros(rows, bool)
    bits[np.asarray(positions, np.int64)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def parse_positions(value: object, rows: int) -> list[int]:
    """Return *value*, from the JSON of a request, after a check: a list of positions below *rows*, in any order.

    A position may come several times. Raises: QuestionError if *value* is something else, or has over a million items
    (MAX_POSITIONS).
    """
    if not isinstance(value, list) or len(value) > MAX_POSITIONS:
        raise QuestionError(f"positions is a list of up to {MAX_POSITIONS:,} numbers")
    if not all(type(position) is int and 0 <= position < rows for position in value):
        raise QuestionError(f"a position is a whole number from 0 to {rows - 1}")
    return value


def command_lines(choice: ChosenSamples, urls: Sequence[str]) -> dict[str, str]:
    """Return a dict of command lines that copy the samples of *choice* to a shard chosen.tar, quoted for a shell.

    "keys": by the list of keys that the page saves as `keys.txt` (KEYS_FILE)
    "table": by the table of their rows that the page saves as `chosen.parquet` (CHOSEN_FILE)
    "command": the one to show: "table" for a query with an order; for all samples, or those of an expression alone, one
        that needs neither file; else "keys"
    *urls*: of the data set.
    """
    inputs = shlex.join(urls)
    keys = f"tarfilter --keys {KEYS_FILE} {inputs} -o chosen.tar"
    table = f"tarcat {CHOSEN_FILE} -o chosen.tar"
    command = keys
    if choice.query is not None:
        request = {name: value for name, value in choice.query.request.items() if name != "sort"}
        has_order = "sort" in choice.query.request
        if has_order:
            command = table
        elif not request:
            command = f"tarcat {inputs} -o chosen.tar"
        elif request.keys() == {"where", "language"} and request["language"] == "expression":
            command = f"tarfilter -S {shlex.quote(request['where'])} --ignore-errors {inputs} -o chosen.tar"
    return {"command": command, "keys": keys, "table": table}


def key_lines(choice: ChosenSamples, index: RowIndex) -> Iterator[bytes]:
    """Return an iterator over the list of keys of *choice*, one per line, in its order, in parts of many lines.

    The text is UTF-8, and each line ends with a newline. Raises, before it returns: QuestionError if the table has no
    keys, or if any key in it, also of a sample that is not chosen, is null or contains a line break. The
    iterator, too, raises QuestionError if DuckDB takes too long, or *index* is closed.
    """
    column = index.layout.names.get(schema.KEY_COLUMN)
    if column is None:
        raise QuestionError("the table has no keys")
    name = quoted_name(column)
    wrong = f"count(*) FILTER (WHERE {name} IS NULL OR contains({name}, chr(10)) OR contains({name}, chr(13)))"
    if index.ask(f"SELECT {wrong} FROM {ROWS_TABLE}")[0][0]:  # noqa: S608
        raise QuestionError("some keys are null or contain line breaks, which a list can't have: save a table instead")
    return _key_parts(choice, index, name)


def _key_parts(choice: ChosenSamples, index: RowIndex, name: str) -> Iterator[bytes]:
    positions = choice.all_positions(index.rows)
    for first in range(0, len(positions), KEYS_AT_ONCE):
        part = [int(position) for position in positions[first : first + KEYS_AT_ONCE]]
        numbers = ", ".join(map(str, part))
        keys = dict(index.ask(f"SELECT rowid, {name} FROM {ROWS_TABLE} WHERE rowid IN ({numbers})"))  # noqa: S608
        yield "".join(f"{keys[position]}\n" for position in part).encode("utf-8", "surrogateescape")


@dataclass
class ChosenRows:
    """The unified *schema* of a table of chosen rows, and the *catalog* of their shards, for `table_destination`."""

    schema: Any
    catalog: ShardCatalog


def write_chosen(choice: ChosenSamples, inputs: RowInputs, path: str, tmpdir: str | None, rows: int) -> None:
    """Write the rows of *choice*, in its order, as the table *path*; an existing file is replaced.

    A position that comes twice gives two rows. *inputs*: the rows of the data set. *rows*: their number. *tmpdir*:
    folder of scratch files; None: the default one. The table names local shards by absolute paths, since nobody knows
    where the browser puts it. Raises: TarToolsError if rows can't be read or written.
    """
    catalog = inputs.catalog.for_table("")
    catalog.urls = [Url(shardrows.canonical_shard(url)) for url in catalog.urls]  # of this copy alone
    batches = shardrows.rows_at(inputs, choice.all_positions(rows), tmpdir)
    destination = shardrows.table_destination(path, True, lambda: ChosenRows(inputs.schema, catalog))
    write_batches(batches, destination, Account(lambda _: None))
