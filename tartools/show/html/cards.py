"""Facts about all samples of the input, in bounded memory, and the cards that show them, made of HTML and SVG.

They are the summary of the page of `tarshow --html`, which shows only some of the samples.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest

from tartools.errors import in_units, printable, several
from tartools.samples import decoding
from tartools.samples.fieldcolumns import Combination, group_samples
from tartools.samples.filetypes import PICTURES, SOUNDS, suffix_of
from tartools.samples.kinds import may_be_picture
from tartools.samples.kinds.texts import cut_text
from tartools.samples.sample import Sample, decode_name, field_name
from tartools.show.html.tile import BROKEN_FACET, FOLDER_FACET, Broken, mark, safe
from tartools.show.sections import Section
from tartools.show.statreport import sort_by_count
from tartools.stages.statistics import MAX_CLASS_BYTES, FieldKinds, count_fields
from tartools.stages.summary import MAX_DISTINCT_VALUES, Counts, Distribution, Summary, Tally, sum_of_counts

MAX_BROKEN_LISTED = 1000  # broken members whose keys are listed
SAMPLES_IN_GROUP, GROUP_BYTES_LIMIT = 256, 1 << 20  # samples, and bytes, that are counted at once
NO_CLASSES = {"json", *PICTURES, *SOUNDS}  # the last parts of fields that hold no classes
CLASS_FIELDS = FieldKinds(lambda field: suffix_of(field) not in NO_CLASSES, lambda _: False, decoding.picture_facts)
MAX_CLASS_VALUES = 100  # distinct values; a field with more has no classes
HISTOGRAM_BINS = 24  # of the histogram
MAX_LINEAR_RATIO = 32  # greatest / least size; beyond this ratio, the steps of the histogram grow


class ValueOrder:
    """The distinct values of a field, numbered as they first appear, to find fields that divide samples alike.

    Call `add` for each sample that has a value, by ascending position.

    Attributes:
      values: the values, each with its number, in order; None if there are more than 100.
      digest: of the numbers of all samples. Fields with one digest say one fact: each value of one is with one of the
        other.
    """

    def __init__(self) -> None:
        self.values: dict[str, int] | None = {}
        self.digest = 0

    def add(self, position: int, value: str) -> None:
        """Add the *value* of the sample at *position*; nothing is done once `values` is None."""
        if self.values is None:
            return
        number = self.values.setdefault(value, len(self.values))
        self.digest = hash((self.digest, position, number))
        if len(self.values) > MAX_CLASS_VALUES:
            self.values = None


class Overview:
    """Facts about all samples, for the header of the page. *has_charts*: False leaves charts of classes out.

    Call `count` for each list of `grouped_samples`, in input order, and `add_broken` for the broken members.

    Attributes:
      orders: a `ValueOrder` of the folders, and of each field that may hold classes, by the name that the filter uses;
        up to 1,000 (MAX_DISTINCT_VALUES), {} without *has_charts*.
      counts: fields, classes and broken members, a `Summary`.
      sizes: bytes of the payloads of samples, a `Distribution`.
      folders: folder -> number of samples; None if there are more than 1,000 folders (MAX_DISTINCT_VALUES). Samples
        without a folder are not counted.
      has_more: True if the input has more samples than were counted.
      shown_count: number of samples on the page.
    """

    def __init__(self, *, has_charts: bool = True) -> None:
        self.has_charts = has_charts
        self.orders: dict[str, ValueOrder] = {}
        self.counts = Summary(MAX_BROKEN_LISTED)
        self.sizes = Distribution()
        self.folders: Counts = {}
        self.has_more = False
        self.shown_count = 0

    @property
    def choice_text(self) -> str:
        """The words for the samples shown: "200 of 5,000 samples, at random", or "5,000 samples" if all are.

        If `has_more`, "the first 5,000 of a larger input" stands for "5,000 samples" in both.
        """
        total = self.counts.samples
        words = f"the first {total:,} of a larger input" if self.has_more else several(total, "sample")
        return f"{self.shown_count:,} of {words}, at random" if self.shown_count < total else words

    @property
    def broken(self) -> Tally:
        """The broken members, each a `Broken`: their count, and the first 1,000."""
        return self.counts.findings.get(BROKEN_FACET, Tally())

    def add_broken(self, broken: Iterable[Broken]) -> None:
        """Count the *broken* members, and keep the first 1,000."""
        for member in broken:
            self.counts.note(BROKEN_FACET, member)

    def count(self, samples: Sequence[Sample]) -> None:
        """Add the fields, classes, sizes and folders of *samples*, one list of `grouped_samples`; at least one."""
        folders = Counter(printable(sample.key.rpartition("/")[0]) for sample in samples if "/" in sample.key)
        self.sizes.add(Distribution.of(sum(member.size for member in sample.members) for sample in samples))
        self.folders = sum_of_counts(self.folders, folders)
        part = Summary(MAX_BROKEN_LISTED)
        part.samples, part.first = len(samples), samples[0].key
        combinations = group_samples(samples)
        count_fields(combinations, CLASS_FIELDS, part)
        if self.has_charts:
            for index, sample in enumerate(samples):
                if "/" in sample.key:
                    self._add_value(FOLDER_FACET, self.counts.samples + index, printable(sample.key.rpartition("/")[0]))
            self._add_values(combinations)
        self.counts.add(part)

    def _add_values(self, combinations: Iterable[Combination]) -> None:
        """Add values of fields that may hold classes to `orders`, for the samples after the last counted one.

        *combinations*: these samples, grouped by their fields. A value is the text of a payload without its last
        newline; of one over 256 bytes (MAX_CLASS_BYTES) the first 257.
        """
        values: dict[str, list[tuple[int, str]]] = {}
        for same in combinations:
            for column in same.columns:
                name = mark(printable(column.name))
                order = self.orders.get(name)
                if not CLASS_FIELDS.classes(column.name) or (order is not None and order.values is None):
                    continue
                payloads = map(bytes, column.payloads(MAX_CLASS_BYTES + 1))
                values.setdefault(name, []).extend(
                    (number, decode_name(payload).removesuffix("\n"))
                    for number, payload in zip(same.numbers, payloads, strict=True)
                )
        for name, numbered in values.items():
            for number, value in sorted(numbered):
                self._add_value(name, self.counts.samples + number, value)

    def _add_value(self, name: str, position: int, value: str) -> None:
        """Add the *value* of the field *name* of the sample at *position* to `orders`, if there is room.

        There is none for a new field if there are 1,000 (MAX_DISTINCT_VALUES).
        """
        if name in self.orders or len(self.orders) < MAX_DISTINCT_VALUES:
            self.orders.setdefault(name, ValueOrder()).add(position, value)


def grouped_samples(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """Yield *samples*, in order, in lists whose payloads are in one buffer or file, to be counted together.

    A list has up to 256 samples (SAMPLES_IN_GROUP) of 1 MiB together (GROUP_BYTES_LIMIT), or one sample that is larger
    or has payloads in several buffers. None is empty.
    """
    group: list[Sample] = []
    size = 0
    for sample in samples:
        full = len(group) == SAMPLES_IN_GROUP or size + sample.size > GROUP_BYTES_LIMIT
        if group and (full or len({id(member.source) for member in (*group[0].members, *sample.members)}) > 1):
            yield group
            group, size = [], 0
        group.append(sample)
        size += sample.size
    if group:
        yield group


def broken_pictures(samples: Sequence[Sample]) -> list[Broken]:
    """Return the pictures of *samples*, by field or first bytes, that can't be decoded, in order.

    Pictures that are too large to decode are not among them. Holds: one decoded picture at a time.

    Raises: TarToolsError if a payload can't be read.
    """
    broken = []
    for sample, member in ((one_sample, member) for one_sample in samples for member in one_sample.members):
        if not may_be_picture(member):
            continue
        why = decoding.picture_state(member, decode=True).broken
        if why is not None:
            broken.append(Broken(printable(sample.key), printable(field_name(member)) or "-", why))
    return broken


# ---- cards ----


def cards(overview: Overview, shown: Container[str]) -> Iterator[str]:
    """Yield the cards of *overview* as HTML: fields, sizes, classes, broken members.

    A card without content is left out; without samples the card of sizes is "". *shown*: keys of the samples on the
    page.
    """
    yield from map(table, field_cards(overview.counts))
    yield svg_histogram(overview.sizes)
    if overview.has_charts:
        yield from map(table, classes(overview))
    yield from map(table, broken_list(overview.broken, shown))


def card(title: str, body: str) -> str:
    """Return the HTML of a section of the summary that can be folded; *title* is escaped, *body* is HTML."""
    return f'<details class="card" open><summary>{safe(title)}</summary>{body}</details>'


def table(section: Section) -> str:
    """Return *section* as an HTML card: a list of its rows, with a button for each row that has a filter.

    The text below the table is its last row; without rows it is a paragraph.
    """
    signs = [column[0] for column in section.columns]
    rows = [item(signs, cells, query) for cells, query in zip_longest(section.rows, section.filters)]
    note = safe(section.more)
    if not rows:
        return card(section.columns[0][1:], f"<p>{note}</p>")
    if note:
        rows.append(f"<li>{note}</li>")
    kind = "" if "|" in signs else ' class="broken"'
    kind += "" if kind == "" and section.filters else " tabindex=0"  # to scroll what has nothing to press
    return card(section.columns[0][1:], f"<ul{kind}>{''.join(rows)}</ul>")


def item(signs: Sequence[str], cells: Sequence[str | float], query: str | None) -> str:
    """Return the HTML of a row of *cells*, an <li>; *query*: the filter that its button sets, or None.

    *signs*: the sign of each column: < words, > a number, | bars. *cells*: texts, which are escaped here, the first one
    the name; a number, a share from 0 to 1, becomes a bar. With *query*, a row with a column of bars is a button as a
    whole, in any other row its name is one.
    """
    is_button = query is not None and "|" in signs
    button = f'<button type="button" class="{"count" if is_button else "name"}" data-filter="{safe(query or "")}">'
    name = safe(str(cells[0]))
    parts = [f"{button}{name}</button>" if query is not None and not is_button else f'<span class="name">{name}</span>']
    for sign, cell in zip(signs[1:], cells[1:], strict=True):
        if isinstance(cell, str):
            parts.append(f'<span class="{"number" if sign == ">" else "why"}">{safe(cell)}</span>')
        else:
            parts.append(html_bar(cell))
    row = "".join(parts)
    return f"<li>{button}{row}</button></li>" if is_button else f"<li>{row}</li>"


def html_bar(share: float) -> str:
    """Return the SVG of a bar filled to *share*, from 0 to 1."""
    return (
        '<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * share:.1f}" height="1"/></svg>'
    )


def field_cards(summary: Summary) -> Iterator[Section]:
    """Yield the list of fields as one `Section`, with the count of samples that have each, and its mean size.

    The bar is the share of samples that have the field, and the size is the mean of these samples. Nothing if there are
    no fields; if there are over 1,000, the section has no rows.
    """
    columns = ("<Fields and mean sizes", "|", ">")
    if summary.many_fields:
        yield Section(f"more than {MAX_DISTINCT_VALUES:,}", columns, ())
    elif summary.fields:
        rows = [
            (
                name or "-",
                field.samples / summary.samples,
                f"{field.samples:,} · {in_units(field.sizes.total / field.samples)}",
            )
            for name, field in summary.fields.items()
        ]
        yield Section("", columns, rows)


def classes(overview: Overview) -> Iterator[Section]:
    """Yield, for folders and each field with few values, the count of each value, with buttons that filter by it.

    Few are 2 to 100 values (as `short_texts` returns), each for two samples or more on average. Field cls is first, the
    others follow by name; the most frequent value is first. Fields that divide the samples alike, such as cls and
    cls.txt, are one section. With over 1,000 fields, only folders are shown.
    """
    fields = {} if overview.counts.many_fields else overview.counts.fields
    counts = {mark(printable(name)): short_texts(field.classes or {}) for name, field in fields.items()}
    if overview.folders:
        counts[FOLDER_FACET] = overview.folders
    shown: set[str] = set()
    for name in sorted(counts, key=lambda name: (name != "cls", name)):
        values = counts[name]
        if name in shown:
            continue
        if not 1 < len(values) <= min(MAX_CLASS_VALUES, sum(values.values()) // 2):
            continue
        max_count = max(values.values())
        ranked = sort_by_count(values)
        labels = {name: dict(zip(values, values, strict=True))} | find_same_facts(name, counts, overview.orders)
        shown.update(labels)
        names = ", ".join("Folders" if field == FOLDER_FACET else field for field in labels)
        title = f"{names} ({len(values):,})"
        rows = [
            (" · ".join(dict.fromkeys(label[value] for label in labels.values())), count / max_count, f"{count:,}")
            for value, count in ranked.items()
        ]
        yield Section("", (f"<{title}", "|", ">"), rows, [query(name, value) for value in ranked])


def find_same_facts(
    name: str, counts: Mapping[str, Mapping[str, int]], orders: Mapping[str, ValueOrder]
) -> dict[str, dict[str, str]]:
    """Return {field: {value of *name*: value of field}} of each other field that divides the samples as *name* does.

    A field is one if all values of it and of *name* are short texts. Empty if there is none, or if *name* has over 100
    values. *counts*: count of each value that a tile shows, by field, *name* included. *orders*: values in the order of
    the samples, by field.
    """
    own = orders.get(name)
    if own is None or own.values is None:
        return {}
    values_by_field = {}
    for field in sorted(counts.keys() - {name}):
        order = orders.get(field)
        if order is not None and order.values is not None and order.digest == own.digest:
            described = [
                [*short_texts(dict.fromkeys(texts_of_field, 1))] for texts_of_field in (own.values, order.values)
            ]
            if all(len(texts) == len(counts[name]) == len(counts[field]) for texts in described):
                values_by_field[field] = dict(zip(*described, strict=True))
    return values_by_field


def short_texts(counts: Mapping[str, int]) -> dict[str, int]:
    r"""Return the *counts* whose values are texts of one line, up to 100 characters, keyed by the text a tile shows.

    Empty values, and values that are not UTF-8 or have a NUL, are left out; control characters are escaped.

    >>> short_texts({"cat": 2, "": 1, "two\nlines": 1})
    {'cat': 2}
    """
    described = (
        (cut_text(value.encode("utf-8", "surrogateescape"), whole=True), count)
        for value, count in counts.items()
        if "\n" not in value
    )
    return {description.value: count for description, count in described if description and description.value}


def broken_list(tally: Tally, shown: Container[str]) -> Iterator[Section]:
    """Yield the list of the broken members in *tally* (nothing if there are none), with their fields and the reasons.

    The text below it says how many more *tally* counts than it keeps. *shown*: keys of the samples on the page; a
    broken member of one of these gets a filter button.
    """
    if tally.count:
        rows = [(broken.key, f"{broken.field}: {broken.why}") for broken in tally.first]
        note = f"and {tally.count - len(rows):,} more" if tally.count > len(rows) else ""
        filters = [quoted_word(broken.key) if broken.key in shown else None for broken in tally.first]
        yield Section(note, (f"<Broken ({tally.count:,})", "<"), rows, filters)


def query(name: str, value: str) -> str:
    """Return the filter text that finds samples whose field *name*, from `mark`, is *value*; quotes are dropped.

    >>> query("cls", "5"), query("label", "sea lion")
    ('cls==5', '"label==sea lion"')
    """
    return quoted_word(f"{name}=={value}")


def quoted_word(words: str) -> str:
    """Return *words* as one word of a filter: without double quotes in it, and in double quotes if it has blanks."""
    plain = words.replace('"', "")
    return f'"{plain}"' if any(map(str.isspace, plain)) else plain


def svg_histogram(sizes: Distribution) -> str:
    """Return the card with the histogram of *sizes*, in bytes, as HTML and SVG; "" if there are none.

    The fullest bin of `steps` has the full height, and the heights of the others are relative to it.
    """
    if sizes.minimum is None or sizes.maximum is None:
        return ""
    edges = steps(sizes.minimum, sizes.maximum)
    counts: Counter[int] = Counter()
    for low, count in sizes.buckets.items():
        counts[max(0, bisect_right(edges, low) - 1)] += count
    height = {n: 100 * count / max(counts.values()) for n, count in counts.items()}
    bars = [
        f'<rect x="{n + 0.06:.2f}" width="0.88" y="{100 - height[n]:.1f}" height="{height[n]:.1f}">'
        f"<title>{counts[n]:,} of {low:,} to {high - 1:,} B</title></rect>"
        for n, (low, high) in enumerate(pairwise(edges))
        if counts[n]
    ]
    words = f"Sizes of {counts.total():,} samples, from {sizes.minimum:,} to {sizes.maximum:,} bytes"
    drawing = (
        f'<svg class="sizes" viewBox="0 0 {len(edges) - 1} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{words}">{"".join(bars)}</svg>'
        f'<div class="ends"><span>{in_units(sizes.minimum)}</span><span>{in_units(sizes.maximum)}</span></div>'
    )
    return card("Size of a sample", drawing)


def steps(smallest: int, largest: int) -> list[int]:
    """Return the edges of the bins of a histogram, ascending, the last above *largest*: equal bins, or growing ones.

    There are up to 24 bins. They grow if *largest* is more than 32 times *smallest*, for which 0 counts as 1. Inner
    edges are lower bounds of the buckets of a `Distribution`, so that no bucket is in two bins.

    >>> steps(5, 7), steps(10, 60)[:3], len(steps(1, 10**9))
    ([5, 6, 7, 8], [10, 12, 14], 25)
    """
    end, first = largest + 1, max(smallest, 1)
    shares = [n / HISTOGRAM_BINS for n in range(1, HISTOGRAM_BINS)]
    if largest > MAX_LINEAR_RATIO * first:
        inner = {math.floor(first * (end / first) ** share) for share in shares}
    else:
        inner = {math.floor(smallest + (end - smallest) * share) for share in shares}
    inner = set(Distribution.of(inner).buckets)
    return sorted({smallest, end} | {edge for edge in inner if smallest < edge < end})
