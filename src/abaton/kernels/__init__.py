"""A model as one flat vector, and the layout that names its parts."""

from abaton.layout import Layout, Role, Tensor, Vector

__all__ = ["Layout", "Role", "Tensor", "Vector"]
