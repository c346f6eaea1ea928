"""Progress formats, checkpoints, the end of training, and restarts inside the job."""

from datetime import timedelta

import pytest

from advisor.core.model import Progress
from advisor.core.progress import combine
from advisor.core.scan import FileState
from tests.unit.core_detect.logs import NOON, scan

ITERATION = (
    " [2026-11-29 12:00:{:02d}] iteration {:8d}/     100 | consumed samples: 99 | "
    "elapsed time per iteration (ms): 512.2 | lm loss: 2.1E+00 | number of nan iterations:   0 |\n"
)


def steps(*numbers: int) -> str:
    return "".join(ITERATION.format(number % 60, number) for number in numbers)


def progress(text: str) -> Progress:
    return combine({"job.log": scan(text).state.progress})


@pytest.mark.parametrize(
    "line",
    [
        " iteration       12/     100 | consumed samples:          384 | elapsed time per iteration (ms): 512.2 |",
        "[rank3]:  iteration       12/     100 | consumed samples:          384 |",
        "3:  iteration       12/     100 | consumed samples:          384 |",
        "Epoch 0: 2% 1/40 [00:01<00:39, v_num=1, global_step=12.0, train_loss=2.1]",
        "[2026-11-29 12:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=12, skipped=0, lr=[1e-4]",
        "completed step: 12, seconds: 1.2, TFLOP/s/device: 300, loss: 2.1",
        "[titan] 2026-11-29 12:00:00,000 - root - INFO - step: 12  loss:  2.1  memory: 10GiB tps: 9,000",
        "step 12 loss 2.31",
        "I 21:54:10.911 train_step=12 loss=8.912 step_time=1.26s",
        "step 12 | loss 2.113 | 1.02 s/it",
        "| epoch 027 | loss 6.343 | num_updates 12 | lr 0.0006",
        "iter: 12, loss: 2.2",
        " 14%|#4        | 12/1891 [3:02:51<21:12:36, 46.79s/it]",
        "Train Epoch: 0 [ 12/400000 (1%)] Data (t): 0.102 Batch (t): 0.914",
    ],
)
def test_steps_are_read_from_the_usual_formats(line: str) -> None:
    """Megatron, NeMo, DeepSpeed, MaxText, torchtitan, fairseq, bars and plain step lines."""
    assert progress(line + "\n").last_step == 12


@pytest.mark.parametrize(
    "line", ["step aside", "12 iterations planned", "iteration of the loop", "Step 3: install the driver"]
)
def test_other_lines_are_no_steps(line: str) -> None:
    """Words alone are no progress."""
    assert progress(line + "\n").last_step is None


def timeless(*numbers: int) -> str:
    return "".join(f"step {number} | loss 2.1\n" for number in numbers)


_LOADED = "  successfully loaded checkpoint from /c1/x [ t 0, p 0 ] at iteration {}\n"


@pytest.mark.parametrize(
    ("text", "resumed"),
    [
        (_LOADED.format(10) + timeless(11, 12), 10),
        (_LOADED.format(1000) + timeless(1100, 1200), 1000),
        (_LOADED.format(1050) + timeless(1100, 1200), 1050),
        # From step 0 on: the step that a checkpoint is called after was not done yet.
        (_LOADED.format(10) + timeless(10, 11), 9),
        # Of another run, whose numbers are not this one's.
        (_LOADED.format(500_000) + timeless(1, 2), 0),
        ("loaded checkpoint of the base model at iteration 5\n" + _LOADED.format(1000) + timeless(1100, 1200), 1000),
        # A restart inside the job: it was the attempt's first step that was asked for.
        (_LOADED.format(10) + timeless(11, 12, 30) + _LOADED.format(20) + timeless(21), 10),
        (timeless(100, 200, 300), 0),
        (timeless(1100, 1200, 1300), 1000),
        (timeless(1, 10, 20, 30), 0),
        (timeless(0, 100, 200, 300), -1),
        (timeless(11), 10),
        ("nothing\n", None),
    ],
)
def test_what_the_first_step_followed(text: str, resumed: int | None) -> None:
    """The checkpoint that was loaded; where no line tells it, by how many steps a line is printed for."""
    state = FileState()
    for number, line in enumerate(text.splitlines(keepends=True)):  # read as they come
        state = scan(line, state=state, final=False, seen_at=NOON + timedelta(seconds=10 * number)).state
    assert combine({"job.log": state.progress}).resumed_step == resumed


def test_the_load_may_stand_in_another_file() -> None:
    """Standard error tells of the checkpoint, standard output of the steps."""
    loaded = scan(_LOADED.format(1000)).state.progress
    assert combine({"job.out": scan(steps(1100)).state.progress, "job.err": loaded}).resumed_step == 1000


def test_checkpoints_and_the_end_are_seen() -> None:
    """What was saved is where the next attempt resumes; an end that the job announces is an end."""
    text = steps(498, 499, 500) + "saving checkpoint at iteration     500 to /c1/x in torch format\n"
    assert progress(text).saving
    text += "  successfully saved checkpoint from iteration     500 to /c1/x\n"
    found = progress(text)
    assert (found.checkpoint_step, found.saving, found.finished) == (500, False, False)
    assert progress(text + "[after training is done] datetime: 2026-11-29 12:00:00\n").finished


@pytest.mark.parametrize(
    ("line", "finished"),
    [
        ("[after training is done] datetime: 2026-11-29 12:00:00", True),
        ("Training completed. Do not forget to share your model", True),
        ("INFO: Training finished in 12.3 h", True),
        ("Finished training!", True),
        ("`Trainer.fit` stopped: `max_steps=100` reached.", True),
        ("{'train_runtime': 123.4, 'train_loss': 2.0}", True),
        ("Finished training epoch 3/10", False),
        ("training done for shard 7", False),
        ("the tokenizer's training finished, loading data", False),
        ("[before the start of training step] datetime", False),
    ],
)
def test_only_an_announced_end_of_training_is_one(line: str, finished: bool) -> None:
    """What comes after the end is teardown, so nothing less may count as the end."""
    assert progress(steps(1, 2) + line + "\n").finished is finished


@pytest.mark.parametrize("line", ["Resumed from checkpoint /c1/x | epoch 3", "loaded checkpoint /c1/x (100% of it)"])
def test_a_checkpoint_was_loaded_whatever_the_line_says_besides(line: str) -> None:
    """Only a bar, with both signs, loads something else."""
    assert progress(f"{steps(40, 41)}{line}\n{steps(10, 11)}").in_job_restarts == 1
    bar = "Loading checkpoint shards:  50%|##  | 2/4 [00:01<00:01]"
    assert progress(f"{steps(40, 41)}{bar}\n{steps(10, 11)}").in_job_restarts == 0


def test_a_crash_that_the_job_survives_is_an_in_job_restart() -> None:
    """`while ! srun` loops go back to the checkpoint and on."""
    crash = "[rank3]: KeyError: 'x'\nsrun: error: node1: task 3: Exited with exit code 1\n"
    again = "  successfully loaded checkpoint from /c1/x [ t 0, p 0 ] at iteration 10\n"
    found = progress(steps(9, 10, 11, 12) + crash + again + steps(11, 12, 13))
    assert (found.in_job_restarts, found.last_step) == (1, 13)
    assert found.cleared_lines["job.log"] > 6


def test_late_lines_of_slower_ranks_are_no_restart() -> None:
    """Ranks whose output is a step behind do not look like going back."""
    assert progress(steps(10, 11, 10, 12, 11, 12, 13)).in_job_restarts == 0


def test_output_that_another_rank_had_buffered_is_no_restart() -> None:
    """A rank that flushes its steps late prints old numbers, also after a crash line."""
    late = "".join(f"[rank5]: step {number} loss 2.0\n" for number in range(1, 9))
    text = "".join(f"[rank0]: step {number} loss 2.0\n" for number in range(1, 9)) + "[rank3]: KeyError: 'x'\n" + late
    found = progress(text)
    assert (found.in_job_restarts, found.last_step) == (0, 8)


def test_going_back_and_on_without_a_word_is_a_restart() -> None:
    """A killed loop body says nothing; its steps tell."""
    assert progress(steps(50, 51, 52) + "Killed\n" + steps(11, 12, 13, 14)).in_job_restarts == 1


def test_new_epochs_are_no_restart() -> None:
    """A bar begins anew with every epoch."""
    bar = "{}%|#| {}/9 [00:01<00:02, 1.2it/s]\n"
    assert progress("".join(bar.format(n, n) for n in (1, 5, 9, 1, 5, 9, 1, 5))).in_job_restarts == 0


def test_the_usual_interval_is_learned_from_the_lines_own_times() -> None:
    """Seconds per step, also where all lines were read at once."""
    found = combine({"a": scan(steps(1)).state.progress})
    assert found.interval_seconds is None
    state = scan(steps(1), final=False).state
    for number in range(2, 9):
        state = scan(steps(number), state=state, final=False).state
    assert combine({"a": state.progress}).interval_seconds == pytest.approx(1.0)
