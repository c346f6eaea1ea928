"""`advisor mode`: where the agent may act and where it only watches."""

from dataclasses import dataclass
from datetime import UTC
from typing import Annotated

import typer

from advisor.client import mode_name
from advisor.commands.decisions import connected
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given, given_category
from advisor.commands.output import CommandError, Format, complain, one_line, print_json, print_table, short_time
from advisor.core.words import Mode
from advisor.v1 import common_pb2, operator_pb2
from advisor.wording import setting_fields, settled

NOT_TOLD = "which one, this version of the service is too old to tell: advisor config show, where it runs"

app = typer.Typer(rich_markup_mode=None, help="Monitor or autonomous: see and set.")


@app.command("list", hidden=True)  # as other things are asked for
@app.command()
def get(socket: SocketOption = None, configuration: ConfigOption = None, form: FormatOption = Format.TABLE) -> None:
    """All settings. The one with the most fields wins; at a tie, monitor wins. None fits: what the category has earned
    ("earned", below all settings however wide), else the default_mode that the service runs with.

    \b
    Examples:
      advisor mode get
    """
    with connected(socket, configuration) as client:
        found = client.modes()
    settings, default = [*found.settings, *found.earned], mode_name(found.default_mode)
    if form is not Format.TABLE:
        if default:
            why = "where nothing else fits"
            settings.append(operator_pb2.ModeSetting(mode=found.default_mode, set_by="default_mode", why=why))
        print_json([_document(setting) for setting in settings], form)
        if not default:
            complain(NOT_TOLD)
        return
    rows = (
        (
            mode_name(item.mode),
            item.cluster or "any",
            item.partition or "any",
            item.job_id or "any",
            item.category or "any",
            item.account or "any",
            f"{item.percent} %" if item.HasField("percent") else "all",
            item.set_by,
            short_time(item.set_at.ToDatetime(UTC)),
            item.why,
        )
        for item in settings
    )
    columns = ("mode", "cluster", "partition", "job", "category", "account", "of jobs", "set by", "when", "why")
    rest = f"{default} mode, the service's default_mode" if default else f"its default_mode; {NOT_TOLD}"
    print_table(columns, rows, empty=f"no settings: everything is in {rest}", least=("when", "set by"))
    if settings and not settled(found):
        print(f"where nothing fits: {rest}")
    if not settings and found.default_mode == common_pb2.MODE_MONITOR:
        print("nothing is acted on; advisor report shadow says how often people did what was advised. To let it act:")
        print("  advisor mode set autonomous --partition NAME --why TEXT")


def acts_by_default(modes: operator_pb2.ListModesResponse) -> bool:
    """Whether anything is autonomous because nothing says otherwise."""
    return modes.default_mode == common_pb2.MODE_AUTONOMOUS and not settled(modes)


WhyOption = Annotated[str, typer.Option(help="Why, kept with the setting and in the audit. Required.")]
ClusterOption = Annotated[str | None, typer.Option(help="Only on this cluster.", show_default=False)]
PartitionOption = Annotated[str | None, typer.Option(help="Only in this partition.", show_default=False)]
JobOption = Annotated[str | None, typer.Option(help="Only for this job id.", show_default=False)]
AccountOption = Annotated[str | None, typer.Option(help="Only for jobs of this account.", show_default=False)]
CategoryOption = Annotated[str | None, typer.Option(help="Only for failures of this category.", show_default=False)]


@app.command("set")
def set_mode(
    mode: Annotated[Mode, typer.Argument(help="What holds from now on.")],
    why: WhyOption = "",
    cluster: ClusterOption = None,
    partition: PartitionOption = None,
    job: JobOption = None,
    category: CategoryOption = None,
    account: AccountOption = None,
    percent: Annotated[
        int | None, typer.Option(min=1, max=99, help="Autonomous for this share of jobs, monitor for the rest.")
    ] = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Set one mode. It takes effect with the next tick, and is audited with your account.

    With --percent it is a canary: which jobs is drawn from their keys, the same ones each time, and a larger share only
    adds jobs. Set it again without --percent to promote, or set monitor for the same fields to roll back.

    Monitor for everything (no --cluster, --partition, --account, --job, --category) is the stop: it also removes every
    narrower autonomous setting, and says which.

    \b
    Examples:
      advisor mode set autonomous --partition train --why "two weeks of monitor mode agreed with us"
      advisor mode set autonomous --partition train --percent 10 --why "canary"
      advisor mode set monitor --why "investigating"
    """
    wanted = _wanted(why, cluster, partition, job, category, account)
    if percent is not None:
        wanted.percent = percent
    wanted.mode = common_pb2.Mode.Value(f"MODE_{mode.upper()}")
    with connected(socket, configuration) as client:
        setting = client.set_mode(wanted)
    for note in setting.notes:
        complain(note)
    if form is not Format.TABLE:
        print_json(_document(setting) | _consequences(setting), form)
        return
    stopped = "; ".join(where(item) for item in setting.no_longer_autonomous)
    after = f"; no longer autonomous: {stopped}" if stopped else ""
    print(one_line(f"{mode} for {where(setting)}, set by {setting.set_by}{after}"))
    if setting.still_autonomous:
        named = "; ".join(where(item) for item in setting.still_autonomous)
        print(one_line(f"still autonomous, because narrower: {named}"))


@app.command("unset")
def unset_mode(
    why: WhyOption = "",
    cluster: ClusterOption = None,
    partition: PartitionOption = None,
    job: JobOption = None,
    category: CategoryOption = None,
    account: AccountOption = None,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Remove one setting: the one with exactly these fields. Wider settings, or the default, hold there again.

    What holds there then is said: without the stop (monitor for everything) it is default_mode.

    \b
    Examples:
      advisor mode unset --partition train --why "the partition is gone"
    """
    wanted = _wanted(why, cluster, partition, job, category, account)
    with connected(socket, configuration) as client:
        setting = client.unset_mode(wanted)
        now = holding(setting, client.modes())
    if form is not Format.TABLE:
        narrower = [_document(item) for item in now.narrower]
        print_json(_document(setting) | {"holds_now": now.mode, "by": now.by, "narrower": narrower}, form)
        return
    removed = f"removed: {mode_name(setting.mode)} for {where(setting)}, which {setting.set_by} had set"
    print(one_line(f"{removed}; {now.said}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What holds for a whole place, by which setting; and what holds otherwise in parts of it."""

    mode: str  # "" where the service does not tell its default
    by: str
    narrower: tuple[operator_pb2.ModeSetting, ...]

    @property
    def said(self) -> str:
        told = (
            f"{self.mode} holds there now ({self.by})" if self.mode else f"its default_mode holds there now; {NOT_TOLD}"
        )
        return "; ".join([told, *(f"{mode_name(item.mode)} for {where(item)}" for item in self.narrower)])


def holding(place: operator_pb2.ModeSetting, modes: operator_pb2.ListModesResponse) -> Holding:
    """Of the settings that cover the whole `place` the narrowest holds, and monitor at a tie; else what was earned."""
    fields = set(setting_fields(place))
    covering = [item for item in modes.settings if set(setting_fields(item)) <= fields]
    earned = [item for item in modes.earned if set(setting_fields(item)) <= fields]
    if covering:
        holds = min(covering, key=lambda item: (-len(setting_fields(item)), item.mode == common_pb2.MODE_AUTONOMOUS))
        mode, by = holds.mode, f"the setting for {where(holds)}"
    elif earned:
        mode, by = earned[0].mode, f"earned; {earned[0].why}"
    else:
        mode, by = modes.default_mode, "default_mode"
    parts = modes.settings if covering else [*modes.settings, *modes.earned]  # a setting, however wide, is above those
    narrower = [item for item in parts if not set(setting_fields(item)) <= fields and _meet(item, place)]
    return Holding(mode=mode_name(mode), by=by, narrower=tuple(item for item in narrower if item.mode != mode))


def _meet(one: operator_pb2.ModeSetting, other: operator_pb2.ModeSetting) -> bool:
    """Some advice could be of both places."""
    here, there = dict(setting_fields(one)), dict(setting_fields(other))
    return all(here[word] == there[word] for word in here.keys() & there.keys())


def _wanted(
    why: str,
    cluster: str | None,
    partition: str | None,
    job: str | None,
    category: str | None,
    account: str | None,
) -> operator_pb2.ModeSetting:
    if not why.strip():
        raise CommandError("say why: --why TEXT is kept", code=2)
    return operator_pb2.ModeSetting(
        cluster=given("--cluster", cluster) or None,
        partition=given("--partition", partition) or None,
        job_id=given("--job", job) or None,
        category=given_category(category) or None,
        account=given("--account", account) or None,
        why=why,
    )


def where(item: operator_pb2.ModeSetting) -> str:
    """The fields of a setting, as people say them."""
    place = ", ".join(f"{word} {value}" for word, value in setting_fields(item)) or "everything"
    return f"{item.percent} % of the jobs of {place}" if item.HasField("percent") else place


def _consequences(setting: operator_pb2.ModeSetting) -> dict[str, object]:
    return {
        "no_longer_autonomous": [_document(item) for item in setting.no_longer_autonomous],
        "still_autonomous": [_document(item) for item in setting.still_autonomous],
        "notes": list(setting.notes),
    }


def _document(item: operator_pb2.ModeSetting) -> dict[str, object]:
    return {
        "mode": mode_name(item.mode),
        "cluster": item.cluster,
        "partition": item.partition,
        "job_id": item.job_id,
        "category": item.category,
        "account": item.account,
        "percent": item.percent if item.HasField("percent") else None,
        "set_by": item.set_by,
        "set_at": item.set_at.ToJsonString() if item.HasField("set_at") else "",
        "why": item.why,
    }
