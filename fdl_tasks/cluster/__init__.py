"""cluster.yml as typed values. The reading is in ``cluster.load``, which alone needs YAML and pydantic."""

from .image import ImageRef
from .model import Cluster, Command, Controller, Images, Join, Recipe, Source, Ssh, Worker

__all__ = ["Cluster", "Command", "Controller", "ImageRef", "Images", "Join", "Recipe", "Source", "Ssh", "Worker"]
