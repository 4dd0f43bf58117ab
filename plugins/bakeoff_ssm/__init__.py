"""State-space mixers."""

from bakeoff_ssm.mamba import Mamba
from bakeoff_ssm.mamba2 import Mamba2

BAKEOFF_API = 1

__all__ = ["Mamba", "Mamba2"]
