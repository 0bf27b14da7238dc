"""Small expressions with what they are on the device of `expressions.DEVICE`: every function, and its corners.

`TRUE` ones match, `FAILING` ones raise an error when they are evaluated, `REFUSED` ones do not compile. The contract tests
put the same tables to the scheduler's own evaluator, so nothing here is a guess.
"""

D = 'device.attributes["gpu.example.com"]'
C = 'device.capacity["gpu.example.com"]'

TRUE = {
    "logic": f"""
        true && true || false
        !false
        !!true
        true ? true : false
        {D}.on
        {D}.missing || true
        !({D}.missing && false)
        false ? {D}.missing : true
        ({D}.type || true)
        !(1 / ({D}.index - 3) == 0 && false)
    """,
    "equality": f"""
        {D}.index == 3.0 && {D}.index == 3u && {D}.index != null
        !({D}.index == "3")
        dyn(1) == 1.0 && dyn(1u) == 1 && dyn(2.5) != 2
        dyn(9007199254740993) == 9007199254740992.0
        !("550.54.15" == {D}.driverVersion)
        {D}.driverVersion != "550.54.15"
        {D}.driverVersion == semver("550.54.15")
        dyn([1, 2]) == [1.0, 2.0] && [1] != [2] && [1] != [1, 2]
        dyn({{"a": 1}}) == {{"a": 1.0}} && {{"a": 1}} != {{"b": 1}}
        [semver("1.0.0")] == [{D}.type] || true
        null == null && !(dyn(null) == 1)
        b"a" == b"\\x61"
        optional.of(dyn(1)) == optional.of(1.0) && optional.none() == optional.none() && optional.of(1) != optional.none()
        device == device
        int == int && type(1) == int && type(1u) == uint && type(null) == null_type && type(int) == type
    """,
    "order": f"""
        1 < 2 && 1 < 1.5 && 1u < 2 && 2.5 > 2u && -1 < 0u
        "a" < "b" && "A" < "a" && "é" > "z" && "" < "a"
        false < true && b"a" < b"b"
        duration("1s") < duration("1m") && timestamp(0) < timestamp(1)
        {D}.index < 3.5 && {D}.index >= 3
        18446744073709551615u > -1 && 9223372036854775807 < 18446744073709551615u
        1e300 > 9223372036854775807
    """,
    "arithmetic": """
        1 + 2 == 3 && 1 - 2 == -1 && 2 * 3 == 6
        -7 / 2 == -3 && -7 % 2 == -1 && 7 % -2 == 1
        1.5 + 1.5 == 3.0 && 1.0 / 0.0 > 1e308 && -1.0 / 0.0 < 0.0
        0.0 / 0.0 != 0.0 / 0.0
        1u + 2u == 3u && 7u / 2u == 3u && 7u % 2u == 1u
        "a" + "b" == "ab" && b"a" + b"b" == b"ab" && [1] + [2] == [1, 2]
        -(-3) == 3 && -(1.5) == -1.5
        duration("1h") + duration("1m") == duration("61m")
        timestamp(0) + duration("1s") == timestamp(1) && duration("1s") + timestamp(0) == timestamp(1)
        timestamp(1) - timestamp(0) == duration("1s") && timestamp(1) - duration("1s") == timestamp(0)
        dyn(1) + 2 == 3
    """,
    "lookup": f"""
        device.driver == "gpu.example.com"
        {D}["type"] == "gpu" && {D}.type == "gpu"
        device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00"
        device.attributes["other.example.com"].type == "x"
        has({D}.type) && !has({D}.missing) && !has(device.attributes["nope"].x)
        has(device.attributes.nope) && device.attributes.?nope.hasValue()
        !("nope" in device.attributes) && "gpu.example.com" in device.attributes
        "type" in {D} && !("type" in device.attributes["nope"])
        size(device.attributes) == 3 && size(device.attributes["nope"]) == 0
        size({D}) == 9 && size({C}) == 2
        device.allowMultipleAllocations
        !has({D}.type.nope) && !{D}.type.?nope.hasValue()
        [1, 2][0] == 1 && [1, 2][dyn(1.0)] == 2 && [1, 2][dyn(1u)] == 2
        {{"a": 1}}.a == 1 && {{1: 2}}[dyn(1u)] == 2 && {{1: 2}}[dyn(1.0)] == 2 && {{1u: 2}}[dyn(1)] == 2 && {{true: 1}}[true] == 1
        !(dyn(1) in {{true: 1}}) && dyn(1.0) in {{1: 1}} && !(dyn(1.5) in {{1: 1}}) && !(dyn(1) in {{1.0: 1}})
        {{dyn(1): 1, dyn(1u): 2}}.size() == 2 && {{1.5: 1}}[1.5] == 1 && {{null: 1}}.size() == 1 && {{"a": 1, "a": 2}}.a == 2
        "a" in ["a", "b"] && !(1 in []) && dyn(1.0) in [1, 2] && !(dyn("1") in [1])
        !({D}.missing in [])
        [1, 2].exists(x, x == {D}.index - 1)
    """,
    "optionals": f"""
        {D}.?type.orValue("none") == "gpu" && {D}.?missing.orValue("none") == "none"
        {D}[?"type"].hasValue() && !{D}[?"missing"].hasValue()
        device.attributes[?"nope"].hasValue()
        {D}.?type.optMap(t, t + "s").orValue("") == "gpus"
        {D}.?missing.optMap(t, t + "s").orValue("none") == "none"
        {D}.?type.optFlatMap(t, t == "gpu" ? optional.of(1) : optional.none()).value() == 1
        {D}.?missing.or({D}.?type).value() == "gpu"
        optional.ofNonZeroValue("").orValue("x") == "x" && optional.ofNonZeroValue(1).value() == 1
        !optional.ofNonZeroValue([]).hasValue() && !optional.ofNonZeroValue({{}}).hasValue()
        !optional.ofNonZeroValue(duration("0")).hasValue() && !optional.ofNonZeroValue(null).hasValue()
        [1, 2][?1].value() == 2 && ![1, 2][?2].hasValue() && ![1, 2][?-1].hasValue()
        [?optional.of(1), ?optional.none()] == [1]
        {{?"a": optional.of(1), ?"b": optional.none()}} == {{"a": 1}}
        optional.unwrap([optional.of(1), optional.none()]) == [1] && [optional.of(1)].unwrapOpt() == [1]
        [1, 2].first().value() == 1 && [1, 2].last().value() == 2 && !([1].filter(x, x > 1).first().hasValue())
        optional.of({{"a": {{"b": 1}}}}).a.b.value() == 1 && !optional.of({{"a": dyn(1)}}).?b.?c.hasValue()
        {C}.?memory.orValue(quantity("0")).isGreaterThan(quantity("1Gi"))
    """,
    "folds": f"""
        [1, 2].all(x, x > 0) && ![1, 2].all(x, x > 1) && [].all(x, false)
        [1, 2].exists(x, x == 2) && ![].exists(x, true)
        [1, 2, 3].exists_one(x, x == 2) && ![2, 2].exists_one(x, x == 2) && [1].existsOne(i, x, true)
        [1, 2].map(x, x * 2) == [2, 4] && [1, 2].map(x, x > 1, x * 2) == [4] && [1, 2].filter(x, x > 1) == [2]
        [1, 0].exists(x, 1 / x == 1) && ![0, 1].all(x, 1 / x == 2)
        [1, 2].all(i, v, v == i + 1) && {{"a": 1}}.exists(k, v, k == "a" && v == 1)
        {{"a": 1, "b": 2}}.existsOne(k, v, v == 2) && {{"a": 1, "b": 2}}.exists_one(k, v, v == 2)
        [3, 4].transformList(i, v, i + v) == [3, 5] && [3, 4].transformList(i, v, v > 3, i) == [1]
        [3, 4].transformMap(i, v, v * 2) == {{0: 6, 1: 8}} && {{"a": 1}}.transformMap(k, v, v > 1, v) == {{}}
        ["a", "b"].transformMapEntry(i, v, {{v: i}}) == {{"a": 0, "b": 1}}
        cel.bind(x, {D}.index, x + x == 6) && cel.bind(x, {D}.missing, true)
        cel.bind(d, device, d.driver == "gpu.example.com") && cel.bind(a, {D}, a.type == "gpu" && a.index == 3)
        cel.bind(x, 1, cel.bind(x, 2, x) + x == 3)
        device.attributes.exists(d, d == "gpu.example.com") && {D}.exists(k, k == "index")
        {D}.exists(k, v, k == "index" && v == 3) && {D}.all(k, k != "")
        ["c", "a"].sortBy(s, s) == ["a", "c"] && [1, 2, 3].sortBy(n, -n) == [3, 2, 1]
        [[2, 1], [3]].map(l, l.sort()) == [[1, 2], [3]]
        [1].exists(device, device == 1)
    """,
    "strings": """
        size("héé") == 3 && "abc".size() == 3 && b"é".size() == 2
        "abc".contains("b") && "abc".startsWith("ab") && "abc".endsWith("bc") && "abc".contains("")
        "abc".charAt(1) == "b" && "abc".charAt(3) == ""
        "hello".indexOf("l") == 2 && "hello".indexOf("l", 3) == 3 && "hello".indexOf("x") == -1 && "".indexOf("") == 0
        "hello".lastIndexOf("l") == 3 && "hello".lastIndexOf("l", 2) == 2 && "a".lastIndexOf("ab") == -1
        "hello".indexOf("l", 9) == -1 && "abc".lastIndexOf("") == 3
        "TÄst".lowerAscii() == "tÄst" && "täst".upperAscii() == "TäST"
        "a,b,c".split(",") == ["a", "b", "c"] && "a,b,c".split(",", 2) == ["a", "b,c"] && "ab".split("") == ["a", "b"]
        "a,b".split(",", 0).size() == 0 && "a,b".split(",", -1) == ["a", "b"] && "".split(",") == [""]
        "abab".replace("a", "x") == "xbxb" && "abab".replace("a", "x", 1) == "xbab" && "ab".replace("", "-") == "-a-b-"
        "abab".replace("a", "x", 0) == "abab" && "abab".replace("a", "x", -1) == "xbxb"
        "abc".substring(1) == "bc" && "abc".substring(1, 2) == "b" && "abc".substring(3) == ""
        " \\t\\u00a0a \\n".trim() == "a"
        ["a", "b"].join() == "ab" && ["a", "b"].join("-") == "a-b" && ["a"].filter(x, false).join("-") == ""
        strings.quote("a\\"\\n") == "\\"a\\\\\\"\\\\n\\""
        "abc".matches("^a.c$") && matches("abc", "b") && !"abc".matches("^b") && "a\\nb".matches("(?s)a.b")
        "NVIDIA H100".find("[0-9]+") == "100" && "abc".find("x") == ""
        "a1b22".findAll("[0-9]+") == ["1", "22"] && "a1b22".findAll("[0-9]+", 1) == ["1"]
        "a1".findAll("[0-9]+", 0).size() == 0 && "aXbX".findAll("X?").size() == 3 && "abc".findAll("").size() == 4
    """,
    "format": """
        "%s|%s|%s".format(["a", 1, true]) == "a|1|true"
        "%d %x %X %o %b".format([10, 255, 255u, 8, 5]) == "10 ff FF 10 101"
        "%x".format(["hi"]) == "6869" && "%x".format([b"\\xff"]) == "ff" && "%b".format([true]) == "1"
        "%f".format([12345.678]) == "12,345.678000" && "%.1f".format([2.25]) == "2.2"
        "%s".format([1234567.0]) == "1.234567e+06" && "%s".format([1.5]) == "1.5"
        "%s".format([[1, "a"]]) == "[1, \\"a\\"]" && "%s".format([{"a": 1}]) == "{\\"a\\":1}"
        "%s".format([null]) == "null" && "100%%".format([]) == "100%"
        "%s".format([duration("90s")]) == "90s" && "%s".format([timestamp(0)]) == "1970-01-01T00:00:00Z"
        "%s".format([int]) == "int" && "%s".format([[1.5, duration("1s")]]) == "[1.500000, duration(\\"1s\\")]"
    """,
    "conversions": """
        int("12") == 12 && int(1.9) == 1 && int(-1.9) == -1 && int(3u) == 3 && int(timestamp(5)) == 5
        int(duration("1s")) == 1000000000 && int("+5") == 5
        uint("12") == 12u && uint(1.9) == 1u && uint(3) == 3u
        double("1.5") == 1.5 && double(1) == 1.0 && double("1e3") == 1000.0 && double("0x1p4") == 16.0
        double("inf") > 1.0 && double("1_0") == 10.0
        string(1) == "1" && string(1u) == "1" && string(true) == "true" && string(b"a") == "a"
        string(1.0) == "1" && string(123456.0) == "123456" && string(1000000.0) == "1e+06" && string(0.00001) == "1e-05"
        string(duration("90m")) == "5400s" && string(duration("-1.5s")) == "-1.5s"
        string(timestamp("2026-01-01T01:00:00.5+01:00")) == "2026-01-01T01:00:00.5+01:00" && string(timestamp(0)) == "1970-01-01T00:00:00Z"
        string(timestamp("2026-01-01T01:00:00-05:30") + duration("1s")) == "2026-01-01T01:00:01-05:30"
        timestamp("2026-01-01T01:00:00+01:00") == timestamp("2026-01-01T00:00:00Z")
        bytes("a") == b"a" && bool("t") && !bool("F") && bool("1")
        duration("1h1m1.5s") == duration("3661500ms") && duration("1us") == duration("1000ns") && duration("0") == duration("0s")
        timestamp(0) == timestamp("1970-01-01T00:00:00Z")
    """,
    "time": """
        timestamp("2026-03-01T12:34:56.789Z").getFullYear() == 2026
        timestamp("2026-03-01T12:34:56.789Z").getMonth() == 2 && timestamp("2026-03-01T00:00:00Z").getDate() == 1
        timestamp("2026-03-01T00:00:00Z").getDayOfMonth() == 0 && timestamp("2026-03-01T00:00:00Z").getDayOfWeek() == 0
        timestamp("2026-03-01T00:00:00Z").getDayOfYear() == 59 && timestamp("2026-03-01T12:34:56.789Z").getHours() == 12
        timestamp("2026-03-01T12:34:56.789Z").getMinutes() == 34 && timestamp("2026-03-01T12:34:56.789Z").getSeconds() == 56
        timestamp("2026-03-01T12:34:56.789Z").getMilliseconds() == 789
        timestamp("2026-01-01T00:30:00Z").getHours("-01:00") == 23 && timestamp("2026-01-01T00:30:00Z").getHours("UTC") == 0
        timestamp("2026-01-01T00:00:00Z").getMinutes("-00:30") == 30
        duration("90m").getHours() == 1 && duration("90m").getMinutes() == 90 && duration("1.5s").getSeconds() == 1
        duration("1.5s").getMilliseconds() == 1500 && duration("-90m").getHours() == -1
    """,
    "lists": """
        [3, 1, 2].min() == 1 && [3, 1, 2].max() == 3 && [1, 2].sum() == 3 && [1.5, 1.0].sum() == 2.5
        ["b", "a"].min() == "a" && [duration("1s"), duration("2s")].sum() == duration("3s")
        [1, 2].isSorted() && ![2, 1].isSorted() && ["a", "a"].isSorted()
        [1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(2) == -1 && [1].indexOf(dyn(1.0)) == 0
        [].sum() == 0 && [1].filter(x, false).sum() == 0
        [1, 2, 3].slice(1, 3) == [2, 3] && [1].slice(0, 0) == []
        [[[1]], [[2]]].flatten(2) == [1, 2] && [[1], []].flatten() == [1]
        lists.range(3) == [0, 1, 2] && lists.range(0) == []
        [dyn(1), dyn(1.0), dyn(2)].distinct().size() == 2
        [1, 1, 2].distinct() == [1, 2] && [1, 2].reverse() == [2, 1] && [3, 1, 2].sort() == [1, 2, 3]
        sets.contains(dyn([1, 2]), [2.0]) && !sets.contains([1], [1, 2]) && sets.contains([1], [])
        sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1], [1, 2]) && !sets.intersects([1], [])
    """,
    "quantities": f"""
        {C}.memory.compareTo(quantity("80Gi")) == 0 && {C}.memory.isGreaterThan(quantity("79Gi"))
        {C}.memory.isLessThan(quantity("81Gi")) && {C}.memory == quantity("81920Mi")
        {C}.memory.asInteger() == 85899345920 && {C}.memory.isInteger()
        !{C}.slots.isInteger() && {C}.slots.asApproximateFloat() == 1.5
        sign({C}.memory) == 1 && sign(quantity("-5")) == -1 && sign(quantity("0")) == 0
        quantity("50k").add(quantity("20k")) == quantity("70k") && quantity("50k").sub(20000) == quantity("30k")
        quantity("50k").add(20).isGreaterThan(quantity("50k"))
        isQuantity("10Gi") && isQuantity("1e3") && isQuantity("-5") && isQuantity("1.5Gi") && isQuantity("1E") && isQuantity("+")
        !isQuantity("10GB") && !isQuantity(" 5") && !isQuantity("") && !isQuantity("1K") && !isQuantity("1.2.3")
        !quantity("1000m").isInteger() && quantity("1k").isInteger() && !quantity("1e-3").isInteger()
        quantity("0.1n") == quantity("1n") && quantity("9999Ei") == quantity("9223372036854775807")
        quantity("1e3").asInteger() == 1000 && quantity("1M").asApproximateFloat() == 1000000.0
        device.capacity["example.com"].big.isGreaterThan(quantity("999P"))
    """,
    "versions": f"""
        {D}.driverVersion.isGreaterThan(semver("550.0.0")) && {D}.driverVersion.major() == 550
        {D}.driverVersion.minor() == 54 && {D}.driverVersion.patch() == 15
        {D}.cudaComputeCapability.isLessThan(semver("9.0.0")) && {D}.cudaComputeCapability == semver("9.0.0-rc.1+other")
        semver("1.0.0-alpha").compareTo(semver("1.0.0-alpha.1")) == -1 && semver("1.0.0-2").isLessThan(semver("1.0.0-10"))
        semver("1.0.0-1").isLessThan(semver("1.0.0-a")) && semver("2.0.0").compareTo(semver("1.9.9")) == 1
        isSemver("1.2.3") && !isSemver("1.2") && !isSemver("v1.2.3") && !isSemver("01.2.3") && isSemver("1.2.3-a+b")
        semver("v1.2", true) == semver("1.2.0") && isSemver("01.01.01", true) && !isSemver("a", true) && isSemver("1", true)
        !isSemver("1.2-a", true) && !isSemver("1.2.3-", false) && !isSemver("1.2.3-01")
    """,
    "network": """
        isIP("10.0.0.1") && isIP("::1") && !isIP("10.0.0.01") && !isIP("::ffff:1.2.3.4") && !isIP("fe80::1%eth0")
        ip("10.0.0.1").family() == 4 && ip("::1").family() == 6 && ip("::1").isLoopback() && ip("0.0.0.0").isUnspecified()
        ip("10.0.0.1").isGlobalUnicast() && !ip("255.255.255.255").isGlobalUnicast() && !ip("224.0.0.1").isGlobalUnicast()
        ip("169.254.1.1").isLinkLocalUnicast() && ip("fe80::1").isLinkLocalUnicast() && ip("224.0.0.5").isLinkLocalMulticast()
        ip("ff12::1").isLinkLocalMulticast() && ip("ff02::1").isLinkLocalMulticast() && !ip("ff05::1").isLinkLocalMulticast()
        ip.isCanonical("::1") && !ip.isCanonical("0:0::1") && string(ip("0:0::1")) == "::1"
        isCIDR("10.0.0.0/8") && isCIDR("10.0.0.1/8") && !isCIDR("10.0.0.0/33") && !isCIDR("10.0.0.0/08") && !isCIDR("10.0.0.0")
        cidr("10.0.0.0/8").containsIP("10.1.1.1") && cidr("10.0.0.0/8").containsIP(ip("10.1.1.1"))
        !cidr("10.0.0.0/8").containsIP("::1") && cidr("10.0.0.0/8").containsCIDR("10.1.0.0/16")
        !cidr("10.1.0.0/16").containsCIDR(cidr("10.0.0.0/8")) && cidr("10.0.0.1/8").prefixLength() == 8
        cidr("10.0.0.1/8").masked() == cidr("10.0.0.0/8") && string(cidr("10.0.0.1/8")) == "10.0.0.1/8"
        cidr("10.0.0.1/8").ip() == ip("10.0.0.1") && cidr("10.0.0.1/8") != cidr("10.0.0.0/8")
        url("https://u@a.b:80/c%20d?e=f&e=g#h").getHost() == "a.b:80" && url("https://a.b:80/").getHostname() == "a.b"
        url("https://a.b:80/").getPort() == "80" && url("HTTPS://a.b/c").getScheme() == "https" && url("/a").getHost() == ""
        url("https://a.b/c%20d").getEscapedPath() == "/c%20d" && url("https://a.b/c d").getEscapedPath() == "/c%20d"
        url("https://a.b/?e=f&e=g&h").getQuery() == {"e": ["f", "g"], "h": [""]} && url("https://[::1]:1/").getHostname() == "::1"
        isURL("https://a.b") && isURL("/a") && !isURL("a.b") && !isURL("") && !isURL("https://a b/") && isURL("mailto:a@b")
        !isURL("https://a:b/") && !isURL("https://a/%zz") && !isURL(":a") && isURL("http://a/b c")
        url("https://a.b") == url("https://a.b") && url("https://a.b") != url("https://a.c")
    """,
    "formats": """
        !format.dns1123Label().validate("my-name").hasValue() && format.dns1123Label().validate("aB").hasValue()
        format.dns1123Label().validate("a.b").hasValue() && !format.dns1123Subdomain().validate("a.b").hasValue()
        format.dns1035Label().validate("1a").hasValue() && !format.dns1035Label().validate("a1").hasValue()
        !format.qualifiedName().validate("a.b/C_d").hasValue() && format.qualifiedName().validate("a/b/c").hasValue()
        !format.labelValue().validate("").hasValue() && format.labelValue().validate("-a").hasValue()
        !format.dns1123LabelPrefix().validate("a-").hasValue() && format.dns1123Label().validate("a-").hasValue()
        !format.uuid().validate("123e4567-e89b-12d3-a456-426614174000").hasValue() && format.uuid().validate("x").hasValue()
        !format.byte().validate("YQ==").hasValue() && format.byte().validate("a").hasValue()
        !format.date().validate("2024-02-29").hasValue() && format.date().validate("2023-02-29").hasValue()
        !format.datetime().validate("2024-02-29T12:00:00Z").hasValue() && format.datetime().validate("2024-02-29").hasValue()
        !format.uri().validate("https://a.b").hasValue() && format.uri().validate("a").hasValue()
        format.named("uuid").hasValue() && !format.named("nope").hasValue() && format.named("uuid").value() == format.uuid()
        format.dns1123Label().validate("aB").value().size() == 1
    """,
    "types": f"""
        type({D}.type) in [string] && type({D}.index) == int && type({D}.driverVersion) == type(semver("1.0.0"))
        type({C}.memory) == type(quantity("1")) && type(ip("::1")) == net.IP && type(cidr("::1/1")) == net.CIDR
        type(duration("1s")) == google.protobuf.Duration && type(timestamp(0)) == google.protobuf.Timestamp
        type(optional.none()) == optional_type && type([]) == list && type({{}}) == map && type(device) == map
        type(1.0) == double && type(b"") == bytes && type(true) == bool
    """,
}

FAILING = {
    "no such key": f"""
        {D}.missing == 1
        device.attributes["nope"].x == 1
        device.attributes.foo.bar == 1
        {D}.type.field == 1
        {{"a": 1}}.b == 1
        {D}.missing && true
        {C}.missing == quantity("1")
        [1].exists(x, {D}.missing == x)
    """,
    "no such overload": f"""
        {D}.productName < 3
        !{D}.type
        {D}.type && true
        {D}.driverVersion == "550.54.15"
        quantity("70k") == quantity("50k").add(quantity("20k"))
        {D}.index.startsWith("a")
        {D}.type + 1 == 2
        "a" in {D}.type
        {D}.type ? true : false
        {D}.type.matches({D}.index)
        {D}.driverVersion.compareTo({D}.type) == 0
        -{D}.on == 1
        size({D}.index) == 1
        {D}.type.hasValue()
    """,
    "numbers": """
        9223372036854775807 + 1 > 0
        -9223372036854775808 - 1 < 0
        9223372036854775807 * 2 > 0
        -(-9223372036854775808) > 0
        -9223372036854775808 / -1 > 0
        1 / 0 == 1
        1 % 0 == 1
        1u / 0u == 1u
        0u - 1u == 0u
        18446744073709551615u + 1u == 0u
        int(1e300 * 1.0) == 1
        uint(-1 * 1) == 1u
        [1, 9223372036854775807].sum() > 0
        timestamp(253402300799) + duration("1s") > timestamp(0)
    """,
    "ranges": """
        [1][1] == 1
        [1][-1] == 1
        [1][dyn(1.5)] == 1
        "abc".charAt(4) == ""
        "abc".substring(4) == ""
        "abc".substring(2, 1) == ""
        "abc".indexOf("a", -1) == 0
        [1].slice(1, 3) == []
        [1].slice(-1, 0) == []
        lists.range(-1) == []
        [[1]].flatten(-1) == []
        [].max() == 1
        optional.none().value() == 1
        ["a", "a"].transformMapEntry(i, v, {v: i}) == {}
    """,
    "parsing": f"""
        quantity("10GB").isLessThan(quantity("1"))
        semver("1.2") == semver("1.2.0")
        ip("10.0.0.256").family() == 4
        cidr("10.0.0.0/33").prefixLength() == 33
        cidr("10.0.0.0/8").containsIP("nope")
        url("nope").getHost() == ""
        {C}.slots.asInteger() == 1
        int({D}.type) == 1
        double({D}.type) == 1.0
        bool({D}.type)
        timestamp({D}.type) == timestamp(0)
        duration({D}.type) == duration("0")
        {D}.type.matches({D}.productName + "(")
        "%d".format([{D}.type]) == ""
        timestamp(0).getHours("Nowhere/Land") == 0
        timestamp(0).getHours("x:y") == 0
    """,
    "results": f"""
        {D}.type
        {D}.index
        {D}.driverVersion
    """,
    "hashing": f"""
        {D}.driverVersion in ["a", "b"]
        {D}.driverVersion in {{"a": 1}}
    """,
    "nothing makes up for it": f"""
        {D}.driverVersion in ["a", "b"] || true
        {D}.driverVersion in {{"a": 1}} || true
        {{{D}.driverVersion: 1}}.size() == 1 || true
        [{D}.missing].distinct() == [] || true
        [1].map(x, {D}.missing).reverse().distinct() == [] || true
        [[1]].flatten({D}.missing) == [] || true
        [1].sortBy(x, x + {D}.missing) == [] || true
    """,
}

REFUSED = {
    "names": """
        devices.driver == ""
        device.nope == 1
        nope(1)
        "a".nope()
        base64.encode(b"a") == ""
        math.greatest(1, 2) == 2
        cel.block([1], true)
        "ab".reverse() == "ba"
        authorizer.path("/").check("get").allowed()
        object.metadata.name == ""
    """,
    "types": f"""
        1 == "a"
        "a" + 1 == ""
        device.driver
        1
        device
        [1]
        device.driver.field == 1
        {C}.memory >= quantity("80Gi")
        {C}.memory == "80Gi"
        {C}.memory.sign() == 1
        {D}.driverVersion < semver("1.0.0")
        {D}.type + 1 == "gpu1"
        !1
        -"a" == ""
        "a".startsWith(1)
        quantity(1) == quantity("1")
        1 ? true : false
        true && 1
        [1].exists(x, x)
        1.exists(x, true)
        size(1) == 1
        [1, "a"].size() == 2
        {D}.index in [3, "x"]
        {{"a": 1, 2: 3}}.size() == 2
        [{D}.type, "a"].size() == 2
        string(type({D}.type)) == ""
        optional.of(1).orValue("a") == 1
        [?1].size() == 1
    """,
    "literals": """
        device.driver.matches("(")
        device.driver.matches("^(?!a)")
        device.driver.find("(") == ""
        "a".matches("a{1001}")
        matches("(", "a")
        duration("1x") == duration("1s")
        timestamp("2026-13-01T00:00:00Z") == timestamp(0)
        int("0x10") == 16
        int(1e300) == 1
        uint(-1) == 1u
        bool("yes")
        string(b"\\xff") == ""
        "%s %d".format(["a"]) == ""
        "%s".format(["a", 1]) == ""
        "%d".format(["a"]) == ""
        "%z".format([1]) == ""
        "%".format([1]) == ""
        9223372036854775808 == 0
        "\\q" == ""
    """,
    "macros": """
        has(device)
        has(device["driver"])
        [1].exists(1, true)
        [1].all(a.b, true)
        [1].map(x + 1, x) == []
        [1].exists(__result__, true)
        [1].all(i, i, true)
        [1].all(1, v, true)
        cel.bind(1, 2, true)
        cel.bind(a.b, 2, true)
        optional.of(1).optMap(1, 2).hasValue()
        "a".sortBy(x, x) == []
        {"a": 1}.sortBy(x, x) == []
        [int].exists(t, t == int)
    """,
    "syntax": """
        true &&
        (true
        true)
        'a
        if
        a b
        device.driver = "a"
        true and true
        device..driver == ""
        [1,, 2].size() == 2
        1 === 1
        !-device.driver
    """,
}


def rows(table: dict[str, str]) -> list[tuple[str, str]]:
    """Return (group, expression) of a table."""
    return [
        (group, line.strip()) for group, text in table.items() for line in text.splitlines() if line.strip()
    ]
