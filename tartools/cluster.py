"""Work on a Ray cluster: one task of Ray's for each item, and Ray's own retries for workers and nodes that are lost.

Ray is imported here and nowhere else; it comes with the extra `tartools[ray]`.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, redirect_stdout, suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from tartools import storage
from tartools.errors import StorageError, UsageError
from tartools.jobs import Ended, Task
from tartools.running import Done, attempted
from tartools.storage.interrupts import signals_wait
from tartools.storage.programs import Programs
from tartools.storage.streams import silent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from tartools.account import Account

Item = TypeVar("Item")
Result = TypeVar("Result")

IN_FLIGHT = 1000  # tasks that Ray knows of; more cost its memory, and gain nothing
PATIENCE = 8.0  # seconds in which tasks that are cancelled end what they run
PULSE = 0.1  # seconds until a task sees that it is cancelled
TRIES = ("RAY_NUM_REDIS_GET_RETRIES", "3")  # to reach a cluster, of a second and more


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

    Each asks for *cpus* cores, 0 being all of the largest node, and up to *most* run at a time. When Ray tries again
    because it has lost a worker, what is there is replaced: whoever wrote it may have failed after that.
    The rest is as in `running.here`.
    Raises: UsageError without Ray; StorageError if the cluster can't be reached.
    """
    with redirect_stdout(None), connected(address) as ray:  # Ray prints there what it has lost
        cpus = fitting(ray, cpus, account)
        room = max(1, sum(int(cores // cpus) for cores in _cores(ray)))
        if fail_fast:  # no more than can run, since what Ray has been given begins
            most = min(most or IN_FLIGHT, room)
        failed = False

        def wanted() -> Iterator[Task]:
            for task in tasks:
                if failed and fail_fast:
                    return
                yield task

        folder = os.getcwd()
        results = mapped(ray, _on_a_node, ((t, (t, folder, retries, timeout)) for t in wanted()), cpus, most)
        with closing(results):  # before Ray is shut down
            for task, result, running in results:
                account.jobs.running = min(running, room)
                ended = Ended(None, _reason(result)) if isinstance(result, Exception) else result
                failed = failed or bool(ended.failure)
                yield task, ended


@contextmanager
def connected(address: str | None) -> Iterator[ModuleType]:
    """Connect to the cluster at *address*, by default that of RAY_ADDRESS, else one on this machine; give Ray.

    A program that is connected already stays as it is. Raises: UsageError without Ray; StorageError if it can't be
    reached, or refuses us.
    """
    os.environ.setdefault(*TRIES)  # read when Ray is loaded
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed: pip install 'tartools[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    where = address or os.environ.get("RAY_ADDRESS") or "this machine"
    found = re.fullmatch(r"(?:ray://)?(?:\[([^/\]]+)\]|([^/:]+)):(\d+)", where)  # [::1]:6379 too
    if found and os.environ.get("RAY_USE_TLS", "0") == "0":
        storage.check_listening(found[1] or found[2], int(found[3]), where)  # Ray would try for minutes
    try:
        with signals_wait(), silent():  # Ray swallows what our handlers raise, and sets others
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        if isinstance(error, ray.exceptions.AuthenticationError) or "AuthenticationError" in str(error.__cause__):
            message = (
                "this Ray cluster refuses our token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            )
        else:
            message = f"cannot connect to this Ray cluster (--address or RAY_ADDRESS): {_first_line(error)}"
        raise StorageError(message, url=where) from error
    try:
        yield ray
    finally:
        with signals_wait():
            ray.shutdown()


def fitting(ray: ModuleType, cpus: float, account: Account) -> float:
    """Return *cpus*; for 0, or more than any node has, of which *account* is told, the cores of the largest node."""
    cores = max(_cores(ray), default=0.0)
    if not cpus:
        return cores or 1.0
    if not cores or cpus <= cores:
        return cpus
    account.warn(f"an item asks for {cpus:g} cores, and the largest node has {cores:g}: it gets these")
    return cores


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
    flying: dict[Future[Result], tuple[Any, Item]] = {}
    ended: SimpleQueue[Future[Result]] = SimpleQueue()  # where signals interrupt us; Ray swallows what they raise
    try:
        while True:
            while len(flying) < min(most or IN_FLIGHT, IN_FLIGHT):
                found = next(source, None)
                if found is None:
                    break
                ref = run.remote(*found[1])
                future = ref.future()
                flying[future] = ref, found[0]
                future.add_done_callback(ended.put)
            if not flying:
                return
            future = ended.get()
            _, item = flying.pop(future)
            error = future.exception()
            assert error is None or isinstance(error, Exception)
            yield item, future.result() if error is None else error, len(flying)
    finally:
        until = monotonic() + PATIENCE
        for ref, _ in flying.values():
            ray.cancel(ref)
        with suppress(Empty):
            while flying:
                del flying[ended.get(timeout=max(0.0, until - monotonic()))]


def _on_a_node(task: Task, folder: str, retries: int, timeout: float | None) -> Ended:
    """Run *task* on a node of the cluster, in *folder* if it has that."""
    try:
        enter(folder, task.output)
        if task.output and storage.is_there(task.output):  # of a try whose worker was lost
            task = task._replace(force=True)
    except StorageError as error:
        return Ended(None, error.message)
    return _cancellable(task, retries, timeout)


def _cancellable(task: Task, retries: int, timeout: float | None) -> Ended:
    """Return how *task* ended. When Ray cancels it, which is a KeyboardInterrupt, what runs is ended.

    Such an interrupt does not end a call to the system, so this thread must not be in one for long.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT, and commands would inherit that
    heed_interrupts()
    with ThreadPoolExecutor(1) as thread, Programs(timeout=timeout) as programs:
        ended = thread.submit(attempted, task, programs, retries)
        while not ended.done():
            wait([ended], PULSE)
        return ended.result()


def heed_interrupts() -> None:
    """See to it that Ray can cancel what this process does, even if Ray was started where SIGINT is ignored.

    Commands would inherit that; what is handled here begins in them as in a shell.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def enter(folder: str, output: str) -> None:
    """Work in *folder* on this node, if it has that. Raises: StorageError if not, and *output* is relative to it."""
    if os.path.isdir(folder):
        os.chdir(folder)
    elif output and storage.is_file(output) and not output.startswith(("/", "file:/")):
        host = os.uname().nodename
        raise StorageError(f"there is no directory {folder} on {host}, to which the output is relative", url=output)


def _cores(ray: ModuleType) -> list[float]:
    """Return the cores of each node."""
    return [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]


def _reason(error: Exception) -> str:
    """Return how Ray lost a task."""
    error = getattr(error, "cause", None) or error
    return f"was lost by Ray: {type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
