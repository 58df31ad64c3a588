"""Scale-out: learners and bulk work as tasks on a Ray cluster; nothing here imports Ray before it is used."""

from abaton.engines.ray.cluster import connect, disconnect, require_ray
from abaton.engines.ray.engine import RayEngine
from abaton.engines.ray.pool import RayPool, ray_pool

__all__ = ["RayEngine", "RayPool", "connect", "disconnect", "ray_pool", "require_ray"]
