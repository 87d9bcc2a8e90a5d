"""What is asked of a model: how many sequences, how long, in which element types."""

from __future__ import annotations

from dataclasses import dataclass

from .checks import nearest, positive_int, problem, shown
from .dtypes import VALUE_DTYPES, check_dtype

PHASES = ("decode",)
BATCH_LIMIT = 2**20
CONTEXT_LIMIT = 2**31


@dataclass(frozen=True)
class Request:
    """One decode step: every sequence of the batch produces one token.

    Raises StallscopeError for a value that makes no sense.
    """

    batch: int = 1
    """Sequences that are decoded together."""
    context: int = 1024
    """Tokens in the KV cache of each sequence when the step begins. The new token comes on top."""
    weight: str = "bf16"
    """Element type of weights and embedding tables."""
    kv: str = "bf16"
    """Element type of the KV cache."""
    activation: str = "bf16"
    """Element type of activations, logits included."""
    phase: str = "decode"
    """Only "decode" for now."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        positive_int(self.batch, "request: batch", BATCH_LIMIT)
        positive_int(self.context, "request: context", CONTEXT_LIMIT)
        for field in ("weight", "kv", "activation"):
            check_dtype(getattr(self, field), f"request: {field}", VALUE_DTYPES)
        if self.phase not in PHASES:
            todo = nearest(str(self.phase), PHASES)
            raise problem("request: phase", shown(self.phase), f"one of {', '.join(PHASES)}", todo)

    @property
    def dtypes(self) -> dict[str, str]:
        """Element types as a graph states them: weight, kv, activation."""
        return {"weight": self.weight, "kv": self.kv, "activation": self.activation}
