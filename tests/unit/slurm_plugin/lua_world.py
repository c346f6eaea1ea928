"""job_submit_advisor.lua in a real Lua, the library that Slurm's plugin uses, without slurmctld around it."""

import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import slurm_plugin

FRAGMENT = Path(slurm_plugin.__file__).with_name("hooks") / "job_submit_advisor.lua"
NO_VALUE = 4294967294

_WORLD = """
said, logged = {}, {}
slurm = {SUCCESS = 0, ERROR = -1}
function slurm.log_user(form, ...) said[#said + 1] = string.format(form, ...) end
function slurm.log_error(form, ...) logged[#logged + 1] = string.format(form, ...) end
local wrap = dofile(FRAGMENT)
function submit(site_code, options, job, partitions)
  said, logged = {}, {}
  local code = wrap(function() return site_code end, options)(job, partitions, 1000)
  local function quoted(text) return text and ('"' .. text:gsub('[%c"\\\\\\128-\\255]', function(c)
    return ("\\\\u%04x"):format(c:byte()) end) .. '"') or "null" end
  return ('{"code":%d,"said":%s,"logged":%s,"comment":%s,"admin_comment":%s,"exc_nodes":%s}'):format(code,
    quoted(table.concat(said, "|")), quoted(table.concat(logged, "|")), quoted(job.comment), quoted(job.admin_comment),
    quoted(job.exc_nodes))
end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    code: int
    said: str
    logged: str
    comment: str | None
    admin_comment: str | None
    exc_nodes: str | None


class Lua:
    """One interpreter. Raises AssertionError for what Lua itself refuses."""

    def __init__(self) -> None:
        lua = ctypes.CDLL("liblua5.1.so.0")
        lua.luaL_newstate.restype = ctypes.c_void_p
        for name, arguments in {
            "luaL_openlibs": (),
            "luaL_loadbuffer": (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p),
            "lua_pcall": (ctypes.c_int, ctypes.c_int, ctypes.c_int),
            "lua_settop": (ctypes.c_int,),
            "lua_tolstring": (ctypes.c_int, ctypes.POINTER(ctypes.c_size_t)),
            "lua_close": (),
        }.items():
            getattr(lua, name).argtypes = [ctypes.c_void_p, *arguments]
        lua.lua_tolstring.restype = ctypes.POINTER(ctypes.c_char)
        self._lua, self._state = lua, lua.luaL_newstate()
        lua.luaL_openlibs(self._state)
        self.run(f"FRAGMENT = {text(str(FRAGMENT))}\n{_WORLD}return ''")

    def run(self, source: str) -> bytes:
        raw = source.encode("utf-8", "surrogateescape")
        status = self._lua.luaL_loadbuffer(self._state, raw, len(raw), b"=test")
        status = status or self._lua.lua_pcall(self._state, 0, 1, 0)
        length = ctypes.c_size_t()
        found = self._lua.lua_tolstring(self._state, -1, ctypes.byref(length))
        answer = bytes(found[: length.value]) if found else b""
        self._lua.lua_settop(self._state, 0)
        assert status == 0, answer
        return answer

    def submit(
        self,
        comment: str | None,
        *,
        site_code: int = 0,
        options: str = 'tag = true, exclude_isolated = "none"',
        job: Mapping[str, object] | None = None,
        partitions: str = "{}",
    ) -> Answer:
        fields = {"comment": comment, "min_nodes": NO_VALUE, **(job or {})}
        table = ", ".join(f"{key} = {_value(value)}" for key, value in fields.items() if value is not None)
        found = self.run(f"return submit({site_code}, {{{options}}}, {{{table}}}, {partitions})")
        return Answer(**json.loads(found))

    def close(self) -> None:
        self._lua.lua_close(self._state)


def _value(value: object) -> str:
    return text(value) if isinstance(value, str) else str(value)


def text(value: str) -> str:
    """A Lua string of exactly these bytes."""
    return '"' + "".join(f"\\{byte:03d}" for byte in value.encode("utf-8", "surrogateescape")) + '"'
