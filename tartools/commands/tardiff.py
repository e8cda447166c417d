"""Compare two data sets, sample by sample.

tardiff A B compares the samples of A with those of B that have the same keys, and prints how many are equal, added
(only in B), removed (only in A), changed (other payloads or other fields) and reordered (preceded by another sample in
B than in A, counting only samples that both have). Headers, the order of fields in a sample, compression, and the
distribution of samples over shards make no difference.

A and B are each a single argument: a shard, a table, or a pattern in quotes that stands for several
('a-{000..147}.tar', 'b-*.tar'). If a key occurs several times, its first sample in A is compared with the first in B,
and so on; the number of repeated keys is printed too.

On a terminal the summary is aligned, otherwise it has one fact per line. --list-keys lists keys instead:

  + KEY         added
  - KEY         removed
  ~ KEY FIELDS  changed: a tab, then the fields; -txt is only in A, +txt
                only in B
  > KEY         reordered

The first three are sorted by key, followed by the reordered ones in the order of B. Control characters are escaped.

-o OUTPUT writes the new and changed samples of B, unchanged and in order, to a shard, or lists them in a table if
OUTPUT ends in .parquet. B is then read twice. With -o - nothing else is printed.

The exit status is that of diff(1): 0 if the data sets are equal, 1 if they differ, 2 after any trouble (a damaged
shard, a link without data). --json prints an object with the keys a, b (samples), equal, added, removed,
changed, fields (for each field how many changed samples differ in it), reordered (null with --unordered), repeated_a,
repeated_b.

tardiff --digest SHARD... prints the digest of a data set: 64 hexadecimal digits. Two data sets with the same
samples have the same digest, whatever their order, shards, compression and headers. Duplicate samples count twice. It
proves that the output has exactly the samples of the input:

  tarsort -S shuffle a.tar | tarsplit -n 1000 -o b
  test $(tardiff --digest a.tar) = $(tardiff --digest 'b-*.tar')

It is the sum of the digests of all samples as 256-bit big-endian numbers, modulo 2^256. The digest of a sample is the
BLAKE2b digest (32 bytes, no key, as b2sum -l 256) of: the length of its key, the key; then for each field, in the
order of the bytes of their names, the length of its name, the name, the BLAKE2b digest (32 bytes) of its payload. A
length is 8 bytes, big-endian. Fields of one name are in the order of their digests. The digest detects accidents, not
forgeries.

Examples:
  Compare uploaded shards with local ones:
    tardiff 'train-{000..147}.tar' 's3://bucket/train-{000..147}.tar'
  List the differences:
    tardiff --list-keys old.tar new.tar
  Write the new and changed samples, to process only these:
    tardiff old.tar new.tar -o todo.tar
  Compare as sets, after a shuffle:
    tardiff --unordered train.tar 'shuffled-*.tar'
  Print the digest of a data set:
    tardiff --digest 'train-*.tar'
"""

import os
from collections import Counter
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Annotated, Any

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import UsageError, printable
from tartools.samples.account import Account
from tartools.samples.sortkeys import text_of_key
from tartools.shards.dataset import DataSet
from tartools.shards.reading import Reading, check_shards
from tartools.stages import comparing
from tartools.stages.comparing import (
    ADDED,
    CHANGED,
    EQUAL,
    REMOVED,
    REORDERED,
    REPEATED_COUNTERS,
    DiffSide,
    find_changes,
    find_reordered,
)
from tartools.stages.externalsort import Spool, external_sort
from tartools.storage.expand import expand
from tartools.storage.streams import Sink

MEMORY_SHARES = 4  # parts of the memory: two that sort, two that wait
CHANGE_MARKS = {ADDED: "+", REMOVED: "-", CHANGED: "~", REORDERED: ">"}


class DiffOptions(cli.ShardOutputs):
    """Options for the report and the output.

    Attributes:
      digest: print the digest of one data set; nothing is compared.
      list_keys, json: print keys, or one JSON object, in place of the summary.
      unordered: ignore the order of samples.
      output: URL for the new and changed samples, or None.
      force: replace the output.
      sums: file to which the output's checksum is written, or None.
    """

    digest: Annotated[bool, Option("--digest", "Print the digest of one data set: any number of SHARDs.")] = False
    list_keys: Annotated[bool, Option("--list-keys", "List the keys of the samples that differ.")] = False
    json: Annotated[bool, Option("--json", "Print one JSON object.")] = False
    unordered: Annotated[bool, Option("--unordered", "Ignore the order of samples.")] = False
    output: Annotated[
        str | None, Option("-o --output OUTPUT", "Write the new and changed samples of B to this file.")
    ] = None
    force: cli.Force = False
    sums: cli.Sums = None


@cli.command(__doc__, trouble=2)
def tardiff(account: Account, source: cli.DescribedInputs, options: DiffOptions, resources: cli.ResourceOptions) -> int:
    """Compare the data sets A and B of *source* and print the differences; return 1 if there are any, otherwise 0.

    With -o, also write the new and changed samples of B. With --digest print the digest of one data set, and return 0.
    *options*: report and output; *resources*: workers, memory, temporary files. The exit status after an omission is 2.
    Raises: TarToolsError, by which it is 2, too.
    """
    max_workers = cli.count_workers(resources.parallel)
    reading = Reading(source.strictness, tmpdir=resources.tmpdir)
    check_options(options, source)
    if options.digest:
        digest = comparing.digest(source.urls(), account, reading, max_workers)
        with storage.open_sink("-") as sink:
            sink.write(b"%064x\n" % digest)
        return 0
    a, b = (DiffSide(expand([word]), reading, max_workers, []) for word in source.inputs or ())
    check_shards([*a.urls, *b.urls], account)
    new = Spool(resources.memory // MEMORY_SHARES, resources.tmpdir)
    if options.output is None:
        return int(print_differences(a, b, account, new, options, resources))
    storage.check_output(options.output, options.force, [*a.urls, *b.urls])
    data = DataSet(b.urls, Account(lambda _: None), reading, max_workers)  # silent: comparing has reported everything
    run = data.to([options.output], options.force, sums=options.checksums)
    if once := [url for url in b.urls if not storage.is_repeatable(url)]:
        message = "with -o the second data set is read twice, which this input can't be; copy it to a file first"
        raise UsageError(message, url=once[0])
    run.snapshot.take()
    differ = print_differences(a, b, account, new, options, resources)
    records = external_sort(new, resources.memory // MEMORY_SHARES, resources.tmpdir)
    comparing.write_selected(run, b.counts, records)
    account.bytes_out += data.account.bytes_out
    return int(differ)


def check_options(options: DiffOptions, source: cli.DescribedInputs) -> None:
    """Raise UsageError if --digest is given with --list-keys, --json, --unordered or -o.

    Without --digest: if *source* is not two arguments, or options for the report and the output exclude or need each
    other.
    """
    used_options = [
        f"--{name.replace('_', '-')}"
        for name in ("list_keys", "json", "unordered", "output", "sums")
        if getattr(options, name) not in (None, False)
    ]
    if options.digest:
        if used_options:
            raise UsageError(
                f"--digest reads one data set, and does not go with {used_options[0]} (see tardiff --help)"
            )
        return
    if source.files_from or len(source.inputs or ()) != 2:
        raise UsageError(
            "two data sets are compared, each given as one argument: tardiff A B; put patterns in quotes "
            "(see tardiff --help)"
        )
    if options.sums is not None and options.output is None:
        raise UsageError("--sums goes with -o OUTPUT (see tardiff --help)")
    if options.list_keys and options.json:
        raise UsageError("--list-keys and --json exclude each other (see tardiff --help)")
    if options.output == "-" and (options.list_keys or options.json):
        raise UsageError(f"-o - and {used_options[0]} both write to stdout (see tardiff --help)")


def print_differences(
    a: DiffSide, b: DiffSide, account: Account, new: Spool, options: DiffOptions, resources: cli.ResourceOptions
) -> bool:
    """Print the differences of *a* and *b*; return True if there are any.

    With --list-keys these are a line for each sample that differs, "+ KEY", "- KEY", "> KEY" (reordered) or "~ KEY" and
    after a tab the fields that changed: in order of keys, then the reordered ones in order of *b*. Otherwise these are
    the counts, as `print_summary` writes them, unless -o is stdout: then nothing is printed.
    *new*: gets the position (8 bytes) and key of each new or changed sample of *b*, if there is an output. *options*:
    what is printed, and whether order counts. *resources*: memory and temporary files of the sort. Raises:
    TarToolsError if a sample can't be read.
    """
    sort = partial(external_sort, memory=resources.memory // MEMORY_SHARES, tmpdir=resources.tmpdir)
    counts, fields = Counter[str](), Counter[str]()
    pairs = None if options.unordered else Spool(resources.memory // MEMORY_SHARES, resources.tmpdir)
    differences = find_changes(sort(a.contents(account)), sort(b.contents(account)), counts)
    moved = find_reordered(pairs, sort) if pairs is not None else ()  # read after the other changes
    with storage.open_sink("-") if options.list_keys else nullcontext() as listed:
        for change in chain(differences, moved):
            counts[change.kind] += 1
            if pairs is not None and change.kind in (EQUAL, CHANGED):
                pairs.add(change.before + change.position + change.key)
            if change.kind == EQUAL:
                continue
            fields.update(change.fields)
            if options.output is not None and change.kind in (ADDED, CHANGED):
                new.add(change.position + text_of_key(change.key))
            if listed is not None:
                key = printable(text_of_key(change.key).decode("utf-8", "surrogateescape"))
                field_words = f"\t{printable(' '.join(change.fields))}" if change.fields else ""
                listed.write(f"{CHANGE_MARKS[change.kind]} {key}{field_words}\n".encode())
    facts: dict[str, Any] = {"a": sum(a.counts), "b": sum(b.counts)}
    facts |= {name: counts[name] for name in (EQUAL, ADDED, REMOVED, CHANGED)}
    facts |= {"fields": dict(sorted(fields.items())), REORDERED: None if options.unordered else counts[REORDERED]}
    facts |= {name: counts[name] for name in REPEATED_COUNTERS}
    if not options.list_keys and options.output != "-":
        with storage.open_sink("-") as sink:
            print_summary(sink, facts, options.json)
    return any(counts[kind] for kind in CHANGE_MARKS)


def print_summary(sink: Sink, facts: dict[str, Any], as_json: bool) -> None:
    """Write the counts *facts* to *sink*: as JSON if *as_json*, aligned on a terminal, otherwise one per line.

    *facts*: name -> count, a dict of counts by field, or None. Lines are "added: 5", with a blank for each _ of a name,
    and "changed FIELD: 2" for each field of the dict. Only JSON shows None, and a 0 for a name that begins with
    "repeated".
    """
    if as_json:
        import json

        sink.write((json.dumps(facts, indent=2) + "\n").encode())
        return
    counts_by_name: list[tuple[str, int]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            counts_by_name += [(f"changed {printable(field)}", count) for field, count in value.items()]
        elif value is not None and (value or not name.startswith("repeated")):
            counts_by_name.append((name.replace("_", " "), value))
    if os.isatty(1):
        wide, high = max(len(name) for name, _ in counts_by_name), max(len(f"{value:,}") for _, value in counts_by_name)
        lines = [f"{name:{wide}}  {value:{high},}\n" for name, value in counts_by_name]
    else:
        lines = [f"{name}: {value}\n" for name, value in counts_by_name]
    sink.write("".join(lines).encode())
