"""Chips and systems: typed, strict, and with an origin for every number."""

from .chip import Chip, chip_schema
from .load import chip_names, load_chip, load_system, system_names
from .system import System

__all__ = ["Chip", "System", "chip_names", "chip_schema", "load_chip", "load_system", "system_names"]
