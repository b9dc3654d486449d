"""Trains in one process or, under torchrun, in several in lockstep; on GPUs if there are any."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from forebay import merge_states


def train(loader, checkpoint):
    device = join_the_others()
    model = torch.nn.Linear(3, 1).to(device)
    if (saved := load(checkpoint, loader, device)) is not None:
        model.load_state_dict(saved["model"])
    trained = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches, steps = iter(loader), 0
    while (batch := next_on_all(batches, loader, device)) is not None:
        optimizer.zero_grad()
        pixels = batch["value"].to(device).float()
        trained(pixels.mean(dim=(1, 2)) / 255).square().mean().backward()
        optimizer.step()
        steps += 1
        if on_any(checkpoint.due, device):
            save(checkpoint, loader, model)
    if steps:
        save(checkpoint, loader, model)
    if dist.is_initialized():
        dist.destroy_process_group()


def join_the_others():
    """The device of this rank, which is in one group with the others, if there are any."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        # A rank waits while the topic of another is quiet; after one that died torchrun ends all.
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(days=7))
    return device


def load(checkpoint, loader, device):
    """What rank 0 saved: the model, and the position of all ranks, of which each takes its part."""
    shared = [checkpoint.load() if int(os.environ.get("RANK", 0)) == 0 else None]
    if dist.is_initialized():
        dist.broadcast_object_list(shared, device=device)
    if shared[0] is not None:
        loader.load_state_dict(shared[0]["position"])
    return shared[0]


def save(checkpoint, loader, model):
    """Model and position of all ranks in one file: a kill at any moment leaves both or neither.

    Every rank writes the same into a file of its own; that of rank 0 is the one that counts.
    """
    states = [loader.state_dict()]
    if dist.is_initialized():
        states *= dist.get_world_size()
        dist.all_gather_object(states, loader.state_dict())
    checkpoint.save({"model": model.state_dict(), "position": merge_states(states)})


def on_any(mine, device):
    """Whether it is so on any rank: what all do together they must all decide alike."""
    if not dist.is_initialized():
        return mine
    anyone = torch.tensor(int(mine), device=device)
    dist.all_reduce(anyone, dist.ReduceOp.MAX)
    return bool(anyone.item())


def next_on_all(batches, loader, device):
    """The next batch, if every rank has one; None on all of them as soon as one has none.

    Else the others would wait for ever for the gradients of a rank whose data have ended, or that
    is to stop.
    """
    batch = next(batches, None)
    if not on_any(batch is None, device):
        return batch
    loader.abandon_step()  # what this rank has got comes again after a resume
    return None
