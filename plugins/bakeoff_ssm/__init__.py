"""State-space mixers."""

from bakeoff_ssm.mamba import Mamba
from bakeoff_ssm.mamba2 import Mamba2
from bakeoff_ssm.s4 import S4, S4D

BAKEOFF_API = 1

__all__ = ["S4", "S4D", "Mamba", "Mamba2"]
