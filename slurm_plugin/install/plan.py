"""What installing or removing the hooks means for the files of one site, worked out without touching any.

A plan is a list of changes, each a file with its bytes before and after. Both directions start from what is there now,
so that doing either twice changes nothing the second time. `Refused` says, with file and line, what a person has to
do first; then nothing at all is planned.
"""

import re
import stat
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from slurm_plugin.install import conf_text, lua_syntax, lua_text
from slurm_plugin.install.conf_text import TextError

EPILOG, JOB_SUBMIT = "EpilogSlurmctld", "JobSubmitPlugins"
FOLDER = "recovery-advisor"  # beside slurm.conf
INCLUDE_DEPTH_MAX = 8
FILE_BYTES_MAX = 8 * 1024 * 1024
_OUR_HOOK = b'"""EpilogSlurmctld: tell the agent at once that an attempt has ended.'
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./@%+,:=-]*", re.ASCII)
_PACKAGED = Path(__file__).resolve().parents[1] / "hooks"
_ENCODING = ("utf-8", "surrogateescape")

_WRAPPER = """\
#!/bin/sh
# recovery-advisor: made by `advisor slurm install-hooks`, taken away by `advisor slurm uninstall-hooks`.
# slurmctld runs this for every job that ends, and the job stays COMPLETING meanwhile. The agent is told, which takes
# milliseconds and, whatever happens, no longer than the limit here; what becomes of it is nobody's business.
/usr/bin/timeout -s KILL 1.5 '{notify}' </dev/null >/dev/null 2>&1
{then}
"""
_EXIT = "exit 0"
_CHAIN = """\
# The site's own program, with the environment, arguments and exit status that it always had:
exec '{path}' "$@\""""


class Exclude(StrEnum):
    """Whose jobs avoid, from submission on, the nodes that the advisor has isolated."""

    NONE = "none"
    OPTED_IN = "opted-in"
    ALL = "all"


class RefusedError(Exception):
    """Nothing was changed. The text says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """`conf`: the controller's slurm.conf. `plugin_dirs`: where slurmctld looks for plugins, () when not known."""

    conf: Path
    hook_socket: str
    isolated_file: str
    epilog: bool = True
    job_submit: bool = True
    tag: bool = True
    exclude: Exclude = Exclude.NONE
    plugin_dirs: tuple[Path, ...] = ()

    @property
    def folder(self) -> Path:
        return self.conf.parent / FOLDER

    @property
    def job_submit_file(self) -> Path:
        """Slurm knows one place for it: beside slurm.conf."""
        return self.conf.parent / "job_submit.lua"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One file. `before` or `after` None: it is not there. `ours`: nobody else's text is in it; `mode` is for those."""

    path: Path
    before: bytes | None
    after: bytes | None
    ours: bool
    mode: int = 0o644


@dataclass(slots=True, kw_only=True)
class Plan:
    """`changes` in the order in which they are safe: what is called comes before what calls it."""

    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, path: Path, before: bytes | None, after: bytes | None) -> None:
        """A file of the site's."""
        if before != after:
            self.changes.append(Change(path=path, before=before, after=after, ours=False))

    def own(self, path: Path, after: bytes | None, mode: int = 0o644) -> None:
        """A file in our folder."""
        before = _read(path)
        if before != after:
            self.changes.append(Change(path=path, before=before, after=after, ours=True, mode=mode))


@dataclass(slots=True, kw_only=True)
class _Conf:
    """slurm.conf and what it includes. Texts are replaced here and compared with the bytes on disk at the end."""

    main: Path
    texts: dict[Path, str] = field(default_factory=dict)
    before: dict[Path, bytes] = field(default_factory=dict)

    def read(self, path: Path, from_where: str, depth: int = 0) -> None:
        if path in self.texts:
            raise RefusedError(f"{from_where}: {path} is included more than once")
        if depth > INCLUDE_DEPTH_MAX:
            raise RefusedError(f"{from_where}: files that include files, deeper than {INCLUDE_DEPTH_MAX}")
        raw = _read(path)
        if raw is None:
            raise RefusedError(f"{from_where}: there is no {path}")
        self.before[path], self.texts[path] = raw, raw.decode(*_ENCODING)
        for line, name in conf_text.includes(self.texts[path]):
            where = f"{path}:{line}"
            if re.search(r"[%*?\[\]\"']", name):
                raise RefusedError(f"{where}: Include {name} cannot be followed: write the file's plain name")
            # Slurm takes a relative name as beside slurm.conf, also in a file that was itself included.
            self.read(self.main.parent / name, where, depth + 1)

    def restore(self, key: str) -> None:
        for path, text in self.texts.items():
            try:
                self.texts[path] = conf_text.restored(text, key)
            except TextError as error:
                raise RefusedError(f"{path}:{error.line}: {error.text}") from None

    def setting(self, key: str) -> tuple[Path, conf_text.Setting] | None:
        found = [(path, item) for path, text in self.texts.items() for item in conf_text.settings(text, key)]
        if len(found) > 1:
            where = " and ".join(f"{path}:{item.line + 1}" for path, item in found)
            raise RefusedError(f"{key} is set more than once ({where}): leave one of them")
        return found[0] if found else None

    def change(self, key: str, value: str) -> None:
        """The setting where it stands, or at the end of slurm.conf."""
        found = self.setting(key)
        if found is None:
            self.texts[self.main] = conf_text.added(self.texts[self.main], key, value)
            return
        path, setting = found
        if setting.value == value:
            return
        try:
            self.texts[path] = conf_text.replaced(self.texts[path], setting, value)
        except TextError as error:
            raise RefusedError(f"{path}:{error.line}: {error.text}") from None


def install(wanted: Wanted) -> Plan:
    """What is missing. Raises RefusedError."""
    plan = Plan()
    conf = _opened(wanted)
    _check_reachable(wanted.folder)
    if wanted.epilog:
        _install_epilog(wanted, conf, plan)
    if wanted.job_submit:
        _install_job_submit(wanted, conf, plan)
    _finish(conf, plan)
    return plan


def uninstall(wanted: Wanted, *, in_use: bool) -> Plan:
    """What of ours is there. `in_use`: slurmctld still calls what lies in our folder, so that it must stay for now."""
    plan = Plan()
    conf = _opened(wanted)
    for key in (EPILOG, JOB_SUBMIT):
        conf.restore(key)
    _finish(conf, plan)
    before = _read(wanted.job_submit_file)
    if before is not None:
        try:
            rest = lua_text.removed(before.decode(*_ENCODING))
        except TextError as error:
            raise RefusedError(f"{wanted.job_submit_file}:{error.line}: {error.text}") from None
        plan.add(wanted.job_submit_file, before, None if rest == lua_text.SKELETON else rest.encode(*_ENCODING))
    left = [path for path in _our_files(wanted) if path.exists()]
    if in_use and left:
        plan.notes.append(
            f"{wanted.folder} stays until slurmctld no longer calls what is in it: after the reconfigure or restart, "
            "run this command once more"
        )
    else:
        for path in left:
            plan.own(path, None)
    return plan


def epilog_of(wanted: Wanted) -> str | None:
    """The program that slurm.conf names now. Raises RefusedError."""
    found = _opened(wanted).setting(EPILOG)
    return found[1].value if found else None


def _opened(wanted: Wanted) -> _Conf:
    conf = _Conf(main=wanted.conf)
    conf.read(wanted.conf, "slurm.conf")
    return conf


def _finish(conf: _Conf, plan: Plan) -> None:
    for path, text in conf.texts.items():
        plan.add(path, conf.before[path], text.encode(*_ENCODING))


def _our_files(wanted: Wanted) -> tuple[Path, ...]:
    names = ("epilog_slurmctld", "notify", "notify.socket", "job_submit_advisor.lua")
    return tuple(wanted.folder / name for name in names)


def _install_epilog(wanted: Wanted, conf: _Conf, plan: Plan) -> None:
    wrapper, notify, beside, _ = _our_files(wanted)
    conf.restore(EPILOG)
    found = conf.setting(EPILOG)
    then = _EXIT
    if found is not None and found[1].value not in {"(null)", str(wrapper)}:
        path, setting = found
        where = f"{path}:{setting.line + 1}"
        then = _chain(setting.value, where, plan)
    plan.own(notify, (_PACKAGED / "epilog_slurmctld").read_bytes(), 0o755)
    plan.own(beside, f"{wanted.hook_socket}\n".encode())
    text = _WRAPPER.format(notify=_plain(str(notify), "the folder of slurm.conf"), then=then)
    plan.own(wrapper, text.encode(), 0o755)
    conf.change(EPILOG, str(wrapper))


def _chain(value: str, where: str, plan: Plan) -> str:
    """How the wrapper ends where the site has a program of its own."""
    theirs = Path(_plain(value, f"{where}: {EPILOG}={value}"))
    text = _read(theirs)
    if text is not None and _OUR_HOOK in text[:200]:
        plan.notes.append(f"{where}: {theirs} is an older copy of this hook, which is not called any more")
        return _EXIT
    if text is None:
        plan.notes.append(f"{where}: there is no {theirs} here: it is called all the same, and fails as it did before")
    return _CHAIN.format(path=theirs)


def _install_job_submit(wanted: Wanted, conf: _Conf, plan: Plan) -> None:
    if not any((folder / "job_submit_lua.so").exists() for folder in wanted.plugin_dirs):
        where = ":".join(map(str, wanted.plugin_dirs)) or "Slurm's plugin folder, which is not known here"
        # Naming a plugin that is not there keeps slurmctld from starting.
        plan.notes.append(f"job_submit.lua is left out: there is no job_submit_lua.so in {where} (see --plugin-dir)")
        return
    fragment = _our_files(wanted)[3]
    plan.own(fragment, (_PACKAGED / "job_submit_advisor.lua").read_bytes())
    file = wanted.job_submit_file
    before = _read(file)
    text = lua_text.SKELETON if before is None else before.decode(*_ENCODING)
    try:
        without = lua_text.removed(text)
    except TextError as error:
        raise RefusedError(f"{file}:{error.line}: {error.text}") from None
    after = lua_text.added(
        without,
        _plain(str(fragment), "the folder of slurm.conf"),
        isolated_file=_plain(wanted.isolated_file, "isolated_file"),
        tag=wanted.tag,
        exclude_isolated=wanted.exclude.value,
    ).encode(*_ENCODING)
    _check_lua(file, without.encode(*_ENCODING), after, plan)
    plan.add(file, before, after)
    conf.restore(JOB_SUBMIT)
    found = conf.setting(JOB_SUBMIT)
    plugins = [name for name in found[1].value.split(",") if name] if found else []
    if "lua" not in plugins:
        conf.change(JOB_SUBMIT, ",".join([*plugins, "lua"]))


def _check_lua(file: Path, before: bytes, after: bytes, plan: Plan) -> None:
    try:
        problem = lua_syntax.problem(before, str(file))
        if problem:
            raise RefusedError(f"{file} does not compile as it is: {problem}")
        problem = lua_syntax.problem(after, str(file))
        if problem:
            raise RefusedError(
                f"{file}: our block cannot stand at its end ({problem}): let the file end with a plain line "
                "`return slurm.SUCCESS`, or with the end of a function"
            )
    except lua_syntax.NoLuaError as error:
        plan.notes.append(f"{file} could not be checked: {error}")


def _plain(path: str, what: str) -> str:
    """A path that can stand in a shell script and in Lua as it is."""
    if not _PLAIN_PATH.fullmatch(path):
        raise RefusedError(f"{what}: not an absolute path of plain characters: {path!r}")
    return path


def _check_reachable(folder: Path) -> None:
    """SlurmUser runs what lies there; a folder that it cannot enter switches the hook off with one line in a log."""
    if folder.is_symlink():
        raise RefusedError(f"{folder} is a link: root writes programs there, so it must be a folder")
    for parent in (folder, *folder.parents):
        try:
            mode = parent.stat().st_mode
        except OSError:
            continue
        if not mode & stat.S_IXOTH:
            raise RefusedError(f"{parent} cannot be entered by SlurmUser ({stat.S_IMODE(mode):04o}): chmod o+x it")


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RefusedError(f"{path}: {error.strerror}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise RefusedError(f"{path}: larger than {FILE_BYTES_MAX} bytes")
    return raw
