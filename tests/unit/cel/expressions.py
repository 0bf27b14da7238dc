"""Random selector expressions, for comparing our engine with a real one.

`Generator` writes expressions that mostly type-check, because random text never gets past the parser. It calls
every function of the declaration table, every macro and operator, on literals, on devices and on variables, and now
and then puts something of the wrong type somewhere. It asks a `choose` function for each decision, so that
`random` and hypothesis can both drive it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from gpupolicy.adapters.cel import declarations, types
from gpupolicy.adapters.cel.declarations import Environment
from gpupolicy.adapters.cel.types import Kind, Type

Choose = Callable[[Sequence[Any]], Any]

DRIVER = "gpu.example.com"

DEVICE: dict[str, Any] = {
    "driver": DRIVER,
    "allowMultipleAllocations": True,
    "attributes": {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "index": {"int": 3},
        "negative": {"int": -7},
        "mig": {"bool": False},
        "on": {"bool": True},
        "driverVersion": {"version": "550.54.15"},
        "cudaComputeCapability": {"version": "9.0.0-rc.1+b2"},
        "empty": {"string": ""},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
        "other.example.com/type": {"string": "x"},
    },
    "capacity": {
        "memory": {"value": "80Gi"},
        "slots": {"value": "1500m"},
        "example.com/big": {"value": "1E"},
    },
}

LIST_DEVICE: dict[str, Any] = {
    "driver": DRIVER,
    "attributes": {
        "type": {"strings": ["gpu", "mig"]},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "index": {"ints": [1, 2, 3]},
        "mig": {"bools": [True, False]},
        "driverVersion": {"versions": ["1.2.3", "550.54.15"]},
        "negative": {"ints": [-1]},
    },
    "capacity": {"memory": {"value": "80Gi"}},
}

_ATTRIBUTES = (
    "type",
    "productName",
    "index",
    "negative",
    "mig",
    "on",
    "driverVersion",
    "cudaComputeCapability",
)
_ATTRIBUTES += ("empty", "missing")
_DOMAINS = (DRIVER, "resource.kubernetes.io", "other.example.com", "absent.example.com")
_CAPACITIES = ("memory", "slots", "missing")

_LITERALS: dict[Kind, tuple[str, ...]] = {
    Kind.BOOL: ("true", "false"),
    Kind.INT: ("0", "1", "2", "3", "-1", "-7", "48", "9223372036854775807", "-9223372036854775808", "0x1F"),
    Kind.UINT: ("0u", "1u", "3u", "18446744073709551615u"),
    Kind.DOUBLE: ("0.0", "1.0", "3.5", "-2.25", "1e3", "1e300", "9007199254740993.0"),
    Kind.STRING: (
        '""',
        '"a"',
        '"gpu"',
        '"NVIDIA H100"',
        '"x,y,z"',
        "'single'",
        'r"raw\\d+"',
        '"héé"',
        '"80Gi"',
        '"1.2.3"',
        '"v1.2"',
        '"10.0.0.1"',
        '"::1"',
        '"10.0.0.0/8"',
        '"https://a.b:80/c?d=e"',
        '"1h30m"',
        '"2026-01-01T00:00:00Z"',
        '"true"',
        '"12"',
        '"-3.5"',
        '"[0-9]+"',
        '"^NV"',
        '"%s"',
        '"%d-%s"',
        '"type"',
        '" padded "',
        '"my-label"',
        '"Not A Label"',
        '"\\n"',
        '"absent.example.com"',
        f'"{DRIVER}"',
        '"YQ=="',
        '"550.54.15"',
        '"1e3"',
        '"0.5"',
        '"fe80::1"',
        '"fd00::/8"',
        '"/a/b%20c?x=1&y=2"',
    ),
    Kind.BYTES: ('b"a"', 'b""', 'b"\\xff"', "b'abc'"),
    Kind.NULL: ("null",),
    Kind.DURATION: ('duration("1h")', 'duration("-1.5s")', 'duration("0")'),
    Kind.TIMESTAMP: (
        'timestamp("2026-01-01T00:00:00Z")',
        'timestamp("1969-12-31T23:59:59.5+01:00")',
        "timestamp(0)",
    ),
}
_SPELLED = {
    "kubernetes.Quantity": ('quantity("80Gi")', 'quantity("1500m")', 'quantity("1e3")', 'quantity("-5")'),
    "kubernetes.Semver": (
        'semver("1.2.3")',
        'semver("550.54.15")',
        'semver("v9", true)',
        'semver("9.0.0-rc.1")',
    ),
    "kubernetes.URL": ('url("https://a.b:80/c?d=e")', 'url("/a/b")'),
    "kubernetes.NamedFormat": (
        "format.dns1123Label()",
        "format.uuid()",
        "format.date()",
        "format.qualifiedName()",
    ),
    "net.IP": ('ip("10.0.0.1")', 'ip("::1")', 'ip("fe80::1")'),
    "net.CIDR": ('cidr("10.0.0.0/8")', 'cidr("fd00::/8")'),
}
_BASIC = (types.BOOL, types.INT, types.STRING, types.DOUBLE, types.UINT, types.BYTES)
_BASIC += (types.parse("quantity"), types.parse("semver"), types.DURATION, types.TIMESTAMP)
_OPERATORS = {
    "_+_": "+", "_-_": "-", "_*_": "*", "_/_": "/", "_%_": "%", "_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">=",
    "_==_": "==", "_!=_": "!=", "@in": "in", "_&&_": "&&", "_||_": "||",
}  # fmt: skip
_HIDDEN = ("@not_strictly_false", "cel.@mapInsert", "@sortByAssociatedKeys")


class Generator:
    """Writes expressions; `wrong` is how often (1 in n) a part has some other type than it should."""

    def __init__(self, choose: Choose, environment: Environment, *, wrong: int = 40) -> None:
        self._choose = choose
        self._wrong = wrong
        self._scope: list[tuple[str, Type]] = []
        self._names = 0
        self._overloads = [
            (name, overload)
            for name, overloads in declarations.functions(environment).items()
            for overload in overloads
            if name not in _HIDDEN
        ]

    def expression(self, depth: int = 3) -> str:
        """Return an expression that should be a bool."""
        return self.of(types.BOOL, depth)

    def of(self, kind: Type, depth: int) -> str:
        """Return an expression of a type."""
        if self._choose(range(self._wrong)) == self._wrong - 1:
            kind = self._choose(_BASIC)
        if kind.kind is Kind.PARAM or kind.is_dyn:
            if self._choose(range(3)):
                return self._attribute(depth)
            kind = self._choose(_BASIC)
        if depth <= 0:
            return self._leaf(kind)
        makers = [self._leaf, self._known, self._function, self._function, self._function]
        if kind.kind is Kind.BOOL:
            makers += [self._quantified, self._presence, self._logic, self._comparison, self._comparison]
            makers += [self._type_test, self._parsed]
        if kind.kind is Kind.STRING:
            makers.append(self._format)
        if kind.kind is Kind.LIST:
            makers += [self._mapped, self._mapped]
        if kind.kind in (Kind.STRING, Kind.INT, Kind.BOOL):
            makers += [self._untyped, self._optional]
        makers += [self._ternary, self._bound]
        maker = self._choose(makers)
        return maker(kind, depth - 1)

    def _leaf(self, kind: Type, _: int = 0) -> str:
        fitting = [name for name, type_ in self._scope if type_ == kind]
        if fitting and self._choose(range(2)):
            return self._choose(fitting)
        if kind.name in _SPELLED:
            return self._choose(_SPELLED[kind.name])
        if kind.kind in _LITERALS:
            return self._choose(_LITERALS[kind.kind])
        return self._container(kind)

    def _container(self, kind: Type) -> str:
        if kind.kind is Kind.LIST:
            count = self._choose(range(4))
            return f"[{', '.join(self.of(kind.params[0], 0) for _ in range(count))}]"
        if kind.kind is Kind.MAP:
            count = self._choose(range(3))
            keys = ('"a"', '"b"', '"c"') if kind.params[0].kind is not Kind.INT else ("1", "2", "3")
            if not self._choose(range(4)):
                key = self._choose(
                    (types.DOUBLE, types.BOOL, types.UINT, types.DURATION, types.DYN, types.NULL)
                )
                keys = tuple(f"dyn({self.of(key, 0)})" for _ in range(3))
            return "{" + ", ".join(f"{keys[i]}: {self.of(kind.params[1], 0)}" for i in range(count)) + "}"
        if kind.name == "optional_type":
            return self._choose(("optional.none()", f"optional.of({self.of(kind.params[0], 0)})"))
        if kind.kind is Kind.TYPE:
            return f"type({self.of(self._choose(_BASIC), 0)})"
        return self.of(self._choose(_BASIC), 0)

    def _known(self, kind: Type, depth: int) -> str:
        if kind.kind is Kind.STRING:
            return "device.driver"
        if kind.kind is Kind.BOOL:
            return self._choose(("device.allowMultipleAllocations", self._leaf(kind)))
        if kind.name == "kubernetes.Quantity":
            domain = self._choose((DRIVER, "example.com", "absent.example.com"))
            return f'device.capacity["{domain}"].{self._choose(_CAPACITIES)}'
        if kind.kind is Kind.MAP and kind.params[0].kind is not Kind.INT:
            return f'device.attributes["{self._choose(_DOMAINS)}"]'
        return self._leaf(kind) if depth < 0 else self.of(kind, depth - 1)

    def _attribute(self, depth: int) -> str:
        domain, name = self._choose(_DOMAINS), self._choose(_ATTRIBUTES)
        forms = (
            f'device.attributes["{domain}"].{name}',
            f'device.attributes["{DRIVER}"].{name}',
            f'device.attributes["{DRIVER}"]["{name}"]',
            f'device.attributes["{DRIVER}"].?{name}.orValue({self.of(self._choose(_BASIC), 0)})',
            f"device.attributes.foo.{name}",
        )
        return self._choose(forms) if depth > 0 else forms[1]

    def _untyped(self, _: Type, depth: int) -> str:
        return self._attribute(depth)

    def _format(self, _: Type, depth: int) -> str:
        kinds = {
            "s": self._choose(_BASIC),
            "d": types.INT,
            "f": types.DOUBLE,
            "x": types.STRING,
            "b": types.BOOL,
            "o": types.UINT,
        }
        letters = [self._choose(tuple(kinds)) for _ in range(self._choose(range(4)))]
        clauses = [
            f"%{'.2' if letter == 'f' and self._choose(range(2)) else ''}{letter}" for letter in letters
        ]
        args = [self._argument(kinds[letter], depth) for letter in letters]
        return f'"{" ".join(clauses)}".format([{", ".join(args)}])'

    def _parsed(self, _: Type, depth: int) -> str:
        maker, reader = self._choose(
            (
                ("quantity", "isInteger()"), ("quantity", "asApproximateFloat() > 1000.0"), ("semver", "minor() > 1"),
                ("isQuantity", ""), ("isSemver", ""), ("isIP", ""), ("isCIDR", ""), ("isURL", ""), ("ip.isCanonical", ""),
                ("ip", "isGlobalUnicast()"), ("ip", "family() == 4"), ("cidr", "prefixLength() > 8"),
                ("cidr", 'masked().containsIP("10.0.0.1")'), ("url", 'getPort() == "80"'), ("url", 'getHost() > "a"'),
                ("url", 'getQuery() == {"a": ["b"]}'), ("url", 'getEscapedPath() < "/b"'), ("int", ""), ("double", ""),
                ("duration", "getSeconds() > 60"), ("timestamp", "getDayOfYear() > 10"), ("bool", ""), ("uint", ""),
            )
        )  # fmt: skip
        text = self._text()
        call = f"{maker}({text})" if self._choose(range(2)) else f"{maker}(cel.bind(t, {text}, t))"
        if maker in ("int", "double", "uint"):
            return f"string({call}) < {self._text()}"
        return f"{call}.{reader}" if reader else call

    def _text(self) -> str:
        """Return a string literal made of pieces that mean something to some parser."""
        pieces = (
            "1",
            "0",
            "00",
            "25",
            "9223372036854775807",
            ".",
            "-",
            "+",
            "e",
            "E",
            "k",
            "Ki",
            "Gi",
            "m",
            "n",
            "u",
            "v",
        )
        pieces += (
            "rc",
            "/",
            ":",
            "::",
            "10.0.0.1",
            "fe80",
            "ffff",
            "a",
            "b",
            "%",
            "%20",
            "https",
            "://",
            "?",
            "=",
            "&",
        )
        pieces += (
            "#",
            "@",
            "[",
            "]",
            "s",
            "h",
            "ms",
            "T",
            "Z",
            "2026-02-30",
            "12:00:00",
            "true",
            "t",
            " ",
            "_",
            "*",
            "x",
        )
        return '"' + "".join(self._choose(pieces) for _ in range(self._choose(range(1, 7)))) + '"'

    def _type_test(self, _: Type, depth: int) -> str:
        left = f"type({self._choose((self._attribute(1), self.of(self._choose(_BASIC), 0)))})"
        names = (
            "int",
            "string",
            "bool",
            "double",
            "bytes",
            "list",
            "map",
            "uint",
            "null_type",
            "type",
            "net.IP",
        )
        names += ("google.protobuf.Duration", "google.protobuf.Timestamp", "optional_type")
        form = self._choose(("{0} == {1}", "{0} in [{1}]", "{0} == type({2})", "{1} == {1}"))
        return form.format(left, self._choose(names), self.of(self._choose(_BASIC), 0))

    def _function(self, kind: Type, depth: int) -> str:
        fitting = [
            (name, overload)
            for name, overload in self._overloads
            if overload.result == kind
            or (overload.result.kind is kind.kind and overload.result.name == kind.name and kind.params)
        ]
        if not fitting:
            return self._leaf(kind)
        name, overload = self._choose(fitting)
        bindings: dict[str, Type] = {p: self._choose(_BASIC) for p in sorted(overload.type_params)}
        unified = types.unify({}, overload.result, kind)
        bindings |= {p: t for p, t in (unified or {}).items() if t.kind is not Kind.PARAM}
        args = [self._argument(types.substitute(bindings, arg), depth) for arg in overload.args]
        if name == "lists.range":
            # Before 1.37 a server really makes a list of any length.
            args = [self._choose(("0", "1", "3", "7"))]
        return _written(name, overload.member, args)

    def _argument(self, kind: Type, depth: int) -> str:
        # An attribute can stand anywhere a simple value can.
        simple = kind.kind in (Kind.STRING, Kind.INT, Kind.BOOL) or kind.name == "kubernetes.Semver"
        if simple and not self._choose(range(3)):
            return self._attribute(depth)
        return self.of(kind, depth)

    def _fresh(self) -> str:
        self._names += 1
        return self._choose(
            (f"v{self._names}", f"v{self._names}", "x", "device" if self._names % 9 == 0 else "y")
        )

    def _range(self, depth: int) -> tuple[str, Type, Type]:
        """Return something to go through, with the types of what one and two variables become."""
        element = self._choose(_BASIC)
        choice = self._choose(range(4))
        if choice == 0:
            return f'device.attributes["{self._choose(_DOMAINS)}"]', types.STRING, types.DYN
        if choice == 1:
            return self._choose(("device.attributes", "device.capacity")), types.STRING, types.DYN
        if choice == 2:
            return self._attribute(0), types.STRING, types.DYN
        return f"{self.of(types.list_of(element), depth)}", element, element

    def _in_scope(self, variables: list[tuple[str, Type]], kind: Type, depth: int) -> str:
        self._scope += variables
        body = self.of(kind, depth)
        del self._scope[-len(variables) :]
        return body

    def _quantified(self, _: Type, depth: int) -> str:
        over, element, value = self._range(depth)
        macro = self._choose(("all", "exists", "exists_one", "existsOne"))
        first, second = self._fresh(), self._fresh()
        if first != second and not self._choose(range(3)):
            body = self._in_scope([(first, types.INT), (second, value)], types.BOOL, depth)
            return f"({over}).{macro}({first}, {second}, {body})"
        return f"({over}).{macro}({first}, {self._in_scope([(first, element)], types.BOOL, depth)})"

    def _mapped(self, kind: Type, depth: int) -> str:
        over, element, value = self._range(depth)
        first, second = self._fresh(), self._fresh()
        macro = self._choose(("map", "map3", "filter", "transformList", "sortBy", "distinct"))
        scope = [(first, element)]
        if macro == "map":
            return f"({over}).map({first}, {self._in_scope(scope, kind.params[0], depth)})"
        if macro == "map3":
            test = self._in_scope(scope, types.BOOL, 0)
            return f"({over}).map({first}, {test}, {self._in_scope(scope, kind.params[0], depth)})"
        if macro == "filter":
            return f"({over}).filter({first}, {self._in_scope(scope, types.BOOL, depth)})"
        if macro == "transformList" and first != second:
            scope = [(first, types.INT), (second, value)]
            return (
                f"({over}).transformList({first}, {second}, {self._in_scope(scope, kind.params[0], depth)})"
            )
        inner = self.of(kind, depth)
        if macro == "sortBy":
            return f"{inner}.sortBy({first}, {self._in_scope([(first, kind.params[0])], types.INT, 0)})"
        return f"{inner}.distinct()"

    def _presence(self, _: Type, depth: int) -> str:
        domain, name = self._choose(_DOMAINS), self._choose(_ATTRIBUTES)
        key = self.of(types.STRING, 0)
        return self._choose(
            (
                f'has(device.attributes["{domain}"].{name})',
                f'"{name}" in device.attributes["{domain}"]',
                f'{key} in device.attributes["{domain}"]',
                f'"{domain}" in device.attributes',
                f'has(device.capacity["{domain}"].memory)',
                f'device.attributes["{domain}"].?{name}.hasValue()',
                f'device.attributes[?"{domain}"][?"{name}"].hasValue()',
                "has(device.driver)",
            )
        )

    def _optional(self, kind: Type, depth: int) -> str:
        name = self._choose(_ATTRIBUTES)
        base = f'device.attributes["{DRIVER}"].?{name}'
        variable = self._fresh()
        body = self._in_scope([(variable, types.DYN), (variable, kind)], kind, min(depth, 1))
        other = self.of(kind, 0)
        return self._choose(
            (
                f"{base}.optMap({variable}, {body}).orValue({other})",
                f"{base}.optFlatMap({variable}, optional.of({body})).orValue({other})",
                f"{base}.or(optional.of({other})).value()",
                f"{base}.orValue({other})",
                f"[{other}][?{self.of(types.INT, 0)}].orValue({other})",
            )
        )

    def _logic(self, _: Type, depth: int) -> str:
        form = self._choose(
            ("{0} && {1}", "{0} || {1}", "!({0})", "{0} && {1} && {2}", "({0} || {1}) && {2}")
        )
        return form.format(*(self.of(types.BOOL, depth) for _ in range(3)))

    def _comparison(self, _: Type, depth: int) -> str:
        kind = self._choose(_BASIC)
        operator = self._choose(("==", "!=", "<", ">", "<=", ">=", "in"))
        if operator == "in":
            return f"{self._argument(kind, depth)} in {self.of(types.list_of(kind), depth)}"
        return f"{self._argument(kind, depth)} {operator} {self._argument(kind, depth)}"

    def _ternary(self, kind: Type, depth: int) -> str:
        parts = (self.of(types.BOOL, depth), self.of(kind, depth), self.of(kind, depth))
        return f"({parts[0]} ? {parts[1]} : {parts[2]})"

    def _bound(self, kind: Type, depth: int) -> str:
        name = self._fresh()
        type_ = self._choose(_BASIC)
        if not self._choose(range(3)):
            value = self._choose((f'device.attributes["{DRIVER}"]', "device", self._attribute(1)))
        else:
            value = self.of(type_, min(depth, 1))
        return f"cel.bind({name}, {value}, {self._in_scope([(name, type_)], kind, depth)})"


def _written(name: str, member: bool, args: list[str]) -> str:
    forms = {
        "!_": "!({0})",
        "-_": "-({0})",
        "_?_:_": "({0} ? {1} : {2})",
        "_[_]": "{0}[{1}]",
        "_[?_]": "{0}[?{1}]",
    }
    if name in _OPERATORS:
        return f"({args[0]} {_OPERATORS[name]} {args[1]})"
    if name in forms:
        return forms[name].format(*args)
    if member:
        return f"({args[0]}).{name}({', '.join(args[1:])})"
    return f"{name}({', '.join(args)})"
