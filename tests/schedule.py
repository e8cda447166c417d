"""How the tests are distributed among workers: torch's, Ray's, Chromium's, real servers' to one each, the rest singly.

One at a time, because a test takes 1 ms or 20 s: a worker that got a hundred in advance would be the last to end. All
tests of the cluster to one, because they take its cores, and its nodes away. All of torch's to one, the only one that
collects them: to import torch takes 3 s. (xdist's `--dist loadgroup` would do for the cluster, but its version 3.8 does
not find its groups with pytest 9.2.)
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

CLUSTER = "ray.py"  # how the names of the modules end that have the tests of the cluster
TORCH = (  # folders and modules of what imports torch
    *("tests/train", "tartools/train"),
    *("tests/commands/test_exports.py", "tests/commands/test_foreign.py", "tests/commands/test_tfrecord.py"),
)
SERVERS = "tests/storage/real"  # the folder of what starts real servers
BROWSER = ("tests/show/test_page.py", "tests/show/test_serve_page.py")  # modules of what needs Chromium

HAS_TORCH = find_spec("torch") is not None
WITHOUT = "needs torch"
MISSING = f"No module named 'torch|import of torch halted|{WITHOUT}"
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason=WITHOUT)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip the modules that can't be imported for want of torch, where it is not installed."""
    report = yield
    if report.failed and not HAS_TORCH and re.search(MISSING, str(report.longrepr)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, WITHOUT)
    return report


def left_to_others(path: str, arguments: Sequence[str]) -> bool:
    """Tell whether this process does not collect *path*, because another worker does.

    The first one does, and those that come when a worker has crashed. What *arguments*, those of pytest, name must be
    collected by each.
    """
    number, count = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:], os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    another = 0 < int(number) < int(count) and path.startswith(TORCH)
    return another and not any(os.path.relpath(argument).startswith(TORCH) for argument in arguments)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave what imports torch to one worker."""
    return left_to_others(collection_path.relative_to(config.rootpath).as_posix(), config.args) or None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that nobody else has imported it."""
    assert "torch" not in sys.modules or not left_to_others(TORCH[0], session.config.args)


class Schedule(LoadScopeScheduling):  # type: ignore[misc]
    """Distributes scopes, each to a worker that has collected it."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the scope of a test: its own name, unless it is torch's, the browser's or the cluster's."""
        if nodeid.startswith(TORCH):
            return "torch"
        if nodeid.startswith(SERVERS):
            return "servers"
        if nodeid.startswith(BROWSER):
            return "browser"
        return "cluster" if nodeid.partition("::")[0].endswith(CLUSTER) else nodeid

    def schedule(self) -> None:
        """Begin, with the collection of who has collected most as that of all."""
        if self.collection is None:
            most = sorted(self.registered_collections.items(), key=lambda item: len(item[1]), reverse=True)
            self.registered_collections = dict(most)
        super().schedule()

    def _check_nodes_have_same_collection(self) -> bool:
        """Tell whether all have collected the same, but for what is left to others."""
        most, *others = self.registered_collections.values()
        kept = [nodeid for nodeid in most if not nodeid.startswith(TORCH)]
        if all(collection in (most, kept) for collection in others):
            return True
        return bool(super()._check_nodes_have_same_collection())

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Assign the next scope that *node* has collected, if there is one."""
        has_all = len(self.registered_collections[node]) == len(self.collection or [])
        scope = next((scope for scope in self.workqueue if has_all or scope != "torch"), None)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)
