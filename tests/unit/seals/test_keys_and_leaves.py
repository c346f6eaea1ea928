"""Keys in files, digests of rows, ranges of what was dropped, and what doctor says of seals."""

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.commands.doctor_seals import LATE, Looked, judge
from advisor.seals import documents
from advisor.seals.chain import Chain, Finding, Wrong
from advisor.seals.documents import SealDocument, StoredSeal, TableSeal
from advisor.seals.keys import SealKey, SealKeyError, load_key, load_public_key
from advisor.seals.leaves import LeafMaker, Ranges, pack, unpack
from advisor.store.seals import SealStatus

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def test_a_key_comes_back_from_its_files(tmp_path: Path) -> None:
    """What was written signs and is verified; a successor is endorsed; nothing is overwritten; the file is private."""
    first = SealKey.new()
    first.write(tmp_path / "one")
    second = SealKey.new(load_key(tmp_path / "one"))
    second.write(tmp_path / "two")
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600
    one, two = load_public_key(tmp_path / "one.pub"), load_public_key(tmp_path / "two.pub")
    assert one.signed(b"x", load_key(tmp_path / "one").sign(b"x"))
    assert not two.signed(b"x", first.sign(b"x"))
    notice = load_key(tmp_path / "two").notice
    assert notice.endorsed_by == one.fingerprint
    assert one.endorsed(two, bytes.fromhex(notice.endorsement))
    assert not two.endorsed(one, bytes.fromhex(notice.endorsement))
    with pytest.raises(SealKeyError, match="cannot be made"):
        SealKey.new().write(tmp_path / "one")


@pytest.mark.parametrize("text", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_key_is_refused_in_one_line(tmp_path: Path, text: bytes) -> None:
    """A file without a key, an open one, and none at all each say what to do."""
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_bytes(text)
    with pytest.raises(SealKeyError, match="holds no private key"):
        load_key(path)
    with pytest.raises(SealKeyError, match="holds no public key"):
        load_public_key(path)
    path.chmod(0o640)
    with pytest.raises(SealKeyError, match="chmod 600"):
        load_key(path)
    with pytest.raises(SealKeyError, match="No such file"):
        load_key(tmp_path / "none")


def test_a_leaf_can_be_made_with_other_tools() -> None:
    """The digest is SHA-256 over a fixed prefix, table, columns and COPY's line."""
    leaf = LeafMaker("audit", ("seq", "who")).leaf(b"7\tada\n")
    assert leaf.seq == 7
    assert leaf.digest == hashlib.sha256(b"advisor row 1\0audit\0seq\0who\0\x007\tada").digest()
    assert list(unpack(pack([leaf]))) == [leaf]


@given(st.dictionaries(st.integers(0, 60), st.booleans()))
def test_ranges_hold_what_was_dropped_and_nothing_that_was_kept(rows: dict[int, bool]) -> None:
    """Whatever the mixture, every dropped number is in a range, no kept one is, and no two ranges could be one."""
    ranges = Ranges()
    for number in sorted(rows):
        ranges.add(number, dropped=rows[number])
    inside = {number for first, last in ranges.all() for number in range(first, last + 1)}
    assert {number for number, dropped in rows.items() if dropped} <= inside
    assert not inside & {number for number, dropped in rows.items() if not dropped}
    runs = "".join("d" if rows[number] else "k" for number in sorted(rows)).split("k")
    assert len(ranges.all()) == sum(bool(run) for run in runs)


def test_garbage_in_the_chain_is_a_finding() -> None:
    """A seal that is no document, or is one of another place, is told and does not end the check."""
    empty = documents.write(SealDocument(number=9, previous="", at=NOW, incarnation="i"))
    chain = Chain()
    wrong = [*chain.read(StoredSeal(number=1, document=b"{", signature=None))]
    wrong += chain.read(StoredSeal(number=2, document=empty, signature=None))
    assert [item.wrong for item in wrong] == [Wrong.SEAL_CHANGED, Wrong.SEAL_CHANGED, Wrong.SEAL_CHANGED]
    assert [item.seal for item in wrong] == [1, 2, 2]


@pytest.mark.parametrize(("after", "upto", "head"), [(6, 9, 9), (5, 9, 8), (4, 9, 9)])
def test_rows_left_out_between_seals_are_told(after: int, upto: int, head: int) -> None:
    """A seal that leaves out rows, seals some again, or says another end than its rows have does not pass."""
    chain, previous = Chain(), ""
    found: list[Finding] = []
    for number, (first, last, said) in enumerate([(0, 5, 5), (after, upto, head)], start=1):
        rows = TableSeal(after=first, upto=last, rows=1, columns=("seq",), digest="")
        document = documents.write(
            SealDocument(
                number=number, previous=previous, at=NOW, incarnation="i", tables={"audit": rows}, heads={"audit": said}
            )
        )
        seal = StoredSeal(number=number, document=document, signature=None)
        found += chain.read(seal)
        previous = seal.digest
    assert [(item.wrong, item.seal, item.table) for item in found] == [(Wrong.SEAL_CHANGED, 2, "audit")]


def test_doctor_names_what_is_missing() -> None:
    """No key, a chain without signature, and rows that wait for long are each told with what to do."""
    new = SealStatus(number=3, at=NOW, key="abc", heads={})
    well = Looked(status=new, waiting_since=None)
    assert [item.to_do for item in judge(well, signs=True, now=NOW)] == [""]
    assert [bool(item.to_do) for item in judge(None, signs=False, now=NOW)] == [True]
    late = NOW + LATE + timedelta(seconds=1)
    (found,) = judge(Looked(status=new, waiting_since=NOW), signs=True, now=late)
    assert "not sealed" in found.found
    unsigned = Looked(status=SealStatus(number=3, at=NOW, heads={}), waiting_since=None)
    (found,) = judge(unsigned, signs=True, now=NOW)
    assert "restart" in found.to_do
