"""The report of tarstat: its facts, one fact per line for a pipe, and sections for a terminal.

Lines and sections take the facts in the form of `tarstat --json`. Names and values from archives are escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tartools.errors import in_units, printable, several, shown
from tartools.samples.account import TOGETHER
from tartools.show.sections import LISTED, Part, Section, percent, share_of, shortened, skyline
from tartools.stages.summary import DIGITS, Distribution, FieldSummary, Summary

Facts = Mapping[str, Any]

NAME = 16  # characters of a field name in a table; longer ones are cut
ROWS = 40  # of a table of fields
MOST = 8  # classes, sizes or combinations in a table
MANY = "more than 1,000"
STEPS = 12  # of a histogram


def facts_of(found: Summary, urls: Sequence[str], size: int, torn: Container[bytes]) -> dict[str, Any]:
    """Return what was *found* in the shards *urls*, which have *size* bytes, in the shape of --json.

    *torn* are keys that come back in their shard.
    """
    combinations = by_count({fields: tally.count for fields, tally in found.combinations.items()})
    return {
        "samples": found.samples,
        "members": found.members,
        "bytes": {
            "archives": size,
            "payloads": found.payloads,
            "headers": found.stored - found.payloads - found.padding,
            "padding": found.padding,
            "other": size - found.stored,
        },
        "shards": balance(found.shards, urls),
        "fields": None
        if found.many_fields
        else [facts_of_field(name, field, found, torn) for name, field in found.fields.items()],
        "combinations": None
        if found.many_combinations
        else [{"fields": fields.split("/"), "samples": count} for fields, count in combinations.items()],
    }


def facts_of_field(name: str, field: FieldSummary, found: Summary, torn: Container[bytes]) -> dict[str, Any]:
    """Return what was *found* in the *field* called *name*; *torn* are keys that come back."""
    samples, usual = found.samples, 2 * field.samples > found.samples
    lacking = found.lacking(name) if field.samples < samples else []
    back = (key for key in lacking or () if key.encode("utf-8", "surrogateescape") in torn)
    facts = {
        "field": name,
        "members": field.members,
        "samples": field.samples,
        "missing": samples - field.samples,
        "missing_in": field.lacking,
        "missing_keys": lacking if usual else [],
        "torn": next(back, None),
        "bytes": field.sizes.total,
        "sizes": {
            "min": field.sizes.least,
            "p5": field.sizes.quantile(5),
            "median": field.sizes.quantile(50),
            "p95": field.sizes.quantile(95),
            "max": field.sizes.greatest,
        },
        "histogram": histogram(field.sizes),
    }
    if field.classes != {} or field.long:
        counts = None if field.classes is None else by_count(field.classes)
        facts["classes"] = {
            "values": None if counts is None else len(counts),
            "counts": counts,
            "long": field.long,
        }
    if field.pictures:
        pictures = field.pictures
        facts["pictures"] = {
            "formats": by_count(pictures.formats or {}),
            "sizes": None if pictures.sizes is None else by_count(pictures.sizes),
            "width": spread(pictures.widths),
            "height": spread(pictures.heights),
            "broken": pictures.broken.count,
            "broken_in": pictures.broken.first[0] if pictures.broken.first else None,
            "why": pictures.why,
            "broken_keys": pictures.broken.first,
        }
    return facts


def spread(numbers: Distribution) -> dict[str, int | None]:
    """Return least, median and greatest of *numbers*; None if there are none."""
    known = numbers.least is not None
    return {"min": numbers.least, "median": numbers.quantile(50) if known else None, "max": numbers.greatest}


def histogram(numbers: Distribution) -> list[int]:
    """Return how many *numbers* fall into each of at most 12 equally wide steps of buckets, from least to greatest."""
    places = {bucket_number(low): count for low, count in numbers.buckets.items()}
    first, buckets = min(places), max(places) - min(places) + 1
    counts = [0] * min(STEPS, buckets)
    for where, count in places.items():
        counts[(where - first) * len(counts) // buckets] += count
    return counts


def bucket_number(low: int) -> int:
    """Return how many buckets of numbers there are before the one that begins at *low*.

    >>> bucket_number(255), bucket_number(256), bucket_number(512)
    (255, 256, 384)
    """
    shift = max(0, low.bit_length() - DIGITS)
    return (shift << DIGITS - 1) + (low >> shift)


def by_count(counts: dict[str, int]) -> dict[str, int]:
    """Return *counts*, the largest first, equal ones by value."""
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def balance(found: dict[str, list[int]], urls: Sequence[str]) -> dict[str, Any]:
    """Return how samples and bytes are spread over the shards *urls*; one that is named twice was read twice."""
    times = Counter(urls)
    counts = [[number // times[url] for number in found.get(url, (0, 0))] for url in urls]
    facts: dict[str, Any] = {"count": len(urls)}
    for column, what in enumerate(("samples", "bytes")):
        numbers = sorted(count[column] for count in counts)
        facts[what] = {"min": numbers[0], "median": numbers[(len(numbers) - 1) // 2], "max": numbers[-1]}
    for what, choose in (("smallest", min), ("largest", max)):
        number = choose(range(len(urls)), key=lambda number: counts[number][1])
        facts[what] = {"url": shown(urls[number]), "samples": counts[number][0], "bytes": counts[number][1]}
    return facts


def plain_lines(facts: Facts) -> Iterator[str]:
    """Yield the *facts*, one per line: the subject, a colon, plain numbers."""
    size, shards = facts["bytes"], facts["shards"]
    yield f"shards: {shards['count']}"
    yield f"samples: {facts['samples']}"
    yield f"members: {facts['members']}"
    yield f"archives: {size['archives']} bytes"
    for what in ("payloads", "headers", "padding", "other"):
        yield f"{what}: {size[what]} bytes ({percent(size[what], size['archives'])})"
    if shards["count"] > 1:
        for what in ("samples", "bytes"):
            yield f"{what} per shard: {shards[what]['min']} to {shards[what]['max']}, median {shards[what]['median']}"
        if uneven(shards):
            for what in ("smallest", "largest"):
                shard = shards[what]
                yield f"{what} shard: {shard['url']}, {shard['samples']} samples, {shard['bytes']} bytes"
    if facts["fields"] is None:
        yield f"fields: {MANY}"
    for field in facts["fields"] or ():
        yield from field_lines(field, facts["samples"])
    if facts["combinations"] is None:
        yield f"combinations: {MANY}"
    elif len(facts["combinations"]) > 1:
        for each in facts["combinations"]:
            yield f"combination {together(each['fields'])}: {each['samples']} samples"


def field_lines(field: Facts, samples: int) -> Iterator[str]:
    """Yield the facts of one *field*, one per line; *samples* is the count of all samples."""
    name, sizes = shortened(field["field"]), field["sizes"]
    yield (
        f"field {name}: {field['members']} members, {field['bytes']} bytes, each {sizes['min']} to {sizes['max']}, "
        f"median {sizes['median']}, 90 % of them {sizes['p5']} to {sizes['p95']}"
    )
    if field["missing"]:
        yield f"missing {name}: {field['missing']} of {samples} samples, first {shortened(field['missing_in'])}"
        yield from (f"missing {name} in: {key}" for key in keys(field["missing_keys"] or ()))
        if field["torn"] is not None:
            yield f"torn {name}: {torn_words(field)}"
    if pictures := field.get("pictures"):
        formats = ", ".join(f"{count} {form}" for form, count in pictures["formats"].items())
        if formats:
            yield f"pictures {name}: {formats}, {sides_in_words(pictures)}"
        if pictures["sizes"] is None:
            yield f"picture sizes {name}: {MANY}"
        for size, count in list((pictures["sizes"] or {}).items())[:MOST]:
            yield f"picture size {name} {size}: {count}"
        if pictures["broken"]:
            yield f"broken {name}: {broken_in_words(pictures)}"
            yield from (f"broken {name} in: {key}" for key in keys(pictures["broken_keys"]))
    if classes := field.get("classes"):
        yield f"classes {name}: {MANY if classes['values'] is None else classes['values']}"
        for value, count in (classes["counts"] or {}).items():
            yield f"class {name} {shortened(value)}: {count}"
        if classes["long"]:
            yield f"no classes {name}: {classes['long']} values longer than 256 bytes"


def sides_in_words(pictures: Facts) -> str:
    """Return the widths and heights of *pictures* in words."""
    return ", ".join(
        f"{what} {one['min']} to {one['max']}, median {one['median']}"
        if one["min"] != one["max"]
        else f"{what} {one['min']}"
        for what, one in (("width", pictures["width"]), ("height", pictures["height"]))
    )


def broken_in_words(pictures: Facts) -> str:
    """Return in words how many of *pictures* could not be read."""
    return f"{pictures['broken']}, first {shortened(pictures['broken_in'])} ({pictures['why']})"


def keys(found: Sequence[str]) -> list[str]:
    """Return the first of the keys *found* for a line each."""
    return [shortened(key) for key in found[:LISTED]]


def torn_words(field: Facts) -> str:
    """Return in words that samples without *field* are parts of others."""
    return f"{shortened(field['torn'])} comes back in its shard; {TOGETHER}"


def uneven(shards: Facts) -> bool:
    """Return whether *shards* differ in size."""
    return bool(shards["smallest"]["bytes"] != shards["largest"]["bytes"])


def together(fields: Iterable[str]) -> str:
    """Return the names of *fields*, separated by blanks."""
    return " ".join(shortened(name) for name in fields)


def parts(facts: Facts) -> Iterator[Part]:
    """Yield the *facts* as parts of a report on a terminal."""
    size, shards = facts["bytes"], facts["shards"]
    yield (
        f"{several(shards['count'], 'shard')}, {several(facts['samples'], 'sample')}, "
        f"{several(facts['members'], 'member')}, {in_units(size['archives'])}",
        "bold",
    )
    whole = size["archives"]
    rows = [
        (what, in_units(size[what]), percent(size[what], whole), share_of(size[what], whole))
        for what in ("payloads", "headers", "padding", "other")
    ]
    yield Section("", ("<Archives", ">bytes", ">share", "|"), rows)
    yield from field_tables(facts)
    yield from class_tables(facts)
    yield from combination_tables(facts)
    yield from shard_tables(facts)


def field_tables(facts: Facts) -> Iterator[Section]:
    """Yield the tables about fields: how many samples have each, their sizes, their pictures."""
    fields = facts["fields"]
    if fields is None:
        yield Section(f"{MANY}: all that follows the first dot of a name is its field", ("<Fields",), ())
        return
    more = f"and {len(fields) - ROWS:,} more; --json has all" if len(fields) > ROWS else ""
    shown = [(shortened(field["field"], NAME), field) for field in fields[:ROWS]]
    whole = facts["bytes"]["payloads"]
    rows = [
        (
            name,
            f"{field['samples']:,}",
            f"{field['missing']:,}" if field["missing"] else "-",
            in_units(field["bytes"]),
            percent(field["bytes"], whole),
            share_of(field["bytes"], whole),
        )
        for name, field in shown
    ]
    if rows:
        yield Section(more, ("<Fields", ">samples", ">missing", ">bytes", ">share", "|"), rows)
        columns = ("min", "p5", "median", "p95", "max")
        sizes = [
            (name, *(in_units(field["sizes"][what]) for what in columns), skyline(field["histogram"]))
            for name, field in shown
        ]
        yield Section("", ("<Sizes", ">min", ">5 %", ">median", ">95 %", ">max", "|"), sizes)
    for name, field in shown:
        if field.get("pictures"):
            yield picture_table(name, field["pictures"])
            yield from key_table(f"Broken {name}", field["pictures"]["broken_keys"], field["pictures"]["broken"])
        note = torn_words(field) if field["torn"] is not None else ""
        yield from key_table(f"Without {name}", field["missing_keys"] or (), field["missing"], note)


def key_table(title: str, found: Sequence[str], count: int, note: str = "") -> Iterator[Section]:
    """Yield the table of the first keys of those *found*, of *count* in all, with a *note*, unless both are empty."""
    more = f"and {count - LISTED:,} more; --json has all" if found and count > LISTED else ""
    if found or note:
        yield Section("\n".join(filter(None, (more, note))), (f"<{title}",), [(key,) for key in keys(found)])


def picture_table(name: str, pictures: Facts) -> Section:
    """Return the table about the *pictures* of a field: formats, widths and heights, and the most frequent sizes."""
    sizes = list((pictures["sizes"] or {}).items())
    whole = sum(pictures["formats"].values())
    rows = [(size.replace("x", " x "), f"{count:,}", share_of(count, whole)) for size, count in sizes[:MOST]]
    formats = [f"{count:,} {form}" for form, count in pictures["formats"].items()]
    notes = [", ".join(formats), sides_in_words(pictures)] if formats else []
    if pictures["sizes"] is None or len(sizes) > MOST:
        notes.append(f"{MANY if pictures['sizes'] is None else f'{len(sizes):,}'} different sizes")
    if pictures["broken"]:
        notes.append(f"broken: {broken_in_words(pictures)}")
    return Section("\n".join(notes), (f"<Pictures {name}", ">count", "|"), rows)


def class_tables(facts: Facts) -> Iterator[Section]:
    """Yield a table of the most frequent classes for each field with classes."""
    for field in facts["fields"] or ():
        if classes := field.get("classes"):
            counts = list((classes["counts"] or {}).items())
            notes = []
            if len(counts) > MOST:
                notes.append(f"{len(counts):,} classes, the rarest {counts[-1][1]:,} times")
            if classes["counts"] is None:
                notes.append(f"{MANY} classes")
            if classes["long"]:
                notes.append(f"{classes['long']:,} values longer than 256 bytes")
            most = counts[0][1] if counts else 1
            rows = [(shortened(value, 2 * NAME), f"{n:,}", share_of(n, most)) for value, n in counts[:MOST]]
            yield Section("\n".join(notes), (f"<Classes {shortened(field['field'], NAME)}", ">count", "|"), rows)


def combination_tables(facts: Facts) -> Iterator[Section]:
    """Yield the table of combinations of fields, unless all samples have the same fields."""
    found = facts["combinations"]
    if found is None or len(found) > 1:
        rows = [
            (f"{each['samples']:,}", share_of(each["samples"], facts["samples"]), together(each["fields"]))
            for each in (found or ())[:MOST]
        ]
        more = f"{MANY} combinations" if found is None else f"{len(found):,} combinations" if found[MOST:] else ""
        yield Section(more, (">Samples", "|", "<with these fields"), rows)


def shard_tables(facts: Facts) -> Iterator[Section]:
    """Yield the table about the sizes of shards, if there are several."""
    shards = facts["shards"]
    if shards["count"] > 1:
        samples, sizes = shards["samples"], shards["bytes"]
        columns = ("min", "median", "max")
        rows = [
            ("samples", *(f"{samples[column]:,}" for column in columns)),
            ("bytes", *(in_units(sizes[column]) for column in columns)),
        ]
        notes = [f"{what} {shortened(shards[what]['url'])}" for what in ("smallest", "largest")]
        yield Section("\n".join(notes if uneven(shards) else []), ("<Shards", *(f">{name}" for name in columns)), rows)


def flaws(found: Summary) -> Iterator[str]:
    """Yield a line about samples that are broken, and one for each field that most samples have and others lack."""
    if broken := found.findings.get("broken"):
        yield flaw("broken", broken.count, broken.first, found.samples)
    if found.many_combinations:
        return
    counts = {tuple(fields.split("/")): tally.count for fields, tally in found.combinations.items()}
    for name in sorted(set[str]().union(*counts)):
        lacking = sum(count for fields, count in counts.items() if name not in fields)
        if lacking and 2 * lacking < found.samples:
            yield flaw(f"without {name or '-'}", lacking, found.lacking(name) or (), found.samples)


def flaw(what: str, count: int, keys: Sequence[str], samples: int) -> str:
    """Return in a line that *count* of *samples* are *what*, and the first of their *keys*."""
    more = f", and {count - len(keys):,} more" if count > len(keys) else ""
    listed = ", ".join(printable(key) for key in keys)
    return f"{what}: {count:,} of {several(samples, 'sample')}: {listed}{more}"
