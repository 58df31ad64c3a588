"""Experiments: invented hospitals, data sets, partitions, heterogeneity, and runs that a recipe makes again."""

from abaton.lab.datasets import DataSet, load
from abaton.lab.machine_profiles import Environment, Group, deal, heterogeneous, homogeneous
from abaton.lab.image_transforms import Preparation
from abaton.lab.partition import Partition, by_group, partition
from abaton.lab.recipes import build
from abaton.lab.experiment import Setting, Task, World
from abaton.lab.sites import Split, sites
from abaton.learning.validation import stratified

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
