"""Hangs: what is learned from an attempt's own lines, what is announced, and when it is overdue."""

from dataclasses import replace
from datetime import timedelta

import pytest

from advisor.core import codec, hang
from advisor.core.course import Pace, Phase
from advisor.core.detection import detect
from advisor.core.model import PastAttempt, Progress, Signal
from advisor.core.policy import Policy
from advisor.core.scan import FileState
from advisor.core.words import Category, IncidentKind, Trust
from benchmarks.hang import Reader, healthy, make_run, measure, reads, silent_hang
from tests.unit.core_detect.live_log import POLICY, STEP, Job, overdue
from tests.unit.core_detect.logs import NOON, RULES, SCANNER, context, scan


def steady(seconds: float = 2.0) -> Job:
    """Long enough in the course of steps, and at a step that no schedule calls for."""
    return Job().steps(int(400 / seconds) + 37, seconds)


def test_in_steady_state_a_job_is_overdue_after_three_usual_gaps() -> None:
    """With a floor of a minute, and the incident opens then."""
    assert steady(2.0).limit() == 60.0
    job = steady(40.0)
    assert job.limit() <= 3 * 40.0
    now = NOON + timedelta(seconds=job.at)
    assert detect(job.world, RULES, POLICY, now + timedelta(seconds=99)).kind is IncidentKind.NONE
    assert detect(job.world, RULES, POLICY, now + timedelta(seconds=121)).kind is IncidentKind.HANG


def test_a_hang_clears_with_the_next_step() -> None:
    """Progress ends the incident, whatever was concluded before."""
    job = steady(2.0)
    job.wait(90)
    assert detect(job.world, RULES, POLICY, NOON + timedelta(seconds=job.at)).kind is IncidentKind.HANG
    job.steps(1, 0.0)
    assert detect(job.world, RULES, POLICY, NOON + timedelta(seconds=job.at + 2)).kind is IncidentKind.NONE


def test_the_sites_ceiling_is_kept() -> None:
    """A small hang_seconds fires at that time, learned or not, floor or not."""
    policy = Policy(hang_seconds=8.0)
    assert steady(2.0).limit(policy) == 8.0
    assert Job().steps(3, 2.0).limit(policy) == 8.0
    assert steady(300.0).limit() == POLICY.hang_seconds


def test_before_enough_is_known_the_ceiling_holds() -> None:
    """The first steps compile and warm up."""
    assert Job().steps(12, 2.0).limit() == POLICY.hang_seconds
    assert Job().steps(100, 2.0).limit() == POLICY.hang_seconds


def test_nothing_is_ended_at_the_first_doubt() -> None:
    """A live attempt may be ended after as long again, and never later than the ceiling."""
    due = hang.expected(steady(2.0).world, POLICY)
    assert due is not None
    assert (due.ends_at - due.at).total_seconds() == 60.0
    due = hang.expected(steady(2.0).world, Policy(hang_seconds=90.0))
    assert due is not None
    assert (due.ends_at - due.at).total_seconds() == 30.0


def test_an_announced_checkpoint_may_take_its_time() -> None:
    """Unknown until the first ones: then a multiple of what they took; and after it the next step is due as usual."""
    job = steady(2.0)
    job.say(f"saving checkpoint at iteration {job.step:7d} to /ckpt in torch format")
    assert job.limit() == POLICY.hang_phase_seconds
    for _ in range(3):
        job.steps(40, 2.0)
        job.say(f"saving checkpoint at iteration {job.step:7d} to /ckpt in torch format")
        job.wait(300)
        job.say(f"  successfully saved checkpoint from iteration {job.step:7d} to /ckpt")
        assert job.limit() == pytest.approx(300 + 60, abs=4)
    job.steps(40, 2.0)
    job.say(f"saving checkpoint at iteration {job.step:7d} to /ckpt in torch format")
    assert 300 < job.limit() < 20 * 300
    assert job.limit() == pytest.approx(5 * 300, abs=4)


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("***** Running evaluation *****", Phase.EVALUATION),
        ("[rank0]: Evaluating on 12 batches", Phase.EVALUATION),
        ("Validation DataLoader 0:  12%|#2        | 3/24 [00:05<00:40]", Phase.EVALUATION),
        ("torch.compile: compiling the model, the first step may take a while", Phase.COMPILE),
        ("AUTOTUNE mm(4096x4096, 4096x4096)", Phase.COMPILE),
        ("[default0]: [agent] Restarting worker group", Phase.START),
        ("loading checkpoint from /ckpt at iteration 500", Phase.START),
        ("saving checkpoint at iteration     500 to /ckpt in torch_dist format", Phase.CHECKPOINT),
        ("Saving model checkpoint to /out/checkpoint-500", Phase.CHECKPOINT),
    ],
)
def test_phases_are_recognised(line: str, phase: Phase) -> None:
    """Each of them has a limit of its own, and the next step ends it; ranks that began anew warm up first."""
    job = steady(2.0)
    job.say(line)
    due = hang.expected(job.world, POLICY)
    assert due is not None
    assert (due.phase, due.seconds >= POLICY.hang_phase_seconds) == (phase, True)
    job.steps(1, 2.0)
    assert job.limit() == (POLICY.hang_seconds if phase is Phase.START else 60.0)


@pytest.mark.parametrize(
    "line",
    [
        STEP.format(500),
        "evaluation interval: 1000",
        "  eval_interval ................................... 1000",
        "step 12 | loss 2.1 | val_loss 2.2 | eval_acc 0.5",
        "compiled with CUDA 12.4",
        "validation set has 1000 samples",
        "INFO: checkpoint interval 500, restart budget 3",
    ],
)
def test_words_alone_announce_nothing(line: str) -> None:
    """Settings and metrics name evaluation and checkpoints too."""
    assert scan(line + "\n").state.progress.pace.phase is Phase.STEP


def test_what_another_file_announces_counts() -> None:
    """Libraries announce on stderr what the training loop does not say."""
    job = steady(2.0)
    job.wait(1.0)
    job.say("Saving model checkpoint to /out/checkpoint-500", file="job.err")
    assert job.limit() == pytest.approx(POLICY.hang_phase_seconds, abs=2)
    job.steps(1, 2.0)
    assert job.limit() == 60.0


def test_silent_pauses_are_learned_with_their_steps() -> None:
    """An evaluation that nobody announces, every 100 steps: never overdue there, and as soon as usual elsewhere."""
    job = Job()
    for _ in range(12):
        job.steps(100 - job.step % 100, 4.0)
        assert job.limit() > 200.0, job.step
        job.wait(200.0)
    job.steps(37, 4.0)
    assert job.limit() == 60.0


def test_a_round_step_may_be_a_schedules_first() -> None:
    """Step 1000 is the first multiple of 1000: an evaluation may begin there. Step 1037 is none of anything."""
    job = Job().steps(1000, 2.0)
    assert job.limit() == POLICY.hang_seconds
    assert job.steps(37, 2.0).limit() == 60.0


def test_unusual_output_is_taken_for_an_announcement() -> None:
    """More lines than ever between two steps: the attempt does something else, in words that are not known."""
    job = steady(2.0)
    for shard in range(5):
        job.say(f"writing shard {shard} of the state")
    assert job.limit() == POLICY.hang_seconds


def test_what_a_hung_attempt_prints_is_no_progress() -> None:
    """Warnings of waiting ranks, after it was overdue, change nothing."""
    job = steady(2.0)
    job.wait(80)
    for _ in range(9):
        job.say("[rank3]: still waiting for the others")
    assert job.limit() == 60.0


def test_a_crash_line_gives_a_restart_inside_the_job_its_time() -> None:
    """Ranks that died may be started anew: the ceiling decides, not the learned limit."""
    job = steady(2.0)
    job.say("[rank3]: KeyError: 'x'")
    assert job.limit() == POLICY.hang_seconds


def test_signs_without_a_step_do_not_last_for_ever() -> None:
    """A loop that says again and again that it evaluates is overdue in the end."""
    job = steady(2.0)
    for _ in range(200):
        job.say("***** Running evaluation *****")
        job.wait(60.0)
    assert job.limit() == POLICY.hang_startup_seconds


def test_output_in_blocks_is_expected_in_blocks() -> None:
    """Lines that reach the file forty at a time."""
    job = Job()
    for _ in range(31):
        job.wait(80.0)
        text = "".join(STEP.format(job.step + number) for number in range(1, 41))
        job.step += 40
        job.say(text)
    assert 2 * 80.0 <= job.limit() <= 3 * 80.0


def test_what_was_stored_before_anything_was_learned_is_read() -> None:
    """Progress of an older build has no pace: then the ceiling holds."""
    old = codec.encode(Progress(last_step=5, last_at=NOON, first_at=NOON))
    text = old.decode().replace(codec.encode(Pace()).decode(), "")
    start = text.index(',"pace":')
    read = codec.decode(Progress, (text[:start] + text[start + len(',"pace":') :]).encode())
    assert read.pace == Pace()
    assert hang.step_limit(read, POLICY) == POLICY.hang_seconds


def test_what_was_learned_survives_storage() -> None:
    """A service that takes over expects the same."""
    job = steady(2.0)
    job.say("***** Running evaluation *****")
    stored = codec.decode(FileState, codec.encode(job.states["job.log"]))
    assert stored == job.states["job.log"]


def test_the_short_cut_of_the_generated_runs_is_the_scanner() -> None:
    """What `benchmarks.hang` learns without the scanner is what the scanner learns."""
    for seed in range(8):
        run = replace(make_run(seed), hours=0.6)
        short, whole = Reader(run), Reader(run, SCANNER)
        for at, asked, lines in reads(run):
            assert short.take(at, asked, lines).pace == whole.take(at, asked, lines).pace, (seed, at)


@pytest.mark.parametrize("seed", range(12))
def test_healthy_runs_are_never_overdue(seed: int) -> None:
    """Checkpoints, evaluations, compilations, stalls, restarts inside, a service that was away."""
    assert healthy(replace(make_run(seed), hours=4.0)) == []


def test_silent_hangs_are_found_within_three_usual_gaps() -> None:
    """Or a minute, in nineteen of twenty places where no pause is announced, due or hinted at."""
    found = [silent_hang(replace(make_run(2_000 + number), hours=4.0)) for number in range(24)]
    plain = [item for item in found if item is not None and item.plain]
    assert all(item is None or item.detected < POLICY.hang_startup_seconds for item in found)
    in_time = sum(item.detected <= max(60.0, 3 * item.usual) + 2.0 for item in plain)
    assert len(plain) >= 8
    assert in_time >= 0.9 * len(plain)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_ten_thousand_hours_without_a_false_hang() -> None:
    """And every silent hang is found."""
    result = measure(10_000.0, 500, 1)
    assert (result["false_alarms"], result["found"]) == (0, result["hangs"]), result
    in_time = result["within_three_intervals_or_floor"]
    assert isinstance(in_time, float)
    assert in_time >= 0.95, result


START = "successfully loaded checkpoint from /ckpt at iteration 500"
SEEN = PastAttempt(
    number=0, category=Category.UNKNOWN, fingerprint="", reason=None, action=None, first_step=1, last_step=40
)


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("residual 3.2e-4 after sweep {n}",),
        ("epoch_done {n} rmse=0.{n}", "saved checkpoint /out/{n}.pt"),
        ("still computing",),
        ("compiling the kernels", "***** Running evaluation *****"),
        (START, "saving checkpoint to /out/{n}.pt", "saved checkpoint /out/{n}.pt"),
        (START, "saved checkpoint /out/{n}.pt"),
    ],
)
def test_a_job_whose_steps_nobody_can_read_is_never_overdue(lines: tuple[str, ...]) -> None:
    """A solver, a log that goes elsewhere, a format that is not known: however long it runs, no incident."""
    job = Job()
    for n in range(40):
        for line in lines if n == 0 or len(lines) < 2 else lines[1:]:
            job.say(line.format(n=n))
        job.wait(1_800)
        assert overdue(job) is None
    found = detect(job.world, RULES, POLICY, NOON + timedelta(seconds=job.at, days=9))
    assert found.kind is IncidentKind.NONE


def test_a_start_that_was_announced_is_awaited() -> None:
    """From the announcement; what it compiles then is part of it."""
    job = Job().wait(7_200)
    job.say(START)
    assert overdue(job) == 7_200 + POLICY.hang_startup_seconds
    job.wait(600).say("torch.compile: compiling the model, the first step may take a while", file="job.err")
    job.say("torch.compile: compiling the model, the first step may take a while")
    assert overdue(job) == 7_800 + POLICY.hang_startup_seconds
    assert detect(job.world, RULES, POLICY, NOON + timedelta(seconds=11_399)).kind is IncidentKind.NONE
    assert detect(job.world, RULES, POLICY, NOON + timedelta(seconds=11_401)).kind is IncidentKind.HANG


def test_a_job_that_took_steps_before_is_awaited() -> None:
    """From its start, as long as an earlier attempt's steps could be read."""
    began = job_started()
    assert overdue(Job(), SEEN) == began + POLICY.hang_startup_seconds
    assert overdue(Job(), replace(SEEN, first_step=None, last_step=None)) is None


def test_lines_that_say_something_new_put_a_start_off() -> None:
    """Not those that repeat themselves; and not for ever where the job's steps could be read before."""
    job = Job()
    job.say(START)
    for n in range(1, 4):
        job.wait(1_800).say(f"12:0{n}:00 shard {n} of the data set is there")
    assert overdue(job) == 5_400 + POLICY.hang_startup_seconds
    for n in range(30):
        job.wait(1_800).say(f"12:{n:02}:07 10.0.0.1:{4000 + n} heartbeat")
    assert overdue(job) == 5_400 + 1_800 + POLICY.hang_startup_seconds  # the first heartbeat was news
    job = Job()
    for n in range(30):
        job.wait(1_800).say(f"shard {n} of the data set is there")
    assert overdue(job, SEEN) == job_started() + 2 * POLICY.hang_startup_seconds


def test_lines_that_were_left_out_may_be_news() -> None:
    """Of what a source has not brought along nobody knows what it said."""
    job = Job()
    job.say(START)
    for _ in range(3):
        job.wait(1_800)
        seen_at = NOON + timedelta(seconds=job.at)
        found = SCANNER.scan(
            context(), job.states["job.log"], b"", fresh=False, final=False, seen_at=seen_at, skipped=9
        )
        job.states["job.log"] = found.state
    assert overdue(job) == 5_400 + POLICY.hang_startup_seconds


BAR = "{what}{share:3d}%|█████     | {done}/4 [00:{done:02d}<00:03,  1.02s/it]"


@pytest.mark.parametrize(
    "what",
    [
        "Loading checkpoint shards: ",
        "[rank1]: Loading checkpoint shards: ",
        "Map (num_proc=8): ",
        "Fetching 4 files: ",
        "Processed prompts: ",
        "Capturing CUDA graph shapes: ",
        "(TaskRunner pid=7, ip=10.0.0.1) (EngineCore_DP0 pid=9) Loading weights:",
        "0: 2026-11-30T10:00:00,123 INFO Tokenizing Prompts (num_proc=8): ",
        "Running tokenizer on dataset (num_proc=16): ",
        "Multi-thread loading shards: ",
        "Adding requests: ",
        "Saving the dataset (1/1 shards): ",
        "Dropping Long Sequences (num_proc=8): ",
        "Applying chat template to train dataset: ",
        "Sanity Checking DataLoader 0: ",
        "train: Scanning /data/labels... 4 images, 0 backgrounds, 0 corrupt: ",
        "Processing batches: ",
        "Tokenization: ",
        "Data loading: ",
        "Dataset preprocessing: ",
        "Concatenating datasets: ",
        "Pre-tokenizing: ",
        "Restoring shards: ",
    ],
)
def test_a_bar_of_something_before_the_steps_is_no_step_and_when_full_no_sign_of_steps(what: str) -> None:
    """What loads weights may serve them, or print its steps elsewhere; while the bar moves, it is awaited."""
    job = Job()
    for done in range(1, 4):
        job.wait(20).say(BAR.format(what=what, share=25 * done, done=done))
        assert job.world.progress.last_step is None
    assert overdue(job) == 60 + POLICY.hang_phase_seconds
    job.wait(20).say(BAR.format(what=what, share=100, done=4))
    assert overdue(job) is None
    assert job.world.progress.last_step is None
    job.wait(9_000).say("ready")
    assert overdue(job) is None
    job.say(BAR.format(what="", share=25, done=1))  # steps of the training, after all
    assert job.limit() == POLICY.hang_seconds


REDRAWN = "\rLoading checkpoint shards: {share:3d}%|█████     | {done}/4 [00:{done:02d}<00:03,  1.02s/it]"


@pytest.mark.parametrize("end", ["", "\r"])
def test_a_bar_of_preparation_that_is_redrawn_in_place_is_no_step(end: str) -> None:
    """Its last drawing counts without a line end: the full one ends the wait."""
    job = Job()
    for done in range(4):
        job.wait(20).say(REDRAWN.format(share=25 * done, done=done) + end)
        assert overdue(job) == job.at + POLICY.hang_phase_seconds
    job.wait(20).say(REDRAWN.format(share=100, done=4) + end)
    assert overdue(job) is None
    assert job.world.progress.last_step is None
    job.wait(9_000).say("\n" + STEP.format(1))
    assert (job.world.progress.last_step, job.limit()) == (1, POLICY.hang_seconds)


@pytest.mark.parametrize(
    ("after", "file"),
    [
        ("\r" + 80 * " " + "\r", "job.log"),  # wiped out, as tqdm does with leave=False
        ("\n[rank0]: serving on port 8000", "job.log"),
        ("serving on port 8000", "job.log"),  # glued to the bar
        ("\rserving on port 8000", "job.log"),  # and without a line end
        ("serving on port 8000", "job.out"),
    ],
)
def test_a_bar_of_preparation_that_something_follows_is_not_awaited(after: str, file: str) -> None:
    """Bars are often drawn for the last time before they are full. A server that is ready is silent for days."""
    job = Job()
    job.wait(20).say(REDRAWN.format(share=75, done=3))
    assert overdue(job) == 20 + POLICY.hang_phase_seconds
    job.wait(10).say(after, file=file)
    assert overdue(job) is None
    job.wait(10).say(REDRAWN.format(share=75, done=3))  # it still moves
    assert overdue(job) == job.at + POLICY.hang_phase_seconds


def test_a_start_that_was_announced_behind_a_bar_of_preparation_is_awaited() -> None:
    """The end of the bar takes nothing back of what came after it."""
    job = Job()
    job.wait(20).say(REDRAWN.format(share=75, done=3))
    job.wait(20).say("\n" + START)
    assert overdue(job) == 40 + POLICY.hang_startup_seconds


def test_bars_of_preparation_hide_no_step_that_is_read_with_them() -> None:
    """A log that is read late begins and ends with them."""
    train = "{share:3d}%|█████     | {done}/4 [00:{done:02d}<00:03,  1.02s/it]\n"
    text = BAR.format(what="Map: ", share=0, done=0) + "\n"
    text += BAR.format(what="Map: ", share=100, done=4) + "\n" + train.format(share=25, done=1)
    assert scan(text + train.format(share=75, done=3)).state.progress.first_step == 1
    assert scan(text + train.format(share=75, done=3)).state.progress.last_step == 3
    assert scan(text + BAR.format(what="Saving: ", share=100, done=4) + "\n").state.progress.first_step == 1


def test_bars_of_preparation_hide_no_step_of_another_form_that_is_read_with_them() -> None:
    """A job that hangs behind its first steps may have been read at once."""
    text = BAR.format(what="Map: ", share=100, done=4) + "\nEpoch 1 loss 2.0\nEpoch 2 loss 1.9\n"
    for said in (text, text + BAR.format(what="Saving: ", share=50, done=2) + "\n"):
        progress = scan(said).state.progress
        assert (progress.last_step, progress.form, progress.pace.phase) == (2, "epoch_loss", Phase.STEP)


@pytest.mark.parametrize("shown", ["loss=2.31", "v_num=0, train_loss=2.31", "loss: 2.31", "lr=1e-05", "grad_norm=0.7"])
def test_a_bar_that_shows_a_loss_counts_steps_whatever_it_is_called(shown: str) -> None:
    job = Job()
    for done in range(1, 4):
        job.wait(20).say(BAR.format(what="Processing batches: ", share=25 * done, done=done)[:-1] + f", {shown}]")
    assert (job.world.progress.last_step, job.limit()) == (3, POLICY.hang_seconds)


def test_steps_that_are_redrawn_in_place_are_seen_one_drawing_late() -> None:
    """Also where each drawing ends with the carriage return, and no line ever does."""
    job = Job()
    for number in range(1, 5):
        job.wait(2).say(f"\rstep {number} loss 2.0\r")
    assert job.world.progress.last_step == 3


def test_weights_that_vllm_loads_are_no_steps() -> None:
    """Its bar has a form of its own."""
    job = Job()
    for done in range(1, 5):
        what = "(Worker_TP0 pid=7) Loading safetensors checkpoint shards: "
        job.wait(20).say(f"{what}{25 * done:3d}% Completed | {done}/4 [00:{done:02d}<00:03,  1.02s/it]")
    assert job.world.progress.last_step is None
    assert overdue(job) is None


@pytest.mark.parametrize(
    "what",
    [
        "",
        "Epoch 3: ",
        "Train Epoch 1: ",
        "  ",
        "(TaskRunner pid=7) Training Progress: ",
        "[process 0] Epoch 1: ",
        "Train Epoch 1 [process 0]: ",
        "Processing epoch 1: ",
        "Train (packed): ",
        "Epoch 0 (loaded from a checkpoint): ",
        "node-build-01: ",
        "loss=1.2 read=0.3: ",
        "1|45|Loss: 1.23: ",
    ],
)
def test_a_full_bar_of_steps_is_progress(what: str) -> None:
    """Also where another one is drawn between two epochs."""
    job = Job()
    for done in range(1, 5):
        job.wait(20).say(BAR.format(what=what, share=25 * done, done=done))
    assert job.limit() == POLICY.hang_seconds
    job.wait(5).say(BAR.format(what="Processing the metrics: ", share=100, done=4))
    assert job.limit() == POLICY.hang_seconds


def job_started() -> float:
    started = Job().world.attempt.started_at
    assert started is not None
    return (started - NOON).total_seconds()


def test_batches_within_an_epoch_are_progress() -> None:
    """Also where the same line prints the epoch and its loss."""
    line = "Train Epoch: 3 [{:6d}/60000 ({:.0f}%)]\tLoss: 0.25"
    states = [scan(line.format(64 * number, number) + "\n").state.progress.last_step for number in (1, 2)]
    assert states == [64, 128]


def test_ranks_that_fail_once_more_while_they_start_are_waited_for() -> None:
    """Each start has a time of its own, but starts without a step do not go on for ever."""
    job = steady(2.0)
    last = job.world.progress.last_at
    assert last is not None
    due = []
    for _ in range(4):
        job.say("[rank3]: KeyError: 'x'")
        job.wait(300).say("[default0]: [agent] Restarting worker group")
        job.wait(1_700)
        expected = hang.expected(job.world, POLICY)
        assert expected is not None
        due.append((expected.at - last).total_seconds())
    start = POLICY.hang_phase_seconds + POLICY.hang_seconds
    assert due[:2] == [300 + start, 2_300 + start]
    assert due[3] == 2 * POLICY.hang_startup_seconds


def test_ranks_that_began_anew_warm_up_again() -> None:
    """Also where they go on at the very next step."""
    job = steady(2.0)
    job.say("[rank3]: KeyError: 'x'")
    job.wait(60).say(f"  successfully loaded checkpoint from /ckpt [ t 0, p 0 ] at iteration {job.step}")
    assert job.steps(1, 90.0).limit() == POLICY.hang_seconds
    assert job.steps(200, 2.0).limit() == 60.0


def test_a_burst_now_and_then_makes_no_burst_usual() -> None:
    """Forty lines at every twentieth step: ten lines at another are still more than usual."""
    job = Job()
    for _ in range(20):
        job.steps(20, 2.0)
        for shard in range(40):
            job.say(f"writing shard {shard} of the state")
    job.steps(13, 2.0)
    for _ in range(10):
        job.say("shuffling the shards of the next epoch")
    assert job.limit() == POLICY.hang_seconds


def test_a_second_stall_of_a_kind_is_a_habit() -> None:
    """One long silence at some step is an accident; after two of them the third is no surprise."""
    job = steady(2.0).steps(26, 2.0)
    assert job.limit() == 60.0
    job.wait(55.0).steps(40, 2.0)
    assert job.limit() == 60.0
    job.wait(58.0).steps(44, 2.0)
    assert 60.0 < job.limit() < 120.0


def test_a_schedule_whose_last_turn_nobody_saw_may_act_again() -> None:
    """The reader was away when steps 700 to 1000 passed: that nothing paused there is not known."""
    job = Job()
    for _ in range(6):
        job.steps(100, 4.0).wait(100.0)
    text = "".join(STEP.format(job.step + number) for number in range(1, 451))
    job.step += 450
    job.wait(2000.0).say(text, late=2000.0)
    job.steps(50, 4.0)
    assert job.step == 1100
    assert job.limit() > POLICY.hang_floor_seconds


def test_what_the_reader_missed_is_no_habit_of_the_job() -> None:
    """The service was away twice for minutes: where it read, no step was ever late."""
    for late, expected in ((300.0, 60.0), (0.0, 1.3 * 300.0)):
        job = steady(2.0)
        for _ in range(2):
            job.wait(298.0).at += 2.0
            job.step += 1
            job.say(STEP.format(job.step), late=late)
            job.steps(26, 2.0)
        assert job.step == 291
        assert job.limit() == pytest.approx(expected, abs=1), late


def test_what_was_announced_while_nobody_looked_came_in_time() -> None:
    """Ranks died, and were started again while the service was away: at its return the attempt is not overdue."""
    job = Job().steps(1, 2.0)
    job.say("[rank3]: KeyError: 'x'")
    job.wait(900.0).say("[default0]: [agent] Restarting worker group\n" + STEP.format(1), late=800.0)
    assert job.limit() > 900.0
    assert healthy(replace(make_run(3012), hours=0.5)) == []


def test_slow_steps_while_ranks_warm_up_are_no_habit() -> None:
    """Nor is the silence between a crash line and the restart of the ranks."""
    job = steady(2.0)
    for _ in range(3):
        job.say("[rank3]: KeyError: 'x'")
        job.wait(240.0).say("[default0]: [agent] Restarting worker group")
        job.wait(100.0).say(f"  successfully loaded checkpoint from /ckpt [ t 0, p 0 ] at iteration {job.step}")
        job.steps(1, 90.0).steps(1, 80.0).steps(40, 2.0)
    job.steps(200, 2.0)
    assert hang.pause_due(job.world.progress) is False
    assert job.limit() == 60.0


def test_a_schedule_that_is_always_announced_hides_no_silence() -> None:
    """Checkpoints every 50 steps, told each time: one step before the next the usual limit holds again."""
    job = Job(first=3)

    def save() -> None:
        job.steps(50 - job.step % 50, 2.0)
        job.say(f"saving checkpoint at iteration {job.step:7d} to /ckpt in torch format")
        job.wait(100.0).say(f"  successfully saved checkpoint from iteration {job.step:7d} to /ckpt")

    for _ in range(12):
        save()
    assert job.steps(49, 2.0).step % 50 == 49
    assert job.limit() == 60.0


def test_a_turn_that_passed_without_a_silence_rules_its_schedule_out() -> None:
    """Of 10,000 steps in a row nearly all are known to hide no pause."""
    job, open_ = Job(first=40_001), 0
    for _ in range(1500):
        job.steps(1, 2.0)
        open_ += hang.pause_due(job.world.progress) and job.at > 600.0
    assert 0 < open_ < 60


def test_a_bar_that_waits_for_its_redraw_has_announced() -> None:
    """The line has no end before the next redraw comes: what it says holds all the same."""
    job = steady(2.0)
    job.say("\rValidation:   0%|          | 0/40 [00:00<?, ?it/s]")
    assert job.limit() == POLICY.hang_phase_seconds


def test_what_was_announced_in_unknown_words_is_on_the_schedule_too() -> None:
    """A pause behind forty unknown lines at one turn may come without them at the next."""
    job = Job(first=4301).steps(199, 4.0)
    for shard in range(40):
        job.say(f"writing shard {shard} of the state")
    job.wait(90.0).steps(250, 4.0)
    assert job.step == 4749
    assert job.steps(1, 4.0).limit() == POLICY.hang_seconds


def spins(at: float, trust: Trust = Trust.TELEMETRY) -> Signal:
    """GPUs busy without computing, since `at`."""
    when = NOON + timedelta(seconds=at)
    return Signal(id="s", rule="telemetry.spinning", trust=trust, source="metrics", seen_at=when, at=when)


def test_gpus_that_wait_in_a_collective_shorten_the_wait() -> None:
    """Half a minute of it is enough for the incident; the attempt may be ended when the log alone would call it one."""
    job = steady(2.0)

    def due(signal: Signal | None) -> tuple[float, float]:
        found = hang.expected(replace(job.world, signals=() if signal is None else (signal,)), POLICY)
        assert found is not None
        newest = NOON + timedelta(seconds=job.at)
        return (found.at - newest).total_seconds(), (found.ends_at - newest).total_seconds()

    assert due(spins(job.at + 4)) == (34.0, 60.0)
    assert due(None) == due(spins(job.at - 4)) == due(spins(job.at + 4, Trust.LOG)) == (60.0, 120.0)
    now = NOON + timedelta(seconds=job.at + 40)
    assert detect(replace(job.world, signals=(spins(job.at + 4),)), RULES, POLICY, now).kind is IncidentKind.HANG
    assert detect(job.world, RULES, POLICY, now).kind is IncidentKind.NONE


def test_ranks_wait_in_a_collective_behind_a_save_too() -> None:
    """Where a silent one may be meant half of the ceiling is waited; behind an announced one all of its time."""
    job = Job().steps(1000, 2.0)
    waiting = (spins(job.at + 4),)
    due = hang.expected(replace(job.world, signals=waiting), POLICY)
    assert due is not None
    assert due.seconds == POLICY.hang_seconds / 2
    job.say(f"saving checkpoint at iteration {job.step:7d} to /ckpt in torch format")
    due = hang.expected(replace(job.world, signals=waiting), POLICY)
    assert due is not None
    assert due.seconds == POLICY.hang_phase_seconds
