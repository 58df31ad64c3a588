"""Ray engine and executor for a Ray cluster; Ray is imported on first use."""

from abaton.engines.ray.cluster import RayExecutor, connect, disconnect, ray_pool, require_ray
from abaton.engines.ray.ray_engine import RayEngine

__all__ = ["RayEngine", "RayExecutor", "connect", "disconnect", "ray_pool", "require_ray"]
