"""What an expression reads of a device: the attributes and capacities by name, or everything.

Devices that agree in what is read get the same verdict, so a pool of thousands is evaluated a few times. Where a name
is computed, or a map of attributes is gone through, the answer is "everything": wrong in neither direction.
"""

from gpupolicy.adapters.cel.syntax import (
    Call,
    Comprehension,
    Ident,
    ListLiteral,
    Literal,
    Node,
    Select,
    children,
)
from gpupolicy.core.selection import Read, Reads

__all__ = ["find"]

_KINDS = frozenset({"attributes", "capacity"})
_ACCESS = frozenset({"_[_]", "_[?_]", "_?._"})
_COMPUTED = "*"

Path = tuple[str, ...]
Scope = dict[str, Path | None]
"""The part of the device that each local name stands for, None where it stands for something else."""


def find(root: Node) -> Reads:
    """Return what an expression reads; macros must be expanded."""
    finder = _Finder()
    finder.visit(root, {})
    if finder.everything:
        return Reads((), everything=True)
    return Reads(tuple(sorted(finder.found)))


class _Finder:
    def __init__(self) -> None:
        self.found: set[Read] = set()
        self.everything = False

    def visit(self, node: Node, scope: Scope) -> None:
        """Note what is read below a node; `scope` says what the local names stand for."""
        path = self._path(node, scope)
        if path is not None:
            self._note(path)
            return
        if isinstance(node, Call) and node.function == "@in" and self._is_lookup(node, scope):
            return
        if isinstance(node, Comprehension):
            self._fold(node, scope)
            return
        for child in children(node):
            self.visit(child, scope)

    def _fold(self, node: Comprehension, scope: Scope) -> None:
        bound = self._path(node.initial, scope)
        if isinstance(node.range, ListLiteral) and not node.range.elements and bound is not None:
            # A bound name is another name for a part of the device; its loop never runs.
            self.visit(node.result, {**scope, node.accumulator: bound})
            return
        self.visit(node.initial, scope)
        self.visit(node.range, scope)
        local: Scope = {**scope, node.accumulator: None}
        self.visit(node.result, local)
        local[node.variable] = None
        if node.variable2:
            local[node.variable2] = None
        for part in (node.condition, node.step):
            self.visit(part, local)

    def _is_lookup(self, node: Call, scope: Scope) -> bool:
        """Note `"name" in map` as a look at that name only."""
        key, container = node.args
        path = self._path(container, scope)
        if path is None or not (isinstance(key, Literal) and isinstance(key.value, str)):
            return False
        self._note((*path, key.value))
        return True

    def _path(self, node: Node, scope: Scope) -> Path | None:
        match node:
            case Ident(name=name):
                if name in scope:
                    return scope[name]
                return () if name.removeprefix(".") == "device" else None
            case Select():
                path = self._path(node.operand, scope)
                return None if path is None else (*path, node.field)
            case Call() if node.function in _ACCESS:
                path = self._path(node.args[0], scope)
                if path is None:
                    return None
                key = node.args[1]
                if isinstance(key, Literal) and isinstance(key.value, str):
                    return (*path, key.value)
                self.visit(key, scope)
                return (*path, _COMPUTED)
            case _:
                return None

    def _note(self, path: Path) -> None:
        if not path:
            self.everything = True
        elif path[0] in _KINDS:
            kind, *steps = path
            if len(steps) < 2 or _COMPUTED in steps[:2]:
                # Whether a domain is there depends on every name in it.
                self.everything = True
            else:
                self.found.add(Read(kind, steps[0], steps[1]))
