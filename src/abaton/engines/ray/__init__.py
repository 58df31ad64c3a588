"""Scale-out: learners and bulk work as tasks on a Ray cluster; nothing here imports Ray before it is used."""

from abaton.engines.ray.cluster import RayPool, connect, disconnect, ray_pool, require_ray
from abaton.engines.ray.ray_engine import RayEngine

__all__ = ["RayEngine", "RayPool", "connect", "disconnect", "ray_pool", "require_ray"]
