"""A study's federation without a network: the desks of its sites answer in this process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.engines.flower.loop import LoopPost

from abaton.engines.flower import Place
from abaton.engines.flower.nodes import ROLES
from abaton.federation.network import Controller, StudyDesk, Submission, Wish
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
            for role in ROLES:
                place = Place(role, folder / "members" / name, study.hash)
                node = len(desks) + 1
                desks[node], admitted[str(node)] = StudyDesk(file, study, place), (name, role)
        self.post = LoopPost(desks)
        (folder / "network" / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "network" / "admitted.json").write_text(json.dumps(admitted))

    def run(self, store: Store, post=None) -> RunRow:
        told = Submission("token", store.folder, self.folder / "network", self.wish)
        return Controller(post or self.post, store, self.study, told, self.said.append).run()
