"""Why the trainer is as fast as it is: one sentence, from snapshots alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from forebay.observe.limits import Cause, Limit, limit_of_data, percent
from forebay.observe.lock import LOCKED
from forebay.observe.snapshot import RankSeen, Snapshot
from forebay.observe.window import Window, whole, window

__all__ = ["Cause", "Verdict", "judge"]

WORTH = 0.10
"""Of the trainer's time: what takes less is no reason to look for a cause."""
_GPU_BUSY = 0.8
_STALE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits the trainer, and how that is known."""

    cause: Cause
    sentence: str
    """For people, with the share that it is about."""
    shares: Mapping[str, float]
    """Of the trainer's time: ``starved``, ``copy``, ``compute``, ``communication``, ``other``;
    those that are known, and they add up to 1."""
    evidence: tuple[str, ...] = ()
    """What was seen, with numbers."""
    guess: tuple[str, ...] = ()
    """What may be the reason, but was not shown."""
    advice: str = ""
    """The next command to try, or the setting to change."""
    seconds: float | None = None
    """Of how many last seconds of the run it is; None where it is not of its last seconds."""

    @property
    def starved(self) -> bool:
        """Whether the device waits for data a part of the time that is worth a word."""
        return self.cause in ("source", "stages", "gil", "handover")


def judge(history: Sequence[Snapshot]) -> Verdict:
    """The verdict on the last seconds of one rank, of its snapshots, oldest first."""
    if not history:
        return Verdict(cause="unknown", sentence="Nothing was seen yet.", shares={})
    last, seen = history[-1], window(history)
    if last.ended is not None:
        return _ended(history)
    if seen is None:
        return _too_little(last)
    if not last.job.has_trainer:
        return replace(draining(seen, limit_of_data(seen)), seconds=seen.seconds)
    return replace(_of_trainer(seen), seconds=seen.seconds)


def _ended(history: Sequence[Snapshot]) -> Verdict:
    last, shares = history[-1], whole(history)
    how = {"done": "is done", "stopped": "was stopped"}.get(last.ended or "", str(last.ended))
    sentence = f"The run {how}: {last.batches:,} batches, {last.rows:,} rows"
    starved = shares.get("starved")
    if starved is not None and last.job.has_trainer:
        sentence += f"; the {_who(last)} waited for data {percent(starved)} of the time"
    return Verdict(cause="ended", sentence=f"{sentence}.", shares=shares)


def _too_little(last: Snapshot) -> Verdict:
    starting = sum(p.starting for p in last.pools.values())
    sentence = "Too little was seen yet."
    if not last.batches:
        sentence = "The first batch has not come yet."
    if not last.batches and starting:
        sentence = f"The first batch has not come yet: {starting} workers are being started."
    return Verdict(cause="unknown", sentence=sentence, shares={})


def draining(w: Window, limit: Limit) -> Verdict:
    """Of a run that nobody trains with: what limits it."""
    return Verdict(
        cause="draining",
        sentence=f"Nobody trains: {w.rows:,.0f} rows a second are drained; {limit.because}.",
        shares=w.shares,
        evidence=limit.evidence,
        guess=(*limit.guess, *of_backlog(w)),
        advice=limit.advice,
    )


def _of_trainer(w: Window) -> Verdict:
    if w.starved is None:
        return _untold(w)
    if not w.last.steps.on_device and w.starved >= WORTH and (w.gpu_busy or 0.0) >= _GPU_BUSY:
        return _runs_ahead(w)
    loss, share = _greatest_loss(w)
    waits = loss == "communication" or (loss == "compute" and "communication" not in w.shares)
    if waits and (peer := _starving_peer(w)) is not None:
        return _peer(w, peer)
    return told(w, loss, share)


def _greatest_loss(w: Window) -> tuple[str, float]:
    """What takes most of the trainer's time beside training, and how much; ``compute`` if nothing
    takes enough to be worth a word."""
    pauses = sum(w.pauses.values())
    losses = {
        "starved": w.starved or 0.0,
        "copy": w.shares.get("copy", 0.0),
        "communication": w.shares.get("communication", 0.0),
        "pause": pauses,
        "host": max(0.0, w.shares.get("other", 0.0) - pauses),
    }
    loss = max(losses, key=lambda k: losses[k])
    return (loss, losses[loss]) if losses[loss] >= WORTH else ("compute", losses[loss])


def told(w: Window, loss: str, share: float) -> Verdict:
    """The verdict on what takes ``share`` of the trainer's time: ``starved``, ``copy``,
    ``communication``, ``pause``, ``host``, or ``compute`` where nothing does."""
    return starved(w, share, limit_of_data(w)) if loss == "starved" else _OF_LOSS[loss](w, share)


def starved(w: Window, share: float, limit: Limit) -> Verdict:
    """The verdict that the trainer waits for data, for this reason."""
    return Verdict(
        cause=limit.cause,
        sentence=f"The {_who(w.last)} waits for data {percent(share)} of the time; "
        f"{limit.because}.",
        shares=w.shares,
        evidence=(*limit.evidence, _of_ready(w), *_of_gpus(w)),
        guess=(*limit.guess, *of_backlog(w)),
        advice=limit.advice,
    )


def _healthy(w: Window, share: float) -> Verdict:
    waits = f"waits for data {percent(w.starved or 0.0)}"
    if not w.last.steps.on_device:
        sentence = f"The trainer is the limit: it trains {percent(w.shares['compute'])} of the time"
    else:
        sentence = f"The GPU is the limit: it is busy {percent(w.shares['compute'])} of the time"
    evidence = [_of_ready(w), *_of_gpus(w)]
    if w.wait - (w.starved or 0.0) >= WORTH:
        evidence.append(
            f"the trainer's thread waits in next() {percent(w.wait)} of the time, while the GPU "
            "still works on what it was given before: that costs nothing"
        )
    return Verdict(
        cause="compute",
        sentence=f"{sentence} and {waits}.",
        shares=w.shares,
        evidence=tuple(evidence),
        guess=(*of_backlog(w), *_of_lock(w)),
        advice="to train faster, make the step cheaper: forebay doctor TOPOLOGY shows its parts",
    )


def _of_lock(w: Window) -> tuple[str, ...]:
    """Stages in Python hold up the training loop as well, whose own pace then is not known."""
    if w.gil is None or w.gil < LOCKED or not w.stages:
        return ()
    return (
        f"the interpreter's lock is taken {percent(w.gil)} of the time: if it is the stages that "
        "hold it, they slow the training loop down, too",
    )


def of_backlog(w: Window) -> tuple[str, ...]:
    """What will be once a backlog was read, if records come more slowly than they are taken."""
    come, taken = w.arrived, w.taken
    # Where nothing comes at all it is more likely a table, which has an end.
    if not come or not taken or not w.behind or come > (1 - WORTH) * taken:
        return ()
    return (
        f"once the backlog of {w.behind:,} records is read it will wait for the producer "
        f"{percent(1 - come / taken)} of the time: {come:,.0f} new ones come a second, and "
        f"{taken:,.0f} are taken",
    )


def _copy(w: Window, share: float) -> Verdict:
    return Verdict(
        cause="copy",
        sentence=f"Copying batches to the GPU takes {percent(share)} of the time.",
        shares=w.shares,
        evidence=(_of_ready(w),),
        guess=(
            "the batches are large for the bus, or wider than they need be (float32 for bytes)",
        ),
        advice="copy small types (uint8) and convert them on the device; decode to the size that "
        "the model takes",
    )


def _pause(w: Window, share: float) -> Verdict:
    names = sorted(w.pauses, key=lambda k: -w.pauses[k])
    each = ", ".join(f"{k} {percent(w.pauses[k])}" for k in names)
    return Verdict(
        cause="pause",
        sentence=f"Training stands still {percent(share)} of the time, for: {names[0]}.",
        shares=w.shares,
        evidence=(f"pauses by name: {each}", _of_ready(w)),
        advice="pause less often (checkpoint.every), or save and evaluate beside the training",
    )


def _host(w: Window, share: float) -> Verdict:
    return Verdict(
        cause="host",
        sentence=f"The {_who(w.last)} waits for the host {percent(share)} of the time: the "
        "training loop's own code, not data, is the limit.",
        shares=w.shares,
        evidence=(f"it waits for data {percent(w.starved or 0.0)}", _of_ready(w), *_of_gpus(w)),
        guess=("many small kernels, logging, or a value fetched from the device in each step",),
        advice="look at three steps with torch.profiler; torch.compile and CUDA graphs launch more "
        "at once",
    )


def _communication(w: Window, share: float) -> Verdict:
    others = [r for r in _others(w) if r.communication is not None]
    least = min(others, key=lambda r: r.communication or 0.0, default=None)
    guess: tuple[str, ...] = ("the network between the ranks, or gradients that are large for it",)
    if least is not None and (least.communication or 0.0) < share / 2:
        guess = (
            f"rank {least.rank} waits least for the others "
            f"({percent(least.communication or 0.0)}): they wait for it",
        )
    return Verdict(
        cause="communication",
        sentence=f"Exchanging gradients with the other ranks takes {percent(share)} of the time.",
        shares=w.shares,
        evidence=(f"no rank waits for data more than {percent(_most_starved(w))} of its time",),
        guess=guess,
        advice="larger batches, or gradients accumulated over several steps, exchange less often",
    )


def _peer(w: Window, peer: RankSeen) -> Verdict:
    lost, known = w.shares.get("communication"), "communication" in w.shares
    takes = f", and this one waits for it {percent(lost or 0.0)} of the time" if known else ""
    return Verdict(
        cause="peer",
        sentence=f"Rank {peer.rank} waits for data {percent(peer.starved or 0.0)} of the time"
        f"{takes}: look there.",
        shares=w.shares,
        evidence=(f"this rank itself waits for data {percent(w.starved or 0.0)} of the time",),
        guess=() if known else ("all ranks wait for the slowest, if they exchange gradients",),
        advice=f"look at the verdict of rank {peer.rank}: its splits have less, or its machine is "
        "slower",
    )


def _runs_ahead(w: Window) -> Verdict:
    return Verdict(
        cause="compute",
        sentence=f"The GPU is busy {percent(w.gpu_busy or 0.0)} of the time, by NVML, while the "
        f"trainer's thread waits in next() {percent(w.wait)}: it hands out work ahead of the GPU.",
        shares={"compute": 1.0},
        evidence=_of_gpus(w),
        guess=("these are the host's times: how much of the wait the GPU idled is not known",),
        advice="let the device's own time be taken: give the loader device='cuda'",
    )


def _untold(w: Window) -> Verdict:
    return Verdict(
        cause="unknown",
        sentence="How long the GPU waits for data is not known: the device did not tell. It is at "
        f"most the {percent(w.wait)} of the time that the trainer's thread waits.",
        shares=w.shares,
        evidence=_of_gpus(w),
        advice="call next() on the CUDA stream that trains, on a machine whose device can be used",
    )


_OF_LOSS: Mapping[str, Callable[[Window, float], Verdict]] = {
    "copy": _copy,
    "communication": _communication,
    "pause": _pause,
    "host": _host,
    "compute": _healthy,
}


def _starving_peer(w: Window) -> RankSeen | None:
    """The rank that starves most, if it is another and that is worth a word."""
    peers = [r for r in _others(w) if (r.starved or 0.0) >= WORTH]
    return max(peers, key=lambda r: r.starved or 0.0, default=None)


def _others(w: Window) -> list[RankSeen]:
    """The other ranks, as far as they told of themselves lately."""
    last = w.last
    return [r for r in last.ranks if r.rank != last.job.rank and r.at >= last.at - _STALE_SECONDS]


def _most_starved(w: Window) -> float:
    return max([w.starved or 0.0, *(r.starved or 0.0 for r in _others(w))])


def _of_ready(w: Window) -> str:
    return (
        f"of {w.last.buffer.prefetch} batches to be kept ready {percent(w.ready)} were, on average"
    )


def _of_gpus(w: Window) -> tuple[str, ...]:
    if w.gpu_busy is None:
        return ()
    return (
        f"NVML: a kernel ran {percent(w.gpu_busy)} of the time (utilization.gpu), however small",
    )


def _who(s: Snapshot) -> str:
    return "GPU" if s.steps.on_device else "trainer"
