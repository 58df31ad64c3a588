from __future__ import annotations

import subprocess
import sys

import numpy as np

from abaton.lab import partition_data
from abaton.report import partition_figure, render_figures


def draw(classes, classes_as="Non-IID(2)", **more):
    labels = np.arange(2000) % classes
    partition = partition_data(labels, learners=5, rng=np.random.default_rng(0), classes_as=classes_as)
    return partition, partition_figure(partition.table(), partition.classes, **more)


def test_a_bar_a_learner_coloured_by_class():
    partition, figure = draw(5, title="five learners", groups={"learner-1": "fast"})
    assert len(figure.data) == 5
    heights = np.array([bar.y for bar in figure.data]).T
    assert heights.tolist() == partition.counts.tolist()
    assert figure.data[0].x[0] == "learner-1 (fast)"
    assert figure.layout.title.text == "five learners"
    assert len({bar.marker.color for bar in figure.data}) == 5


def test_many_classes_become_a_map():
    partition, figure = draw(40, "Non-IID(20)")
    (heat,) = figure.data
    assert np.nan_to_num(np.array(heat.z, dtype=float)).T.tolist() == partition.counts.tolist()


def test_the_page_needs_no_network():
    _, figure = draw(5)
    page = render_figures("partition", [figure])
    assert 'src="http' not in page


def test_the_report_imports_plotly_only_to_draw():
    code = "import sys, abaton.report; assert 'plotly' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
