"""A cluster of two machines (two of Ray's nodes on this one), one of which is lost in the middle of a run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from ray.cluster_utils import Cluster
from tests.engines.ray import odd
from tests.engines.ray.test_ray_engine import RULES, digests, drive, on_ray

from abaton.controller import Arrived, Failed, from_row
from abaton.engines import VirtualEngine
from abaton.engines.ray.cluster import ClusterError
from abaton.store import Journal, Store

# A lost machine is noticed after seconds instead of half a minute.
NOTICED = {
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


def main(folder: Path) -> None:
    """Run the same rounds under the virtual clock, on both machines, and on one that is left alone."""
    told: dict[str, object] = {}
    names = ("a", "b", "slow")
    try:
        odd.engine("a", address="127.0.0.1:1")
    except ClusterError as error:
        told["nobody there"] = type(error).__name__
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": NOTICED}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    other = cluster.add_node(num_cpus=1)
    os.environ["RAY_ADDRESS"] = cluster.address
    with Store(folder) as store:
        members = odd.learners(*names)
        drive(store, "virtual", RULES, lambda keep: VirtualEngine(members, {}, keep=keep, seed=0))
        drive(store, "whole", RULES, on_ray(*names))
        told |= {run: digests(store, run) for run in ("virtual", "whole")}

        def watch(state: object, event: object) -> None:
            if isinstance(event, Arrived) and other in cluster.worker_nodes:
                cluster.remove_node(other, allow_graceful=False)

        told["version"] = drive(store, "less", RULES, on_ray(*names), watch).version
        events = [from_row(*row) for row in Journal(store, "less").rows()]
        told["reasons"] = sorted({event.reason for event in events if isinstance(event, Failed)})
    cluster.shutdown()
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
