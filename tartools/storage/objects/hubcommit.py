"""Outputs on Hugging Face's hub: commits to a branch, by huggingface_hub, which repeats what fails while it uploads.

An output is a file without a name until it is complete. Then it is uploaded, and a commit lets it appear: one for each
output, or one for all of a block of `one_commit`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from typing import Any, NamedTuple

from tartools.errors import ExistsError, StorageError, UsageError, how_to_install, several
from tartools.storage.objects import hf
from tartools.storage.objects.hf import HubPath
from tartools.storage.objects.http import busy, is_busy
from tartools.storage.objects.retry import TransientError, with_retries
from tartools.storage.scratch import reread, scratch_file


class _Change(NamedTuple):
    """A file that a commit adds, as an *addition* of huggingface_hub, or removes, if that is None."""

    place: HubPath
    url: str
    addition: Any
    force: bool


_changes: list[_Change] | None = None  # of the block of `one_commit` that runs


class HubOutput:
    """An output that is uploaded when it is complete."""

    streaming = False

    def __init__(self, place: HubPath, url: str, force: bool) -> None:
        if find_spec("huggingface_hub") is None:
            what = f"a library for uploads to the hub is missing: {how_to_install('tartools[hf]')}"
            raise StorageError(f"{what}; or write files, and upload them by hf upload", url=url)
        if re.fullmatch(hf.COMMIT, place.revision):
            raise UsageError("a commit does not change: name a branch, or none for main", url=url)
        self._place = place
        self._url = url
        self._force = force
        self.sink = scratch_file()

    def commit(self) -> None:
        """Upload everything, and make a commit of it. Raises: StorageError, also if the file exists by then."""
        from huggingface_hub import CommitOperationAdd

        place, url = self._place, self._url
        there = partial(hf.versions, place, place.revision, [place.path], url)
        if not self._force and with_retries(there, url):
            raise ExistsError(url)
        with reread(self.sink) as file:
            addition = CommitOperationAdd(place.path, file)
            _upload(place, url, addition)
            if addition.path_or_fileobj is file:  # it is so small that it is a part of the commit
                addition.path_or_fileobj = file.read()
        self.sink.close()
        _change(_Change(place, url, addition, self._force))

    def abort(self) -> None:
        """Drop everything."""
        self.sink.close()


def removed(place: HubPath, url: str) -> None:
    """Remove the file at *place* by a commit. Raises: StorageError."""
    _change(_Change(place, url, None, True))


def _change(change: _Change) -> None:
    """Make a commit of *change*, or a part of that of the block."""
    if _changes is None:
        _send([change])
    else:
        _changes.append(change)


@contextmanager
def one_commit() -> Iterator[None]:
    """Make one commit, at its normal end, of all that is written and removed in the block; else nothing appears."""
    global _changes  # noqa: PLW0603
    before, _changes = _changes, []
    try:
        yield
        for _, group in groupby(sorted(_changes, key=_branch), _branch):
            _send([*group])
    finally:
        _changes = before


def _branch(change: _Change) -> tuple[str, str]:
    return change.place.repo, change.place.revision


def _upload(place: HubPath, url: str, addition: Any) -> None:
    """Bring the content of a file to the hub, where it is not visible yet. Raises: StorageError."""
    try:
        with _library(place, url) as client:
            client.preupload_lfs_files(place.repo, [addition], repo_type="dataset", revision=place.revision)
    except TransientError as error:
        raise StorageError(error.reason, url=url) from None
    if getattr(addition, "_should_ignore", False):
        raise StorageError("the .gitignore of the data set leaves this file out", url=url)


def _send(changes: Sequence[_Change]) -> None:
    """Make one commit of *changes* to one branch. Raises: StorageError, also if a file exists by now."""
    sent: list[str] = []  # the commits before those of which no response came
    with_retries(partial(_attempt, changes, sent), changes[0].url)


def _attempt(changes: Sequence[_Change], sent: list[str]) -> None:
    """Make the commit, one attempt: of the branch as it is now, or else there is no commit."""
    from huggingface_hub import CommitOperationDelete

    place, url = changes[0].place, changes[0].url
    parent = hf.current_commit(place, url)
    there = hf.versions(place, parent, [change.place.path for change in changes], url)
    operations: list[Any] = []
    for change in changes:
        path, known = change.place.path, there.get(change.place.path)
        if change.addition is None:
            operations += [CommitOperationDelete(path)] * (known is not None)
        elif known is None or change.force:
            operations.append(change.addition)
        elif not sent or known.version != getattr(change.addition, "_local_oid", None):
            raise ExistsError(change.url)
    if not operations:
        return hf.moved_on(place, parent)
    sent.append(parent)
    first = f"{'Add' if changes[0].addition else 'Remove'} {place.path}"
    subject = first if len(changes) == 1 else f"{first} and {several(len(changes) - 1, 'other file')}"
    with _library(place, url) as client:
        done = client.create_commit(
            place.repo,
            operations,
            commit_message=subject,
            repo_type="dataset",
            revision=place.revision,
            parent_commit=parent,
        )
    return hf.moved_on(place, done.oid)


@contextmanager
def _library(place: HubPath, url: str) -> Iterator[Any]:
    """Give the client of the hub, and turn what it raises into StorageError, or TransientError.

    It says nothing itself: addresses with signatures are in its log.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    log = logging.getLogger("huggingface_hub")
    level, bars = log.level, not are_progress_bars_disabled()
    log.setLevel(logging.CRITICAL)
    if bars:
        disable_progress_bars()
    try:
        yield HfApi(hf.server(), token=hf.token() or False, library_name="tartools")
    except Exception as error:
        causes = [error, error.__cause__, error.__context__]  # of its threads
        response = next((cause.response for cause in causes if isinstance(cause, HfHubHTTPError)), None)
        if response is None:
            raise TransientError(f"huggingface_hub: {type(error).__name__}") from None
        known = hf.refusal(response.status_code, response.headers, place, url)
        if known is not None:
            raise known from None
        if response.status_code in (409, 412):
            raise TransientError("others make commits to this branch, too") from None
        if is_busy(response.status_code):
            raise busy(str(response.status_code), response.headers.get("Retry-After", "")) from None
        what = "no permission to write" if response.status_code == 403 else "the hub refuses"
        raise StorageError(f"{what} ({response.status_code})", url=url) from None
    finally:
        log.setLevel(level)
        if bars:
            enable_progress_bars()
