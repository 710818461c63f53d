"""Small training models, each with one thing that pipelines trip over."""

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from costmodel.zoo import gpt, mmt, uno
from costmodel.zoo.llama import build as build_llama

WIDTH = 12


def small_mmt(batch: int = 4) -> Any:
    return mmt.build(batch, num_branches=3, num_layers=1, hidden=16, ffn=32, num_heads=2, sequence=6)


def small_uno(batch: int = 4) -> Any:
    return uno.build(batch, hidden=16, num_layers=2, num_residual=2, width_divisor=200)


def small_gpt(batch: int = 4) -> Any:
    return gpt.build(batch, vocabulary=40, hidden=16, num_layers=2, num_heads=2, sequence=8)


def tied_gpt(batch: int = 4) -> Any:
    """The embedding is the head's weight: both ends of the pipeline own it."""
    return gpt.build(batch, vocabulary=40, hidden=16, num_layers=1, num_heads=2, sequence=8, tied=True)


class TwoBranch(nn.Module):
    """Two branches of one stem, a long skip and a raw input that enters late; one output is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.left = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
        self.right = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.late = nn.Linear(3, WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, late: Tensor) -> Tensor:
        trunk = self.stem(x).tanh()
        joined = self.left(trunk) * self.right(trunk) + self.late(late)
        return self.head(joined + trunk)


def two_branch(batch: int = 4) -> Any:
    torch.manual_seed(1)
    return TwoBranch(), (torch.randn(batch, WIDTH), torch.randn(batch, 3)), torch.randint(5, (batch,)), F.cross_entropy


class Towers(nn.Module):
    """Two towers of blocks, of which a linear layer reads both ends, with a number to weigh them by."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.ModuleList(self._block() for _ in range(2)) for _ in range(2))
        self.balance = nn.Parameter(torch.tensor(0.5))
        self.head = nn.Linear(WIDTH, 5)

    @staticmethod
    def _block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for left, right in zip(self.left, self.right, strict=True):
            x, y = left(x), right(y)
        return self.head(x * self.balance + y)


def towers(batch: int = 4) -> Any:
    torch.manual_seed(1)
    return Towers(), (torch.randn(batch, WIDTH), torch.randn(batch, WIDTH)), torch.randint(5, (batch,)), F.cross_entropy


class Odd(nn.Module):
    """Blocks with a layer that nothing calls, whose code may look at the width of what it computes."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        names = {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH), "unread": (WIDTH, 3)}
        self.layers = nn.ModuleList(OddBlock({n: nn.Linear(*ends) for n, ends in names.items()}) for _ in range(2))
        for layer in self.layers:
            layer.looks = looks
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class OddBlock(nn.ModuleDict):
    looks: Any = False

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self["up"](x))
        return x + self["down"](inner * inner.shape[-1] ** -0.5 if self.looks else inner)


def odd(batch: int = 4) -> Any:
    torch.manual_seed(3)
    return Odd(looks=False), (torch.randn(batch, WIDTH),), torch.randn(batch, WIDTH), nn.MSELoss()


def llama_of_odd_length(batch: int = 4) -> Any:
    return build_llama(batch, 64, 32, 64, num_layers=2, num_heads=4, num_kv_heads=2, sequence=15)


def llama_with_gaps(batch: int = 4) -> Any:
    model, *rest = llama_of_odd_length(batch)
    norm = model.layers[1].norm_ffn
    norm.weight = nn.Parameter(norm.weight.detach().repeat_interleave(2)[::2])
    return model, *rest


def llama_with_an_empty_parameter(batch: int = 4) -> Any:
    model, *rest = llama_of_odd_length(batch)
    model.layers[1].empty = nn.Parameter(torch.randn(0, 3))  # nothing reads it
    return model, *rest


def looking(batch: int = 4) -> Any:
    torch.manual_seed(3)
    return Odd(looks=True), (torch.randn(batch, WIDTH),), torch.randn(batch, WIDTH), nn.MSELoss()


class Frozen(nn.Module):
    """A frozen encoder whose output needs no gradient, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.encoder.requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.encoder(x))


def frozen(batch: int = 4) -> Any:
    torch.manual_seed(2)
    return Frozen(), (torch.randn(batch, WIDTH),), torch.randn(batch, 4), nn.MSELoss()


class Stopped(nn.Module):
    """A branch whose parameters train nowhere: its gradient is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped, self.body, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        beside = self.stopped(x).tanh().detach()
        return self.head(self.body(x).tanh() + beside)


def stopped(batch: int = 4) -> Any:
    torch.manual_seed(2)
    return Stopped(), (torch.randn(batch, WIDTH),), torch.randn(batch, WIDTH), nn.MSELoss()


class Gated(nn.Module):
    """The second tensor of each half steers which positions count, without a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        value, score = self.first(x).chunk(2, dim=-1)
        best = score.argmax(-1, keepdim=True)
        value = self.second(value.relu()).relu_()
        picked = value.gather(-1, best)
        return self.third(value) * picked


def gated(batch: int = 4) -> Any:
    torch.manual_seed(3)
    return Gated(), (torch.randn(batch, WIDTH),), lambda out: out.square().mean()


class Masked(nn.Module):
    """Tokens of unequal valid length: the loss is a sum with its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(tokens)).tanh())


def masked_sum(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    flat = labels.reshape(-1)
    total = F.cross_entropy(logits.reshape(-1, 20), flat, ignore_index=-100, reduction="sum")
    return total, (flat != -100).sum()


def masked(batch: int = 4) -> Any:
    torch.manual_seed(4)
    model = Masked()
    tokens = torch.randint(20, (batch, 6))
    labels = tokens.roll(-1, 1)
    for row in range(batch):
        labels[row, 1 + row % 6 :] = -100
    return model, (tokens,), labels, masked_sum


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(3, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.head(self.mix(self.lift(x).relu()) * scale)


def sequence_first(batch: int = 4) -> Any:
    """The batch is the second dimension; one input has none."""
    torch.manual_seed(5)
    return {
        "model": SequenceFirst(),
        "inputs": (torch.randn(7, batch, 3), torch.rand(WIDTH)),
        "loss": lambda out: out.square().mean(),
        "split": {0: 1, 1: None},
    }


def unseeded(batch: int = 4) -> Any:
    """Other parameters on every call, whatever seed is set; the same inputs."""
    torch.seed()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
    torch.manual_seed(7)
    return model, (torch.randn(batch, WIDTH),), lambda out: out.square().mean()


def normed(batch: int = 4) -> Any:
    """Batch statistics, which are buffers that the forward updates."""
    torch.manual_seed(6)
    layers = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(WIDTH, 3))
    return model, (torch.randn(batch, WIDTH),), torch.randint(3, (batch,)), F.cross_entropy


class Scaled(nn.Module):
    """A buffer that no checkpoint holds, and a layer that nothing reads."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.unread = nn.Linear(2, 2)
        self.register_buffer("scale", torch.linspace(0, 1, WIDTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second((self.first(x) * self.scale).tanh())


def scaled(batch: int = 4) -> Any:
    torch.manual_seed(7)
    return Scaled(), (torch.randn(batch, WIDTH),), torch.randint(3, (batch,)), F.cross_entropy


class Recommender(nn.Module):
    """A small DLRM: EmbeddingBags over jagged indices, a dense tower, their pairwise products."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(30, WIDTH, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(5, WIDTH), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(WIDTH + 6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, dense: Tensor, indices: list[Tensor], offsets: list[Tensor]) -> Tensor:
        x = self.bottom(dense)
        rows = [x, *(table(i, o) for table, i, o in zip(self.tables, indices, offsets, strict=True))]
        stacked = torch.stack(rows, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        pairs = torch.triu_indices(4, 4, offset=1, device=x.device)
        return self.top(torch.cat([x, products[:, pairs[0], pairs[1]]], dim=1)).squeeze(-1)


def recommender(batch: int = 4) -> Any:
    """Each sample has two indices a table, so that a micro-batch's bags are a slice of the whole's."""
    torch.manual_seed(7)
    model = Recommender()
    indices = [torch.randint(30, (2 * batch,)) for _ in range(3)]
    offsets = [torch.arange(0, 2 * batch, 2) for _ in range(3)]
    inputs = (torch.randn(batch, 5), indices, offsets)

    def some_indices(value: list[Tensor], k: int, n: int) -> list[Tensor]:
        return [v[len(v) // n * k : len(v) // n * (k + 1)] for v in value]

    def some_offsets(value: list[Tensor], k: int, n: int) -> list[Tensor]:
        return [v[len(v) // n * k : len(v) // n * (k + 1)] - v[len(v) // n * k] for v in value]

    return {
        "model": model,
        "inputs": inputs,
        "targets": torch.rand(batch),
        "loss": F.binary_cross_entropy_with_logits,
        "split": {1: some_indices, 2: some_offsets},
    }


class UNet3d(nn.Module):
    """Down, bottom, up, with two long skips and batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = self.block(1, 4)
        self.down = self.block(4, 8)
        self.bottom = self.block(8, 8)
        self.lift = nn.ConvTranspose3d(8, 8, 2, stride=2)
        self.up = self.block(16, 4)
        self.out = nn.Conv3d(8, 2, 1)

    @staticmethod
    def block(width: int, out: int) -> nn.Module:
        return nn.Sequential(nn.Conv3d(width, out, 3, padding=1), nn.BatchNorm3d(out), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        first = self.enter(x)
        second = self.down(F.max_pool3d(first, 2))
        lifted = self.lift(F.max_pool3d(self.bottom(second), 1))
        wide = torch.cat([F.interpolate(second, scale_factor=2), lifted], dim=1)
        return self.out(torch.cat([first, self.up(wide)], dim=1))


def unet(batch: int = 4) -> Any:
    torch.manual_seed(8)
    return UNet3d(), (torch.randn(batch, 1, 8, 8, 8),), torch.randint(2, (batch, 8, 8, 8)), F.cross_entropy


class Detector(nn.Module):
    """YOLO-like: a backbone whose three levels each have a head; the output is a dict."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 8, 12, 16]
        self.backbone = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.SiLU()) for a, b in itertools.pairwise(widths)
        )
        self.heads = nn.ModuleList(nn.Conv2d(width, 6, 1) for width in widths[1:])
        self.merge = nn.Conv2d(16, 12, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        levels = []
        for layer in self.backbone:
            image = layer(image)
            levels.append(image)
        levels[1] = levels[1] + F.interpolate(self.merge(levels[2]), scale_factor=2.0)
        return {f"p{i}": head(level) for i, (head, level) in enumerate(zip(self.heads, levels, strict=True))}


def detection_loss(out: dict[str, Tensor], target: Tensor) -> Tensor:
    return sum(
        F.binary_cross_entropy_with_logits(level, target[:, :, None, None].expand_as(level)) for level in out.values()
    )


def detector(batch: int = 4) -> Any:
    torch.manual_seed(9)
    return Detector(), (torch.randn(batch, 3, 16, 16),), torch.rand(batch, 6), detection_loss


class Experts(nn.Module):
    """A dense mixture: a router weighs all experts, the best one more."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(WIDTH, WIDTH)
        self.router = nn.Linear(WIDTH, 3)
        self.up = nn.Parameter(torch.randn(3, WIDTH, 2 * WIDTH) / 4)
        self.down = nn.Parameter(torch.randn(3, 2 * WIDTH, WIDTH) / 4)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        scores = self.router(x).softmax(-1)
        best = scores.argmax(-1, keepdim=True)
        weights = torch.where(torch.zeros_like(scores).scatter(-1, best, 1.0) > 0, scores, 0.1 * scores)
        hidden = torch.bmm(x.unsqueeze(0).expand(3, -1, -1), self.up).relu()
        mixed = (torch.bmm(hidden, self.down) * weights.t().unsqueeze(-1)).sum(0)
        return self.head(x + mixed)


def experts(batch: int = 4) -> Any:
    torch.manual_seed(10)
    return Experts(), (torch.randn(batch, WIDTH),), torch.randint(4, (batch,)), F.cross_entropy


def gpt2(batch: int = 4) -> Any:
    """Hugging Face's GPT-2 as it is, its embedding tied to its head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(11)
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0, use_cache=False, bos_token_id=0, eos_token_id=0)  # fmt: skip
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(50, (batch, 8))
    return model, {"input_ids": tokens}, tokens, hugging_face_loss


def llama(batch: int = 4) -> Any:
    """Hugging Face's Llama as it is."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(12)
    config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, use_cache=False)  # fmt: skip
    model = LlamaForCausalLM(config)
    tokens = torch.randint(50, (batch, 8))
    return model, {"input_ids": tokens}, tokens, hugging_face_loss


def hugging_face_loss(out: Any, tokens: Tensor) -> Tensor:
    logits = out["logits"]
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


class Dropped(nn.Module):
    """Dropout in every form that a model has it: modules, a call in place, whole channels, attention's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.mix, self.head = nn.Linear(6, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.drop, self.channels = nn.Dropout(0.2), nn.Dropout1d(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.lift(x).relu())
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, dropout_p=0.25 if self.training else 0.0)
        x = F.dropout(self.mix(x), 0.1, self.training, inplace=True)
        noise = torch.rand_like(x) if self.training else torch.zeros_like(x)
        return self.head(self.channels(x) + 0 * noise)


class DroppedPlainly(Dropped):
    """The same without noise of the model's own, which nothing tells from what eval mode keeps."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.lift(x).relu())
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, dropout_p=0.25 if self.training else 0.0)
        x = F.dropout(self.mix(x), 0.1, self.training, inplace=True)
        return self.head(self.channels(x))


def dropped(batch: int = 4) -> Any:
    torch.manual_seed(13)
    return Dropped().double(), (torch.randn(batch, 5, 6).double(),), lambda out: out.square().mean()


def dropped_plainly(batch: int = 4) -> Any:
    torch.manual_seed(13)
    return DroppedPlainly().double(), (torch.randn(batch, 5, 6).double(),), lambda out: out.square().mean()


class TwoTowers(nn.Module):
    """Two towers of unlike inputs, joined by their products; in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(8 * 36, WIDTH))
        self.text = nn.Sequential(nn.Embedding(30, WIDTH), nn.Flatten(), nn.LayerNorm(5 * WIDTH))
        self.words = nn.Linear(5 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        return self.head(self.image(image).tanh() * self.words(self.text(words)).tanh())


def two_towers(batch: int = 4) -> Any:
    torch.manual_seed(14)
    inputs = {"image": torch.randn(batch, 3, 6, 6).double(), "words": torch.randint(30, (batch, 5))}
    return TwoTowers().double(), inputs, torch.randint(4, (batch,)), F.cross_entropy


def exact_gpt(batch: int = 4) -> Any:
    """The small decoder in float64."""
    model, inputs, *rest = small_gpt(batch)
    return model.double(), inputs, *rest


def exact_llama(batch: int = 4) -> Any:
    """Hugging Face's Llama in float64."""
    model, inputs, *rest = llama(batch)
    return model.double(), inputs, *rest
