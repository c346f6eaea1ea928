"""Lines like one that was understood before: looked up instead of matched, and the answer stays the same."""

import copy
import random
import re
import tracemalloc
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.core import codec
from advisor.core.alike import (
    ANSWERS_BYTES_MAX,
    ANSWERS_MAX,
    HITS_PER_LEARNT,
    LEARNT_MAX,
    PIECES_BYTES_MAX,
    Alike,
    AlikeFiles,
    shape,
)
from advisor.core.model import Signal
from advisor.core.scan import FileState, Scanned, Scanner, fold_signals, room_of
from advisor.rules.loader import load_rules
from tests.unit.core_detect.logs import NOON, SCANNER, context

FORGETFUL = Scanner(load_rules(), alike=AlikeFiles(answers_max=0))
PREFIXES = (
    "",
    "[rank{n}]: ",
    "[rank{n}]:[E1129 11:59:{n:02d}.5 P.cpp:1] [Rank {n}] ",
    "{n}: ",
    "[default{n}]: ",
    "node{n}: ",
)
LINES = (
    *(
        line
        for rule in SCANNER.rules
        for line in (*rule.positive, *rule.negative)
        if "\n" not in line and len(line) < 400
    ),
    " iteration 7/ 100 | consumed samples: 7 | lm loss: 1.0 | elapsed time per iteration (ms): 12.0",
    "epoch 3 loss 0.5",
    "saving checkpoint at iteration 7",
    "Exception ignored in: <function x at 0x7f>",
    "Traceback (most recent call last):",
    '  File "/a/b/train.py", line 10, in <module>',
    "Root Cause (first observed failure):",
)


@st.composite
def storms(draw: st.DrawFn) -> str:
    """A few errors, printed again and again with other numbers behind other prefixes."""
    shapes = draw(st.lists(st.tuples(st.sampled_from(PREFIXES), st.sampled_from(LINES)), min_size=1, max_size=5))
    small = st.integers(0, 20)
    lines = []
    for prefix, line in draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=40)):
        line = prefix.replace("{n:02d}", f"{draw(small):02d}").replace("{n}", str(draw(small))) + line
        if draw(st.booleans()):
            line = re.sub(r"\d(?!x)", lambda _: str(draw(st.integers(0, 9))), line, count=draw(st.integers(0, 4)))
        lines.append(line)
    return "\n".join(lines) + "\n"


def read(scanner: Scanner, text: str, **how: object) -> Scanned:
    where = replace(context(), **how)  # type: ignore[arg-type]  # fields of FileContext, by name
    return scanner.scan(where, FileState(), text.encode(), fresh=True, final=True, seen_at=NOON)


@given(st.lists(storms(), min_size=1, max_size=4), st.sampled_from([1, 4, None]))
@settings(max_examples=60, deadline=None)
def test_remembering_changes_nothing_but_the_speed(texts: list[str], per_node: int | None) -> None:
    """Signals, counts, ranks, times and progress are those of a scanner that matches every line anew."""
    learning = copy.copy(SCANNER)
    learning.alike = AlikeFiles()
    for text in texts:  # what the first taught is there for the second
        assert read(learning, text, tasks_per_node=per_node) == read(FORGETFUL, text, tasks_per_node=per_node)


@given(st.lists(storms(), min_size=1, max_size=3), st.integers(2, 5), st.integers(1, 4), st.sampled_from([1, 4, None]))
@settings(max_examples=60, deadline=None)
def test_files_of_one_attempt_come_to_what_each_of_them_says(
    texts: list[str], copies: int, signals_max: int, per_node: int | None
) -> None:
    """What ranks print into a file each is understood once, and signals that would not be kept are not made: the
    attempt's signals, and what is remembered of every file, are as if each were read by itself.
    """
    learning = copy.copy(SCANNER)
    learning.alike = AlikeFiles()
    plain: tuple[Signal, ...] = ()
    shared: tuple[Signal, ...] = ()
    for rank in range(copies):
        for number, text in enumerate(texts):
            for again in range(2):
                own = re.sub(r"rank\d+", f"rank{rank}", text) * (1 + again)  # read anew, and longer
                where = {"file": f"{rank}-{number}.log", "tasks_per_node": per_node}
                one = read(FORGETFUL, own, **where)
                plain = fold_signals(plain, one, signals_max)
                room = room_of(shared, signals_max)
                other = read(learning, own, **where, kin="job/0", room=room)
                shared = fold_signals(shared, other, signals_max)
                assert other.state == one.state
                assert shared == plain


def test_a_text_that_many_ranks_print_is_looked_at_where_it_says_something() -> None:
    """The third of its shape costs its telling lines only, and one with another number that decides is seen."""
    alike = Alike()
    text = b"all is well\n[rank1]: frame 7\n[rank1]: it broke\n"
    for line in text.split(b"\n")[:2]:
        alike.nothing(line)
    assert alike.telling(shape(text), text) is None
    assert [alike.again(shape(text)) for _ in range(2)] == [False, True]
    alike.learn_piece(shape(text), text)
    assert alike.telling(shape(text), text.replace(b"rank1", b"rank5")) == (2, 3)
    assert alike.telling(shape(text), text.replace(b"frame 7", b"frame 8")) is None


def _numbers(chance: random.Random, tag: str) -> str:
    """An error, and many lines of one shape whose numbers differ each time."""
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB\n"
    return error + "".join(f"{chance.randrange(11, 100)}\n" for _ in range(2_000)) + tag + "\n"


def test_texts_that_never_repeat_are_not_remembered() -> None:
    """Of one shape with other numbers each time, or of another shape every third time: it is given up soon, and what
    is held for it stays small.
    """
    files = AlikeFiles()
    learning = copy.copy(SCANNER)
    learning.alike = files
    chance = random.Random(1)
    matched: list[int] = []
    alike: Alike | None = None
    for number in range(60):
        seen = read(learning, _numbers(chance, "x" * (1 + number // 20)), file=f"{number}", kin="job/0")
        assert seen.signals
        alike = files.of("job/0", next(iter(files._files.values()))[0])
        matched.append(alike._learnt)
    assert alike is not None
    assert matched[-1] == LEARNT_MAX
    assert alike.held_bytes < 1 << 20


def test_memory_of_hostile_texts_is_bounded() -> None:
    """Wide texts whose numbers all decide: what Python holds for them is what is counted, and little."""
    alike = Alike()
    line = b" ".join(b"a%d" % (10 + at % 90) for at in range(12_000))
    tracemalloc.start()
    for number in range(40):
        text = line.replace(b"a10", b"a%d" % (11 + number)) + b"\n" + b"b" * (number % 3)
        alike.nothing(text.split(b"\n")[0])
        alike._hits += HITS_PER_LEARNT  # as if others had repeated
        if alike.telling(shape(text), text) is None and alike.again(shape(text)):
            alike.learn_piece(shape(text), text)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < ANSWERS_BYTES_MAX + PIECES_BYTES_MAX + (6 << 20)


def test_another_allocation_is_another_answer() -> None:
    """What a file's lines come to depends on which nodes its attempt has."""
    text = "srun: error: Node failure on node2\n"
    assert read(SCANNER, text).signals[0].nodes == ("node2",)
    elsewhere = read(SCANNER, text, nodes=("node7",))
    assert (elsewhere.signals, elsewhere.foreign) == ((), 1)


def test_a_line_about_another_rank_is_not_taken_for_one_of_its_own() -> None:
    """Where two ranks stand in lines of one shape, they are told apart whichever came first."""
    pairs = ((3, 3), (4, 4), (5, 3), (3, 3), (6, 6))
    for line in (
        "[rank{0}]: Detected mismatch between collectives on ranks. Rank {1} is running\n",
        "[rank{0}]: torch.multiprocessing.spawn: process {1} terminated with signal SIGSEGV\n",
        "{0}: [rank{1}]: KeyError: 'x'\n",
    ):
        lines = [line.format(*pair) for pair in pairs]
        for order in (lines, lines[::-1], lines[2:] + lines[:2]):
            assert read(SCANNER, "".join(order)) == read(FORGETFUL, "".join(order))


def test_a_repeated_error_costs_no_memory() -> None:
    """2,048 ranks that print an error a hundred times leave the state, and need the memory, of printing it twice."""

    def storm(times: int) -> bytes:
        line = (
            "[rank{0}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {1}.00 MiB. GPU {2} has 79 GiB\n"
        )
        return "".join(line.format(n % 2_048, n * 7_919 % 100_000, n % 8) for n in range(times * 2_048)).encode()

    def size(data: bytes) -> tuple[int, int]:
        state = FileState()
        tracemalloc.start()
        for start in range(0, len(data), 1 << 18):
            piece = data[start : start + (1 << 18)]
            state = SCANNER.scan(context(), state, piece, fresh=False, final=False, seen_at=NOON).state
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return len(codec.encode(replace(state, recent="", tail=""))), peak

    little, much = storm(2), storm(100)
    size(little)
    (state_little, peak_little), (state_much, peak_much) = size(little), size(much)
    assert state_much <= state_little + 64
    assert peak_much <= peak_little + (4 << 20)


def test_what_is_remembered_is_bounded() -> None:
    """Lines that all differ do not fill the memory: it begins anew."""
    alike = Alike()
    for number in range(3 * ANSWERS_MAX):
        alike.nothing(b"x" * (number % 97) + b" %d" % number)
    assert 0 < len(alike) <= ANSWERS_MAX
    files = AlikeFiles()
    first = files.of("a", 1)
    assert files.of("a", 1) is first
    assert files.of("a", 2) is not first


def test_numbers_that_tell_errors_apart_are_looked_at() -> None:
    """Error numbers and exit codes decide; a shape alone answers nothing."""
    alike = Alike()
    alike.nothing(b"[rank1]: OSError: [Errno 17] File exists")
    assert alike.find(shape(line := b"[rank2]: OSError: [Errno 17] File exists"), line) is not None
    assert alike.find(shape(line := b"[rank1]: OSError: [Errno 28] File exists"), line) is None
    alike.nothing(b"retried 3 s, total=3")
    assert alike.find(shape(line := b"retried 3 s, total=0"), line) is None
    for text in ("Retrying (Retry(total={}, connect=None)) after connection broken: Max retries exceeded\n",):
        both = [text.format(left) for left in (3, 0, 3, 0)]
        assert read(SCANNER, "".join(both)) == read(FORGETFUL, "".join(both))
