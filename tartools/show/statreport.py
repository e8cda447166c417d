"""The report of tarstat: tables with bars for a terminal, one fact per line for a pipe.

Both take the facts in the form of `tarstat --json`. Names and values from archives are escaped.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tartools.errors import in_units, printable, several
from tartools.samples.account import TOGETHER
from tartools.show.sheet import cells
from tartools.show.sound import BARS
from tartools.show.terminal import Screen

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Facts = Mapping[str, Any]

EIGHTHS = "▏▎▍▌▋▊▉█"
BAR, GAP = 16, 2  # characters: of a bar, between columns
LEAST = 8  # characters that remain of a word that is cut
NAME = 16  # characters of a field name in a table; longer ones are cut
LONG = 200  # characters of other words; longer ones are cut
ROWS = 40  # of a table of fields
LISTED = 20  # keys of broken pictures, or of samples without a field
MOST = 8  # classes, sizes or combinations in a table
MANY = "more than 1,000"


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
    name, sizes = shortened(field["field"], LONG), field["sizes"]
    yield (
        f"field {name}: {field['members']} members, {field['bytes']} bytes, each {sizes['min']} to {sizes['max']}, "
        f"median {sizes['median']}, 90 % of them {sizes['p5']} to {sizes['p95']}"
    )
    if field["missing"]:
        yield f"missing {name}: {field['missing']} of {samples} samples, first {shortened(field['missing_in'], LONG)}"
        yield from (f"missing {name} in: {key}" for key in keys(field["missing_keys"] or ()))
        if field["torn"] is not None:
            yield f"torn {name}: {torn(field)}"
    if pictures := field.get("pictures"):
        formats = ", ".join(f"{count} {form}" for form, count in pictures["formats"].items())
        if formats:
            yield f"pictures {name}: {formats}, {sides(pictures)}"
        if pictures["sizes"] is None:
            yield f"picture sizes {name}: {MANY}"
        for size, count in list((pictures["sizes"] or {}).items())[:MOST]:
            yield f"picture size {name} {size}: {count}"
        if pictures["broken"]:
            yield f"broken {name}: {broken(pictures)}"
            yield from (f"broken {name} in: {key}" for key in keys(pictures["broken_keys"]))
    if classes := field.get("classes"):
        yield f"classes {name}: {MANY if classes['values'] is None else classes['values']}"
        for value, count in (classes["counts"] or {}).items():
            yield f"class {name} {shortened(value, LONG)}: {count}"
        if classes["long"]:
            yield f"no classes {name}: {classes['long']} values longer than 256 bytes"


def sides(pictures: Facts) -> str:
    """Return the widths and heights of *pictures* in words."""
    return ", ".join(
        f"{what} {one['min']} to {one['max']}, median {one['median']}"
        if one["min"] != one["max"]
        else f"{what} {one['min']}"
        for what, one in (("width", pictures["width"]), ("height", pictures["height"]))
    )


def broken(pictures: Facts) -> str:
    """Return in words how many of *pictures* could not be read."""
    return f"{pictures['broken']}, first {shortened(pictures['broken_in'], LONG)} ({pictures['why']})"


def keys(found: Sequence[str]) -> list[str]:
    """Return the first of the keys *found* for a line each."""
    return [shortened(key, LONG) for key in found[:LISTED]]


def torn(field: Facts) -> str:
    """Return in words that samples without *field* are parts of others."""
    return f"{shortened(field['torn'], LONG)} comes back in its shard; {TOGETHER}"


def uneven(shards: Facts) -> bool:
    """Return whether *shards* differ in size."""
    return bool(shards["smallest"]["bytes"] != shards["largest"]["bytes"])


def together(fields: Iterable[str]) -> str:
    """Return the names of *fields*, separated by blanks."""
    return " ".join(shortened(name, LONG) for name in fields)


def shortened(text: str, width: int) -> str:
    r"""Return *text* on one line of at most *width* characters; a dash for none.

    >>> shortened("a\x1b[2J", 20), shortened("segmentation", 8), shortened("", 5)
    ('a\\x1b[2J', 'segment…', '-')
    """
    line = printable(text[: width + 1]) or "-"
    return line if len(line) <= width else line[: width - 1] + "…"


def percent(part: int, whole: int) -> str:
    """Return *part* as a percentage of *whole*."""
    return f"{100 * part / max(whole, 1):.1f} %"


def bar(part: float, whole: float, width: int = BAR) -> str:
    """Return a bar for *part* of *whole*, which would fill *width*; a bar for more than 0 is never empty.

    >>> bar(1, 2, 4), bar(1, 64, 4), bar(0, 3)
    ('██', '▏', '')
    """
    eighths = round(8 * width * part / max(whole, 1))
    eighths = max(eighths, 1) if part else 0
    return EIGHTHS[-1] * (eighths // 8) + (EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")


def skyline(counts: Iterable[int]) -> str:
    """Return *counts* as bars side by side.

    >>> skyline([0, 1, 4, 8])
    ' ▁▄█'
    """
    counts = list(counts)
    most = max(counts, default=0)
    return "".join(BARS[-(-8 * count // most) - 1] if count else " " for count in counts)


def console_for(screen: Screen) -> Console:
    """Return what draws on *screen*, in colours if it takes escape codes; nothing is written but to a capture."""
    from rich.console import Console

    return Console(
        file=io.StringIO(),
        width=screen.columns,
        force_terminal=screen.codes,
        color_system="standard" if screen.codes else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )


def tables(facts: Facts, screen: Screen) -> str:
    """Return the *facts* as tables as wide as *screen*, in colours if it takes escape codes."""
    console = console_for(screen)
    size, shards = facts["bytes"], facts["shards"]
    with console.capture() as captured:
        console.print(
            f"{several(shards['count'], 'shard')}, {several(facts['samples'], 'sample')}, "
            f"{several(facts['members'], 'member')}, {in_units(size['archives'])}",
            style="bold",
        )
        parts = [(what, size[what]) for what in ("payloads", "headers", "padding", "other")]
        rows = [
            (what, in_units(part), percent(part, size["archives"]), bar(part, size["archives"])) for what, part in parts
        ]
        sections = [Section("", ("<Archives", ">bytes", ">share", "|"), rows), *field_tables(facts)]
        sections += [*class_tables(facts), *combination_tables(facts), *shard_tables(facts)]
        for section in sections:
            console.print()
            console.print(section)
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())


class Section(NamedTuple):
    """A table of *rows*, with the text *more* below it.

    A sign precedes the name of each of *columns*: < left, > right, | a bar. The first column names the rows. If the
    table is too wide, bars are left out, then words are cut, then the last columns are left out.
    """

    more: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        below = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        wide = [max(map(cells, (column[1:], *parts))) for column, parts in zip(self.columns, below, strict=True)]
        least = [
            width if column[0] == ">" else min(width, LEAST) for column, width in zip(self.columns, wide, strict=True)
        ]
        shown = list(range(len(wide)))
        if sum(wide[n] + GAP for n in shown) - GAP > options.max_width:
            shown = [n for n in shown if self.columns[n][0] != "|"]
        while shown[2:] and sum(least[n] + GAP for n in shown) - GAP > options.max_width:
            shown.pop()
        made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        for n in shown:
            sign, name = self.columns[n][0], self.columns[n][1:]
            heading = Text(name, style="" if made.columns else "bold not dim", no_wrap=True, overflow="ellipsis")
            made.add_column(
                heading,
                justify="right" if sign == ">" else "left",
                style="cyan" if sign == "|" else "",
                no_wrap=sign == ">",  # columns that may wrap are made narrower first
                min_width=least[n],
            )
        for row in self.rows:
            made.add_row(*(Text(row[n], no_wrap=True, overflow="ellipsis") for n in shown))
        yield made
        if self.more:
            yield Text(self.more, style="dim")


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
            bar(field["bytes"], whole),
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
        note = torn(field) if field["torn"] is not None else ""
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
    rows = [(size.replace("x", " x "), f"{count:,}", bar(count, whole)) for size, count in sizes[:MOST]]
    formats = [f"{count:,} {form}" for form, count in pictures["formats"].items()]
    notes = [", ".join(formats), sides(pictures)] if formats else []
    if pictures["sizes"] is None or len(sizes) > MOST:
        notes.append(f"{MANY if pictures['sizes'] is None else f'{len(sizes):,}'} different sizes")
    if pictures["broken"]:
        notes.append(f"broken: {broken(pictures)}")
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
            rows = [(shortened(value, 2 * NAME), f"{n:,}", bar(n, most)) for value, n in counts[:MOST]]
            yield Section("\n".join(notes), (f"<Classes {shortened(field['field'], NAME)}", ">count", "|"), rows)


def combination_tables(facts: Facts) -> Iterator[Section]:
    """Yield the table of combinations of fields, unless all samples have the same fields."""
    found = facts["combinations"]
    if found is None or len(found) > 1:
        rows = [
            (f"{each['samples']:,}", bar(each["samples"], facts["samples"]), together(each["fields"]))
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
        notes = [f"{what} {shortened(shards[what]['url'], LONG)}" for what in ("smallest", "largest")]
        yield Section("\n".join(notes if uneven(shards) else []), ("<Shards", *(f">{name}" for name in columns)), rows)
