"""Whether a text is Lua, asked of the Lua library that Slurm's own plugin uses. Nothing of it is run.

A job_submit.lua that does not compile keeps slurmctld from starting, so no text of ours is put in place unchecked.
"""

import ctypes
import ctypes.util

_LIBRARIES = (
    "liblua5.1.so.0",
    "liblua5.4.so.0",
    "liblua5.3.so.0",
    "liblua5.2.so.0",
    "liblua-5.4.so",
    "liblua-5.3.so",
    "liblua-5.1.so",
)
_MESSAGE_BYTES_MAX = 300


class NoLuaError(Exception):
    """There is no Lua library on this host."""


def problem(text: bytes, name: str) -> str:
    """What the compiler says against `text`, or "". Raises NoLuaError."""
    lua = _library()
    lua.luaL_newstate.restype = ctypes.c_void_p
    lua.lua_close.argtypes = [ctypes.c_void_p]
    lua.lua_tolstring.restype = ctypes.c_char_p
    lua.lua_tolstring.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    state = lua.luaL_newstate()
    if not state:
        raise NoLuaError("Lua gave no interpreter")
    try:
        chunk = b"@" + name.encode("utf-8", "replace")
        if hasattr(lua, "luaL_loadbufferx"):
            lua.luaL_loadbufferx.argtypes = [
                *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p)
            ]
            status = lua.luaL_loadbufferx(state, text, len(text), chunk, b"t")
        else:
            lua.luaL_loadbuffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p]
            status = lua.luaL_loadbuffer(state, text, len(text), chunk)
        if status == 0:
            return ""
        said = lua.lua_tolstring(state, -1, None) or b"it does not compile"
        return str(said[:_MESSAGE_BYTES_MAX].decode("utf-8", "replace"))
    finally:
        lua.lua_close(state)


def _library() -> ctypes.CDLL:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NoLuaError("there is no Lua library on this host")
