"""Any split of a model into parts computes the loss and gradients of the whole model, exactly."""

import random
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from costmodel.capture.batches import TrainingModel, split_batch
from costmodel.capture.capture import capture, operator_graph
from costmodel.capture.models import load_model
from costmodel.capture.parts import extract
from costmodel.errors import DoesNotMatch, InvalidInput
from costmodel.profiling.measure.memory import counted_graph


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


class InPlace(nn.Module):
    """relu_ on a layer's output, chunk, an in-place sum, and a reader of the value before it."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(4, 4)

    def forward(self, x):
        h = F.relu(self.first(x), inplace=True)
        early = h.mean(dim=0, keepdim=True)
        h = self.second(h)
        doubled = h * 2
        h.add_(doubled)
        left, right = h.chunk(2, dim=-1)
        return torch.cat([self.third(left), right], dim=-1) + early


class BatchNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.again, self.norm_again = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.relu(self.norm(self.conv(x)))
        return self.relu(self.norm_again(self.again(h)) + h).mean(dim=(2, 3))


class SharedTower(nn.Module):
    """One tower called twice, dict input, a raw input that enters late and a long skip."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.middle = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16 + 8, 8)

    def forward(self, left, right, *, late):
        joined = torch.cat([self.tower(left), self.tower(right)], dim=-1)
        h = joined
        for layer in self.middle:
            h = torch.tanh(layer(h))
        return {"out": self.head(torch.cat([h + joined, late], dim=-1)), "extra": (h.sum(-1), None, 3)}


class Tied(nn.Module):
    """Token embedding used again as the head, positions from a table, a mask made from sizes."""

    def __init__(self):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("table", torch.randn(16, 8))

    def forward(self, tokens):
        h = self.embedding(tokens) + self.table[: tokens.shape[1]]
        mask = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).tril()
        scores = (h @ h.transpose(1, 2)).masked_fill(~mask, -1e9).softmax(-1)
        return self.head(self.middle(scores @ h).reshape(h.shape[0], -1, 8))


class FrozenTrunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 8)
        self.trunk.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            scale = x.abs().mean()
        return self.head(self.trunk(x) * scale)


class Views(nn.Module):
    """Sizes of activations drive reshapes; a view of a value is read after the value was changed in place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(16, 4))

    def forward(self, x):
        h = self.first(x)
        h = h.reshape(h.shape[0] * 2, 4)
        g = h.unsqueeze(1).expand(h.shape[0], 3, 4).reshape(-1, 4)
        g = self.second(g).reshape(g.shape[0] // 3, 3, 4).sum(1) * self.scale[:1]
        column = g[:, 0]
        g = g.add_(1.0)
        return (g + column.unsqueeze(-1)).reshape(x.shape[0], 8)


class StraightThrough(torch.autograd.Function):
    """Rounds, and passes on the gradient of values below one in size."""

    @staticmethod
    def forward(ctx, x, steps):
        ctx.save_for_backward(x)
        return torch.round(x * steps) / steps

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 1), None


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(StraightThrough.apply(self.first(x), 4.0))


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.first(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.second(h)
        return self.third(h.float())


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags, self.head = nn.EmbeddingBag(20, 8, mode="sum"), nn.Linear(8, 4)

    def forward(self, indices, offsets):
        return self.head(self.bags(indices, offsets))


class SequenceFirst(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.encoder(x))


class FixedBatch(nn.Module):
    """Turns the batch size into a plain number, which export cannot keep open."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.first(x).reshape(int(x.shape[0]), 8))


class Routed(nn.Module):
    """Top-2 of three experts, each weighted: a mixture without data-dependent shapes."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 3), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            out = out + expert(x) * (weights * (chosen == index)).sum(-1, keepdim=True)
        return out


class Checkpointed(nn.Module):
    """Blocks under a reentrant checkpoint: their forward runs without gradient, a second one with it."""

    def __init__(self):
        super().__init__()
        self.first, self.blocks = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = h + torch.tanh(checkpoint(block, h, use_reentrant=True))
        return h


@dataclass
class Answer:
    out: torch.Tensor
    extra: torch.Tensor | None = None


class Answering(nn.Module):
    """Returns a dataclass that nobody registered."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.first(x)
        return Answer(self.second(h), h)


class Conditional(nn.Module):
    """A branch on values that torch.cond keeps in the program."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.third(torch.cond(x.sum() > 0, self.first.forward, self.second.forward, (x,)))


def squared(output, targets=None):
    output = output.out if isinstance(output, Answer) else output
    output = output["out"] if isinstance(output, dict) else output
    return (output.float() ** 2).mean() if targets is None else F.mse_loss(output, targets)


def model_of(module, *args, loss=squared, targets=None, **kwargs):
    first = (*args, *kwargs.values())[0]
    return TrainingModel(
        type(module).__name__, module.train(), args, kwargs, targets, targets is not None, loss, {}, first.shape[0]
    )


def bags_model():
    def indices(value, k, n):
        return value.reshape(4, 3)[k * 4 // n : (k + 1) * 4 // n].reshape(-1)

    def offsets(value, k, n):
        return torch.arange(0, 12 // n, 3)

    model = model_of(Bags(), torch.arange(12), torch.arange(0, 12, 3))
    return replace(model, split={0: indices, 1: offsets}, batch=4)


def own_models():
    torch.manual_seed(0)
    tokens = torch.randint(11, (4, 6))
    return {
        "in-place": model_of(InPlace(), torch.randn(4, 8), targets=torch.randn(4, 8)),
        "batch-norm": model_of(BatchNormed(), torch.randn(4, 3, 6, 6)),
        "shared-tower": model_of(SharedTower(), torch.randn(4, 8), torch.randn(4, 8), late=torch.randn(4, 8)),
        "tied": model_of(
            Tied(), tokens, loss=lambda out: F.cross_entropy(out.reshape(-1, 11), tokens.new_zeros(out[..., 0].numel()))
        ),
        "frozen-trunk": model_of(FrozenTrunk(), torch.randn(4, 8)),
        "views": model_of(Views(), torch.randn(4, 8)),
        "custom-function": model_of(Quantised(), torch.randn(4, 8)),
        "autocast": model_of(Autocast(), torch.randn(4, 8)),
        "bags": bags_model(),
        "sequence-first": replace(model_of(SequenceFirst(), torch.randn(5, 4, 16)), split={0: 1}, batch=4),
        "mixture": model_of(Routed(), torch.randn(4, 8)),
        "checkpointed": model_of(Checkpointed(), torch.randn(4, 8)),
        "dataclass": model_of(Answering(), torch.randn(4, 8)),
    }


def reference(model, num_microbatches):
    """Losses and summed gradients of the user's own module; its buffers are put back."""
    buffers = {name: value.clone() for name, value in model.module.named_buffers()}
    losses = []
    for index in range(num_microbatches):
        piece = split_batch(model, index, num_microbatches)
        loss, _ = piece.evaluate(piece.module(*piece.args, **piece.kwargs), piece.targets)
        loss.backward()
        losses.append(loss.detach())
    for name, value in model.module.named_buffers():
        value.copy_(buffers[name])
    return losses, gradients(model)


def gradients(model):
    found = {n: None if p.grad is None else p.grad.clone() for n, p in model.module.named_parameters()}
    model.module.zero_grad(set_to_none=True)
    return found


def parts_of(captured, cuts):
    names = captured.operators
    stages = [names[i:j] for i, j in zip((0, *cuts), (*cuts, len(names)), strict=True)]
    stage_of = {name: i for i, stage in enumerate(stages) for name in stage}
    sends = [[] for _ in stages]
    for flow in captured.flows.values():
        if any(stage_of[c] != stage_of[flow.producer] for c in flow.consumers):
            sends[stage_of[flow.producer]].append(flow.name)
    return [extract(captured, stage, sent) for stage, sent in zip(stages, sends, strict=True)]


def run_parts(captured, parts, piece):
    """One micro-batch forward and backward through the parts; values cross as detached copies."""
    known = captured.bind(piece)
    done = []
    for part in parts:
        values = {name: known[name] for name in part.raw_inputs}
        for name in part.receives:
            values[name] = known[name].detach().clone().requires_grad_(known[name].requires_grad)
        results = part(values, piece.targets)
        known.update({name: results[name] for name in part.sends})
        done.append((part, values, results))
    incoming = {}
    for part, values, results in reversed(done):
        names = [name for name in (*part.sends, "loss") if name in results and results[name].requires_grad]
        names = [name for name in names if name == "loss" or name in incoming]
        if names:
            torch.autograd.backward([results[name] for name in names], [incoming.get(name) for name in names])
        for name in part.receives:
            if values[name].grad is not None:
                incoming[name] = incoming.get(name, 0) + values[name].grad
    return done[-1][2]["loss"].detach()


def check_exact(model, num_microbatches=2, num_splits=4):
    losses, expected = reference(model, num_microbatches)
    captured = capture(model)
    dice = random.Random(0)
    for _ in range(num_splits):
        possible = range(1, len(captured.operators))
        cuts = sorted(dice.sample(possible, min(4, len(possible))))
        buffers = {name: value.clone() for name, value in model.module.named_buffers()}
        for index, loss in enumerate(losses):
            found = run_parts(captured, parts_of(captured, cuts), split_batch(model, index, num_microbatches))
            torch.testing.assert_close(found, loss, rtol=1e-6, atol=0)
        for name, value in model.module.named_buffers():
            value.copy_(buffers[name])
        for name, gradient in gradients(model).items():
            if expected[name] is None:
                assert gradient is None or not gradient.any(), name
            else:
                torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6, msg=name)
    return captured


@pytest.mark.parametrize("name", ["mmt", "uno", "gpt"])
def test_parts_of_a_zoo_model_give_exactly_the_whole_models_loss_and_gradients(name):
    check_exact(load_model(f"zoo:{name}:small", 4), num_splits=2)


@pytest.mark.parametrize(
    "name",
    ["dlrm", "dlrm26", "llama", "moe", "clip", "vlm", "vit", "t5", "unet3d", "yolo", "resnet50", "inception"],
)
def test_parts_of_another_zoo_model_give_exactly_the_whole_models_loss_and_gradients(name):
    check_exact(load_model(f"zoo:{name}:small", 4), num_splits=1)


@pytest.mark.parametrize("name", list(own_models()))
def test_parts_of_an_awkward_model_give_exactly_the_whole_models_loss_and_gradients(name):
    assert check_exact(own_models()[name]).static_batch is None


def test_a_model_that_fixes_its_batch_is_captured_at_the_size_that_is_asked_for():
    model = model_of(FixedBatch(), torch.randn(4, 8))
    captured = capture(model, 2)
    assert captured.static_batch == 2
    assert operator_graph(captured, (2, 4)).tensors[0].size_bytes == (64, 128)
    with pytest.raises(DoesNotMatch, match="fixes its batch"):
        captured.bind(model)


def test_a_size_at_which_the_model_cannot_run_is_named():
    class Normed(nn.Sequential):
        pass

    captured = capture(model_of(Normed(nn.Linear(8, 8), nn.BatchNorm1d(8)), torch.randn(4, 8)))
    with pytest.raises(InvalidInput, match="cannot run with a micro-batch of 1"):
        operator_graph(captured, (1,))


def test_a_custom_autograd_function_is_one_operator():
    captured = capture(own_models()["custom-function"])
    assert [group.kind for group in captured.groups.values()] == ["linear", "StraightThrough", "linear"]


def test_a_part_refuses_operators_and_tensors_of_another_model():
    captured = capture(own_models()["tied"])
    with pytest.raises(DoesNotMatch, match="no operator 'conv'"):
        extract(captured, ["conv"])
    with pytest.raises(DoesNotMatch, match="'embedding' is not computed by these operators"):
        extract(captured, ["loss"], ["embedding"])


def test_an_in_place_operator_is_one_operator_with_its_producer():
    captured = capture(own_models()["in-place"])
    names = [[node.name for node in group.nodes] for group in captured.groups.values()]
    assert ["linear", "relu_"] in names
    assert ["linear_1", "mul", "add_"] in names


def test_batch_norms_counter_belongs_to_its_batch_norm():
    captured = capture(own_models()["batch-norm"])
    kinds = [group.kind for group in captured.groups.values()]
    assert kinds == ["conv2d", "batch_norm+relu", "conv2d", "batch_norm", "add+relu", "mean"]


def test_a_shared_tower_is_two_groups_of_operators_that_read_the_same_parameters():
    captured = capture(own_models()["shared-tower"])
    readers = [name for name, group in captured.groups.items() if "tower.0.weight" in group.parameters]
    assert len(readers) == 2


def test_a_tied_parameter_has_its_first_name_and_every_reader():
    captured = capture(own_models()["tied"])
    readers = [group.kind for group in captured.groups.values() if "embedding.weight" in group.parameters]
    assert readers == ["embedding", "linear"]


def test_masks_and_sizes_are_replicated_and_never_sent():
    captured = capture(own_models()["tied"])
    sent = {captured.groups[flow.producer].kind for flow in captured.flows.values()}
    assert not sent & {"tril", "ones", "sym_size", "bitwise_not", "slice"}


def test_frozen_operators_are_not_trainable():
    graph = operator_graph(capture(own_models()["frozen-trunk"]), (2,))
    assert {o.name: o.trainable for o in graph.operators if o.kind == "linear"} == {
        "linear": False,
        "linear_1": False,
        "linear_2": True,
    }


def test_the_branches_of_a_torch_cond_are_one_operator_whose_operations_and_saved_values_are_counted():
    graph = counted_graph(capture(model_of(Conditional(), torch.ones(4, 8))), (2, 4))
    assert [(o.kind, o.flop, len(o.parameters)) for o in graph.operators[:2]] == [("cond", 128, 4), ("linear", 128, 2)]
    assert graph.operators[0].saved


class Scanned(nn.Module):
    """A loop over the sequence that stays one node of the program."""

    def __init__(self):
        super().__init__()
        self.step, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        def step(state, item):
            state = torch.tanh(self.step(state) + item)
            return state, state.clone()

        return self.head(scan(step, torch.zeros_like(x[:, 0]), x.transpose(0, 1))[0])


def test_a_scan_is_one_operator_with_exact_gradients_whose_saved_values_are_counted():
    captured = check_exact(model_of(Scanned(), torch.randn(4, 3, 8)))
    first = counted_graph(captured, (2, 4)).operators[0]
    assert first.kind == "scan"
    assert first.saved
