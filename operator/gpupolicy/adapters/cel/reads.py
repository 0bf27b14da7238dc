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

    def visit(self, node: Node, variables: dict[str, Path]) -> None:
        """Note what is read below a node; `variables` says which names stand for parts of the device."""
        path = self._path(node, variables)
        if path is not None:
            self._note(path)
            return
        if isinstance(node, Call) and node.function == "@in" and self._is_lookup(node, variables):
            return
        if isinstance(node, Comprehension):
            self._fold(node, variables)
            return
        for child in children(node):
            self.visit(child, variables)

    def _fold(self, node: Comprehension, variables: dict[str, Path]) -> None:
        inner = {
            name: path for name, path in variables.items() if name not in (node.variable, node.variable2)
        }
        inner.pop(node.accumulator, None)
        bound = self._path(node.initial, variables)
        if isinstance(node.range, ListLiteral) and not node.range.elements and bound is not None:
            # A bound name is another name for a part of the device.
            inner[node.accumulator] = bound
        else:
            self.visit(node.initial, variables)
        self.visit(node.range, variables)
        for part in (node.condition, node.step):
            self.visit(part, inner)
        self.visit(node.result, inner)

    def _is_lookup(self, node: Call, variables: dict[str, Path]) -> bool:
        """Note `"name" in map` as a look at that name only."""
        key, container = node.args
        path = self._path(container, variables)
        if path is None or not (isinstance(key, Literal) and isinstance(key.value, str)):
            return False
        self._note((*path, key.value))
        return True

    def _path(self, node: Node, variables: dict[str, Path]) -> Path | None:
        match node:
            case Ident(name=name):
                if name in variables:
                    return variables[name]
                return () if name.removeprefix(".") == "device" else None
            case Select():
                path = self._path(node.operand, variables)
                return None if path is None else (*path, node.field)
            case Call() if node.function in _ACCESS:
                path = self._path(node.args[0], variables)
                if path is None:
                    return None
                key = node.args[1]
                if isinstance(key, Literal) and isinstance(key.value, str):
                    return (*path, key.value)
                self.visit(key, variables)
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
