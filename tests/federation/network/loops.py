"""A study's federation without a network: the desks of its sites answer in this process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.engines.flower.loop import LoopPost, TwoDesks

from abaton.engines.flower.site_worker import Place
from abaton.study_run import Controller, StudyDesk, Submission, Wish
from abaton.site import load_site
from abaton.store import RunRow, Store
from abaton.study import Study


class Loop:
    """Sites and their centre; what is sent is made into bytes and back."""

    def __init__(self, folder: Path, study: Study, sites: Sequence[Path], wish: Wish) -> None:
        self.folder, self.study, self.wish, self.said = folder, study, wish, []
        desks, admitted = {}, {}
        for path in sites:
            file = load_site(path)
            name = file.document.site.id
            node, home = len(desks) + 1, folder / "members" / name
            admitted[str(node)] = name
            desks[node] = TwoDesks(
                lambda role, file=file, home=home: StudyDesk(file, study, Place(role, home, study.hash))
            )
        self.post = LoopPost(desks)
        (folder / "network" / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "network" / "admitted.json").write_text(json.dumps(admitted))

    def run(self, store: Store, post=None) -> RunRow:
        told = Submission("token", store.folder, self.folder / "network", self.wish)
        return Controller(post or self.post, store, self.study, told, self.said.append).run()
