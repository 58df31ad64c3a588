"""A site's learner for the transcript of `abaton network join`: one of the lab's four clinics."""

from abaton.codecs import parse
from abaton.lab.clinics import network, split
from abaton.learning import Learner


def open_learner(name: str) -> Learner:
    """The learner of a site."""
    train, _ = split(1990, 0.3)
    return Learner(name, network(), train[name], parse("raw"), 1990)
