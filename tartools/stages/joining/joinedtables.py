"""Tables that join two data sets: rows of A with extents or values of B for the same keys. No sample is read for them.

A row of the result is the row of A, then the columns of B in the row with the same key. Columns that say where samples
are become those of the next sets of shards (see `tables.schema`):

    A   __shard__ __begin__ __end__ __members__        B   __shard__ __begin__ __end__ __members__  score
                                                            |         |         |       |            |
        __shard__ __begin__ __end__ __members__            __shard_2__ __begin_2__ ...               score

B may also be rows of values, in no shard, by key: then only columns of values are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tartools.errors import SampleError, UsageError, several
from tartools.samples.account import Account, Phase
from tartools.samples.columnfields import ChosenColumns
from tartools.samples.values import comma_advice, field_list
from tartools.shards.reading import Reading
from tartools.shards.shardrows import Indexing, row_inputs_by_source, table_destination
from tartools.shards.writing import Destination, write_batches
from tartools.stages.joining.adding import Find
from tartools.stages.joining.partnerindex import Pairs, index_partners
from tartools.stages.joining.partners import PartnerFinder, SecondRows, SecondShards
from tartools.tables import schema
from tartools.tables.described import padded_sizes
from tartools.tables.extents import MAX_OFFSET, valid_mask, whole_numbers
from tartools.tables.inputs import ROW_COLUMN, RowInputs, rows_in_order
from tartools.tables.tablewriter import RowBatch

if TYPE_CHECKING:
    from tartools.formats.valuerows import ParquetValues, TextValues

ROW_NUMBER_BYTES = 8  # bytes of the number of a row of B
SET_COLUMNS = (schema.SHARD_COLUMN, schema.BEGIN_COLUMN, schema.END_COLUMN, schema.MEMBERS_COLUMN)

IsChosen = Callable[[str], bool]


class RowJoin(NamedTuple):
    """Options of `JoinedRows`.

    `fold(name)`: returns the name of a field for comparison: it is equal for names that count as one.
    `keep_unmatched`: True to pass on rows of A without a partner; their columns of B are null.
    `is_chosen(name)`: True for a field of B to add, and for a column of values of B to add that is about no field;
    None: all are added.
    `tmpdir`: folder of temporary files; None: the system's.
    """

    fold: Callable[[str], str]
    keep_unmatched: bool
    is_chosen: IsChosen | None
    tmpdir: str | None


def join_tables(
    a: Sequence[str],
    second: SecondRows | SecondShards,
    how: RowJoin,
    output: Destination,
    account: Account,
    reading: Reading,
    memory: int,
) -> PartnerFinder:
    """Write the table *output*: samples *a*, URLs of shards and tables, joined with *second*, B, by key.

    Return the finder, which counted partners. Shards of A and B are indexed first. If *second* is a `SecondShards`,
    `how.is_chosen` is not used: its `chosen` says which fields are added. Holds: *memory* bytes for the index of B, and
    what `JoinedRows.batches` holds. Raises: UsageError if `chosen` renames a field or names alternatives, which a table
    can't list, and for a column of values in A and B; SampleError if no sample of B has a chosen field, for a key twice
    in B, for a row without a key, for a sample with one field in A and in B, and for chosen members that are not
    adjacent; the errors of reading and indexing A and B; StorageError if the table can't be written.
    """
    indexing = Indexing(reading, 1)
    if isinstance(second, SecondShards):
        how = how._replace(is_chosen=make_member_test(second.chosen))
        rows_of_a, rows_of_b = row_inputs_by_source([a, second.urls], account, indexing)
        if lost := " ".join(second.chosen.missing_words(fields := schema.fields_of(rows_of_b.schema))):
            raise SampleError(f"no sample of B has {lost}{comma_advice(lost)}; the fields: {field_list(fields)}")
        partners = index_partners(keys_with_numbers(rows_of_b), memory, how.tmpdir)
    else:
        (rows_of_a,) = row_inputs_by_source([a], account, indexing)
        parts: list[TextValues | ParquetValues] = []
        partners = index_partners(_keys_of_values(second, parts, how.tmpdir), memory, how.tmpdir)
        rows_of_b = RowInputs(parts, rows_of_a.catalog)
    joined = JoinedRows(rows_of_a, rows_of_b, how)
    finder = PartnerFinder(partners, second)
    account.progress.phase = Phase("writing", rows_of_a.rows, lambda: account.samples_out)
    destination = table_destination(output.url, output.force, lambda: joined, output.sums)
    write_batches(joined.batches(finder.find, account), destination, account)
    return finder


def make_member_test(chosen: ChosenColumns) -> IsChosen | None:
    """Return a function of a field's name: True if the field of B is *chosen*; return None if all fields are.

    Raises: UsageError if a field gets a new name or has alternatives: a table lists members as they are.
    """
    for choices, new in chosen.words or ():
        if len(choices) > 1 or new not in (None, choices[0]):
            raise UsageError(
                "a table lists members as they are, so -f can't rename them or choose one of several: join to shards, "
                "or rename them first (tarcat -f)"
            )
    names = None if chosen.words is None else {chosen.fold(choices[0]) for choices, _ in chosen.words}
    dropped = set(map(chosen.fold, chosen.excluded_names))
    if names is None and not dropped:
        return None
    return lambda field: (names is None or chosen.fold(field) in names) and chosen.fold(field) not in dropped


def _keys_of_values(second: SecondRows, parts: list[TextValues | ParquetValues], tmpdir: str | None) -> Pairs:
    """Yield (keys, packed row numbers) of the rows of values *second*, in batches.

    A `TextValues` or `ParquetValues` of each file is appended to *parts* before its keys are yielded; row numbers run
    through all, from 0, each packed in 8 bytes, big-endian. *tmpdir*: folder of scratch files. Raises: SampleError for
    text that is not UTF-8; StorageError if a scratch file can't be written; the errors of reading rows.
    """
    from tartools.formats.valuerows import ParquetValues, TextValues

    first = 0
    for url, form in second.files:
        key_batches: Iterator[Sequence[bytes]]
        if form == "parquet":
            parts.append(part := ParquetValues(url, second.format))
            key_batches = part.keys()
        else:
            parts.append(spool := TextValues(tmpdir))
            key_batches = _spool_rows(second, url, form, spool)
        for keys in key_batches:
            yield keys, _pack_numbers(first, len(keys))
            first += len(keys)


def _spool_rows(second: SecondRows, url: str, form: str, spool: TextValues) -> Iterator[Sequence[bytes]]:
    """Yield the keys of the rows of text in *url*, in batches, once their values are in *spool*.

    *second*: reads the rows. *form*: format of the text: tsv, csv or jsonl. Raises: SampleError, naming the file, for a
    value that is not UTF-8; StorageError if *spool* can't be written; the errors of reading rows.
    """
    for keys, packed in second.read(url, form):
        try:
            spool.add(packed, second.single(), form)
        except SampleError as error:
            raise SampleError(error.message, url=url) from None
        yield keys


def _pack_numbers(first: int, count: int) -> list[bytes]:
    """Return *count* row numbers from *first* on, each as 8 bytes (ROW_NUMBER_BYTES), big-endian."""
    return [number.to_bytes(ROW_NUMBER_BYTES, "big") for number in range(first, first + count)]


def keys_with_numbers(rows: RowInputs) -> Pairs:
    """Yield (keys, packed row numbers) of *rows*, the rows of B, in batches; the first row has number 0.

    A packed number is 8 bytes, big-endian. Raises: SampleError for a row without key; the errors of reading rows.
    """
    first = 0
    for keys in _read_keys(rows, "B"):
        yield keys, _pack_numbers(first, len(keys))
        first += len(keys)


def _read_keys(rows: RowInputs, side: str) -> Iterator[list[bytes]]:
    """Yield the keys of *rows*, a list for each batch. *side*: "A" or "B", for messages.

    Raises: SampleError for a row without a key; the errors of reading rows.
    """
    first = 0
    for batch in rows.batches([schema.KEY_COLUMN]):
        if schema.KEY_COLUMN not in batch.schema.names or batch.column(0).null_count:
            raise SampleError(f"one of rows {first} to {first + len(batch) - 1} of {side} has no __key__ to join by")
        yield schema.encode_texts(batch.column(0)).to_pylist()
        first += len(batch)


class JoinedRows:
    """The rows of *a*, joined with the rows of *b* that have the same keys, for writing them as a table.

    *a* and *b* have one catalog, `catalog`, with the shards of both. `schema`: the unified schema of the joined rows.
    Call `batches` once. Raises: UsageError if both have a column of values of one name; SampleError if `how.is_chosen`
    is given and a set of shards of B has no list of members.
    """

    def __init__(self, a: RowInputs, b: RowInputs, how: RowJoin) -> None:
        self.catalog = a.catalog
        self._a, self._b, self._how = a, b, how
        self._b_sets = schema.sets_in(b.schema.names) if schema.SHARD_COLUMN in b.schema.names else range(0)
        b_schema = b.schema if how.is_chosen is None else self._chosen_schema(how.is_chosen)
        first_set = len(schema.sets_in(a.schema.names)) + 1
        self._names = self._rename_columns(b_schema, first_set)  # of columns of B, as they are called in the result
        self._check_columns(a.schema.names)
        columns = [*a.schema, *(b_schema.field(name).with_name(new) for name, new in self._names.items())]
        columns.sort(key=lambda column: not column.name.startswith("__"))  # stable: values come last
        self.schema = schema.import_arrow().schema(columns)
        self._shared = self._shared_fields()

    def _rename_columns(self, b_schema: Any, first_set: int) -> dict[str, str]:
        """Return column of *b_schema* -> its name in the result; the key and the row number of B are left out.

        The first set of shards of B gets the number *first_set*, further sets the next numbers: with 2, `__shard__`
        becomes `__shard_2__`.
        """
        numbers = [
            number for number in self._b_sets if schema.name_in_set(schema.SHARD_COLUMN, number) in b_schema.names
        ]
        renamed = {
            schema.name_in_set(column, number): schema.name_in_set(column, first_set + index)
            for index, number in enumerate(numbers)
            for column in SET_COLUMNS
        }
        dropped = (schema.KEY_COLUMN, schema.INDEX_COLUMN)
        return {name: renamed.get(name, name) for name in b_schema.names if name not in dropped}

    def _chosen_schema(self, is_chosen: IsChosen) -> Any:
        """Return the schema of B without members and values of fields that are not chosen.

        Sets of shards without a chosen field are left out, too. A column about no field stays if `is_chosen` accepts
        its name; the key and the row number stay. Raises: SampleError if a set of shards has no list of members.
        """
        pa = schema.import_arrow()
        fields, columns = schema.fields_of(self._b.schema), []
        for number in self._b_sets:
            if not schema.fields_in_set(self._b.schema, number):
                raise SampleError(
                    "-f and -x choose members, and B does not list them (column __members__): tarindex makes a table "
                    "that does"
                )
        unwanted = [
            schema.name_in_set(column, number)
            for number in self._b_sets
            if not any(map(is_chosen, schema.fields_in_set(self._b.schema, number)))
            for column in SET_COLUMNS
        ]
        for column in self._b.schema:
            if column.name.startswith("__"):
                if column.name in unwanted:
                    continue
                if column.name.startswith(schema.MEMBERS_COLUMN[:-2]):
                    members = [member for member in column.type if is_chosen(member.name)]
                    column = pa.field(column.name, pa.struct(members))
                columns.append(column)
            elif _is_about_chosen(column.name, fields, is_chosen):
                columns.append(column)
        return pa.schema(columns)

    def _check_columns(self, names_of_a: Sequence[str]) -> None:
        """Raise UsageError if one of *names_of_a*, the columns of A, is also a column of values of B in the result."""
        for name in self._names.values():
            if name in names_of_a:
                fields = schema.fields_of(self._b.schema)
                noun = "field" if name in fields and name in schema.fields_of(self._a.schema) else "column"
                raise UsageError(f"A and B both have the {noun} {name!r}: -x {name} leaves out that of B")

    def _shared_fields(self) -> set[str]:
        """Return the folded names of the fields that several sets may have."""
        sets = (schema.fields_in_set(self.schema, number) for number in schema.sets_in(self.schema.names))
        names = [name for fields in sets for name in set(map(self._how.fold, fields))]
        return {name for name in names if names.count(name) > 1}

    def batches(self, find: Find, account: Account) -> Iterator[RowBatch]:
        """Yield the joined rows in the order of A.

        `find(keys)`: returns for each of *keys*, keys of A, the number of the row of B, in 8 bytes, big-endian, or
        None. Rows of A are counted in *account* as read, and those without a partner as left out, unless they are kept.
        At the end `warn_of_order` is called if B has samples in shards.
        Holds: some 70 bytes a row of A while all keys of A are read first, 24 later; blocks of rows of B. Raises:
        SampleError for a row of A without a key, a sample with one field in A and in B, and chosen members of B that
        are not adjacent or not listed; StorageError for more than 2**32 rows; the errors of *find* and of reading rows.
        """
        import numpy as np

        numbers = [
            np.fromiter(
                (-1 if value is None else int.from_bytes(value, "big") for value in find(keys)), np.int64, len(keys)
            )
            for keys in _read_keys(self._a, "A")
        ]
        partners = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
        columns = list(self._names)
        in_order = rows_in_order(self._b, partners[partners >= 0].tolist(), self._how.tmpdir, columns)
        rows_of_b = _RowReader(in_order)
        first = 0
        for rows in self._a.batches():
            has_partner = partners[first : first + len(rows)] >= 0
            first += len(rows)
            account.samples_in += len(rows)
            joined = self._join(rows, has_partner, rows_of_b.take(int(has_partner.sum())))
            account.left_out += len(rows) - len(joined)
            if len(joined):
                yield RowBatch(joined)
        if len(self._b_sets):
            warn_of_order(partners[partners >= 0], account)

    def _join(self, rows: Any, has_partner: Any, partners: Any) -> Any:
        """Return the joined rows of *rows*, a batch of A, as a record batch.

        *has_partner*: array of booleans, one a row. *partners*: record batch of their rows of B, in order; None for no
        row. Rows without a partner are left out, or get nulls if `keep_unmatched`. Raises: SampleError if a sample has
        one field in A and in B, or chosen members that are not adjacent or not listed.
        """
        import numpy as np

        pa = schema.import_arrow()
        if partners is not None and self._how.is_chosen is not None:
            partners = self._narrow_rows(partners)
        if not self._how.keep_unmatched and not has_partner.all():
            rows, has_partner = rows.take(pa.array(np.flatnonzero(has_partner))), np.ones(int(has_partner.sum()), bool)
        columns = {name: rows.column(name) for name in rows.schema.names}
        indexes = pa.array(np.where(has_partner, np.cumsum(has_partner) - 1, 0), mask=~has_partner)
        for name, new in self._names.items():
            kind = self.schema.field(new).type
            columns[new] = pa.nulls(len(rows), kind) if partners is None else partners.column(name).take(indexes)
        joined = pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        self._check_fields(joined)
        return joined

    def _narrow_rows(self, rows: Any) -> Any:
        """Return *rows* of B, a record batch, with the extents of the chosen members alone, which must be adjacent.

        It has only the columns that the result takes from B, and in the columns of members only the chosen ones. Shard
        and extent are null in rows without chosen members. Raises: SampleError if they are not adjacent, or if a row
        does not tell where all its members are.
        """
        pa = schema.import_arrow()
        columns = {name: rows.column(name) for name in rows.schema.names if name in self._names}
        for number in self._b_sets:
            if schema.name_in_set(schema.SHARD_COLUMN, number) in columns:
                self._narrow_set(rows, columns, number)
        return pa.RecordBatch.from_arrays([*columns.values()], [*columns])

    def _narrow_set(self, rows: Any, columns: dict[str, Any], number: int) -> None:
        """Narrow *columns* to the chosen members, in place: the columns of set *number* in *rows*, a record batch of B.

        *columns*: name -> Arrow array. Raises: SampleError if the chosen members are not adjacent, or if a row does not
        tell where all its members are.
        """
        import numpy as np

        pa, is_chosen = schema.import_arrow(), self._how.is_chosen
        assert is_chosen is not None
        shard, begin, end, members = (schema.name_in_set(column, number) for column in SET_COLUMNS)
        names = schema.fields_in_set(rows.schema, number)
        struct = rows.column(members)
        places = struct.flatten()
        has = np.stack([valid_mask(place) for place in places], axis=1)
        pairs = [[whole_numbers(part) for part in place.flatten()] for place in places]  # offset and size, with masks
        offsets, sizes = (
            np.stack([np.where(valid, values, 0) for values, valid in of], axis=1) for of in zip(*pairs, strict=True)
        )
        # a field that is there twice has no offset; of 1,000 fields some may not be listed
        is_located = np.stack([valid for (_, valid), _ in pairs], axis=1) | ~has
        begins, ends = (
            np.where(valid, values, 0) for values, valid in (whole_numbers(columns[n]) for n in (begin, end))
        )
        order = np.argsort(np.where(has, offsets, MAX_OFFSET), axis=1, kind="stable")
        present = np.take_along_axis(has, order, axis=1)
        stops = np.take_along_axis(offsets + padded_sizes(sizes), order, axis=1)
        starts = np.concatenate([begins[:, None], stops[:, :-1]], axis=1)
        chosen = present & np.array([is_chosen(name) for name in names])[order]
        lists_all = (np.where(present, stops, 0).max(axis=1) == ends) & is_located.all(axis=1)
        lists_all &= len(names) < schema.MAX_FIELDS_LISTED
        low = np.where(chosen, starts, MAX_OFFSET).min(axis=1)
        high = np.where(chosen, stops, 0).max(axis=1)
        is_adjacent = np.where(chosen, stops - starts, 0).sum(axis=1) == high - low
        is_empty = ~chosen.any(axis=1)
        for wrong in np.flatnonzero(~lists_all | ~(is_adjacent | is_empty))[:1].tolist():
            row = rows.column(ROW_COLUMN)[wrong].as_py()
            raise SampleError(
                f"the chosen members of row {row} of B are not side by side, so a table can't list them: tarcat -f "
                "makes shards of them alone"
            )
        columns[begin] = pa.array(low.astype(np.uint64), mask=is_empty)
        columns[end] = pa.array(high.astype(np.uint64), mask=is_empty)
        numbers, _ = whole_numbers(columns[shard])
        columns[shard] = pa.array(numbers.astype(np.int32), mask=is_empty)
        chosen_indexes = [index for index, name in enumerate(names) if is_chosen(name)]
        columns[members] = pa.StructArray.from_arrays(
            [places[n] for n in chosen_indexes], [names[n] for n in chosen_indexes]
        )

    def _check_fields(self, rows: Any) -> None:
        """Raise SampleError if a sample of *rows*, a joined record batch, has one field in A and in B.

        Names are compared as `fold` returns them, such as jpg and JPG; two such fields in one set are no error.
        """
        import numpy as np

        counts = {name: np.zeros(len(rows), np.int32) for name in self._shared}
        for number in schema.sets_in(rows.schema.names):
            fields = schema.fields_in_set(rows.schema, number)
            places = rows.column(schema.name_in_set(schema.MEMBERS_COLUMN, number)).flatten() if fields else ()
            found: dict[str, Any] = {}  # of this set; n.JPG and n.jpg of one set are one field here
            for field, place in zip(fields, places, strict=True):
                name = self._how.fold(field)
                found[name] = found.get(name, False) | valid_mask(place)
            for name in counts.keys() & found.keys():
                counts[name] += found[name]
        for name, count in counts.items():
            for wrong in np.flatnonzero(count > 1)[:1].tolist():
                key = rows.column(schema.KEY_COLUMN)[wrong].as_py()
                url = self.catalog.urls[rows.column(schema.SHARD_COLUMN)[wrong].as_py()]
                raise SampleError(
                    f"sample {key!r} has the field {name!r} in A and in B (-x {name} leaves out that of B)", url=url
                )


def _is_about_chosen(column: str, fields: Sequence[str], is_chosen: IsChosen) -> bool:
    """True if the *column* of values is about a chosen one of *fields*, as `jpg.width` is about jpg.

    Of several fields, it is about the longest name; about none, such as a score, it is chosen by its own name.
    """
    about = [field for field in fields if column == field or column.startswith(f"{field}.")]
    return is_chosen(max(about, key=len) if about else column)


class _RowReader:
    """The rows of *batches*, record batches of one schema, as one sequence: `take` returns any number of them."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._held: list[Any] = []

    def take(self, count: int) -> Any:
        """Return the next *count* rows as one record batch; None for 0. There must be as many."""
        if not count:
            return None
        while sum(map(len, self._held)) < count:
            self._held.append(next(self._batches))
        table = schema.import_arrow().Table.from_batches(self._held).combine_chunks()
        self._held = table.slice(count).to_batches()
        (rows,) = table.slice(0, count).combine_chunks().to_batches()
        return rows


def warn_of_order(partners: Any, account: Account) -> None:
    """Warn in *account* if rows of B, read in the order of A, take over twice the reads of their own order.

    *partners*: array of the row numbers of B in the order of A. Adjacent rows of B take one read.
    """
    import numpy as np

    reads = _count_runs(partners)
    if reads > 2 * (in_own_order := _count_runs(np.sort(partners))):
        account.warn(
            f"samples of B are in another order than those of A: in the order of A they take {several(reads, 'read')}, "
            f"in their own {in_own_order:,} (tarsort puts both in the order of their keys)"
        )


def _count_runs(rows: Any) -> int:
    """Return the number of runs of numbers, each the one before plus 1, in the array *rows*; 0 if it is empty."""
    import numpy as np

    return int((np.diff(rows) != 1).sum()) + 1 if len(rows) else 0
