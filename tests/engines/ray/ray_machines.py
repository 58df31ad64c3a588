"""A cluster of two machines (two Ray nodes on this one), one of which is lost during a run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from ray.cluster_utils import Cluster
from tests.engines.ray import unusual_models as unusual
from tests.engines.ray.test_ray_engine import STRATEGY, digests, on_ray, run_once

from abaton.controller import TaskFailed, UpdateReceived, event_from_row
from abaton.engines import VirtualEngine
from abaton.engines.ray.cluster import ClusterError
from abaton.store import Journal, Store

# A lost machine is detected after seconds instead of half a minute.
FAST_HEALTH_CHECKS = {
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


def main(folder: Path) -> None:
    """Run the same rounds under the virtual clock, on both machines, and with one machine lost."""
    results: dict[str, object] = {}
    names = ("a", "b", "slow")
    try:
        unusual.engine("a", address="127.0.0.1:1")
    except ClusterError as error:
        results["no cluster"] = type(error).__name__
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": FAST_HEALTH_CHECKS}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    other = cluster.add_node(num_cpus=1)
    os.environ["RAY_ADDRESS"] = cluster.address
    with Store(folder) as store:
        learners_by_name = unusual.learners(*names)
        run_once(
            store,
            "virtual",
            STRATEGY,
            lambda store_payload: VirtualEngine(learners_by_name, {}, store_payload=store_payload, seed=0),
        )
        run_once(store, "complete", STRATEGY, on_ray(*names))
        results |= {run: digests(store, run) for run in ("virtual", "complete")}

        def watch(state: object, event: object) -> None:
            if isinstance(event, UpdateReceived) and other in cluster.worker_nodes:
                cluster.remove_node(other, allow_graceful=False)

        results["version"] = run_once(store, "reduced", STRATEGY, on_ray(*names), watch).version
        events = [event_from_row(*row) for row in Journal(store, "reduced").rows()]
        results["reasons"] = sorted({event.reason for event in events if isinstance(event, TaskFailed)})
    cluster.shutdown()
    print(json.dumps(results))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
