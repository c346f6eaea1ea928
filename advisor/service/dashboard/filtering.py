"""Filters and pages of lists: from a query string to the contract's filter, and the links on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from advisor.core.words import Category
from advisor.service.dashboard.views.shown import words
from advisor.service.errors import BadRequestError
from advisor.v1 import audit_pb2, common_pb2

PAGE_SIZE = 50
TEXT_MAX = 128
SINCE: Mapping[str, tuple[timedelta | None, str]] = {
    "": (None, "any time"),
    "1h": (timedelta(hours=1), "the last hour"),
    "1d": (timedelta(days=1), "the last day"),
    "7d": (timedelta(days=7), "the last 7 days"),
    "30d": (timedelta(days=30), "the last 30 days"),
}
# Of reports: they always have a window.
WINDOWS: Mapping[str, tuple[timedelta | None, str]] = {
    "": (None, "the last 30 days"),
    "1d": (timedelta(days=1), "the last day"),
    "7d": (timedelta(days=7), "the last 7 days"),
    "90d": (timedelta(days=90), "the last 90 days"),
}
CATEGORIES = tuple((word.value, words(word)) for word in Category if word is not Category.NONE)
_ACTIONS = {"": "any", "restart": "restart", "stop": "stop", "none": "none"}
_STATUSES = ("pending", "applied", "verified", "withheld", "expired", "superseded", "already_satisfied")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a form of filters. With `choices` it is a list to choose from."""

    name: str
    label: str
    value: str
    choices: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a query string asks of a list."""

    fields: tuple[Field, ...]
    filter: audit_pb2.Filter
    since: datetime | None
    cursor: str
    query: Mapping[str, str]  # as given, without the cursor

    @property
    def filtered(self) -> bool:
        return any(field.value for field in self.fields)

    @property
    def page(self) -> audit_pb2.Page:
        return audit_pb2.Page(page_size=PAGE_SIZE, cursor=self.cursor)

    def value(self, name: str) -> str:
        return self.query.get(name, "")

    def next_href(self, path: str, cursor: str) -> str:
        """ "" at the end. `from` holds the moment since when: pages of one list belong to one filter."""
        if not cursor:
            return ""
        since = {"from": self.since.isoformat()} if self.since is not None else {}
        return f"{path}?{urlencode({**self.query, **since, 'cursor': cursor})}"

    def first_href(self, path: str) -> str:
        """Of later pages only."""
        if not self.cursor:
            return ""
        plain = {name: value for name, value in self.query.items() if name != "from" and value}
        return f"{path}?{urlencode(plain)}" if plain else path


def chosen(query: Mapping[str, str], names: Sequence[str], now: datetime) -> Chosen:
    """`names`: which of the fields a list has. Raises `BadRequestError`."""
    given = {name: query.get(name, "").strip() for name in names}
    for name, value in given.items():
        if len(value) > TEXT_MAX:
            raise BadRequestError(f"{name}: longer than {TEXT_MAX} characters")
    if "window" in given:
        span = WINDOWS[_one_of("window", given["window"], WINDOWS)][0]
        since = None if span is None else now - span
    else:
        since = _since(given.get("since", ""), query.get("from", ""), now)
    message = audit_pb2.Filter(
        cluster=given.get("cluster", ""),
        job_id=given.get("job", ""),
        user=given.get("user", ""),
        partition=given.get("partition", ""),
        node=given.get("node", ""),
        category=given.get("category", ""),
    )
    if given.get("action"):
        message.action = common_pb2.Action.Value(f"ACTION_{_one_of('action', given['action'], _ACTIONS).upper()}")
    if given.get("status"):
        status = _one_of("status", given["status"], _STATUSES)
        message.status = common_pb2.ReconciliationStatus.Value(f"RECONCILIATION_STATUS_{status.upper()}")
    if since is not None:
        message.since.FromDatetime(since)
    kept = {name: value for name, value in given.items() if value}
    if query.get("from"):
        kept["from"] = query["from"]
    return Chosen(
        fields=tuple(_field(name, value) for name, value in given.items()),
        filter=message,
        since=since,
        cursor=query.get("cursor", ""),
        query=kept,
    )


def _since(word: str, exact: str, now: datetime) -> datetime | None:
    if exact:
        try:
            moment = datetime.fromisoformat(exact)
        except ValueError:
            raise BadRequestError("from: not a moment as this page writes it") from None
        try:
            return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
        except OverflowError:
            raise BadRequestError("from: not a moment between the years 1 and 9999") from None
    span = SINCE[_one_of("since", word, SINCE)][0]
    return None if span is None else now - span


def _one_of(name: str, value: str, known: Sequence[str] | Mapping[str, object]) -> str:
    if value not in known:
        raise BadRequestError(f"{name}: {value[:64]!r} is not one of {', '.join(word for word in known if word)}")
    return value


def _field(name: str, value: str) -> Field:
    labels = {"job": "Job id", "since": "Within", "window": "Within"}
    choices: tuple[tuple[str, str], ...] = ()
    if name == "since":
        choices = tuple((word, text) for word, (_, text) in SINCE.items())
    elif name == "window":
        choices = tuple((word, text) for word, (_, text) in WINDOWS.items())
    elif name == "action":
        choices = tuple(_ACTIONS.items())
    elif name == "status":
        choices = (("", "any"), *((word, words(word)) for word in _STATUSES))
    elif name == "category":
        choices = (("", "any"), *CATEGORIES)
    elif name == "by":
        choices = (("", "all together"), *((word, word) for word in ("cluster", "partition", "user", "job")))
    elif name == "open":
        choices = (("", "all"), ("1", "open only"))
    elif name == "everything":
        choices = (("", "what people did"), ("1", "all, with the advisor's own"))
    return Field(name=name, label=labels.get(name, words(name).capitalize()), value=value, choices=choices)
