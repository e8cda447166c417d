"""The report of tarstat: its facts, one fact per line for a pipe, and sections for a terminal.

Lines and sections take the facts in the form of `tarstat --json`. Names and values from archives are escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tartools.errors import in_units, printable, several, shown
from tartools.samples.account import SORT_HINT
from tartools.show.sections import MAX_PLACES_LISTED, Part, Section, draw_skyline, percent, share_of, shorten
from tartools.stages.summary import BUCKET_BITS, Distribution, FieldSummary, LengthCounts, Summary

Facts = Mapping[str, Any]

MAX_NAME_CHARS = 16  # characters of a field name in a table; longer ones are cut
MAX_FIELD_ROWS = 40  # of a table of fields
MAX_TABLE_ROWS = 8  # classes, sizes or combinations in a table
TOO_MANY_VALUES = "more than 1,000"
MICROSECONDS_PER_SECOND = 1_000_000
MICROSECONDS_PER_HOUR = 3600 * MICROSECONDS_PER_SECOND
HISTOGRAM_STEPS = 12  # of a histogram


def facts_of(summary: Summary, urls: Sequence[str], size: int, torn: Container[bytes]) -> dict[str, Any]:
    """Return the facts of --json about the samples in *summary*, read from the shards *urls*, at least one.

    Keys: samples, members, bytes (archives, payloads, headers, padding, other: outside of samples), shards
    (`balance_facts`); fields (a list of `facts_of_field`) and combinations (a list of fields and samples, most frequent
    first), each None if over 1,000; values (a list of `facts_of_values`), if columns were counted. *size*: unpacked
    bytes of the shards. *torn*: keys that return later in their shard, as bytes.
    """
    combinations = sort_by_count({fields: tally.count for fields, tally in summary.combinations.items()})
    facts = {
        "samples": summary.samples,
        "members": summary.members,
        "bytes": {
            "archives": size,
            "payloads": summary.payloads,
            "headers": summary.stored - summary.payloads - summary.padding,
            "padding": summary.padding,
            "other": size - summary.stored,
        },
        "shards": balance_facts(summary.shards, urls),
        "fields": None
        if summary.many_fields
        else [facts_of_field(name, field, summary, torn) for name, field in summary.fields.items()],
        "combinations": None
        if summary.many_combinations
        else [{"fields": fields.split("/"), "samples": count} for fields, count in combinations.items()],
    }
    if summary.values:
        facts["values"] = [facts_of_values(name, field, summary.samples) for name, field in summary.values.items()]
    return facts


def facts_of_values(name: str, values: FieldSummary, samples: int) -> dict[str, Any]:
    """Return the facts of --json about the *values* of the column *name*; *samples*: count of all samples.

    Keys: field, samples (with value), missing (without), missing_in (first key or None), classes (`facts_of_classes`).
    """
    return {
        "field": name,
        "samples": values.samples,
        "missing": samples - values.samples,
        "missing_in": values.lacking,
        "classes": facts_of_classes(values),
    }


def facts_of_classes(field: FieldSummary) -> dict[str, Any]:
    """Return the facts of --json about the classes of *field*.

    Keys: values (number), counts (class -> count, largest first), both None if over 1,000; long (count over 256 bytes).
    """
    counts = None if field.classes is None else sort_by_count(field.classes)
    return {"values": None if counts is None else len(counts), "counts": counts, "long": field.long}


def facts_of_field(name: str, field: FieldSummary, summary: Summary, torn: Container[bytes]) -> dict[str, Any]:
    """Return the facts of --json about one *field*, called *name*. *summary*: all samples.

    Keys: field, members, samples (with it), missing (without), missing_in (first key without, or None), missing_keys
    (first keys without, if most samples have it, else []; None: unknown), torn (first key without that is in *torn*;
    None: none or unknown), bytes, sizes (min, p5, median, p95, max), histogram (`count_bins`); classes, if any;
    lengths, pictures, if measured. pictures: formats, sizes (value -> count; sizes None if over 1,000), width, height
    (`spread_facts`), broken (count), broken_in and why (None if 0), broken_keys. *torn*: keys, as in `facts_of`.
    """
    samples, in_most_samples = summary.samples, 2 * field.samples > summary.samples
    lacking = summary.keys_lacking(name) if field.samples < samples else []
    returning_keys = (key for key in lacking or () if key.encode("utf-8", "surrogateescape") in torn)
    facts = {
        "field": name,
        "members": field.members,
        "samples": field.samples,
        "missing": samples - field.samples,
        "missing_in": field.lacking,
        "missing_keys": lacking if in_most_samples else [],
        "torn": next(returning_keys, None),
        "bytes": field.sizes.total,
        "sizes": {
            "min": field.sizes.minimum,
            "p5": field.sizes.quantile(5),
            "median": field.sizes.quantile(50),
            "p95": field.sizes.quantile(95),
            "max": field.sizes.maximum,
        },
        "histogram": count_bins(field.sizes),
    }
    if field.classes != {} or field.long:
        facts["classes"] = facts_of_classes(field)
    if field.pictures:
        pictures = field.pictures
        facts["pictures"] = {
            "formats": sort_by_count(pictures.formats or {}),
            "sizes": None if pictures.sizes is None else sort_by_count(pictures.sizes),
            "width": spread_facts(pictures.widths),
            "height": spread_facts(pictures.heights),
            "broken": pictures.broken.count,
            "broken_in": pictures.broken.first[0] if pictures.broken.first else None,
            "why": pictures.why,
            "broken_keys": pictures.broken.first,
        }
    if field.lengths:
        facts["lengths"] = facts_of_lengths(field.lengths)
    return facts


def facts_of_lengths(lengths: LengthCounts) -> dict[str, Any]:
    """Return the facts of --json about the *lengths* of sounds or videos.

    Keys: count (of lengths measured), hours and seconds in all; min, median and max in seconds, None if count is 0;
    broken (number), broken_in (first key or None), why (the reason there), broken_keys (first keys).
    """
    times, broken = lengths.microseconds, lengths.broken
    return {
        "count": sum(times.buckets.values()),
        "hours": times.total / MICROSECONDS_PER_HOUR,
        "seconds": times.total / MICROSECONDS_PER_SECOND,
        **{
            name: None if time is None else time / MICROSECONDS_PER_SECOND for name, time in spread_facts(times).items()
        },
        "broken": broken.count,
        "broken_in": broken.first[0] if broken.first else None,
        "why": lengths.why,
        "broken_keys": broken.first,
    }


def spread_facts(numbers: Distribution) -> dict[str, int | None]:
    """Return {"min", "median", "max"} of *numbers*, each None without numbers; the median is up to 1 % too small."""
    has_numbers = numbers.minimum is not None
    return {"min": numbers.minimum, "median": numbers.quantile(50) if has_numbers else None, "max": numbers.maximum}


def count_bins(numbers: Distribution) -> list[int]:
    """Return the counts of *numbers*, at least one, in up to 12 bins, ascending, with about equally many buckets."""
    counts_by_bucket = {bucket_number(low): count for low, count in numbers.buckets.items()}
    first, buckets = min(counts_by_bucket), max(counts_by_bucket) - min(counts_by_bucket) + 1
    counts = [0] * min(HISTOGRAM_STEPS, buckets)
    for bucket, count in counts_by_bucket.items():
        counts[(bucket - first) * len(counts) // buckets] += count
    return counts


def bucket_number(low: int) -> int:
    """Return the number of buckets of a `Distribution` before the bucket that begins at *low*.

    >>> bucket_number(255), bucket_number(256), bucket_number(512)
    (255, 256, 384)
    """
    shift = max(0, low.bit_length() - BUCKET_BITS)
    return (shift << BUCKET_BITS - 1) + (low >> shift)


def sort_by_count(counts: dict[str, int]) -> dict[str, int]:
    """Return *counts* sorted, the largest first; equal ones by their key."""
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


def balance_facts(counts_by_url: dict[str, list[int]], urls: Sequence[str]) -> dict[str, Any]:
    """Return the facts of --json about the distribution of samples and bytes over the shards *urls*, at least one.

    Keys: count; samples and bytes (min, median, max); smallest and largest, the shard by bytes (url, samples, bytes).
    *counts_by_url*: [samples, bytes] by URL, absent: 0; for a URL twice in *urls*, the sum of two readings.
    """
    times = Counter(urls)
    counts = [[number // times[url] for number in counts_by_url.get(url, (0, 0))] for url in urls]
    facts: dict[str, Any] = {"count": len(urls)}
    for column, quantity in enumerate(("samples", "bytes")):
        numbers = sorted(count[column] for count in counts)
        facts[quantity] = {"min": numbers[0], "median": numbers[(len(numbers) - 1) // 2], "max": numbers[-1]}
    for quantity, choose in (("smallest", min), ("largest", max)):
        number = choose(range(len(urls)), key=lambda number: counts[number][1])
        facts[quantity] = {"url": shown(urls[number]), "samples": counts[number][0], "bytes": counts[number][1]}
    return facts


def plain_lines(facts: Facts) -> Iterator[str]:
    """Yield *facts* of `tarstat --json` as lines "SUBJECT: VALUES"; of a field up to 20 keys, 8 sizes of pictures."""
    size, shards = facts["bytes"], facts["shards"]
    yield f"shards: {shards['count']}"
    yield f"samples: {facts['samples']}"
    yield f"members: {facts['members']}"
    yield f"archives: {size['archives']} bytes"
    for quantity in ("payloads", "headers", "padding", "other"):
        yield f"{quantity}: {size[quantity]} bytes ({percent(size[quantity], size['archives'])})"
    if shards["count"] > 1:
        for quantity in ("samples", "bytes"):
            counts = shards[quantity]
            yield f"{quantity} per shard: {counts['min']} to {counts['max']}, median {counts['median']}"
        if is_uneven(shards):
            for quantity in ("smallest", "largest"):
                shard = shards[quantity]
                yield f"{quantity} shard: {shard['url']}, {shard['samples']} samples, {shard['bytes']} bytes"
    if facts["fields"] is None:
        yield f"fields: {TOO_MANY_VALUES}"
    for field in facts["fields"] or ():
        yield from field_lines(field, facts["samples"])
    for values in facts.get("values", ()):
        name = shorten(values["field"])
        if values["missing"]:
            first = shorten(values["missing_in"])
            yield f"missing {name}: {values['missing']} of {facts['samples']} samples, first {first}"
        yield from class_lines(name, values["classes"])
    if facts["combinations"] is None:
        yield f"combinations: {TOO_MANY_VALUES}"
    elif len(facts["combinations"]) > 1:
        for combination in facts["combinations"]:
            yield f"combination {join_names(combination['fields'])}: {combination['samples']} samples"


def field_lines(field: Facts, samples: int) -> Iterator[str]:
    """Yield lines about one *field*, from `facts_of_field`: up to 20 keys a flaw, 8 sizes; *samples*: count of all."""
    name, sizes = shorten(field["field"]), field["sizes"]
    yield (
        f"field {name}: {field['members']} members, {field['bytes']} bytes, each {sizes['min']} to {sizes['max']}, "
        f"median {sizes['median']}, 90 % of them {sizes['p5']} to {sizes['p95']}"
    )
    if field["missing"]:
        yield f"missing {name}: {field['missing']} of {samples} samples, first {shorten(field['missing_in'])}"
        yield from (f"missing {name} in: {key}" for key in shorten_keys(field["missing_keys"] or ()))
        if field["torn"] is not None:
            yield f"torn {name}: {torn_words(field)}"
    if pictures := field.get("pictures"):
        formats = ", ".join(f"{count} {form}" for form, count in pictures["formats"].items())
        if formats:
            yield f"pictures {name}: {formats}, {sides_in_words(pictures)}"
        if pictures["sizes"] is None:
            yield f"picture sizes {name}: {TOO_MANY_VALUES}"
        for size, count in list((pictures["sizes"] or {}).items())[:MAX_TABLE_ROWS]:
            yield f"picture size {name} {size}: {count}"
        if pictures["broken"]:
            yield f"broken {name}: {broken_in_words(pictures)}"
            yield from (f"broken {name} in: {key}" for key in shorten_keys(pictures["broken_keys"]))
    if lengths := field.get("lengths"):
        if lengths["count"]:
            yield (
                f"hours {name}: {lengths['hours']:.4f}, {lengths['count']} members, each {lengths['min']:.2f} to "
                f"{lengths['max']:.2f} seconds, median {lengths['median']:.2f}"
            )
        if lengths["broken"]:
            yield f"broken {name}: {broken_in_words(lengths)}"
            yield from (f"broken {name} in: {key}" for key in shorten_keys(lengths["broken_keys"]))
    if classes := field.get("classes"):
        yield from class_lines(name, classes)


def class_lines(name: str, classes: Facts) -> Iterator[str]:
    """Yield lines of *classes*, from `facts_of_classes`: number, each if counted. *name*: field or column, escaped."""
    yield f"classes {name}: {TOO_MANY_VALUES if classes['values'] is None else classes['values']}"
    for value, count in (classes["counts"] or {}).items():
        yield f"class {name} {shorten(value)}: {count}"
    if classes["long"]:
        yield f"no classes {name}: {classes['long']} values longer than 256 bytes"


def sides_in_words(pictures: Facts) -> str:
    """Return the sides in *pictures*, facts with sound ones: "width 10 to 20, median 15, height 8" (all are 8 high)."""
    return ", ".join(
        f"{side} {range_facts['min']} to {range_facts['max']}, median {range_facts['median']}"
        if range_facts["min"] != range_facts["max"]
        else f"{side} {range_facts['min']}"
        for side, range_facts in (("width", pictures["width"]), ("height", pictures["height"]))
    )


def broken_in_words(payloads: Facts) -> str:
    """Return "COUNT, first KEY (REASON)" of *payloads*, at least one broken: pictures or lengths of a field."""
    return f"{payloads['broken']}, first {shorten(payloads['broken_in'])} ({payloads['why']})"


def shorten_keys(first_keys: Sequence[str]) -> list[str]:
    """Return the first 20 of *first_keys*, each escaped and cut to 200 characters by `shorten`."""
    return [shorten(key) for key in first_keys[:MAX_PLACES_LISTED]]


def torn_words(field: Facts) -> str:
    """Return "KEY comes back in its shard; ADVICE" for the key in "torn", not None, of the facts *field*."""
    return f"{shorten(field['torn'])} comes back in its shard; {SORT_HINT}"


def is_uneven(shards: Facts) -> bool:
    """True if the smallest and the largest shard differ in bytes; *shards*: facts from `balance_facts`."""
    return bool(shards["smallest"]["bytes"] != shards["largest"]["bytes"])


def join_names(fields: Iterable[str]) -> str:
    """Return the names of *fields*, each escaped and cut by `shorten` ("-" for ""), separated by blanks."""
    return " ".join(shorten(name) for name in fields)


def parts(facts: Facts) -> Iterator[Part]:
    """Yield the *facts* of `tarstat --json` as parts of a report: pairs (line, its style), and `Section` tables."""
    size, shards = facts["bytes"], facts["shards"]
    yield (
        f"{several(shards['count'], 'shard')}, {several(facts['samples'], 'sample')}, "
        f"{several(facts['members'], 'member')}, {in_units(size['archives'])}",
        "bold",
    )
    total = size["archives"]
    rows = [
        (quantity, in_units(size[quantity]), percent(size[quantity], total), share_of(size[quantity], total))
        for quantity in ("payloads", "headers", "padding", "other")
    ]
    yield Section("", ("<Archives", ">bytes", ">share", "|"), rows)
    yield from field_tables(facts)
    yield from class_tables(facts)
    yield from combination_tables(facts)
    yield from shard_tables(facts)


def field_tables(facts: Facts) -> Iterator[Section]:
    """Yield the tables about the first 40 fields in *facts*: how many samples have each, sizes, pictures and lengths.

    Also of the first keys without a field that most samples have, and of broken ones. Over 1,000 fields: only a note.
    """
    fields = facts["fields"]
    if fields is None:
        yield Section(f"{TOO_MANY_VALUES}: all that follows the first dot of a name is its field", ("<Fields",), ())
        return
    note_below = f"and {len(fields) - MAX_FIELD_ROWS:,} more; --json has all" if len(fields) > MAX_FIELD_ROWS else ""
    shown = [(shorten(field["field"], MAX_NAME_CHARS), field) for field in fields[:MAX_FIELD_ROWS]]
    total = facts["bytes"]["payloads"]
    rows = [
        (
            name,
            f"{field['samples']:,}",
            f"{field['missing']:,}" if field["missing"] else "-",
            in_units(field["bytes"]),
            percent(field["bytes"], total),
            share_of(field["bytes"], total),
        )
        for name, field in shown
    ]
    if rows:
        yield Section(note_below, ("<Fields", ">samples", ">missing", ">bytes", ">share", "|"), rows)
        columns = ("min", "p5", "median", "p95", "max")
        sizes = [
            (name, *(in_units(field["sizes"][column]) for column in columns), draw_skyline(field["histogram"]))
            for name, field in shown
        ]
        yield Section("", ("<Sizes", ">min", ">5 %", ">median", ">95 %", ">max", "|"), sizes)
    for name, field in shown:
        if field.get("pictures"):
            yield picture_table(name, field["pictures"])
            yield from key_table(f"Broken {name}", field["pictures"]["broken_keys"], field["pictures"]["broken"])
        if field.get("lengths"):
            yield length_table(name, field["lengths"])
            yield from key_table(f"Broken {name}", field["lengths"]["broken_keys"], field["lengths"]["broken"])
        note = torn_words(field) if field["torn"] is not None else ""
        yield from key_table(f"Without {name}", field["missing_keys"] or (), field["missing"], note)


def key_table(title: str, first_keys: Sequence[str], count: int, note: str = "") -> Iterator[Section]:
    """Yield a table of up to 20 of *first_keys*, with a *note* below; nothing if both are empty.

    *title*: name of its column. *count*: number of all such keys; *first_keys* may be only the first ones.
    """
    count_note = (
        f"and {count - MAX_PLACES_LISTED:,} more; --json has all" if first_keys and count > MAX_PLACES_LISTED else ""
    )
    if first_keys or note:
        yield Section(
            "\n".join(filter(None, (count_note, note))), (f"<{title}",), [(key,) for key in shorten_keys(first_keys)]
        )


def picture_table(name: str, pictures: Facts) -> Section:
    """Return a table of *pictures* in field *name*: 8 most frequent sizes, none if > 1,000; below: formats, flaws."""
    sizes = list((pictures["sizes"] or {}).items())
    total = sum(pictures["formats"].values())
    rows = [(size.replace("x", " x "), f"{count:,}", share_of(count, total)) for size, count in sizes[:MAX_TABLE_ROWS]]
    formats = [f"{count:,} {form}" for form, count in pictures["formats"].items()]
    notes = [", ".join(formats), sides_in_words(pictures)] if formats else []
    if pictures["sizes"] is None or len(sizes) > MAX_TABLE_ROWS:
        notes.append(f"{TOO_MANY_VALUES if pictures['sizes'] is None else f'{len(sizes):,}'} different sizes")
    if pictures["broken"]:
        notes.append(f"broken: {broken_in_words(pictures)}")
    return Section("\n".join(notes), (f"<Pictures {name}", ">count", "|"), rows)


def length_table(name: str, lengths: Facts) -> Section:
    """Return the table about the *lengths* of the sounds or videos in the field *name*, with a note if some are broken.

    Its one row: count, their sum in hours, and the smallest, median and largest in seconds ("-" if the count is 0).
    """
    columns = ("min", "median", "max")
    row = [f"{lengths['count']:,}", f"{lengths['hours']:,.3f}"]
    row += ["-" if lengths[column] is None else f"{lengths[column]:,.2f} s" for column in columns]
    note = f"broken: {broken_in_words(lengths)}" if lengths["broken"] else ""
    return Section(note, (f"<Lengths {name}", ">count", ">hours", *(f">{column}" for column in columns)), [("", *row)])


def class_tables(facts: Facts) -> Iterator[Section]:
    """Yield a table of up to 8 classes for each field and column with any; over 1,000, or too long: a note alone."""
    for field in (*(facts["fields"] or ()), *facts.get("values", ())):
        if classes := field.get("classes"):
            counts = list((classes["counts"] or {}).items())
            notes = []
            if len(counts) > MAX_TABLE_ROWS:
                notes.append(f"{len(counts):,} classes, the rarest {counts[-1][1]:,} times")
            if classes["counts"] is None:
                notes.append(f"{TOO_MANY_VALUES} classes")
            if classes["long"]:
                notes.append(f"{classes['long']:,} values longer than 256 bytes")
            if "sizes" not in field and field["missing"]:  # of a column of values: the tables of fields do not have it
                notes.append(f"{several(field['missing'], 'sample')} without a value")
            max_count = counts[0][1] if counts else 1
            rows = [
                (shorten(value, 2 * MAX_NAME_CHARS), f"{n:,}", share_of(n, max_count))
                for value, n in counts[:MAX_TABLE_ROWS]
            ]
            yield Section(
                "\n".join(notes), (f"<Classes {shorten(field['field'], MAX_NAME_CHARS)}", ">count", "|"), rows
            )


def combination_tables(facts: Facts) -> Iterator[Section]:
    """Yield a table of the 8 most frequent combinations of fields in *facts*, if several; over 1,000: only a note."""
    combinations = facts["combinations"]
    if combinations is None or len(combinations) > 1:
        rows = [
            (
                f"{combination['samples']:,}",
                share_of(combination["samples"], facts["samples"]),
                join_names(combination["fields"]),
            )
            for combination in (combinations or ())[:MAX_TABLE_ROWS]
        ]
        note = (
            f"{TOO_MANY_VALUES} combinations"
            if combinations is None
            else f"{len(combinations):,} combinations"
            if combinations[MAX_TABLE_ROWS:]
            else ""
        )
        yield Section(note, (">Samples", "|", "<with these fields"), rows)


def shard_tables(facts: Facts) -> Iterator[Section]:
    """Yield the table of min, median and max of samples and bytes in a shard, from *facts*; nothing for one shard."""
    shards = facts["shards"]
    if shards["count"] > 1:
        samples, sizes = shards["samples"], shards["bytes"]
        columns = ("min", "median", "max")
        rows = [
            ("samples", *(f"{samples[column]:,}" for column in columns)),
            ("bytes", *(in_units(sizes[column]) for column in columns)),
        ]
        notes = [f"{extreme} {shorten(shards[extreme]['url'])}" for extreme in ("smallest", "largest")]
        yield Section(
            "\n".join(notes if is_uneven(shards) else []), ("<Shards", *(f">{name}" for name in columns)), rows
        )


def flaw_lines(summary: Summary) -> Iterator[str]:
    """Yield a line about broken samples in *summary*, if any, and one for each field that most have and some lack.

    Only the former if there are too many combinations of fields (`many_combinations`).
    """
    if broken := summary.findings.get("broken"):
        yield flaw_line("broken", broken.count, broken.first, summary.samples)
    if summary.many_combinations:
        return
    counts = {tuple(fields.split("/")): tally.count for fields, tally in summary.combinations.items()}
    for name in sorted(set[str]().union(*counts)):
        lacking = sum(count for fields, count in counts.items() if name not in fields)
        if lacking and 2 * lacking < summary.samples:
            yield flaw_line(f"without {name or '-'}", lacking, summary.keys_lacking(name) or (), summary.samples)


def flaw_line(description: str, count: int, keys: Sequence[str], samples: int) -> str:
    """Return the line "DESCRIPTION: 5 of 100 samples: KEY, KEY, and 3 more"; *keys*: first ones with this flaw."""
    rest_note = f", and {count - len(keys):,} more" if count > len(keys) else ""
    listed = ", ".join(printable(key) for key in keys)
    return f"{description}: {count:,} of {several(samples, 'sample')}: {listed}{rest_note}"
