"""What of a schedule is there and should not be, and what should be there and is not.

Looks at each action by itself and at the set of them, never at their order.
"""

from collections.abc import Iterator, Sequence

from simulator.actions import RECEIVES, SENDS, STAGE_WIDE, Action, Kind
from simulator.dependencies import transfers
from simulator.validation.problems import Board, ScheduleProblem
from simulator.validation.rendezvous import is_lowered, partner, peer_rank


def wrong_actions(board: Board, sound: list[Action]) -> Iterator[ScheduleProblem]:
    """Yield problems of stage, micro-batch, slice and rank of actions by themselves; the others go to `sound`."""
    for rank, i, action in board.cells:
        found = _wrong_alone(board, rank, action)
        if found:
            yield board.problem(found[0], rank, i, found[1])
        else:
            sound.append(action)


def _wrong_alone(board: Board, rank: int, action: Action) -> tuple[str, str] | None:
    graph, last = board.graph, board.schedule.num_microbatches - 1
    transfer = action.kind in SENDS | RECEIVES
    if max(action.stage, action.peer) >= graph.num_stages:
        return "wrong-rank", f"{action} names a stage that is not there; stages are 0 to {graph.num_stages - 1}"
    if rank not in graph.ranks[action.stage]:
        return (
            "wrong-rank",
            f"{action} is on rank {rank}; stage {action.stage} runs on {graph.ranks[action.stage]}",
        )
    wide = action.kind in STAGE_WIDE
    step = 1 if transfer or wide else graph.multiples[action.stage]
    if not (-1 if wide else 0) <= action.microbatch <= last or action.microbatch % step:
        return "bad-microbatch", f"{action}: micro-batches are 0 to {last} in steps of {step}"
    anywhere = range(-1, board.schedule.num_slices if board.schedule.num_slices > 1 else 0)
    pieces: Sequence[int] = anywhere if transfer or wide else board.pieces[action.stage]
    if action.slice_index not in pieces:
        some = f"slices are 0 to {pieces[-1]}" if pieces[-1] > 0 else f"stage {action.stage} takes sequences whole"
        return "bad-slice", f"{action}: {some}"
    if wide:
        return None
    home = graph.rank_of(action.stage, action.microbatch)
    if home != rank:
        return "wrong-rank", f"{action} is on rank {rank}; its replica of stage {action.stage} is rank {home}"
    return None


def presence(board: Board, sound: list[Action]) -> Iterator[ScheduleProblem]:
    """Yield what occurs twice, what the stage graph asks for and is not there, and what it does not ask for."""
    seen: dict[tuple[int, Action], int] = {}
    for rank, i, action in board.cells:
        first = seen.setdefault((rank, action), i)
        if first != i:
            yield board.problem("duplicated", rank, i, f"{action} is at step {first} already; each action runs once")
    for stage in range(board.graph.num_stages):
        for k in range(0, board.schedule.num_microbatches, board.graph.multiples[stage]):
            for piece in board.pieces[stage]:
                yield from _unit(board, stage, k, piece)
        yield from _stage_wide(board, stage)
    if is_lowered(board.schedule):
        yield from _transfers(board, sound)


def _unit(board: Board, stage: int, k: int, piece: int) -> Iterator[ScheduleProblem]:
    rank = board.graph.rank_of(stage, k)
    forward, whole, back, weight = (Action(kind, stage, k, piece) for kind in (Kind.F, Kind.B, Kind.I, Kind.W))
    if forward not in board.present:
        yield board.lacks(rank, forward, "each stage runs F of every micro-batch")
    there = [action for action in (whole, back, weight) if action in board.present]
    if not board.graph.backward[stage]:
        for action in there:
            at = board.place.get((rank, action), 0)
            yield board.problem("duplicated", rank, at, f"{action}: stage {stage} has no backward; leave it out")
    elif whole in there and len(there) > 1:
        at = board.place.get((rank, there[1]), 0)
        yield board.problem("duplicated", rank, at, f"{there[1]} does again what {whole} does; keep B, or I and W")
    elif not there:
        yield board.lacks(rank, whole, "each stage with a backward runs B, or I and W, of every micro-batch")
    elif whole not in there and len(there) < 2:
        absent = weight if back in there else back
        yield board.lacks(rank, absent, f"{there[0]} is only one part of a split backward")


def _stage_wide(board: Board, stage: int) -> Iterator[ScheduleProblem]:
    for kind in (Kind.REDUCE, Kind.OPT):
        action = Action(kind, stage)
        have = [rank for rank in board.graph.ranks[stage] if (rank, action) in board.place]
        for rank in board.graph.ranks[stage]:
            if have and rank not in have:
                yield board.lacks(rank, action, f"rank {have[0]}, of the same stage, has it")


def _transfers(board: Board, sound: list[Action]) -> Iterator[ScheduleProblem]:
    """Both ends of each message that results ask for, and no others."""
    expected: set[Action] = set()
    for action in sound:
        for transfer in transfers(board.graph, action, board.present):
            expected |= {transfer.send, transfer.receive}
            ends = ((transfer.sender, transfer.send), (transfer.receiver, transfer.receive))
            absent = [end for end in ends if end not in board.place]
            if len(absent) == 2:
                yield board.lacks(*absent[0], f"{action} has a result for stage {transfer.send.peer}")
            for rank, end in absent if len(absent) == 1 else ():
                yield _half(board, rank, end)
    for rank, i, action in board.cells:
        if action.kind in SENDS | RECEIVES and action not in expected:
            if partner(action) in board.present:
                kind, why = "duplicated", "no such message is needed between these stages; leave it out"
            else:
                kind, why = "send-without-receive", f"nothing matches it at the other end ({partner(action)})"
            yield board.problem(kind, rank, i, f"{action}: {why}")


def _half(board: Board, rank: int, absent: Action) -> ScheduleProblem:
    there, other = partner(absent), peer_rank(board.schedule, absent)
    return board.problem(
        "send-without-receive", other, board.place[other, there],
        f"{there} is alone; rank {rank} lacks {absent}",
    )  # fmt: skip
