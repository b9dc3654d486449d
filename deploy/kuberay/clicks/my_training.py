"""Trains in one process or, under torchrun, in several in lockstep; on GPUs if there are any."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(loader, checkpoint):
    device = join_the_others()
    model = torch.nn.Linear(3, 1).to(device)
    if (saved := checkpoint.load()) is not None:
        model.load_state_dict(saved["model"])
    trained = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = iter(loader)
    while (batch := next_on_all(batches, loader, device)) is not None:
        optimizer.zero_grad()
        pixels = batch["value"].to(device).float()
        trained(pixels.mean(dim=(1, 2)) / 255).square().mean().backward()
        optimizer.step()
        if checkpoint.due:
            checkpoint.save({"model": model.state_dict()})
    checkpoint.save({"model": model.state_dict()})
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


def next_on_all(batches, loader, device):
    """The next batch, if every rank has one; None on all of them as soon as one has none.

    Else the others would wait for ever for the gradients of a rank whose data have ended, or that
    is to stop.
    """
    batch = next(batches, None)
    if not dist.is_initialized():
        return batch
    ready = torch.tensor(int(batch is not None), device=device)
    dist.all_reduce(ready, dist.ReduceOp.MIN)
    if ready.item():
        return batch
    loader.abandon_step()  # what this rank has got comes again after a resume
    return None
