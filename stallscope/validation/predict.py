"""What the model says of a case: its time, and what takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..arch import System
from ..errors import StallscopeError
from . import cases
from .cases import Ask
from .tables import LeftOut

if TYPE_CHECKING:
    import networkx as nx

    from ..arch import Chip

FS_PER_MS = 10**12
CHUNK = 512  # tokens of a prompt that are read in one step
SERVED: dict[str, dict[str, Any]] = {
    "bf16": {"weight": "bf16"},
    "fp8": {"weight": "fp8", "cast": "fp8", "embedding": "bf16", "head": "bf16"},
}
"""The formats of a model that is served in a dtype; of others its file says them."""


@dataclass(frozen=True)
class Prediction:
    """A time, and the shares of its causes, largest first."""

    ms: float
    causes: tuple[tuple[str, float], ...]


@dataclass
class Predictor:
    """Predictions for one chip, each question answered once."""

    chip: Chip
    known: dict[Ask, Prediction | str] = field(default_factory=dict)

    def __call__(self, ask: Ask) -> Prediction | str:
        """The answer to a case's question, or the reason why the model has none."""
        if ask not in self.known:
            try:
                self.known[ask] = _ASKS[ask[0]](self, *ask[1:])
            except LeftOut as reason:
                self.known[ask] = str(reason)
            except StallscopeError as error:
                self.known[ask] = str(error).split(";")[0]
        return self.known[ask]

    def run(self, graph: nx.DiGraph[Any], tp: int = 1, warm: float = 0, launches: int = 0) -> Prediction:
        """One graph compiled and simulated. `launches`: of the host for it, where no graph of the chip holds it: it
        makes them one after the other while the chip works, and the slower of both is seen."""
        from ..compiler.pipeline import compile_graph
        from ..sim.run import simulate

        chip = self.chip
        host = launches * host_gap_fs(chip) if launches else 0
        topology = chip.link.topology if chip.link else "none"
        result = simulate(compile_graph(graph, System(chip, tp, tp, 1, topology, chip.name), warm))
        if host > result.time_fs:
            return Prediction(host / FS_PER_MS, (("host", 1.0),))
        parts = sorted(result.critical_path_fs.items(), key=lambda part: -part[1])
        return Prediction(result.time_fs / FS_PER_MS, tuple((name, fs / result.time_fs) for name, fs in parts if fs))


def host_gap_fs(chip: Chip) -> int:
    """The host from one launch to the next. Raises LeftOut for a chip that does not say what that takes."""
    gap = chip.execution.host_gap
    if gap is None:
        raise LeftOut(f"{chip.name} does not state execution.host_gap")
    return int(gap.value)


def _gemm(p: Predictor, *numbers: Any) -> Prediction:
    *product, copies, launches = numbers
    return p.run(cases.product(*product), warm=copies, launches=launches)


def _attention(p: Predictor, *numbers: Any) -> Prediction:
    *shape, copies = numbers
    return p.run(cases.decode_attention(*shape), warm=copies)


def _all_reduce(p: Predictor, nbytes: int, ways: int, launches: int) -> Prediction:
    return p.run(cases.all_reduce(nbytes, ways), tp=ways, launches=launches)


def _prefill_attention(p: Predictor, *numbers: Any) -> Prediction:
    return p.run(cases.prefill_attention(*numbers))


def _mla(p: Predictor, *numbers: Any) -> Prediction:
    *shape, copies = numbers
    return p.run(cases.latent_attention(*shape), warm=copies)


def _moe(p: Predictor, *numbers: Any) -> Prediction:
    return p.run(cases.experts(*numbers), warm=cases.experts_in_turn(*numbers))


def _step(p: Predictor, model: str, ways: int, dtype: str, batch: int, prompt: int, out: int, how: str) -> Prediction:
    """A decode step at the mean context. What else the measured time per token holds: `served`, that the other
    sequences' prompts are read in between, each once while a sequence puts out its `out` tokens; `request`, that all
    prompts are read in first."""
    step = step_graph(model, dtype, batch=batch, context=prompt + out // 2)
    said = p.run(step, tp=ways)
    readings = {"served": batch - 1, "request": batch}.get(how, 0)
    if not readings or not out:
        return said
    chunk = min(prompt, CHUNK)
    before = (prompt - chunk) // 2  # the cache that a chunk meets on average
    first = step_graph(model, dtype, phase="prefill", prompt=chunk, context=before)
    beside = readings * _cached(p, ("prompt", model, ways, dtype, chunk, before), first, ways) * prompt / chunk / out
    total = said.ms + beside
    parts = [(name, share * said.ms / total) for name, share in said.causes] + [("prompts", beside / total)]
    return Prediction(total, tuple(sorted(parts, key=lambda part: -part[1])))


def step_graph(model: str, dtype: str, **request: Any) -> nx.DiGraph[Any]:
    """A step of a model of the catalogue: all of a dtype as it is served, or as its file says (fp4)."""
    from ..workloads import Request, decode_graph, load_model

    return decode_graph(load_model(model), Request(**SERVED.get(dtype, {}), **request))


def _cached(p: Predictor, key: Ask, graph: nx.DiGraph[Any], ways: int) -> float:
    """Milliseconds of a graph, each key once."""
    if key not in p.known:
        p.known[key] = p.run(graph, tp=ways)
    answer = p.known[key]
    assert isinstance(answer, Prediction)
    return answer.ms


_ASKS: dict[str, Callable[..., Prediction]] = {
    "gemm": _gemm, "attention": _attention, "prefill attention": _prefill_attention, "mla": _mla, "moe": _moe,
    "all-reduce": _all_reduce, "step": _step,
}  # fmt: skip
