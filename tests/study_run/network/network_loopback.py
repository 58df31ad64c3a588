"""Federation of a study without a network: the services of the sites reply in this process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.engines.flower.loopback import LoopbackTransport, SiteWorkers

from abaton.engines.flower.site_worker import WorkerSettings
from abaton.site import load_site
from abaton.store import RunRow, Store
from abaton.study import Study
from abaton.study_run import ControllerJob, NetworkController, NetworkRunOptions, StudySiteService


class Loop:
    """Sites and their centre; messages are converted to bytes and back."""

    def __init__(self, folder: Path, study: Study, sites: Sequence[Path], options: NetworkRunOptions) -> None:
        self.folder, self.study, self.options, self.log = folder, study, options, []
        services, admitted = {}, {}
        for path in sites:
            file = load_site(path)
            name = file.config.site.id
            node, data_dir = len(services) + 1, folder / "sites" / name
            admitted[str(node)] = name
            services[node] = SiteWorkers(
                lambda role, file=file, data_dir=data_dir: StudySiteService(
                    file, study, WorkerSettings(role, data_dir, study.hash)
                )
            )
        self.transport = LoopbackTransport(services)
        (folder / "network" / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "network" / "admitted.json").write_text(json.dumps(admitted))

    def run(self, store: Store, transport=None) -> RunRow:
        job = ControllerJob("token", store.folder, self.folder / "network", self.options)
        return NetworkController(transport or self.transport, store, self.study, job, self.log.append).run()
