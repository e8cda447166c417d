"""The account of one run: the number of samples read, and the fate of each.

For every command: samples in = out + left out + joined + dropped. `report_totals` checks it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tartools.errors import option, several, shown

# samples of a shard whose keys are compared; also the number of returning keys that are remembered
MAX_KEYS_REMEMBERED = 10_000
SORT_HINT = "tarsort, or tar --sort=name, brings the members of a key together"
_LINK_ADVICE = ("carries no sample data", "tar -h --hard-dereference stores files instead")
SPECIAL_REMEDIES = {  # kind of a special member -> why it is not passed on, and the remedy
    "hard link": _LINK_ADVICE,
    "symbolic link": _LINK_ADVICE,
    "sparse file": ("is stored in pieces, which tools for samples do not read", "unpack and archive it without tar -S"),
    "continuation of another volume": ("is a piece of a file", "unpack and archive it without tar -M"),
}
SUMMED_COUNTERS = (  # what the accounts of several processes add up to
    *("samples_in", "samples_out", "left_out", "joined", "dropped"),
    *("bytes_in", "unpacked", "directories", "macos_metadata", "shards_done"),
)


def report_as_warning(text: str) -> None:
    """Report *text* as a UserWarning: the default for the Python functions, which have no command's stderr."""
    import warnings  # takes half a millisecond

    warnings.warn(text, stacklevel=3)


class Jobs:
    """Counts of the commands that a run starts, for the display of progress.

    `total`: all. `skipped`: done by an earlier run. `done`, `failed`, `running`: in this run, so far and now.
    """

    def __init__(self, total: int = 0, skipped: int = 0) -> None:
        self.total = total
        self.skipped = skipped
        self.done = self.failed = self.running = 0


class Progress:
    """The progress of a run, for displays, and facts for its report besides the counts. No output depends on it.

    `phase`: the phase that runs now. `expected`: the final value of `Account.bytes_in`; None if unknown.
    `shards`: number of input shards; None if unknown. `jobs`: counts of the commands that a run starts (tarjob); zeros
    for other runs.
    `objects`: number of files and objects in a listing; None for other runs. `totals`: lines about parts of the output.
    `written`: samples in the output; None if that is `Account.samples_out`.
    `paused`: True while the run waits for a person, and nothing is drawn.
    """

    def __init__(self) -> None:
        self.phase = Phase()
        self.paused = False
        self.expected: int | None = None
        self.shards: int | None = None
        self.jobs = Jobs()
        self.objects: int | None = None
        self.totals: Sequence[str] = ()
        self.written: int | None = None


class Account:
    """Counts of one run, which must add up, and the place where it reports faults and warnings.

    Each of `samples_in` becomes one of: `samples_out` (passed on to an output), `left_out` (on request), `joined` (part
    of another sample), `dropped` (reported).
    `bytes_in`: bytes read of shards, as stored; `unpacked`: the same, decompressed; `bytes_out`: bytes of outputs,
    before compression. `shards_done`: shards read to their end.
    `omissions`: reports of data missing in an output that is otherwise complete; with any, the exit status is 1.
    `directories`, `macos_metadata`, `specials`: members that are no part of a sample: directories, files that macOS
    adds, and other members that are no regular files. `warned_empty`: True once `warn_empty` was called.
    `watched`: functions to call before a commit; each raises for a fault of the inputs, such as one that has changed, a
    wrong checksum, or a field that no sample had.
    `returning_keys`: up to 10,000 keys that return after other keys of their shard, each with the first such shard.
    `progress`: for displays of the run. *say* gets one line for each report, and for each warning unless *quiet*.
    """

    def __init__(self, say: Callable[[str], None] = report_as_warning, quiet: bool = False) -> None:
        self.say = say
        self.quiet = quiet
        self.samples_in = 0
        self.samples_out = 0
        self.left_out = 0
        self.joined = 0
        self.dropped = 0
        self.bytes_in = 0  # read of shards, as they are stored
        self.unpacked = 0  # the same bytes, decompressed
        self.bytes_out = 0  # of outputs, before compression
        self.directories = 0
        self.macos_metadata = 0  # members
        self.specials = 0
        self.omissions = 0
        self.shards_done = 0
        self.progress = Progress()
        self.watched: list[Callable[[], object]] = []  # at the end: they raise what is wrong with inputs and fields
        self.warned_empty = False  # that no sample is in an output
        self.returning_keys: dict[bytes, str] = {}  # up to MAX_KEYS_REMEMBERED

    @property
    def samples_done(self) -> int:
        """The number of samples that are passed on, left out, joined or dropped: in the end all that were read."""
        return self.samples_out + self.left_out + self.joined + self.dropped

    def counts(self) -> dict[str, int]:
        """Return the counts of `SUMMED_COUNTERS` by name, for `add` in another process."""
        return {name: getattr(self, name) for name in SUMMED_COUNTERS}

    def add(self, counts: Mapping[str, int]) -> None:
        """Add *counts*, a dict from `counts` of another account, to the counts with the same names."""
        for name, count in counts.items():
            setattr(self, name, getattr(self, name) + count)

    def reset(self, say: Callable[[str], None]) -> None:
        """Set `specials` and the counts of `SUMMED_COUNTERS` to zero, empty `watched`, report to *say* from now on.

        For a forked process, which counts only its own part.
        """
        self.say, self.specials, self.watched = say, 0, []
        for name in SUMMED_COUNTERS:
            setattr(self, name, 0)

    def warn(self, text: str) -> None:
        """Report *text*, a warning that does not change the output, unless `quiet`."""
        if not self.quiet:
            self.say(text)

    def warn_empty(self, text: str) -> None:
        """Report *text*, which says that no sample read is in an output; only the first call reports.

        Nothing is reported if `quiet`. `warned_empty` is True after it.
        """
        if not self.warned_empty:
            self.warn(text)
        self.warned_empty = True

    def record_returning_key(self, key: bytes, shard: str) -> None:
        """Record that *key* returns in *shard* after other keys, and is read as two samples.

        The first call warns, unless `quiet`. The first shard of a key stays; after 10,000 keys no further ones are
        recorded.
        """
        if not self.returning_keys:
            name = key.decode("utf-8", "surrogateescape")
            self.warn(
                f"{shown(shard)}: the key {name!r} comes back after other samples, so its members are read as separate "
                f"samples; {SORT_HINT}"
            )
        if len(self.returning_keys) < MAX_KEYS_REMEMBERED:
            self.returning_keys.setdefault(key, shard)

    def omit(self, message: str) -> None:
        """Report by *message* that data were not written, or not processed; count it in `omissions`.

        It is reported even if `quiet`.
        """
        self.omissions += 1
        self.say(message)

    def report_special(self, place: str, kind: str) -> None:
        """Report a member that is no regular file: the first at once, the later ones as a number in `report_totals`.

        Counts it in `specials`; each of these two reports is an omission, reported by `omit`.
        *place*: its shard and its name, for the message. *kind*: "hard link", "sparse file" and so on.
        """
        self.specials += 1
        if self.specials == 1:
            reason, remedy = SPECIAL_REMEDIES.get(kind, ("carries no sample data", ""))
            advice = f"{remedy}; " if remedy else ""
            self.omit(f"{place}: a {kind} {reason} and is not passed on ({advice}{option('skip-special')} accepts it)")

    def check(self) -> None:
        """Call the functions of `watched`, before an output is committed.

        Raises: the error of the first that fails, such as StorageError for an input that has changed, or SampleError
        for a field that no sample had; the later ones are not called.
        """
        for check in list(self.watched):
            check()

    def report_more_specials(self) -> None:
        """Report how many special members came after the first one, which `report_special` reported, as an omission."""
        if self.specials > 1:
            self.omit(f"{several(self.specials - 1, 'more such member')} not passed on")

    def report_totals(self) -> None:
        """Report left-out data at the end of a successful run, and check that the counts add up.

        An omission: special members after the first. Warnings: macOS metadata files; that no sample was selected, if
        samples were read, all are in `left_out`, and `warn_empty` was not called before. Raises: AssertionError, for a
        bug of ours, unless `samples_in` is `samples_done`.
        """
        self.report_more_specials()
        if self.macos_metadata:
            self.warn(f"{several(self.macos_metadata, 'macOS metadata file')} (._* and .DS_Store) left out")
        if 0 < self.samples_in == self.left_out:
            self.warn_empty(f"no samples selected (of {self.samples_in:,})")
        if self.samples_in != self.samples_done:
            raise AssertionError(f"{self.samples_in} samples were read, but only {self.samples_done} are accounted for")


class Phase(NamedTuple):
    """The phase of a run, for displays.

    `name`: "" if the run has one phase.
    `total`: samples in it; None if unknown: then progress is shown in bytes.
    `done`: returns how many of these samples are processed.
    `account`: counts of this phase, if they are not those of the run.
    """

    name: str = ""
    total: int | None = None
    done: Callable[[], int] = lambda: 0
    account: Account | None = None


class RepeatedKeyDetector:
    """Detects keys that return after other keys, among the first `MAX_KEYS_REMEMBERED` samples of one shard.

    Call `add` with the keys of all samples, in order. *report*: called with a key each time that it returns.
    `remaining`: further samples whose keys will be compared; a caller may set it to 0, to end that.
    Holds: the keys compared so far, until there are 10,000.
    """

    __slots__ = ("_known", "_last", "_report", "remaining")

    def __init__(self, report: Callable[[bytes], None]) -> None:
        self._report = report
        self._known: set[bytes] = set()
        self._last = b""
        self.remaining = MAX_KEYS_REMEMBERED  # samples whose keys are still to be compared

    def add(self, keys: Sequence[bytes]) -> None:
        """Compare the *keys* of the next samples, in order, with earlier ones, as long as `remaining` is not 0.

        A key equal to the one just before it does not return.
        """
        keys = keys[: self.remaining]
        if not keys:
            return
        earlier = self._known
        if len(set(keys)) < len(keys) or not earlier.isdisjoint(keys):
            for before, key in zip((self._last, *keys), keys, strict=False):
                if key in earlier and key != before:
                    self._report(key)
                earlier.add(key)
        earlier.update(keys)
        self._last = keys[-1]
        self.remaining -= len(keys)
        if not self.remaining:
            earlier.clear()
