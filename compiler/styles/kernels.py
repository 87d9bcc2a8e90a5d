"""GPU style: every group is a kernel, its tiles spread over the cores in waves, a launch and a barrier around it.

Within a core, loads run ahead of the units by `execution.stages` tile buffers (WAR edges). With `overlap: programmatic`
the next kernel is launched and loads its weights while the present one runs; what it reads of the present one's
results waits for the
barrier.
"""

from __future__ import annotations

from collections.abc import Callable

from ..emit import Emitter
from ..machine import LINK, EngineRow, link_port, nearest_buffer, port_of, window_of
from ..plan import Block, Group, Plan
from .kernel_attention import attention_kernel
from .kernel_experts import experts_kernel
from .kernel_frame import BARRIER, Kernels
from .kernel_ops import collective, gemm, vector


def engines(plan: Plan) -> list[EngineRow]:
    """A launcher, a network port, and four engines per core: load, matrix, vector, store."""
    chip = plan.chip
    buffer = f"bandwidth:{nearest_buffer(chip)}"
    rows = [EngineRow("launcher", "launcher")]
    if chip.execution.overlap == "programmatic":
        rows.append(EngineRow(BARRIER, "launcher"))
    if chip.link is not None:
        rows.append(EngineRow("network", "network", port=link_port(chip), port_cause=LINK))
    cores = int(chip.cores.value)
    rows += [EngineRow(f"load{i}", "load", window_of(chip.load), port_of(chip.load), buffer) for i in range(cores)]
    rows += [EngineRow(f"matrix{i}", "matrix") for i in range(cores)]
    rows += [EngineRow(f"vector{i}", "vector") for i in range(cores)]
    rows += [EngineRow(f"store{i}", "store", window_of(chip.store), port_of(chip.store), buffer) for i in range(cores)]
    return rows


def emit(block: Block, em: Emitter) -> None:
    """All kernels of one unit, in order; then what the next stage needs is sent."""
    k = Kernels(block, em)
    if block.first and em.machine.chip.execution.step_gap.value and block.plan.samples:
        em.op = em.number_op("between steps")
        k.host()
    for group in block.unit.work:
        em.op = em.number_op(group)
        KERNELS.get(group.kind, vector)(k, group)
    if block.send_bytes:
        em.op = em.number_op("send to next stage")
        k.begin()
        sent = em.send(em.machine.engine("network"), block.send_bytes)
        k.started(sent)
        k.finish(sent)
    assert k.end is not None
    assert k.launch is not None
    em.export(k.end, 0)
    if k.overlap:
        em.export(k.launch, 1)
        if k.before is not None:
            em.export(k.before, 2)


KERNELS: dict[str, Callable[[Kernels, Group], None]] = {
    **dict.fromkeys(("linear", "matmul", "latent_expand", "absorb_q", "absorb_v"), gemm),
    "expert_linear": experts_kernel,
    "attention": attention_kernel,
    "index_scores": attention_kernel,
    "all_reduce": collective,
    "all_gather": collective,
    "all_to_all": collective,
}
