"""Runs tasks on a Ray cluster: one Ray task for each item, and Ray's own retries for lost workers and nodes.

Only this module imports Ray, which comes with the extra `ray`.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, redirect_stdout
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tartools import storage
from tartools.errors import StorageError, UsageError, how_to_install
from tartools.run.engines import Item, Work, pack_results
from tartools.run.localjobs import Sessions, run_with_retries
from tartools.run.tasks import Task, TaskResult
from tartools.storage.interrupts import defer_signals
from tartools.storage.pool import Engine, Threads
from tartools.storage.streams import silence_stderr
from tartools.storage.url import Url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from tartools.samples.account import Account

Result = TypeVar("Result")

MAX_TASKS_IN_FLIGHT = 1000  # tasks submitted at a time; more take memory of Ray and gain nothing
CANCEL_SECONDS = 8.0  # seconds in which cancelled tasks end what they run
CANCEL_POLL_SECONDS = 0.1  # seconds until a task notices that it was cancelled
CONNECT_RETRIES = ("RAY_NUM_REDIS_GET_RETRIES", "3")  # to reach a cluster, a second or more each


@contextmanager
def open_ray_engine(
    account: Account, address: str | None, cpus: float, retries: int, timeout: float | None
) -> Iterator[tuple[Engine[Task, TaskResult], int]]:
    """For the body of `with`: (an engine that runs tasks on a cluster, how many of them can run at a time).

    *address*: of the cluster; None: RAY_ADDRESS, or else one on this machine. Each task requests *cpus* cores, 0 being
    all of the largest node; if no node has so many, all of the largest, with a warning through *account*. *retries*:
    more tries of a task that fails. *timeout*: seconds that a try may take; None: no limit. An output that exists when
    a task begins on a node is replaced: Ray retries a task whose worker was lost, and the lost try may have failed
    after writing it. A task that Ray has lost for good has failed. In the body sys.stdout is None: print writes
    nothing. At its end a connection that was opened here is closed.
    Raises: UsageError without Ray; StorageError if the cluster can't be reached.
    """
    with redirect_stdout(None), connect_cluster(address) as ray:  # Ray prints there what it has lost
        cpus, folder = limit_cores(ray, cpus, account), os.getcwd()

        def make_lost_result(error: Exception) -> TaskResult:
            """Return a failed result, with the status None, for a task that Ray has lost, or that raised *error*."""
            return TaskResult(None, _lost_reason(error))

        yield (
            RayTasks(ray, lambda task: _run_on_node(task, folder, retries, timeout), cpus, on_lost=make_lost_result),
            count_slots(ray, cpus),
        )


@contextmanager
def connect_cluster(address: str | None) -> Iterator[ModuleType]:
    """For the body of `with`: the module `ray`, connected to the cluster at *address*.

    *address*: None for RAY_ADDRESS, or else a cluster on this machine, which is started if there is none. If this
    process is connected already, that connection is used, to any cluster, and kept; else it is closed after the body.
    Raises: UsageError without Ray; StorageError if the cluster can't be reached or refuses the token.
    """
    os.environ.setdefault(*CONNECT_RETRIES)  # read when Ray is loaded
    try:
        import ray
    except ImportError:
        raise UsageError(f"Ray is not installed: {how_to_install('ray')}") from None
    if ray.is_initialized():
        yield ray
        return
    place = address or os.environ.get("RAY_ADDRESS") or "this machine"
    match = re.fullmatch(r"(?:ray://)?(?:\[([^/\]]+)\]|([^/:]+)):(\d+)", place)  # [::1]:6379 too
    if match and os.environ.get("RAY_USE_TLS", "0") == "0":
        storage.check_connection(match[1] or match[2], int(match[3]), place)  # Ray would try for minutes
    try:
        with defer_signals(), silence_stderr():  # Ray swallows what our handlers raise, and sets others
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError, ImportError, ray.exceptions.RayError) as error:
        if isinstance(error, ray.exceptions.AuthenticationError) or "AuthenticationError" in str(error.__cause__):
            message = (
                "this Ray cluster refuses our token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            )
        else:
            message = f"cannot connect to this Ray cluster (--address or RAY_ADDRESS): {_first_line(error)}"
        raise StorageError(message, url=place) from error
    try:
        yield ray
    finally:
        with defer_signals():
            ray.shutdown()


def limit_cores(ray: ModuleType, cpus: float, account: Account) -> float:
    """Return the number of cores that an item requests: *cpus*, but not more than the largest node has; 0: all of it.

    If no node has cores: *cpus*, or 1 for 0. *ray*: the module, connected to a cluster. Warns through *account* if
    *cpus* is more than the largest node has.
    """
    cores = max(_node_cores(ray), default=0.0)
    if not cpus:
        return cores or 1.0
    if not cores or cpus <= cores:
        return cpus
    account.warn(f"item requests {cpus:g} cores; the largest node has {cores:g}, using {cores:g}")
    return cores


def count_slots(ray: ModuleType, cpus: float) -> int:
    """Return how many items that request *cpus* (over 0) cores each can run at a time on the cluster; at least 1.

    An item runs on one node. *ray*: the module, connected to the cluster.
    """
    return max(1, sum(int(cores // cpus) for cores in _node_cores(ray)))


class RayTasks(Generic[Item, Result]):
    """An engine that calls *work* in Ray tasks, which request *cpus* cores each.

    *ray*: the module, connected to a cluster. Ray pickles *work* and sends it to each worker once. It tries an item
    *retries* times more if it loses the worker; None: as often as Ray's settings say. `on_lost(error)`: returns a
    result in place of the error of a task, an error of *work* too; None: the error is raised.
    """

    def __init__(
        self,
        ray: ModuleType,
        work: Callable[[Item], Result],
        cpus: float,
        retries: int | None = None,
        on_lost: Callable[[Exception], Result] | None = None,
    ) -> None:
        self._ray = ray
        self._on_lost = on_lost
        options = {"num_cpus": cpus} | ({} if retries is None else {"max_retries": retries})
        self._run = ray.remote(work).options(**options)
        self._lock = RLock()
        self._flying: dict[Future[Result], Any] = {}
        self._stopped = False

    def submit(self, item: Item, on_end: Callable[[], object], /) -> Callable[[], Result]:
        """Have *work* called for *item* in a Ray task; return a function that waits for its result.

        That raises the error of the task, such as a RayError if Ray lost it, or returns what *on_lost* makes of it.
        `on_end()` is called when the task is over, in any thread. Raises: RuntimeError after `stop`; the errors of Ray,
        such as one of pickling *work* or *item*.
        """

        def forget_future(future: Future[Result]) -> None:
            """Forget *future*, which is over, and tell the caller."""
            with self._lock:
                self._flying.pop(future, None)
            on_end()

        with self._lock:  # nothing may be begun once all was cancelled
            if self._stopped:
                raise RuntimeError("the workers were stopped")
            ref = self._run.remote(item)
            future: Future[Result] = ref.future()  # to wait for it is open to signals; Ray's calls swallow them
            self._flying[future] = ref
        future.add_done_callback(forget_future)

        def result() -> Result:
            """Wait for the task, and return its result.

            Raises: the error of the task, such as a RayError if Ray lost it; with *on_lost*, returns `on_lost(error)`
            instead.
            """
            try:
                return future.result()
            except Exception as error:
                if self._on_lost is None:
                    raise
                return self._on_lost(error)

        return result

    def stop(self) -> None:
        """Cancel all tasks, submit no more, and wait up to 8 seconds for their end.

        A task that runs then is killed with its worker.
        """
        with self._lock:
            self._stopped = True
            running = dict(self._flying)
        for ref in running.values():
            self._ray.cancel(ref)
        for future in wait(running, CANCEL_SECONDS).not_done:
            self._ray.cancel(running[future], force=True)


def make_packing_engine(
    ray: ModuleType, work: Work[Item], workers: int, cpus: float, retries: int
) -> Engine[Item, bytes]:
    """Return an engine that calls *work* in Ray tasks, up to *workers* at a time, and gives the results as bytes.

    The bytes are the pickles of the values that *work* yields for an item, joined: `engines.results` reads them.
    An error of *work* is the last of them. It is called in our current folder if the node has that.
    *ray*: the module, connected to a cluster. *cpus*: cores that a task requests; *retries*: more tries if it is lost.
    Raises in place of the bytes: RuntimeError with the item, if its worker was lost each time, or for another RayError;
    RuntimeError after `stop`.
    """
    folder = os.getcwd()

    def answer(item: Item) -> bytes:
        """Return the pickles of the values that *work* yields for *item*, joined; called in a worker of Ray.

        The last is a `Failure` if *work* raised.
        """
        from ray.cloudpickle import CloudPickler  # for classes of the main program

        prepare_worker(folder, "")
        return pack_results(work, item, CloudPickler)

    tasks = RayTasks(ray, answer, cpus, retries)

    def call(item: Item) -> bytes:
        """Return the pickled results for *item*, made by a Ray task.

        Raises: RuntimeError for a RayError, such as that the task was lost, and after `stop`.
        """
        try:
            return tasks.submit(item, lambda: None)()
        except ray.exceptions.RayError as error:
            raise RuntimeError(f"{item}: {_lost_reason(error)}") from error

    return Threads(workers, call, tasks.stop)


def _run_on_node(task: Task, folder: str, retries: int, timeout: float | None) -> TaskResult:
    """Run *task* on a node of the cluster, in *folder* if the node has it, and return its result.

    If the node has no *folder* and the output is relative to it, or if the store can't tell whether the output exists,
    the task does not run: its result is the failure. An output that exists is replaced: a try whose worker was lost has
    written it.
    *retries*: more tries if it fails. *timeout*: seconds that a try may take; None: no limit. When Ray cancels it,
    which raises KeyboardInterrupt here, it ends its command. The interrupt does not end a system call, so this thread
    must return from each soon. Raises: KeyboardInterrupt; StorageError if the guard can't be started.
    """
    try:
        prepare_worker(folder, task.output)
        if task.output and storage.exists(task.output):  # written by a try whose worker was lost
            task = task._replace(force=True)
    except StorageError as error:
        return TaskResult(None, error.message)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT, and commands would inherit that
    with closing(Sessions(timeout=timeout)) as sessions, ThreadPoolExecutor(1) as thread:
        node = os.getppid()
        try:
            running = thread.submit(run_with_retries, task, sessions, retries)
            while not running.done():
                wait([running], CANCEL_POLL_SECONDS)
        finally:
            sessions.stop()
        if running.result().status == -signal.SIGKILL:
            _wait_if_node_lost(node)
        return running.result()


def _wait_if_node_lost(node: int) -> None:
    """Return if the process *node*, the parent of this worker, still runs; else wait 8 seconds, to be ended meanwhile.

    It looks after 0.1 seconds. A worker whose node was lost kills its commands before it ends. That is no failure of
    theirs: Ray runs them again.
    """
    time.sleep(CANCEL_POLL_SECONDS)  # until the system says so
    if os.getppid() != node:
        time.sleep(CANCEL_SECONDS)  # Ray ends this process meanwhile


def prepare_worker(folder: str, output: str) -> None:
    """Prepare this process of Ray for work: SIGINT raises KeyboardInterrupt, and it works in *folder* if that is here.

    Ray may have been started where SIGINT is ignored. Commands would inherit that; a signal that is handled here is the
    default one in them. Without *folder* it stays where it is. Raises: StorageError if the node has no *folder*, and
    *output* (a URL, or "" for none) is relative to it; OSError if *folder* can't be entered.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.path.isdir(folder):
        os.chdir(folder)
    elif output and Url(output).is_local and not output.startswith(("/", "file:/")):
        host = os.uname().nodename
        raise StorageError(f"{host} has no directory {folder}, to which this output is relative", url=output)


def _node_cores(ray: ModuleType) -> list[float]:
    """Return the cores of each node that is alive in the cluster of the module *ray*; 0.0 for a node without cores."""
    return [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]


def _lost_reason(error: Exception) -> str:
    """Return why a task has no result, for messages: "was lost by Ray: CLASS: TEXT" of *error*, raised by Ray.

    If *error* has an attribute "cause" that is not None (the error of the task itself), that takes its place. TEXT is
    the first line of its text, or its class.
    """
    error = getattr(error, "cause", None) or error
    return f"was lost by Ray: {type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    """Return the first line of the text of *error* that is not empty, stripped; the name of its class if none is."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
