"""Formats of stored weights: how an element is written, and which elements share a scale."""

from __future__ import annotations

from dataclasses import dataclass, field

Block = tuple[int | None, int | None]


@dataclass(frozen=True)
class Format:
    """How the elements of a weight matrix [outputs, inputs] are stored."""

    name: str
    """Element type: fp8, int8, int4, int3, int2, nf4, fp4, mxfp4 or nvfp4."""
    bits: int
    """Of one element, without scales."""
    block: Block | None = None
    """Outputs and inputs that share one scale; None in a place: all of that dimension. None: there are no scales.
    (1, 128): groups of 128 along the inputs. (1, None): one scale per output. (None, None): one for the tensor."""
    scale_bits: int = 0
    """Of one scale."""
    zero_bits: int = 0
    """Of the zero point that stands beside each scale; 0: there is none."""


@dataclass(frozen=True)
class Formats:
    """What a file's quantization_config says: the format of each part of the model."""

    method: str
    """quant_method: "gptq", "fp8", "mxfp4", ..."""
    parts: dict[str, Format] = field(default_factory=dict, hash=False)
    """Part (of weights.PARTS) -> its format. A part that is missing is not quantised: it has the file's own dtype."""
    excluded: tuple[str, ...] = ()
    """Module names or patterns that are not quantised, as the file writes them."""
    activation: str | None = None
    """Element type to which activations are cast before a product; None: they stay as they are."""
    kv: str | None = None
    """Element type of the KV cache, where the file says so."""

    def of(self, part: str) -> Format | None:
        """The format of a part, or None where it is not quantised."""
        return self.parts.get(part)
