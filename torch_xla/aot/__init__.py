"""The TPU compiler without a TPU: compiles HLO modules for a named slice and reads what came out."""

from .compiler import Compiled as Compiled
from .compiler import Memory as Memory
from .compiler import compile_hlo as compile_hlo
from .process import AotError as AotError
from .program import MOVES as MOVES
from .program import Collective as Collective
from .program import Shape as Shape
from .topologies import Topology as Topology
from .topologies import topology as topology
