"""The host side of a pod: who am I, is everybody here."""

from torch_xla.pod.meeting import PodError

__all__ = ["PodError"]
