"""What to profile and how, checked before anything is loaded."""

from dataclasses import dataclass, replace

import torch

from costmodel.capture.batches import TrainingModel, move
from costmodel.errors import UsageError

DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True)
class Options:
    """What to profile and how.

    Attributes
    ----------
    model : str
        Spec of the model.
    microbatch_sizes : tuple of int
    device : str
        ``cpu`` or ``cuda``.
    dtype : str
        Of parameters and floating-point inputs, one of `DTYPES`; "" for those that the model is built in.
    threads : int
        CPU threads of every operator.
    repeats : int
        Timed steps at each micro-batch size.
    links : bool
        Whether to measure links between two local ranks.
    seed : int
    companions : int
        Processes that train the same model at the same time, as neighbouring ranks would (CPU only).
    dry_run : bool
        Run nothing: graph, operations and bytes alone, on the meta device.
    autocast : str
        ``bfloat16`` or ``float16``: forward and loss run under autocast to it; "" for none.
    memory_limit_bytes : int
        A model that needs more is measured block by block; 0 for no limit.
    reuse : str
        Profile whose operators need not be measured again; "" for none.
    sequence : int
        Tokens of a sample, for functions that take a ``sequence``; 0 for what the function makes.
    tensor : tuple of int
        Numbers of ranks at whose shard shapes linear layers and attention are measured too.
    """

    model: str
    microbatch_sizes: tuple[int, ...] = (1, 2, 4)
    device: str = "cpu"
    dtype: str = ""
    threads: int = 1
    repeats: int = 9
    links: bool = True
    seed: int = 0
    companions: int = 0
    dry_run: bool = False
    autocast: str = ""
    memory_limit_bytes: int = 0
    reuse: str = ""
    sequence: int = 0
    tensor: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = self.microbatch_sizes
        if not sizes or min(sizes) < 1 or len(set(sizes)) != len(sizes):
            raise UsageError(f"--microbatch-sizes {list(sizes)}: distinct whole numbers from 1 are needed")
        if self.dtype not in ("", *DTYPES):
            raise UsageError(f"--dtype {self.dtype}: allowed are {', '.join(DTYPES)}")
        if self.autocast not in ("", "bfloat16", "float16"):
            raise UsageError(f"--autocast {self.autocast}: allowed are bfloat16 and float16")
        if min(self.threads, self.repeats) < 1:
            raise UsageError(f"--threads {self.threads} --repeats {self.repeats}: both must be at least 1")
        if self.tensor and min(self.tensor) < 1:
            raise UsageError(f"--tensor {list(self.tensor)}: whole numbers from 1 are needed")
        if self.tensor and (self.reuse or self.memory_limit_bytes):
            raise UsageError("--tensor measures the whole model: without --reuse and --memory-limit")
        if self.dry_run and (self.reuse or self.tensor or self.memory_limit_bytes):
            raise UsageError("--dry-run measures nothing: without --reuse, --tensor and --memory-limit")
        if self.companions < 0:
            raise UsageError(f"--companions {self.companions}: 0 or more are needed")
        if self.reuse and self.memory_limit_bytes:
            raise UsageError("--reuse and --memory-limit: one at a time")
        if self.device == "cuda" and not self.dry_run and not torch.cuda.is_available():
            raise UsageError("--device cuda: torch finds no CUDA device here; use --device cpu")

    def placed(self, model: TrainingModel, device: str) -> TrainingModel:
        """Return the model on a device, in the `dtype` asked for, as it trains under `autocast`."""
        moved = move(model, device, getattr(torch, self.dtype) if self.dtype else None)
        return replace(moved, autocast=getattr(torch, self.autocast) if self.autocast else None)

    def dtype_of(self, model: TrainingModel) -> str:
        """Return the dtype that a profile names: the one asked for, or that of most of the parameters' bytes."""
        sizes: dict[str, int] = {}
        for parameter in model.module.parameters():
            if parameter.is_floating_point():
                name = str(parameter.dtype).removeprefix("torch.")
                sizes[name] = sizes.get(name, 0) + parameter.numel() * parameter.element_size()
        return self.dtype or max(sizes, key=sizes.__getitem__, default="float32")
