"""The length of a training: iterations from minutes and measured costs, or from passes."""

import math
from collections.abc import Iterator

from ocr_panoptic.errors import UserError

from .measure import Costs
from .rules import Decision, Situation

LEAST, MOST = 500, {"cpu": 10_000, "cuda": 90_000}  # iterations without --minutes
SHORTEST = 50  # iterations that a training with --minutes needs
START = 20.0  # seconds until the first step, and after the last
SHARE = 0.15  # of the time, for evaluations
EVALUATIONS = 5


def iterations(it: Situation, minutes: float | None, costs: Costs | None) -> Iterator[Decision]:
    """Yield the number of iterations and of evaluations."""
    if not it.data.val:
        yield Decision("TEST.EVALUATIONS", 0, "there is no split called val")
    if minutes is None or costs is None:
        yield from _passes(it)
        return
    seconds, step = 60 * minutes - START, costs.step
    evaluations = EVALUATIONS
    if "TEST.EVALUATIONS" in it.given:
        evaluations = max(1, it.base["TEST.EVALUATIONS"])  # one is at the end
    elif costs.evaluation:
        evaluations = int(min(EVALUATIONS, max(1, SHARE * seconds // costs.evaluation)))
    if period := it.base["TEST.EVAL_PERIOD"]:
        evaluations, step = 1, step + costs.evaluation / period
    number = int((seconds - evaluations * costs.evaluation) / step)
    if number < SHORTEST:
        least = START + evaluations * costs.evaluation + SHORTEST * step
        raise UserError(
            f"--minutes is {minutes:g}, but {SHORTEST} steps and {evaluations} evaluation"
            f"{'s' * (evaluations > 1)} take {math.ceil(least / 6) / 10:g} minutes on this "
            "machine. Give at least that many."
        )
    because = f"{minutes:g} minutes, {costs.step:.2f} s per step"
    yield Decision("SOLVER.MAX_ITER", number, because)
    if it.base["SOLVER.WARMUP_ITERS"] > number // 10:
        yield Decision("SOLVER.WARMUP_ITERS", number // 10, "a tenth of the iterations")
    if it.data.val and not period:
        yield Decision(
            "TEST.EVALUATIONS", evaluations, f"each takes about {costs.evaluation:.0f} s"
        )


def _passes(it: Situation) -> Iterator[Decision]:
    """Yield the passes over the images, for a reasonable number of iterations."""
    epochs, batch = it.base["SOLVER.EPOCHS"], it.base["SOLVER.IMS_PER_BATCH"]
    most = MOST[it.machine.device]
    found = epochs * it.data.train / batch
    number = min(max(found, LEAST), most)
    if number != found:
        because = f"{'at least' if number > found else 'at most'} {number:,.0f} iterations"
        yield Decision("SOLVER.EPOCHS", round(number * batch / it.data.train, 4), because)
