"""Progress bars of keras and rich: which are steps, which drawings are news, and what is awaited of them.

Lines are as keras 3.15, tf.keras 2 and rich 15 write them, with their colours and cursor movements.
"""

from dataclasses import replace
from datetime import timedelta

import pytest

from advisor.core import codec
from advisor.core.course import Phase
from advisor.core.detection import detect
from advisor.core.model import SourceReport
from advisor.core.progress import FileProgress
from advisor.core.words import IncidentKind, Trust
from tests.unit.core_detect.live_log import POLICY, Job, overdue
from tests.unit.core_detect.logs import NOON, RULES, scan

BOLD, OFF, GREEN, WHITE = "\x1b[1m", "\x1b[0m", "\x1b[32m", "\x1b[37m"


def keras(done: int, total: int, values: str = " - accuracy: 0.9100 - loss: 0.3100", left: str = "1:23") -> str:
    """A drawing of `Progbar`, which goes back over the one before it."""
    full = 20 * done // total
    bar = f"{GREEN}{'━' * full}{OFF}{WHITE}{'━' * (20 - full)}{OFF}"
    drawn = f"{BOLD}{done:{len(str(total))}d}/{total}{OFF} {bar} {BOLD}{left}{OFF} 95ms/step{values}"
    return "\b" * 61 + "\r" + drawn


def rich(label: str, share: float, columns: str, *, colour: bool = True) -> str:
    """One line of a display of `rich.progress`."""
    full = int(40 * share)
    half = "╺" if full and colour else ""
    rest = f"\x1b[38;5;237m{half}{'━' * (40 - full - len(half))}{OFF}" if colour else " " * (40 - full)
    return f"{label} \x1b[38;5;197m{'━' * full}{OFF}{rest} {columns}"


def redrawn(*lines: str) -> str:
    """A display that takes the place of the one before it."""
    return "\r\x1b[2K" + "\x1b[1A\x1b[2K" * (len(lines) - 1) + "\n".join(lines)


def counted(label: str, done: int, total: int, left: str = "0:01:02") -> str:
    return rich(label, done / total, f"\x1b[32m{done:>{len(str(total))}}/{total}{OFF} \x1b[36m{left}{OFF}")


def shared(label: str, percent: int, left: str = "0:12:00") -> str:
    """The columns that `rich.progress.track` has by itself: no count."""
    return rich(label, percent / 100, f"\x1b[35m{percent:>3}%{OFF} \x1b[36m{left}{OFF}")


@pytest.mark.parametrize(
    "line",
    [
        keras(12, 100),
        "12/100 ━━━━━━━━━━━━━━━━━━━━ 1:23 95ms/step - accuracy: 0.91 - loss: 0.3",
        " 12/100 ━━━━━━━━━━━━━━━━━━━━ 1:02:03 37s/step - loss: nan",
        "     12/Unknown 3s 30ms/step - loss: 0.3000",
        "     12/Unknown - 3s 30ms/step - loss: 0.3000",
        " 12/100 [==>...........................] - ETA: 1:23 - loss: 0.3 - accuracy: 0.91",
        "12/12 [==============================] - 3s 30ms/step - loss: 0.3 - accuracy: 0.91",
        "12/12 - 3s - 30ms/step - accuracy: 0.9100 - loss: 0.3100 - val_loss: 0.4",
        "12/12 - 3s - loss: 0.3100 - accuracy: 0.9100 - 3s/epoch - 30ms/step",
        "[1,0]<stdout>:12/12 - 3s - 30ms/step - loss: 0.3100",
        "Epoch 3 ━━━━ 12/1000 0:01:02",
        counted("Training", 12, 1000),
        "⠙ Epoch 1 ━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━━ 12/100 0:00:10 • 0:01:02",
        "Training ━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━  12% 12/100 -:--:--",
        "Training ━━━━━━                              12/100 0:00:01",
        "Epoch 0/9 ━━━━━━━━━━━━━━━━━━ 12/938 0:00:12 • 0:01:02 83.21it/s v_num: 1.000 train_loss: 0.301",
        "Processing batches ━━━━━━━━━━━━━━ 12/938 0:00:12 • 0:01:02 83.21it/s v_num: 1.000 train_loss: 0.301",
    ],
)
def test_steps_are_read_from_bars(line: str) -> None:
    assert scan(line + "\n").state.progress.last_step == 12


@pytest.mark.parametrize(
    "line",
    [
        "Downloading ━━━━━━━━━━━━━━ 12/30 0:00:12",
        "model.safetensors ━━━━━━━━━━━━━ 12/300 bytes • 1.0 MB/s • 0:00:12",
        "model.safetensors ━━━━━━━━━━━━━ 12.0% • 1.2/10.0 MB • 19.8 MB/s • 0:00:12",
        "   ━━━━━━━━━━━━━━━━━━━━━━━ 12.3/102.3 MB 83.2 MB/s eta 0:00:02",
        "⠙ Loading checkpoint shards ━━━━━━━━━━━━━ 12/30 0:00:12",
        "[rank0]: Tokenizing dataset ━━━━━━━━ 12/30 0:00:12",
        "Training ━━━━━━╸  45% 0:00:12",
        "12/11490434 ━━━━━━━━━━━━━━━━━━━━ 2:48 15us/step",  # what keras downloads, told on the line before it
        "12/313 ━━━━━━━━━━━━━━━━━━━━ 0s 732us/step",  # predictions
        "12/12 - 3000s - 250s/step - loss: 0.31",  # epochs that long say nothing of the next ten minutes
        "Training ━━━━━━━━━━━━━━━━━━━━━━━━━━ 12/12 0:00:00",  # all that is drawn into a file
        "┏━━━━━━━━━━┳━━━━━┓",
        "worked 12/100 hosts 3s",
    ],
)
def test_other_bars_are_no_steps(line: str) -> None:
    """Nor what has no count: how long a hundredth takes says nothing of a step."""
    found = scan(line + "\n").state.progress
    assert (found.last_step, found.form) == (None, "")


def test_a_keras_job_that_stops_drawing_is_overdue() -> None:
    job = Job()
    for done in range(1, 400):
        job.wait(2).say(keras(done, 1000))
    assert job.world.progress.last_step == 398  # one drawing late
    assert job.limit() == POLICY.hang_floor_seconds
    assert hung(job.wait(90))


def test_the_last_batch_of_a_keras_epoch_may_be_followed_by_a_silent_validation() -> None:
    job = Job()
    for done in range(1, 401):
        job.wait(2).say(keras(done, 400))
    assert job.limit() == POLICY.hang_seconds


def test_epochs_of_keras_around_five_minutes_are_all_steps() -> None:
    """Where shorter ones were told before: two longer ones in a row are no silence of ten minutes."""
    job = Job()
    for seconds in (280, 290, 285, 295, 305, 310, 302, 298):
        job.wait(seconds)
        assert not hung(job)
        job.say(f"12/12 - {seconds}s - {seconds // 12}s/step - accuracy: 0.9100 - loss: 0.3100")
    assert job.world.progress.last_step == 12
    assert hung(job.wait(660))


@pytest.mark.parametrize("bar", ["keras", "tqdm"])
def test_another_bar_has_a_pace_of_its_own(bar: str) -> None:
    """An evaluation may show its batches without a word, and take longer for each."""
    job = Job()
    for done in range(1, 400):
        job.wait(2).say(drawing(bar, done, 1000))
    assert job.limit() == POLICY.hang_floor_seconds
    job.wait(2).say(drawing(bar, 1, 12))
    for done in range(2, 5):
        job.wait(90).say(drawing(bar, done, 12))
        assert job.limit() == POLICY.hang_seconds
    for done in range(400, 440):
        job.wait(2).say(drawing(bar, done, 1000))
    assert job.limit() == POLICY.hang_floor_seconds


def drawing(bar: str, done: int, total: int) -> str:
    return (
        keras(done, total)
        if bar == "keras"
        else f"\r {100 * done // total:3d}%|██        | {done}/{total} [00:12<01:02, 2.0it/s]"
    )


def hung(job: Job) -> bool:
    """As the service would find now."""
    world = replace(job.world, sources=(SourceReport(source="logs", trust=Trust.LOG),))
    return detect(world, RULES, POLICY, NOON + timedelta(seconds=job.at)).kind is IncidentKind.HANG


def test_a_display_that_is_redrawn_without_a_new_count_is_no_progress() -> None:
    """A thread of rich's draws on whatever the training does: only the spinner and the clock move."""
    job = Job()
    for done in range(1, 400):
        display = counted(f"{'⠙⠹⠸'[done % 3]} Epoch 1", done, 1000)
        job.wait(2).say(redrawn(counted("  Epochs", 1, 3), display))
    assert job.world.progress.last_step == 398
    for second in range(90):
        display = counted(f"{'⠙⠹⠸'[second % 3]} Epoch 1", 399, 1000, f"0:01:{second % 60:02d}")
        job.wait(1).say(redrawn(counted("  Epochs", 1, 3), display))
        assert hung(job) is (second >= 60)
    job.wait(1).say(redrawn(counted("  Epochs", 1, 3), counted("⠙ Epoch 1", 400, 1000)))
    job.wait(1).say(redrawn(counted("  Epochs", 1, 3), counted("⠙ Epoch 1", 400, 1000)))
    assert not hung(job)
    assert job.world.progress.in_job_restarts == 0


def test_a_display_of_few_steps_per_epoch_goes_on() -> None:
    """The same counts come again in each epoch, under the same name."""
    job = Job()
    for number in range(400):
        job.wait(20).say(redrawn(counted("Training", number % 4, 4)))
        assert not hung(job)
    assert job.world.progress.last_step in range(4)


def test_a_bar_without_a_count_is_awaited_while_it_is_the_last_that_was_said() -> None:
    """It moves, or the time left does: that is news, but no step. Redrawn as it was, it is neither."""
    job = Job()
    job.wait(20).say(redrawn(shared("Training", 44)))
    job.wait(20).say(redrawn(shared("Training", 45)))
    assert (job.world.progress.last_step, job.world.progress.pace.phase) == (None, Phase.PREPARATION)
    assert overdue(job) == 40 + POLICY.hang_phase_seconds
    job.wait(20).say(redrawn(shared("Training", 45, "0:11:58")))
    job.wait(1_700)
    for _ in range(30):
        job.wait(2).say(redrawn(shared("Training", 45, "0:11:58")))
    assert overdue(job) == 60 + POLICY.hang_phase_seconds
    assert not hung(job)
    assert hung(job.wait(60))


@pytest.mark.parametrize(
    "after",
    [
        redrawn(shared("Training", 45, "-:--:--")),  # steps are longer than the half minute that rich looks back
        redrawn(shared("Training", 100, "0:00:00")) + "\n\x1b[?25h",
        "\n\x1b[?25hserving on port 8000\n",
        "\r\x1b[2K",
    ],
)
def test_a_bar_without_a_count_is_not_awaited_for_ever(after: str) -> None:
    """A hundredth of a long run takes hours; what is full, wiped out or followed by other output is awaited no more."""
    job = Job()
    job.wait(20).say(redrawn(shared("Training", 44)))
    job.wait(20).say(redrawn(shared("Training", 45)))
    job.wait(20).say(after)
    assert overdue(job) is None


def test_bars_of_preparation_are_awaited_while_they_move() -> None:
    """As those of others are; a thread that draws on moves nothing."""
    job = Job()
    job.wait(20).say(redrawn(counted("Loading shards", 1, 4)))
    job.wait(20).say(redrawn(counted("Loading shards", 2, 4)))
    job.wait(20).say(redrawn(counted("Loading shards", 2, 4)))
    assert overdue(job) == 40 + POLICY.hang_phase_seconds
    job.wait(20).say(redrawn(counted("Loading shards", 4, 4)) + "\n\x1b[?25h")
    assert (overdue(job), job.world.progress.last_step) == (None, None)
    job.wait(20).say(redrawn(counted("Training", 1, 400)))
    job.wait(20).say(redrawn(counted("Training", 2, 400)))
    assert (job.world.progress.last_step, job.limit()) == (1, POLICY.hang_seconds)


def test_a_download_of_keras_is_awaited_and_no_step() -> None:
    job = Job()
    job.say("Downloading data from https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz")
    job.wait(20).say(keras(8_192, 11_490_434, ""))
    assert overdue(job) == 20 + POLICY.hang_phase_seconds
    job.wait(20).say(keras(11_490_434, 11_490_434, "", "0s") + "\n")
    assert (overdue(job), job.world.progress.last_step) == (None, None)


def test_a_bar_of_validation_announces_it() -> None:
    """Lightning draws it below that of the epoch."""
    job = Job()
    for done in range(1, 400):
        job.wait(2).say(redrawn(counted("Epoch 0/9", done, 4_000)))
    epoch = counted("Epoch 0/9 ", 399, 4_000)
    job.wait(2).say(redrawn(epoch, counted("Validation", 0, 10)))
    assert job.world.progress.pace.phase is Phase.EVALUATION


@pytest.mark.parametrize("behind", ["", 600 * "prefetch queue 7\n"])
def test_the_newest_count_of_many_drawings_is_read(behind: str) -> None:
    """Of a log that is read late, and where other output follows."""
    text = "".join(redrawn(counted("Training", number, 4_000)) for number in range(1, 900))
    assert scan(text + "\n" + behind).state.progress.last_step == 899


def test_what_is_kept_of_a_display_is_small_and_survives_a_take_over() -> None:
    text = "".join(redrawn(counted(f"worker {number} " + 40 * "name ", number, 4_000)) for number in range(1, 900))
    kept = scan(text).state.progress
    assert codec.decode(FileProgress, codec.encode(kept)) == kept
    assert len(codec.encode(kept)) < 6_000
