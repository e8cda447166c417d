"""Work on a Ray cluster: one task of Ray's for each item, and Ray's own retries for workers and nodes that are lost.

Ray is imported here and nowhere else; it comes with the extra `tartools[ray]`.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tartools import storage
from tartools.errors import StorageError, UsageError
from tartools.jobs import Ended, Task
from tartools.running import Done, attempted
from tartools.storage.interrupts import ENDING
from tartools.storage.programs import Programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from tartools.account import Account

Item = TypeVar("Item")
Result = TypeVar("Result")

IN_FLIGHT = 1000  # tasks that Ray knows of; more cost its memory, and gain nothing
PATIENCE = 5.0  # seconds in which tasks that are cancelled end what they run


def there(
    tasks: Iterable[Task],
    account: Account,
    *,
    address: str | None,
    cpus: float,
    most: int | None,
    retries: int,
    timeout: float | None,
    fail_fast: bool,
) -> Done:
    """Yield each of *tasks* as it ends on the cluster at *address*; None for one that was not begun.

    Each asks for *cpus* cores, and up to *most* run at a time. The rest is as in `running.here`.
    Raises: UsageError without Ray; StorageError if the cluster can't be reached.
    """
    with connected(address) as ray:
        nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
        cores, all_cores = max(nodes, default=0.0), sum(nodes)
        if cores and cpus > cores:
            account.warn(f"an item asks for {cpus:g} cores, and the largest node has {cores:g}: it gets these")
            cpus = cores
        if fail_fast:  # no more than can run, since what Ray has been given begins
            most = min(most or IN_FLIGHT, max(1, int(all_cores // cpus)))
        failed = False

        def wanted() -> Iterator[Task]:
            for task in tasks:
                if failed and fail_fast:
                    return
                yield task

        folder = os.getcwd()
        results = mapped(ray, _on_a_node, ((t, (t, folder, retries, timeout)) for t in wanted()), cpus, most)
        for task, result, running in results:
            account.jobs.running = running
            ended = Ended(None, _reason(result)) if isinstance(result, Exception) else result
            failed = failed or bool(ended.failure)
            yield task, ended


@contextmanager
def connected(address: str | None) -> Iterator[ModuleType]:
    """Connect to the cluster at *address*, by default that of RAY_ADDRESS, else one on this machine; give Ray.

    A program that is connected already stays as it is. Raises: UsageError without Ray; StorageError if it can't be
    reached, or refuses us.
    """
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed: pip install 'tartools[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    handlers = {number: signal.getsignal(number) for number in ENDING}
    where = address or os.environ.get("RAY_ADDRESS") or "this machine"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    found = re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", where)
    if found:
        storage.check_listening(found[1], int(found[2]), where)  # Ray would try for minutes
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=True)
    except ray.exceptions.AuthenticationError:
        raise StorageError(
            "the cluster refuses our token: RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH say which",
            url=where,
        ) from None
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise StorageError(
            f"cannot connect to this Ray cluster: {_first_line(error)} (--address or RAY_ADDRESS say where it is)",
            url=where,
        ) from error
    finally:
        _restore(handlers)
    try:
        yield ray
    finally:
        ray.shutdown()
        _restore(handlers)


def mapped(
    ray: ModuleType,
    work: Callable[..., Result],
    items: Iterable[tuple[Item, tuple[Any, ...]]],
    cpus: float,
    most: int | None = None,
) -> Generator[tuple[Item, Result | Exception, int], None, None]:
    """Yield each of *items* with what *work* returns for its arguments, or how it failed, and how many are under way.

    Order: as they end. Holds: up to *most* items, and never more than 1,000. When this is closed, those under way are
    cancelled, and waited for.
    """
    run = ray.remote(work).options(num_cpus=cpus)
    source = iter(items)
    flying: dict[Any, Item] = {}
    try:
        while True:
            while len(flying) < min(most or IN_FLIGHT, IN_FLIGHT):
                found = next(source, None)
                if found is None:
                    break
                flying[run.remote(*found[1])] = found[0]
            if not flying:
                return
            refs = list(flying)
            ray.wait(refs, num_returns=1)  # then all that have ended too
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
            for ref in ready:
                item = flying.pop(ref)
                result: Result | Exception
                try:
                    result = ray.get(ref)
                except Exception as error:
                    result = error
                yield item, result, len(flying)
    finally:
        refs = list(flying)
        for ref in refs:
            ray.cancel(ref)
        with suppress(Exception):
            ray.wait(refs, num_returns=len(refs), timeout=PATIENCE)


def _on_a_node(task: Task, folder: str, retries: int, timeout: float | None) -> Ended:
    """Run *task* on a node of the cluster, in *folder* if it has that."""
    if os.path.isdir(folder):
        os.chdir(folder)
    elif storage.is_file(task.output) and not os.path.isabs(task.output):
        return Ended(None, f"there is no directory {folder} on {os.uname().nodename}, to which the output is relative")
    if task.output and not task.force and storage.is_there(task.output):  # of a try whose worker was lost at its end
        return Ended(0, host=os.uname().nodename)
    with Programs(timeout=timeout) as programs:
        return attempted(task, programs, retries)


def _reason(error: Exception) -> str:
    """Return how Ray lost a task."""
    return f"was lost by Ray: {type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    """Set the handlers of signals that Ray replaced."""
    for number, handler in handlers.items():
        with suppress(ValueError, TypeError):  # not in the main thread, where Ray replaces none
            signal.signal(number, handler)
