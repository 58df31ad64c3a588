"""Experiments: synthetic hospitals, data sets, partitions, heterogeneity, and reproducible runs from recipes."""

from abaton.lab.datasets import DataSet, load
from abaton.lab.experiment import ExperimentEnvironment, ExperimentSettings, ExperimentTask
from abaton.lab.federation_builder import build_from_recipe
from abaton.lab.image_transforms import ImagePreprocessing
from abaton.lab.machine_profiles import (
    MachineEnvironment,
    MachineGroup,
    assign_machines,
    heterogeneous,
    homogeneous,
)
from abaton.lab.partition import LearnerSplit, Partition, by_group, partition_data, split_learners
from abaton.models.sampling import stratified_split

__all__ = [
    "DataSet",
    "ExperimentEnvironment",
    "ExperimentSettings",
    "ExperimentTask",
    "ImagePreprocessing",
    "LearnerSplit",
    "MachineEnvironment",
    "MachineGroup",
    "Partition",
    "assign_machines",
    "build_from_recipe",
    "by_group",
    "heterogeneous",
    "homogeneous",
    "load",
    "partition_data",
    "split_learners",
    "stratified_split",
]
