"""The options that several commands have, as types; `declare` says how they are written."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from tartools import storage
from tartools.cli.declare import Group, Option
from tartools.errors import UsageError, byte_size
from tartools.storage.local import canonical_name
from tartools.storage.outputformats import SHARD_FORMAT, OutputFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from tartools.errors import StorageError
    from tartools.shards.reading import Strictness
    from tartools.shards.writing import Destination
    from tartools.storage.checksums import OutputSums


MAX_DEFAULT_WORKERS = 8  # workers without -p, as in sort(1)
MAX_IMPLICIT_WORKERS = 4  # workers of commands without an option -p: more would wait for this process


def count_workers(parallel: int | None = None) -> int:
    """Return the number of workers for -p *parallel*: 0 is one per core that this process may use; None the default.

    The default of commands with -p is one per core, up to 8. Three declare another one: tarproc 1, as xargs -P, since
    CMD may have threads of its own; tarcat one shard after the other; tarpcat 4, since it waits for servers and
    commands.
    """
    if parallel:
        return parallel
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if parallel == 0 else min(cores, MAX_DEFAULT_WORKERS)


def implicit_workers() -> int:
    """Return the number of worker processes for a command that has no -p: one per core, up to 4."""
    return min(count_workers(), MAX_IMPLICIT_WORKERS)


AllowPipe = Annotated[
    bool,
    Option(
        "--allow-pipe",
        "Trust a list or plan that names commands (pipe:) or fifos or, on a server, local files and other servers.",
    ),
]


class Common(Group, shared=True):
    """Options of every command that has a script: progress, quiet (neither progress nor warnings), verbose (totals)."""

    progress: Annotated[bool, Option("--progress", "Show progress even if stderr is not a terminal.")] = False
    quiet: Annotated[bool, Option("-q --quiet", "Show neither progress nor warnings.")] = False
    verbose: Annotated[bool, Option("-v --verbose", "Print one line of totals on stderr at the end.")] = False


class About(Group, shared=True):
    """Options that print something about a command instead of running it: version, usage (-h), help.

    Every command has them, `tartools demo` and the like included.
    """

    version: Annotated[bool, Option("--version", "Show the version and exit.")] = False
    usage: Annotated[bool, Option("-h", "Show the usage, the options and two examples, and exit.")] = False
    help: Annotated[bool, Option("--help", "Show this help and exit.")] = False


class Inputs(Group, shared=True):
    """Options that name the shards to read, and say which of their faults are accepted.

    Attributes:
      inputs: arguments SHARD; None: stdin, unless there are lists.
      files_from: lists of shard names (-T).
      null: names in lists end with NUL, not newline.
      allow_pipe: lists on a server may name commands, stdin, local files and other servers; local lists always may.
      lax: a shard may lack its end-of-archive block.
      skip_special: links, devices and sparse members are skipped without a word.
    """

    inputs: Annotated[list[str] | None, Option("[SHARD]...", "Shards to read; without any, or for -, stdin.")] = None
    files_from: Annotated[
        list[str] | None, Option("-T --files-from FILE", "Read more shard names from FILE, one per line.")
    ] = None
    null: Annotated[bool, Option("-0 --null", "Names in -T files end with NUL, not newline.")] = False
    allow_pipe: AllowPipe = False
    lax: Annotated[bool, Option("--lax", "Accept shards without an end-of-archive block.")] = False
    skip_special: Annotated[
        bool, Option("--skip-special", "Skip links, devices and sparse members silently (exit status 0).")
    ] = False

    @property
    def expand_arguments(self) -> tuple[list[str], list[str], str, bool]:
        """The arguments of `storage.expand.expand`: patterns, list files, separator in these, trusted or not."""
        return self.inputs or [], self.files_from or [], "\0" if self.null else "\n", self.allow_pipe

    def urls(self, on_fault: "Callable[[StorageError], object] | None" = None) -> "list[storage.url.Url]":
        """Return the URLs of the shards, in order, with braces and wildcards expanded, and parts of archives joined.

        `on_fault(error)`: called for parts of an archive that are not whole, which stay apart; None: it is raised.
        First the arguments, then the names in lists. Without both: stdin, "-". Raises: StorageError for a list that
        can't be read, is empty, or may not name what it does, and for a wildcard without a match; UsageError if stdin
        is named twice, a URL has credentials, or one stands for an archive that was split.
        """
        from tartools.storage.expand import expand

        return expand(*self.expand_arguments, on_fault=on_fault)

    @property
    def strictness(self) -> "Strictness":
        """The faults of the inputs that these options accept (--lax, --skip-special), as readers take them."""
        from tartools.shards.reading import Strictness

        return Strictness(self.lax, self.skip_special)


class DescribedInputs(Inputs, shared=True):
    """The options of `Inputs`, for a command whose help explains each argument, such as tardiff A B."""

    inputs: Annotated[list[str] | None, Option("[SHARD]...", "Inputs, as described in --help; - is stdin.")] = None


Force = Annotated[bool, Option("--force", "Replace outputs that already exist.", envvar="TARTOOLS_FORCE")]
Gzip = Annotated[bool, Option("-z --gzip", "Compress with gzip; OUTPUT may not end in another compression's suffix.")]
Url = Annotated[
    str, Option("-o --output OUTPUT", "File or URL to write; it appears once it is complete.", default="stdout")
]


Sums = Annotated[str | None, Option("--sums FILE", "Write the SHA-256 of each output to FILE, for sha256sum -c.")]
CheckSums = Annotated[
    str | None,
    Option("--check-sums FILE", "Compare each SHARD with its checksum in FILE, as sha256sum or --sums writes it."),
]
Dots = Annotated[
    Literal["first", "last"] | None,
    Option("--dots", "Which dot of the name of a file ends the key.", default="first"),
]


class ShardOutputs(Group):
    """The base of option groups for the shards to write, which have `force` and `sums` (the list of checksums).

    A run writes `checksums` at its end.
    """

    if TYPE_CHECKING:  # each group declares them itself, in the order of its help
        force: Force = False
        sums: Sums = None

    @cached_property
    def checksums(self) -> "OutputSums | None":
        """The list that gets the checksum of each output, and is written at the end of the run; None without --sums."""
        if self.sums is None:
            return None
        from tartools.storage.checksums import OutputSums

        return OutputSums(self.sums, self.force)


class Output(ShardOutputs, shared=True):
    """Options for the one output, a tar archive or a table: url ("-" is stdout), force (replace it), gzip, sums."""

    url: Url = "-"
    force: Force = False
    gzip: Gzip = False
    sums: Sums = None

    @property
    def destination(self) -> "Destination":
        """These options as the `Destination` that the functions of `shards.writing` take."""
        from tartools.shards.writing import Destination

        return Destination(self.url, self.force, self.gzip, sums=self.checksums)


class Fields(Group):
    """Options that select fields of samples.

    Attributes:
      fields: texts of -f, such as "jpg cls", "a;b" (the first that exists) or "new=old" (renames); None: all fields.
      exclude: texts of -x, such as "json txt": names of fields to drop; None: none.
      verbatim: names match by exact case.
    """

    fields: Annotated[
        list[str] | None,
        Option(
            "-f --fields SPEC",
            "Fields to keep, in quotes: 'jpg cls'. 'a;b' takes the first that exists, 'new=old' renames.",
        ),
    ] = None
    exclude: Annotated[list[str] | None, Option("-x --exclude NAMES", "Fields to drop, in quotes: 'json txt'.")] = None
    verbatim: Annotated[bool, Option("--verbatim", "Match field names by exact case.")] = False


Count = Annotated[int | None, Option("-c --count N", "Stop after N samples.", minimum=0)]
Seed = Annotated[int, Option("--seed N", "Random seed.")]
Memory = Annotated[
    int,
    Option("-M --memory BYTES", "Memory for samples held back, such as 64M or 1e9.", parser=byte_size, default="256M"),
]
Parallel = Annotated[int, Option("-p --parallel N", "Number of workers; 0 means one per core.", minimum=0)]
Workers = Annotated[
    int | None,
    Option(
        "-p --parallel N",
        "Number of workers; 0 means one per core.",
        minimum=0,
        default=f"one per core, up to {MAX_DEFAULT_WORKERS}",
    ),
]
TmpDir = Annotated[str | None, Option("--tmpdir DIR", "Directory for temporary files.", default="$TMPDIR, else /tmp")]
Verbatim = Annotated[
    bool, Option("--verbatim", "Match field names by exact case, and keep the final newline of values.")
]


class ResourceOptions(Group):
    """Options for resources: parallel (workers, as `count_workers` takes it), memory (bytes), tmpdir (directory).

    The default of *parallel*, None, is one worker per core, up to 8; of *memory* 256 MiB; of *tmpdir*, None, `$TMPDIR`,
    else /tmp.
    """

    parallel: Workers = None
    memory: Memory = 256 << 20
    tmpdir: TmpDir = None


def check_outputs(
    outputs: Mapping[str, str | None], force: bool, inputs: Sequence[str], forms: Mapping[str, OutputFormat] = {}
) -> None:
    """Check all outputs of a command before anything is read.

    *outputs*: URL by option, such as "--output"; None if it was not given. *force*: existing files may be replaced.
    *inputs*: URLs that no output may replace. *forms*: format by option; for other options a shard or a table.

    Raises: UsageError if two outputs are one file (other than /dev/null), or a name is empty, has a number such as
    %06d, credentials, or the suffix of another format; StorageError if an output exists (unless *force*), is an input
    or a directory, or has a scheme that can't be written, and if its server can't tell whether it exists.
    """
    earlier_urls: dict[str, str] = {}
    for option, url in outputs.items():
        if url is None:
            continue
        storage.check_output(url, force, inputs, form=forms.get(option, SHARD_FORMAT))
        for earlier_option, earlier_url in earlier_urls.items():
            if canonical_name(earlier_url) == canonical_name(url) and url != "/dev/null":
                raise UsageError(f"{earlier_option} and {option} are one file", url=url)
        earlier_urls[option] = url
