"""A pickle reader that knows no class, no function and no import: numbers, text, lists, tuples and dicts only.

Flight-recorder dumps are pickles, and a pickle is a program: the standard reader runs whatever it names. This one has
no instruction that names anything, so there is nothing to refuse later. It is bounded as well, which a reader with a
refusing `find_class` is not: that one allocates what an index or a length asks for, and hashes keys of any depth.

Errors:
    RefusedPickleError(ValueError)   the position, and what was found there
"""

import re
import struct
from typing import Any

BYTES_MAX = 64 << 20
OPERATIONS_MAX = 5_000_000
DEPTH_MAX = 64
INT_BYTES_MAX = 16
_KEY_MAX = 1 << 60

_GETS = re.compile(rb"(?:h.){1,4096}", re.DOTALL)
_LONG_GETS = re.compile(rb"(?:j.{4}){1,4096}", re.DOTALL)
_LONG_GET = struct.Struct("<xI")
_DOUBLE = struct.Struct(">d")
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
_TUPLE_SIZES = {0x85: 1, 0x86: 2, 0x87: 3}
_INT_SIZES = {0x4B: 1, 0x4D: 2}
_REFUSED = {
    0x63: "a class or function",
    0x93: "a class or function",
    0x52: "a call",
    0x81: "a new object",
    0x92: "a new object",
    0x69: "a new object",
    0x6F: "a new object",
    0x62: "an object's state",
    0x50: "an object outside",
    0x51: "an object outside",
    0x82: "a registered object",
    0x83: "a registered object",
    0x84: "a registered object",
}


class RefusedPickleError(ValueError):
    """Not a pickle of primitives within bounds."""


def read_primitives(data: bytes, *, bytes_max: int = BYTES_MAX, operations_max: int = OPERATIONS_MAX) -> Any:
    """The value of a pickle (protocol 2 to 5) of `None`, bools, ints, floats, texts, lists, tuples and dicts.

    Dict keys must be texts or ints. Text that is no UTF-8 is replaced, not refused. Raises `RefusedPickleError`.
    """
    if len(data) > bytes_max:
        raise RefusedPickleError(f"larger than {bytes_max} bytes")
    machine = _Machine(data, operations_max)
    try:
        return machine.run()
    except (IndexError, KeyError, struct.error) as error:
        # A stack, the memo or the data has no such element: wherever it was noticed, the pickle is broken.
        raise RefusedPickleError(f"at byte {machine.position}: broken or cut off") from error


class _Machine:
    """The stack machine. `position` is where the last instruction other than the commonest began."""

    def __init__(self, data: bytes, operations_max: int) -> None:
        self._data = data
        self._operations_max = operations_max
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self.position = 0

    def run(self) -> Any:
        """Until STOP. The commonest instructions are here, in order of how common they are; the rest in `_rare`."""
        data, memo, most = self._data, self._memo, self._operations_max
        position = operations = 0
        while True:
            operations += 1
            if operations > most:
                raise RefusedPickleError(f"more than {most} instructions")
            code = data[position]
            stack = self._stack
            if code == 0x68:  # BINGET, mostly many in a row
                run = _GETS.match(data, position)
                if run is None:
                    raise RefusedPickleError(f"at byte {position}: cut off")
                indices = data[position + 1 : run.end() : 2]
                stack.extend([memo[index] for index in indices])
                operations += len(indices)
                position = run.end()
            elif code == 0x6A:  # LONG_BINGET, likewise: the frames of a stack trace
                run = _LONG_GETS.match(data, position)
                if run is None:
                    raise RefusedPickleError(f"at byte {position}: cut off")
                found = [memo[index] for (index,) in _LONG_GET.iter_unpack(run.group())]
                stack.extend(found)
                operations += len(found)
                position = run.end()
            elif code == 0x4A:  # BININT
                stack.append(int.from_bytes(self._bytes(position + 1, 4), "little", signed=True))
                position += 5
            elif code == 0x71:  # BINPUT
                memo[data[position + 1]] = stack[-1]
                position += 2
            elif code == 0x72:  # LONG_BINPUT
                memo[int.from_bytes(self._bytes(position + 1, 4), "little")] = stack[-1]
                position += 5
            elif code == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
                position += 1
            elif code == 0x2E:  # STOP
                if len(stack) != 1 or self._marks:
                    raise RefusedPickleError(f"at byte {position}: ends with {len(stack)} values, must be one")
                return stack[0]
            else:
                self.position = position
                position = self._rare(code, position + 1)

    def _bytes(self, start: int, size: int) -> bytes:
        found = self._data[start : start + size]
        if len(found) != size:
            raise RefusedPickleError(f"at byte {start}: cut off")
        return found

    def _rare(self, code: int, after: int) -> int:
        """One instruction; where the next one begins. `after` is behind the instruction's own byte."""
        stack = self._stack
        if code == 0x28:  # MARK
            if len(self._marks) >= DEPTH_MAX:
                raise self._refused(f"nested deeper than {DEPTH_MAX}")
            self._marks.append(stack)
            self._stack = []
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code in _INT_SIZES:
            size = _INT_SIZES[code]
            stack.append(int.from_bytes(self._bytes(after, size), "little"))
            return after + size
        elif code in {0x58, 0x8C, 0x8D}:
            return self._text(code, after)
        elif code == 0x8A:  # LONG1
            size = self._data[after]
            if size > INT_BYTES_MAX:
                raise self._refused(f"a number of {size} bytes")
            stack.append(int.from_bytes(self._bytes(after + 1, size), "little", signed=True))
            return after + 1 + size
        elif code == 0x47:  # BINFLOAT
            stack.append(_DOUBLE.unpack(self._bytes(after, 8))[0])
            return after + 8
        elif code == 0x80:  # PROTO
            if not 2 <= self._data[after] <= 5:
                raise self._refused(f"protocol {self._data[after]}, must be 2 to 5")
            return after + 1
        elif code == 0x95:  # FRAME: only how much to read ahead
            self._bytes(after, 8)
            return after + 8
        else:
            self._container(code)
        return after

    def _text(self, code: int, after: int) -> int:
        width = {0x58: 4, 0x8C: 1, 0x8D: 8}[code]
        size = int.from_bytes(self._bytes(after, width), "little")
        self._stack.append(self._bytes(after + width, size).decode("utf-8", "replace"))
        return after + width + size

    def _container(self, code: int) -> None:
        stack = self._stack
        if code == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif code == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif code == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif code == 0x75:  # SETITEMS
            items = self._pop_mark()
            if len(items) % 2:
                raise self._refused("a key without a value")
            self._set(self._stack[-1], items)
        elif code == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            self._set(stack[-1], [key, value])
        elif code == 0x65:  # APPENDS
            items = self._pop_mark()
            self._list(self._stack[-1]).extend(items)
        elif code == 0x61:  # APPEND
            value = stack.pop()
            self._list(stack[-1]).append(value)
        elif code == 0x74:  # TUPLE
            items = self._pop_mark()
            self._stack.append(tuple(items))
        elif code in _TUPLE_SIZES:
            size = _TUPLE_SIZES[code]
            if len(stack) < size:
                raise self._refused("a tuple of what is not there")
            stack[-size:] = [tuple(stack[-size:])]
        else:
            raise self._refused(_REFUSED.get(code, f"instruction 0x{code:02x}"))

    def _pop_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _list(self, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise self._refused("an element for what is no list")
        return value

    def _set(self, target: Any, items: list[Any]) -> None:
        if not isinstance(target, dict):
            raise self._refused("a key for what is no dict")
        keys = items[::2]
        # Only these hash in constant time and cannot be made to collide: a tuple may hold itself twice, sixty levels
        # deep, and multiples of 2**61 - 1 all have the same hash.
        if not all(isinstance(key, str) or (isinstance(key, int) and abs(key) < _KEY_MAX) for key in keys):
            raise self._refused("a key that is neither text nor a small number")
        target.update(zip(keys, items[1::2], strict=True))

    def _refused(self, what: str) -> RefusedPickleError:
        return RefusedPickleError(f"at byte {self.position}: {what}")
