import numpy as np
import pytest

from abaton.codecs import Key, chain, parse
from abaton.control.community import CommunityModel
from abaton.errors import LayoutError
from abaton.vectors import Layout, Role, Tensor

LAYOUT = Layout([Tensor("weight", (5,), Role.DENSE)])


def test_the_mix_is_the_weighted_mean_of_the_models():
    rng = np.random.default_rng(0)
    start = rng.normal(size=5).astype(np.float32)
    models = rng.normal(size=(3, 5)).astype(np.float32)
    weights = [3.0, 1.0, 6.0]
    codec = parse("raw")
    community = CommunityModel(LAYOUT, codec, start)
    for i, (model, weight) in enumerate(zip(models, weights, strict=True)):
        key = Key(b"round", f"site{i}")
        community.commit(codec.encode(model - start, LAYOUT, key, codec.start(LAYOUT))[0], weight, key)
    before = community.vector.copy()
    mixed = community.publish()
    assert mixed == pytest.approx(np.average(models, axis=0, weights=weights), rel=1e-5)
    assert np.array_equal(before, start), "older versions keep their numbers"
    assert community.publish() is mixed, "nothing committed, nothing changed"


def test_a_model_that_does_not_fit_is_refused():
    with pytest.raises(LayoutError, match="the initial model"):
        CommunityModel(LAYOUT, chain(parse("raw")), np.zeros(4, np.float32))
