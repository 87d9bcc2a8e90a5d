"""The simulator: runs a TileProgram and accounts for every femtosecond. It knows no chip and no model."""

from .failure import MachineError
from .run import Detail, EngineAccount, OpAccount, Run, simulate, simulate_detailed

__all__ = ["Detail", "EngineAccount", "MachineError", "OpAccount", "Run", "simulate", "simulate_detailed"]
