"""Small pieces of SQL that several modules build their queries from."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    DateTime,
    Float,
    FromClause,
    Integer,
    Interval,
    Row,
    Table,
    Text,
    Uuid,
    and_,
    bindparam,
    cast,
    column,
    exists,
    func,
    literal_column,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP

from advisor.store.records import AttemptKey

AnyRow: TypeAlias = Row[*tuple[Any, ...]]


# Of statements that every tick sends, which are built once (`functools.cache`), since building one costs as much as
# sending it: what is given with each execution, by name.


def time_given(name: str) -> BindParameter[datetime]:
    return bindparam(name, type_=TIMESTAMP(timezone=True))


def id_given(name: str) -> BindParameter[str]:
    return bindparam(name, type_=Uuid(as_uuid=False))


def span_given(name: str) -> BindParameter[timedelta]:
    return bindparam(name, type_=Interval())


def any_text_given(name: str) -> ColumnElement[object]:
    """For `column == any_text_given(name)`."""
    return func.any(bindparam(name, type_=ARRAY(Text())))


def hash_of(columns: Iterable[ColumnElement[Any]]) -> ColumnElement[int]:
    """Of what a row says in these columns, whoever wrote it, and in which order."""
    return func.hash_record_extended(func.row(*columns), 0, type_=BigInteger())


def quick_hash_of(columns: Iterable[ColumnElement[Any]]) -> ColumnElement[int]:
    """As `hash_of`, of text, texts, ids, times and reals, for what is asked of tens of thousands of rows: in half the
    time.
    """
    said: ColumnElement[int] = literal_column("0", BigInteger())
    for item in reversed(list(columns)):
        hashed = _hash(item, said)
        said = func.coalesce(hashed, said.op("#")(literal_column("-1"))) if getattr(item, "nullable", True) else hashed
    return said


def _hash(item: ColumnElement[Any], seed: ColumnElement[int]) -> ColumnElement[int]:
    match item.type:
        case Text():
            return func.hashtextextended(item, seed, type_=BigInteger())
        case ARRAY():
            return func.hash_array_extended(item, seed, type_=BigInteger())
        case Uuid():
            return func.uuid_hash_extended(item, seed, type_=BigInteger())
        case DateTime():
            return func.hashfloat8extended(func.date_part(literal_column("'epoch'"), item), seed, type_=BigInteger())
        case Float():
            return func.hashfloat8extended(item, seed, type_=BigInteger())
    raise TypeError(f"no quick hash of {item.type!r}")


def written(table: str) -> ColumnElement[int]:
    """The transaction that wrote a row of the table, as a number. It names what one row says, and what rows say that
    are only ever added; sums of it come again where rows are written again.
    """
    return literal_column(f"{table}.xmin::text::bigint", BigInteger())


def attempts_given() -> FromClause:
    """`wanted_attempts` with `attempts_of(keys)` given, and each one's `place` among them, from 1."""
    return _attempts(
        bindparam("wanted_jobs", type_=ARRAY(Uuid(as_uuid=False))),
        bindparam("wanted_numbers", type_=ARRAY(Integer())),
        places=True,
    )


def attempts_of(keys: Sequence[AttemptKey]) -> Mapping[str, Sequence[object]]:
    return {"wanted_jobs": [key.job_key for key in keys], "wanted_numbers": [key.number for key in keys]}


def wanted_attempts(keys: Sequence[AttemptKey]) -> FromClause:
    """The keys as a table `wanted(job_key, number)`: one parameter per column, whatever their number."""
    return _attempts(
        cast([key.job_key for key in keys], ARRAY(Uuid(as_uuid=False))),
        cast([key.number for key in keys], ARRAY(Integer())),
        places=False,
    )


def _attempts(jobs: ColumnElement[Any], numbers: ColumnElement[Any], *, places: bool) -> FromClause:
    return (
        func.unnest(jobs, numbers)
        .table_valued(
            column("job_key", Uuid(as_uuid=False)),
            column("number", Integer()),
            with_ordinality="place" if places else None,
            name="wanted",
        )
        .render_derived()
    )


def of_attempt(table: Table | FromClause, other: Table | FromClause) -> ColumnElement[bool]:
    """Join condition: rows of the same attempt."""
    return and_(table.c.job_key == other.c.job_key, table.c.number == other.c.number)


def of_advice(decisions: Table, advice: Table) -> ColumnElement[bool]:
    """Join condition: a decision and its advice. The time, too, so that only the month with it is looked into."""
    return and_(decisions.c.id == advice.c.decision_id, decisions.c.created_at == advice.c.created_at)


def any_text(values: Iterable[str]) -> ColumnElement[object]:
    """For `column == any_text(values)`: one array parameter."""
    return func.any(cast(list(values), ARRAY(Text())))


def any_id(values: Iterable[str]) -> ColumnElement[object]:
    return func.any(cast(list(values), ARRAY(Uuid(as_uuid=False))))


def any_time(values: Iterable[datetime]) -> ColumnElement[object]:
    return func.any(cast(list(values), ARRAY(TIMESTAMP(timezone=True))))


def all_text(values: Iterable[str]) -> ColumnElement[object]:
    """For `column != all_text(values)`: true when there are none."""
    return func.all(cast(list(values), ARRAY(Text())))


def all_ids(values: Iterable[str]) -> ColumnElement[object]:
    return func.all(cast(list(values), ARRAY(Uuid(as_uuid=False))))


def named_in(name: ColumnElement[str], values: Sequence[str]) -> ColumnElement[bool]:
    """Whether `name` is one of very many `values`: one array parameter and a hash, where `any` compares one by one."""
    column_of = func.unnest(cast(list(values), ARRAY(Text()))).table_valued(column("value", Text()), name="given")
    given = column_of.render_derived()
    return exists().select_from(given).where(given.c.value == name)


def text_array(values: Iterable[str]) -> ColumnElement[object]:
    return cast(list(values), ARRAY(Text()))


def storable(text: str) -> str:
    """`text` as Postgres can hold it: users write names and paths, and it takes neither NUL nor a lone surrogate."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def storable_names(*names: str) -> list[str]:
    """Each once, in order."""
    return [storable(name) for name in dict.fromkeys(names)]
