"""How the tests are distributed among workers: those of the Ray cluster first, to one worker; then one at a time.

One at a time, because a test takes 1 ms or 20 s: a worker that got a hundred in advance would be the last to end. All
tests of the cluster to one, because they take its cores, and its nodes away. (xdist's `--dist loadgroup` would do, but
its version 3.8 does not find its groups with pytest 9.2.)
"""

from __future__ import annotations

from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

CLUSTER = "ray.py"  # how the names of the modules end that have those tests


class Schedule(LoadScopeScheduling):  # type: ignore[misc]
    """Distributes scopes, the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the scope of a test: its own name, unless it is one of the cluster's."""
        return CLUSTER if nodeid.partition("::")[0].endswith(CLUSTER) else nodeid
