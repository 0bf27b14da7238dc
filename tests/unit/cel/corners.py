r"""Corners of single functions that were found by asking the scheduler's evaluator: the same kinds of tables as `tables`.

What stands here is what a server does, not what anybody would expect of it.
"""

D = 'device.attributes["gpu.example.com"]'

TRUE = {
    "numbers for people": r"""
        "%f %.0f %.2f".format([-0.0, -0.0, -0.001]) == "0.000000 0 -0.00" && "%.1f".format([1e22]) == "10,000,000,000,000,000,000,000.0"
        "%.250f".format([1.0]).size() == 252 && "%.300f".format([1.0]).size() == 46 && "%.300f".format([0.1]).size() > 46
        "%.256f".format([1.5]) == "1.5" && "%.256f".format([1.0]) == "1" && "%.40000f".format([0.1]).size() == 66
        "%.99999999f".format([1.0]) == "%!(NOVERB)" && "%.99999999e".format(["NaN"]) == "%!(NOVERB)"
        "%e".format([1234.5678]) == "1.234568×10⁰³" && "%e".format([-1e-7]) == "-1.000000×10⁻⁰⁷" && "%e".format([-0.0]) == "0.000000×10⁰⁰"
        "%.1e".format([9.99]) == "9.990000×10⁰⁰" && "%.15e".format([1e300]) == " 1.000000×10³⁰⁰" && "%e".format([1.0 / 0.0]) == "     ∞"
        "%f %f".format([1.0 / 0.0, -1.0 / 0.0]) == "∞ -∞" && "%.3f".format(["NaN"]) == "NaN" && "%f".format(["-Infinity"]) == "-∞"
    """,
    "quoted in lists": r"""
        "%s".format([["é\n\a\u200b\u00ad\u00a0"]]) == "[\"é\\n\\a\\u200b\\u00ad\\u00a0\"]" && "%s".format([["\U000e0001\x7f"]]) == "[\"\\U000e0001\\x7f\"]"
        "%s".format([{"日": b"é"}]) == "{\"日\":b\"é\"}"
    """,
    "searching for nothing": """
        "abc".indexOf("", 3) == 3 && "abc".indexOf("", 9) == 3 && "abc".lastIndexOf("", 1) == 1 && "abc".lastIndexOf("", 9) == 3
    """,
    "names of character classes": r"""
        "Aé".matches(r"^\p{uppercase letter}\p{LETTER}$") && "a".matches(r"\p{_L}") && "a".matches(r"\pl") && "a1".matches(r"\p{Letter}\p{digit}")
        "α".matches(r"^\p{greek}$") && !"α".matches(r"\P{^gReek }\d") && "ǅ".matches(r"^\p{LC}$") && !"1".matches(r"[\p{cased letter}]")
        "a".matches(r"^\p{ascii}$") && !"é".matches(r"[\p{ASCII}]") && "é".matches(r"^[^\p{ASCII}]$") && "é".matches(r"[\P{ASCII}]")
        "\u0378".matches(r"^\p{Cn}\P{Assigned}?$") && !"a".matches(r"[\p{Unassigned}]") && "\u0378a".matches(r"^[\p{Cn}a]{2}$")
        "\u0378\n".matches(r"^\p{C}[\p{Other}]$") && "\u017f".matches(r"(?i)^\p{ascii}$") && "p{lu}".matches(r"^\Qp{lu}\E$") && r"\p{lu}".matches(r"^\\p\{lu\}$")
        "a]p".matches(r"^a[\]]p$") && "(?<é>".matches(r"\(\?<é>") && "é".matches(r"^[(?<é>a)]$") && "x{1001,}".matches(r"^x\{1001,\}$") && "0".matches(r"^[{1001}]$")
    """,
    "urls": r"""
        url("//a/b").getHost() == "a" && url("//a/b").getEscapedPath() == "/b" && url("//").getEscapedPath() == "" && url("///a").getEscapedPath() == "///a"
        !isURL("http://::1") && !isURL("http://a:1:2/") && isURL("db://a:1,b:2/") && url("db://a:1,b:2/").getPort() == "2"
        isURL("http://[fe80::1%25eth0]:8/") && url("http://[fe80::1%25eth0]:8/").getHostname() == "fe80::1%eth0" && url("http://[::1%25a%20b]").getHost() == "[::1%a b]"
        !isURL("http://[1.2.3.4]/") && !isURL("http://[]/") && !isURL("http://[::1%25]/") && !isURL("http://a[::1]/") && !isURL("http://[::1%25%41%00]/")
        url("http://a/?a+b=c+d&e=%26").getQuery() == {"a b": ["c d"], "e": ["&"]} && url("/a%2Fb c").getEscapedPath() == "/a/b%20c"
        isURL("//a b/") && isURL("//u@[/")
    """,
    "calendars": """
        timestamp("2026-01-01T1:00:00Z") == timestamp("2026-01-01T01:00:00Z") && timestamp("2026-01-01T00:00:00,5Z").getMilliseconds() == 500
        string(timestamp("2026-01-01T00:00:00+24:60")) == "2026-01-01T00:00:00+25:00" && timestamp("2026-01-02T00:00:00+24:00") == timestamp("2026-01-01T00:00:00Z")
        string(timestamp("0000-12-31T23:59:59-23:59")) == "0000-12-31T23:59:59-23:59" && timestamp("0001-01-01T00:00:00Z").getFullYear("-01:00") == 0
        timestamp("9999-12-31T23:59:59Z").getFullYear("Asia/Tokyo") == 10000 && timestamp("0001-01-01T00:00:00Z").getHours("America/New_York") == 19
        timestamp("2026-01-01T00:30:00Z").getHours("-00:30") == 0 && timestamp(0).getMinutes("+00:61") == 1 && timestamp(0).getMinutes("-00:-30") == 30
        timestamp("2026-01-01T00:00:00Z").getDayOfYear("800000:00") >= 0 && timestamp(0).getHours("9999999999:00") >= 0
    """,
    "fractions of durations": """
        duration("0.33333333333333333333h") != duration("1199999999999ns") && duration("0.000000000000000000000001s") == duration("0")
    """,
    "approximate quantities": """
        quantity("0.5Mi").sub(1).asApproximateFloat() != 524287.0 && quantity("1234567890123456789").asApproximateFloat() != 1.2345678901234568e+18
        quantity("9Ei").asApproximateFloat() == 9223372036854775807.0 && quantity("1e40").asApproximateFloat() == 1e40
    """,
    "numbers at the edge": """
        dyn(9223372036854775807) == 9223372036854775808.0 && dyn(18446744073709551615u) == 18446744073709551616.0 && 9223372036854775807 < 9223372036854777856.0
        dyn(-9223372036854775808) == -9223372036854775808.0 && !(dyn(-9223372036854775808) in [dyn(-9223372036854775808.0)])
        [1.5, 0.0 / 0.0, 1.0].sort().size() == 3 && [1.0, 0.0 / 0.0].max() == 1.0 && [0.0 / 0.0, 1.0].isSorted() && [0.0 / 0.0].min() != 1.0
        [2.0, 0.0 / 0.0, 1.0].sort()[0] == 2.0 && [2.0, 1.0, 0.0 / 0.0].sort()[0] == 1.0 && [3, 2, 1].sortBy(x, 0.0 / 0.0) == [3, 2, 1]
    """,
    "nothing": """
        !optional.ofNonZeroValue(timestamp("0001-01-01T00:00:00Z")).hasValue() && optional.ofNonZeroValue(timestamp(0)).hasValue()
        optional.ofNonZeroValue(optional.none()).hasValue() && {"a": 2, ?"a": optional.none()}.size() == 0
        {"a": 2, ?"a": optional.none(), "b": 1}.size() == 1 && {?"a": optional.none(), "a": 2}.size() == 1
    """,
    "lists of anything": """
        dyn([1]).flatten() == [1] && dyn(["a"]).flatten() == ["a"] && dyn([]).flatten() == []
    """,
    "odd syntax": f"""
        .size("a") == 1 && has(has(device.driver)) && !has(has({D}.missing))
        1.7976931348623157e308 < 1.0 / 0.0 && 1e-400 == 0.0
    """,
}

FAILING = {
    "time": """
        timestamp(0) - duration("-9223372036854775808ns") > timestamp(0)
        timestamp(0).getHours("01:") == 0
        timestamp(0).getHours("99999999999999999999:00") == 0
    """,
    "keys": f"""
        {{b"a": {D}.index}}.size() == 1
        {{dyn(b"a"): {D}.index}}.size() == 1
    """,
    "text": f"""
        "abc".indexOf("", -1) == 0
        "abc".lastIndexOf("", -1) == 0
        "a".matches({D}.type + r"\\p{{Old_Italic}}")
        url("//u@[/").getHost() == ""
        url("//a b/").getHost() == ""
    """,
}

REFUSED = {
    "literals": r"""
        1e400 == 1.0
        -1e309 == 1.0
        "%.99999999999999999999f".format([1.0]) == ""
        bool(dyn(1))
        uint(dyn(-1)) == 1u
        int(dyn("a")) == 1
        string(dyn(b"\xff")) == ""
    """,
    "patterns": r"""
        "a".matches(r"\p{Old_Italic}")
        "a".matches(r"\p{SignWriting}")
        "a".matches(r"\p{Nope}")
        "a".matches(r"(?P<é>a)")
        "a".matches(r"a{2147483648}")
        "a".matches(r"a{1,99999999999}")
        "a".matches(r"[\C]")
    """,
    "keys that are known": r"""
        true || {1: 1}[dyn({"a": 1})] == 1
        true || [1][dyn(int)] == 1
        true || {b"a": 1}.size() == 1
        [?dyn(1)] == []
        {?"a": dyn(1)} == {}
    """,
    "names": """
        Nope{}
        Nope{a: 1}.a == 1
        kubernetes.Quantity{} == quantity("1")
        kubernetes.Quantity == type(quantity("1"))
        type(device) == kubernetes.DRADevice
        .has(device.driver)
        .nope(1)
    """,
}
