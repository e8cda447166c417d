"""A Ray cluster for the tests, in a process of its own: `python -m tests.run.nodes [NODES]`, one and NODES more.

It prints its address once it can be used. For each line on stdin it kills the last node, with all that runs there, at
once, prints a line, and has a new one take its place, after which it prints another. At the end of stdin it stops all.
"""

from __future__ import annotations

import sys

HERE = "127.0.0.2"  # Ray takes 127.0.0.1 for a way to say "this machine", and asks another of its addresses
CORES = 2  # of each node but the head, which has one


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(True, head_node_args={"num_cpus": 1, "node_ip_address": HERE, "include_dashboard": False})
    others = [cluster.add_node(num_cpus=CORES, node_ip_address=HERE) for _ in range(int(sys.argv[1]))]
    print(cluster.address, flush=True)  # noqa: T201
    for _ in sys.stdin:
        cluster.remove_node(others.pop(), allow_graceful=False)
        print("lost", flush=True)  # noqa: T201
        others.append(cluster.add_node(num_cpus=CORES, node_ip_address=HERE))
        print("replaced", flush=True)  # noqa: T201
    cluster.shutdown()


if __name__ == "__main__":
    main()
