"""The answers to requests, by path: JSON about samples, pictures, payloads, files to save."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tartools.errors import StorageError, shown
from tartools.samples.filetypes import ARRAY, MAGIC_BYTES, PICTURE, SOUND, VIDEO
from tartools.samples.sample import field_name
from tartools.shards.reading import Reading
from tartools.show.serve import choice as choices
from tartools.show.serve.facets import count_facets
from tartools.show.serve.members import SampleSource
from tartools.show.serve.pagepayloads import (
    BINARY_TYPE,
    MAX_SIDE,
    MIN_SIDE,
    NoPictureError,
    Picture,
    PictureCache,
    byte_range,
    content_type,
    heatmap,
    kind_of_name,
    make_thumbnail,
    waveform_picture,
)
from tartools.show.serve.queries import Queries, Query
from tartools.show.serve.rowindex import ROWS_TABLE, QuestionError, RowIndex, quoted_name
from tartools.show.serve.samplejson import kind_of_member, row_json, sample_json
from tartools.show.serve.selection import select_positions
from tartools.storage.checks import probe_all
from tartools.storage.outputformats import PARQUET_MAGIC
from tartools.storage.scratch import private_directory
from tartools.tables.inputs import RowInputs

MAX_ROWS_AT_ONCE = 500
PAYLOAD_CHUNK = 1 << 20  # bytes of a payload that are read and sent at a time
TABLE_TYPE = "application/vnd.apache.parquet"

Fields = Mapping[str, str]  # the query of an address, by name


class NotThereError(Exception):
    """A request for a sample, query or path that does not exist, or not any more; the message says which."""


class RangeError(Exception):
    """A range that has no byte of a payload of *size* bytes."""

    def __init__(self, size: int) -> None:
        super().__init__("the range has no byte")
        self.size = size


class Answer(NamedTuple):
    """An answer that is not JSON.

    `type`: its Content-Type
    `body`: its bytes, in parts
    `size`: number of these bytes; None if it is not known before they are sent
    `headers`: headers besides those of all answers
    `status`: status of HTTP
    `is_picture`: True if a browser may keep it, and ask each time whether it is still valid
    """

    type: str
    body: Iterator[bytes]
    size: int | None
    headers: Mapping[str, str] = {}
    status: int = 200
    is_picture: bool = False


class Routes:
    """The answers about the samples of *inputs*, in *index*. `get` and `post`: path -> function that answers a request.

    A function of `get` takes the fields of the address and the headers, a function of `post` the JSON of the request;
    they return a value to be sent as JSON, or an `Answer`. They raise NotThereError for a query that is not kept any
    more, or a sample that does not exist, QuestionError for other wrong requests, TarToolsError if samples can't be
    read, and about a field KeyError, NoPictureError or RangeError. Call `close` at the end.

    *urls*: of the data set, as the user named it. *reading*: options with which its samples are read. Raises:
    StorageError if one of *urls* can't be probed.
    """

    def __init__(self, urls: Sequence[str], inputs: RowInputs, index: RowIndex, reading: Reading) -> None:
        self._urls = urls
        self._inputs = inputs
        self._index = index
        self._reading = reading
        self._source = SampleSource(inputs, index, reading)
        self._queries = Queries(index, lambda text: select_positions(text, urls, reading, index.rows))
        self._pictures = PictureCache()
        self._fields: list[dict[str, Any]] | None = None
        self._tables = {url: probe for url, probe in probe_all(urls).items() if probe.first == PARQUET_MAGIC}
        self.get: dict[str, Callable[[Fields, Mapping[str, str]], Any]] = {
            "/api/about": self.about,
            "/api/rows": self.rows,
            "/api/facets": self.facets,
            "/api/bitmap": self.bitmap,
            "/api/sample": self.sample,
            "/api/thumbnail": self.thumbnail,
            "/api/heatmap": self.heatmap,
            "/api/payload": self.payload,
        }
        self.post: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "/api/query": self.query,
            "/api/choice": self.choice,
            "/api/choice/keys": self.choice_keys,
            "/api/choice/table": self.choice_table,
        }

    @property
    def samples(self) -> int:
        """The number of all samples."""
        return self._index.rows

    def close(self) -> None:
        """Stop all requests to servers."""
        self._source.close()

    # ---- questions ----

    def about(self, fields: Fields, headers: Mapping[str, str]) -> dict[str, Any]:
        """Answer: facts about the data set, as JSON.

        "inputs": a list of its URLs, to show; "title": the first one, and the number of the others: "a.tar and 2 more"
        "searched": names of the columns in which words are searched, as one text, without underscores around them, such
            as "key, txt"; "samples": number of samples
        "fields": a list of {"name", "kind", "count": samples that have it, once for each set}
        "columns": a list of {"name", "type", "facet": true if it has one}, of the columns of the index
        "replaced": true once a shard or table was found to have changed
        Raises: QuestionError if DuckDB takes too long.
        """
        index = self._index
        if self._fields is None:
            counts = [f"count({quoted_name(field.size_column)})" for field in index.fields]
            numbers = index.ask(f"SELECT {', '.join(counts)} FROM {ROWS_TABLE}")[0] if counts else ()  # noqa: S608
            by_name: dict[str, int] = {}
            for field, number in zip(index.fields, numbers, strict=True):
                by_name[field.name] = by_name.get(field.name, 0) + number
            self._fields = [
                {"name": name, "kind": kind_of_name(name), "count": count} for name, count in by_name.items()
            ]
        return {
            "inputs": [shown(url) for url in self._urls],
            "title": shown(self._urls[0]) + (f" and {len(self._urls) - 1:,} more" if self._urls[1:] else ""),
            "searched": ", ".join(column.name.strip("_") for column in index.text_columns),
            "samples": index.rows,
            "fields": self._fields,
            "columns": [
                {"name": column.name, "type": column.type, "facet": bool(column.facet)}
                for column in index.columns.values()
            ],
            "replaced": self._source.replaced,
        }

    def query(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer: id and number of samples of the query *request*, a JSON object of the page.

        Its parts, all optional: words, where, language, facets and sort (`parse_request`). The query is kept, so that
        other requests can name it by its id. Answers {"query": id, "samples": count, "seconds": time that it took}.
        Raises: QuestionError if it is malformed or takes too long.
        """
        query = self._queries.make(request)
        return {"query": query.id, "samples": query.samples, "seconds": round(query.seconds, 4)}

    def _query(self, query_id: object) -> Query:
        query = self._queries.find(query_id) if isinstance(query_id, str) else None
        if query is None:
            raise NotThereError("this query is not kept any more: ask it again")
        return query

    def rows(self, fields: Fields, headers: Mapping[str, str]) -> dict[str, Any]:
        """Answer: {"rows": samples `begin` to `end` (exclusive) of a query, as `row_json` returns them}.

        *fields*: query (its id), begin and end. There are fewer where the query ends. Raises: QuestionError for over
        500 rows (MAX_ROWS_AT_ONCE), or begin or end that is no number; NotThereError if the query is not kept;
        TarToolsError if a text can't be read.
        """
        query, begin, end = self._query(fields.get("query")), whole(fields, "begin"), whole(fields, "end")
        if end - begin > MAX_ROWS_AT_ONCE:
            raise QuestionError(f"more than {MAX_ROWS_AT_ONCE} rows at once")
        rows = self._source.rows(query.page(begin, end))
        return {"rows": [row_json(self._source, row) for row in rows]}

    def facets(self, fields: Fields, headers: Mapping[str, str]) -> dict[str, Any]:
        """Answer: {"facets": the facets of all samples of a query, as `count_facets` returns them}.

        *fields*: query (its id). Raises: NotThereError if the query is not kept; QuestionError if it takes too long.
        """
        return {"facets": count_facets(self._index, self._query(fields.get("query")))}

    def bitmap(self, fields: Fields, headers: Mapping[str, str]) -> Answer:
        """Answer: a bit for each sample of the data set, 1 for samples `begin` to `end` (exclusive) of a query.

        *fields*: query (its id), begin (default 0), end (default: all), numbers in the order of the query. Bit n % 8 of
        byte n // 8, from the lowest on, is position n of the data set. Raises: NotThereError if the query is not
        kept; QuestionError if begin or end is no number.
        """
        query = self._query(fields.get("query"))
        begin, end = whole(fields, "begin", 0), min(whole(fields, "end", query.samples), query.samples)
        positions = range(begin, max(begin, end)) if query.positions is None else query.positions[begin:end]
        data = choices.bitmap_of(positions, self._index.rows)
        return Answer(BINARY_TYPE, iter((data,)), len(data))

    # ---- one sample ----

    def sample(self, fields: Fields, headers: Mapping[str, str]) -> dict[str, Any]:
        """Answer: one sample with its fields, as `sample_json` returns it.

        *fields*: position. Raises: NotThereError if there is no sample at that position; QuestionError if it is no
        number; TarToolsError if the sample can't be read.
        """
        return sample_json(self._source, self._position(fields))

    def _position(self, fields: Fields) -> int:
        position = whole(fields, "position")
        if not 0 <= position < self._index.rows:
            raise NotThereError(f"there is no sample {position}")
        return position

    def _picture(self, fields: Fields, make: Callable[[Any], Picture], side: int) -> Answer:
        """Return the picture that `make(member)` makes of the member that *fields* name, from the cache if it is there.

        *fields*: position and field. *side*: pixels, part of the name in the cache; 0 for the route of heat maps.
        Raises: KeyError if the sample has no such field; NotThereError if there is no sample at that position;
        QuestionError if it is no number; TarToolsError if the member can't be read; the errors of *make*.
        """
        position, field = self._position(fields), fields.get("field", "")
        picture = self._pictures.get((position, field, side), lambda: make(self._source.member(position, field)))
        return Answer(picture.type, iter((picture.data,)), len(picture.data), is_picture=True)

    def thumbnail(self, fields: Fields, headers: Mapping[str, str]) -> Answer:
        """Answer: a small picture of a picture, video, sound (its waveform) or array (its heat map).

        *fields*: position, field, and size, the longest side in pixels (16 to 2048, which limit it; default 256; for an
        array without effect). Raises: NoPictureError for another kind, or a payload that is broken or can't be drawn;
        KeyError if the sample has no such field; NotThereError, QuestionError for a wrong number; TarToolsError if it
        can't be read.
        """
        side = min(max(whole(fields, "size", 256), MIN_SIDE), MAX_SIDE)
        return self._picture(fields, partial(_thumbnail, side=side), side)

    def heatmap(self, fields: Fields, headers: Mapping[str, str]) -> Answer:
        """Answer: a picture of an array. *fields*: position and field.

        Raises: NoPictureError if it is broken, empty, larger than 16 MiB, or no array of numbers with two dimensions or
        more; KeyError if the sample has no such field; NotThereError, QuestionError for a wrong position; TarToolsError
        if it can't be read.
        """
        return self._picture(fields, heatmap, 0)

    def payload(self, fields: Fields, headers: Mapping[str, str]) -> Answer:
        """Answer: the bytes of a payload, or the range of them that the header Range names, with the status 206.

        *fields*: position and field. The Content-Type is that of a picture, sound or video, by the first bytes; any
        other payload is to be saved, not shown. Raises: RangeError for a range without a byte; KeyError if the sample
        has no such field; NotThereError, QuestionError for a wrong position; TarToolsError if it can't be read, also
        from the iterator of its bytes.
        """
        position, field = self._position(fields), fields.get("field", "")
        place = self._source.place(position, field)
        if place is None:
            member = self._source.member(position, field)
            size, read = member.size, partial(_read_member, member)
        else:
            size, read = place.size, partial(self._source.read, place)
        type_ = content_type(read(0, min(size, MAGIC_BYTES)))
        try:
            chosen = byte_range(headers.get("Range"), size)
        except ValueError:
            raise RangeError(size) from None
        begin, end = chosen or (0, size)
        answer_headers = {"Accept-Ranges": "bytes"}
        if chosen:
            answer_headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        if type_ == BINARY_TYPE:
            answer_headers["Content-Disposition"] = "attachment"
        return Answer(type_, _parts(read, begin, end), end - begin, answer_headers, 206 if chosen else 200)

    # ---- the choice ----

    def _choice(self, request: Mapping[str, Any]) -> choices.ChosenSamples:
        if "bitmap" in request:
            positions = choices.positions_in_bitmap(request["bitmap"], self._index.rows)
            return choices.ChosenSamples(positions, None)
        if "query" in request:
            return choices.ChosenSamples(None, self._query(request["query"]))
        return choices.ChosenSamples(choices.parse_positions(request.get("positions"), self._index.rows), None)

    def choice(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer: {"samples": count, "command", "keys", "table": command lines that copy the chosen samples}.

        *request* has one of "bitmap" (base64), "query" (an id) or "positions" (a list). Raises: QuestionError if it has
        none, or a wrong one; NotThereError for a query that is not kept.
        """
        chosen = self._choice(request)
        return {"samples": chosen.samples, **choices.command_lines(chosen, self._urls)}

    def choice_keys(self, request: Mapping[str, Any]) -> Answer:
        """Answer: the list of the keys of the chosen samples, a file of text with a line for each.

        *request* has one of "bitmap" (base64), "query" (an id) or "positions" (a list). Raises: QuestionError if it has
        none, or a wrong one, or if keys can't be lines (`key_lines`); NotThereError for a query that is not kept.
        """
        lines = choices.key_lines(self._choice(request), self._index)
        return Answer("text/plain; charset=utf-8", lines, None, attachment_header(choices.KEYS_FILE))

    def choice_table(self, request: Mapping[str, Any]) -> Answer:
        """Answer: the table of the rows of the chosen samples, a Parquet file.

        *request* has one of "bitmap" (base64), "query" (an id) or "positions" (a list). Raises: QuestionError if it has
        none, or a wrong one; NotThereError for a query that is not kept; StorageError if a table of the inputs was
        replaced; TarToolsError if rows can't be read or written.
        """
        chosen = self._choice(request)
        if self._tables != probe_all(list(self._tables)):
            self._source.replaced = True
            raise StorageError("the table was replaced since it was read: start tarshow --serve again")
        folder = private_directory(self._reading.tmpdir)
        try:
            path = os.path.join(folder, choices.CHOSEN_FILE)
            choices.write_chosen(chosen, self._inputs, path, self._reading.tmpdir, self._index.rows)
            return Answer(TABLE_TYPE, _sent_file(path), os.path.getsize(path), attachment_header(choices.CHOSEN_FILE))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def attachment_header(name: str) -> dict[str, str]:
    """Return {"Content-Disposition": 'attachment; filename="NAME"'}, by which a browser saves an answer as *name*."""
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def whole(fields: Fields, name: str, default: int | None = None) -> int:
    """Return the whole number, 0 or more, that the field *name* of an address has; *default* if it is absent.

    Raises: QuestionError if it is no such number of up to 15 digits, or absent without a *default*.
    """
    text = fields.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 16):
        raise QuestionError(f"{name} is a whole number")
    return int(text)


def _thumbnail(member: Any, side: int) -> Picture:
    kind = kind_of_member(field_name(member), member)
    if kind == ARRAY:
        return heatmap(member)
    if kind == SOUND:
        return waveform_picture(member, side)
    if kind not in (PICTURE, VIDEO):
        raise NoPictureError("there is no picture of this")
    return make_thumbnail(member, side)


def _read_member(member: Any, begin: int, end: int) -> bytes:
    with member.open() as file:
        file.seek(begin)
        data: bytes = file.read(end - begin)
        return data


def _parts(read: Callable[[int, int], bytes], begin: int, end: int) -> Iterator[bytes]:
    """Yield bytes *begin* to *end* (exclusive), as `read(begin, end)` returns them, in parts of up to 1 MiB."""
    for first in range(begin, end, PAYLOAD_CHUNK):
        yield read(first, min(first + PAYLOAD_CHUNK, end))


def _sent_file(path: str) -> Iterator[bytes]:
    """Return an iterator over the bytes of the file *path*, in parts of up to 1 MiB.

    The file is opened now, so it may be removed at once.
    """
    from tartools.storage.scratch import open_file

    file = open_file(os.fsencode(path))
    assert file is not None

    def parts() -> Iterator[bytes]:
        with file:
            while part := file.read(PAYLOAD_CHUNK):
                yield part

    return parts()
