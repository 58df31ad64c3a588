"""Experiments: invented hospitals, data sets, partitions, heterogeneity, and runs that a recipe makes again."""

from abaton.lab.datasets import DataSet, load
from abaton.lab.experiment import Setting, Task, World
from abaton.lab.federation_builder import build
from abaton.lab.image_transforms import Preparation
from abaton.lab.machine_profiles import Environment, Group, deal, heterogeneous, homogeneous
from abaton.lab.partition import Partition, Split, by_group, partition, sites
from abaton.models.sampling import stratified

__all__ = [
    "DataSet",
    "Environment",
    "Group",
    "Partition",
    "Preparation",
    "Setting",
    "Split",
    "Task",
    "World",
    "build",
    "by_group",
    "deal",
    "heterogeneous",
    "homogeneous",
    "load",
    "partition",
    "sites",
    "stratified",
]
