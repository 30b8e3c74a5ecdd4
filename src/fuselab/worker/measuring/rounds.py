"""Interleaved rounds: every implementation is timed once a round, in rotating order."""

from __future__ import annotations

import gc
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import monotonic

import torch

from fuselab.machine.load import OtherLoad
from fuselab.model import Proof, Status
from fuselab.precision import RESOLUTION_US, Level
from fuselab.statistics import stats
from fuselab.timers import CannotTime, Keep, Reading, Timer, TimerError
from fuselab.worker.checks.audit import SHARE, Audit
from fuselab.worker.checks.check import require_settings
from fuselab.worker.checks.guard import GUARD
from fuselab.worker.implementations.baselines import COMPILE
from fuselab.worker.implementations.trial import Trial
from fuselab.worker.measuring.clocks import Clocks
from fuselab.worker.measuring.timing import HOT, Arena, Plan, Timing, make_timer, plan, warm
from fuselab.worker.protocol import Emit, Fatal, collector_off, judge, synchronize
from fuselab.worker.tensors.inputs import COLD_FACTOR, cache_bytes, how_many
from fuseline.testing import settings

HOT_CALLS = 10
# New contents and checks may take this many times as long as the timed calls themselves.
PATIENCE = 3
SETTLING = 1024


@dataclass(frozen=True)
class Block:
    """Calls of one implementation, one after the other, over so many input sets."""

    label: str
    calls: int
    batch: int
    sets: int

    @property
    def size(self) -> int:
        """Calls of a pass: whole batches, and no set twice, as its contents would be the same."""
        return self.sets - self.sets % self.batch if self.batch < self.sets else self.sets

    @property
    def share(self) -> float:
        """The share of its samples that are checked: one at least, as a rule."""
        samples = math.ceil(self.calls / min(self.batch, self.size))
        return max(SHARE, 1 / samples)


class Rounds:
    """Times trials in sweeps of interleaved rounds until each has reached the level, or its cap.

    All go on while one has to: alone a kernel can be faster than among others, and then how well
    it was known after the first sweep would say what its median becomes.
    A trial ends here if it overwrites its inputs, if a timed result is wrong, or if the timer
    cannot vouch for it.
    """

    def __init__(
        self, trials: Sequence[Trial], plans: Mapping[str, Plan], arena: Arena, emit: Emit
    ) -> None:
        self._trials = [trial for trial in trials if trial.alive]
        self._plans, self._arena, self._emit = plans, arena, emit
        self._scrub = scrubber(arena)
        self._settle = settler(arena.device)
        self._clocks = Clocks(arena.device)
        # Seconds of each one's timed calls, and with its share of all that goes with them.
        self._spent: dict[str, float] = defaultdict(float)
        self._held: dict[str, float] = defaultdict(float)
        self._rounds: Counter[str] = Counter()
        self._turn = 0

    def run(self, level: Level, timer_name: str, audit: Audit | None) -> Timing:
        """Return what the rounds gave."""
        timer = make_timer(self._arena.device, timer_name)
        timing = Timing(timer.name)
        going = self._trials
        gc.collect()
        try:
            with collector_off(), OtherLoad(torch.get_num_threads()) as load:
                while going:
                    begin = monotonic()
                    timer = make_timer(self._arena.device, timer_name)
                    self._sweep(going, timer, level, audit, timing)
                    for trial in going:
                        self._held[trial.name] += (monotonic() - begin) / len(going)
                    able = [t for t in going if t.alive and self._has_time(t, level)]
                    going = able if any(_missed(t, level, timing) for t in able) else []
        except TimerError as error:
            for trial in self._trials:
                if trial.alive:
                    trial.fail(Status.INVALID, str(error))
        finally:
            timer.release()
        for trial in self._trials:
            self._conclude(trial, level, timing, load.disturbance)
        return timing

    def _sweep(
        self,
        going: Sequence[Trial],
        timer: Timer,
        level: Level,
        audit: Audit | None,
        timing: Timing,
    ) -> None:
        with timer:
            for turn in range(level.rounds):
                if self._turn:
                    self._arena.refresh()
                self._turn += 1
                first = turn % len(going)
                for trial in [*going[first:], *going[:first]]:
                    if trial.alive:
                        self._rounds[trial.name] += 1
                        self._block(trial, timer, audit)
            for trial in going:
                if trial.alive and self._arena.set_bytes <= cache_bytes(self._arena.device):
                    self._hot_block(trial, timer, audit)
        timing.add(timer.readings())

    def _block(self, trial: Trial, timer: Timer, audit: Audit | None) -> None:
        plan = self._plans[trial.name]
        self._time(trial, Block(trial.name, plan.calls, plan.batch, self._arena.sets), timer, audit)

    def _hot_block(self, trial: Trial, timer: Timer, audit: Audit | None) -> None:
        calls = min(self._plans[trial.name].calls, HOT_CALLS)
        self._time(trial, Block(trial.name + HOT, calls, 1, 1), timer, audit)

    def _time(self, trial: Trial, block: Block, timer: Timer, audit: Audit | None) -> None:
        """Time a block pass by pass, each on contents of its own, and check some of its results."""
        checked = 0
        before = settings.snapshot(self._arena.device)
        for first in range(0, block.calls, block.size):
            count = min(block.size, block.calls - first)
            if trial.fn is not None:
                self._arena.renew(count, first == 0)
                # A timer may run forwards on a stream of its own.
                synchronize(self._arena.device)
            keep = Keep(block.share) if audit and trial.fn is not None else None
            self._timed(trial, block, count, first == 0, timer, keep)
            changed = self._arena.written() if trial.fn is not None else ()
            if changed:
                trial.fail(Status.INVALID, f"overwrote its input {', '.join(changed)} while timed")
            elif audit and keep:
                if not checked and first + count == block.calls:
                    keep.insist()
                checked += len(keep.results)
                self._emit("start", trial.name, "checks and new contents")
                audit.verify(trial, count, block.sets, keep.results)
            if not trial.alive:
                self._arena.refresh()
                return
        self._clocks.read(block.label)
        replaced = GUARD.replaced()
        if replaced:
            raise Fatal(trial.name, Status.INVALID, f"replaced {replaced} while timed")
        require_settings(trial, before, self._arena.device)

    def _timed(
        self,
        trial: Trial,
        block: Block,
        count: int,
        opening: bool,
        timer: Timer,
        keep: Keep | None,
    ) -> None:
        """Time the next calls of a block."""
        self._emit("start", trial.name, "timing")
        begin = monotonic()
        with trial.around, trial.recompiling if trial.name == COMPILE else nullcontext():
            try:
                with timer.preparing():
                    calls = trial.make_calls(count, block.sets)
                if trial.fn is not None:
                    self._arena.renew_gradients(count)
                if block.label == trial.name:
                    self._scrub()
                if opening or block.label == trial.name:
                    self._settle()
                timer.block(block.label, calls, block.batch, keep)
            except CannotTime as error:
                raise Fatal(trial.name, Status.UNSUPPORTED, str(error)) from error
            except (Exception, SystemExit) as error:
                # The timer's window is cut: the group must be timed again without the culprit.
                reason = judge(error, trial.name, "timing", self._arena.device)
                raise Fatal(trial.name, Status.ERROR, reason) from error
        trial.note_served()
        self._spent[trial.name] += monotonic() - begin

    def _has_time(self, trial: Trial, level: Level) -> bool:
        spent, held = self._spent[trial.name], self._held[trial.name]
        return spent < level.cap_s and held < PATIENCE * level.cap_s

    def _conclude(self, trial: Trial, level: Level, timing: Timing, load: str) -> None:
        """Note how the numbers came about, and what makes them noisy."""
        reading = timing.readings.get(trial.name)
        if reading is None:
            return
        if not reading.joined and trial.alive:
            trial.fail(
                Status.INVALID,
                "part of its work ran on another stream and was not over when the call was",
            )
        idle = sum(us <= 0 for us in reading.samples_us)
        if idle and trial.alive:
            total = len(reading.samples_us)
            trial.fail(Status.INVALID, f"{idle} of {total} timed calls ran nothing on the device")
        timed = _timed(trial.proof, self._plans[trial.name], self._arena, reading)
        noted = self._clocks.noted(timed, trial.name)
        trial.proof = replace(noted, rounds=self._rounds[trial.name])
        disturbed = (
            load if self._arena.device.type == "cpu" else self._clocks.disturbance(trial.name)
        )
        found = (disturbed, _missed(trial, level, timing))
        timing.disturbance[trial.name] = "; ".join(filter(None, found))


def race(
    trials: Sequence[Trial],
    device: torch.device,
    nbytes: int,
    level: Level,
    emit: Emit,
    timer: str = "",
) -> Timing:
    """Time the lab's own trials of `nbytes` a call, all interleaved, cold."""
    for trial in trials:
        warm(trial, device, emit)
    plans = plan(trials, device, level)
    sets = how_many(nbytes, device, max(p.calls for p in plans.values()))
    return Rounds(trials, plans, Arena(device, sets, nbytes), emit).run(level, timer, None)


def _missed(trial: Trial, level: Level, timing: Timing) -> str:
    samples = timing.readings[trial.name].samples_us
    width = stats.summary(samples).known_to(RESOLUTION_US.get(timing.timer, 0.0))
    return level.missed(len(samples), sum(samples), width)


def scrubber(arena: Arena) -> Callable[[], None]:
    """Return what reads the cache full of something else; the timer does not see it."""
    if not arena.scrubs:
        return lambda: None
    words = COLD_FACTOR * cache_bytes(arena.device) // 4
    scratch = torch.rand(words, device=arena.device)
    total = torch.empty((), device=arena.device)

    def scrub() -> None:
        torch.sum(scratch, dim=0, out=total)

    return scrub


def settler(device: torch.device) -> Callable[[], None]:
    """Return what leaves the multiprocessors as a matrix product does; the timer does not see it.

    A kernel finds their memory divided into L1 and shared as the kernels before it left it, unless
    it asks: F.rms_norm's cast to fp32 made the same Triton kernel 11 % slower, blocks later.
    """
    if device.type != "cuda":
        return lambda: None
    a = torch.rand(SETTLING, SETTLING, device=device).half()
    product = torch.empty_like(a)

    def settle() -> None:
        torch.mm(a, a, out=product)

    return settle


def _timed(proof: Proof, plan: Plan, arena: Arena, reading: Reading) -> Proof:
    """Add how the calls were timed, and what the timer saw of them."""
    added = replace(
        proof,
        calls_per_round=plan.calls,
        batch=plan.batch,
        sets=arena.sets,
        rotated_bytes=arena.sets * arena.set_bytes,
        cold=arena.rotates_cold or arena.scrubs,
    )
    if not reading.kernels:
        return added
    kernels = dict(reading.kernels)
    return replace(added, kernels=kernels, launches=sum(kernels.values()), steady=reading.steady)
