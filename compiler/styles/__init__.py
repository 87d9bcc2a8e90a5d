"""The three styles of execution: GPU kernels, LPU static schedules, RDU dataflow sections."""
